"""The results of an evaluation, host by host. Shapes: R = training runs, N = hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from esper.arrays import Floats
from esper.errors import EvidenceError, did_you_mean
from esper.formatting import html_table, many
from esper.storage.dataclass_json import read_json_values, to_json_values

Kind = Literal[
    "learned", "tuned", "simple", "same_epochs", "same_flops", "same_parameters", "ablation"
]
"""The kind of an arm, which determines what can be claimed against it:

learned          a trained controller
tuned            a rule or setting that was tuned with host runs of its own
simple           a rule without tuning
same_epochs      the learned arm's final architecture from scratch, for as many epochs
same_flops       the learned arm's final architecture from scratch, for as many FLOPs
same_parameters  a static network with as many parameters
ablation         the learned arm with something removed
"""
KINDS: tuple[Kind, ...] = get_args(Kind)

DIGITS = 6
"""Decimals of all results, in memory and in files, so that both give the same verdict."""

_PER_HOST = ("accuracy", "flops", "parameters", "n_epochs")


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """The results of one arm, on the hosts that all arms share.

    Arms that do not depend on training runs have R = 1. Values are rounded to six decimals.

    Raises:
        EvidenceError: If shapes do not match or a value is invalid.
    """

    name: str
    """A short name, such as ``heuristic``."""
    label: str
    """The arm in a sentence, such as "the tuned heuristic"."""
    kind: Kind = "simple"
    """Its relation to the learned arm."""
    setting: str = ""
    """The tuned setting, such as "widen_large in blocks.0 from the start, stop after 7"."""
    accuracy: Floats
    """``[R, N]`` score on the test split."""
    flops: Floats
    """``[R, N]`` total training FLOPs, as a share of the reference run's."""
    parameters: Floats
    """``[R, N]`` parameters of the final network."""
    n_epochs: Floats
    """``[R, N]`` epochs that the host trained."""
    grown_share: Floats
    """``[R]`` share of hosts in which a seed was committed during training."""
    tuning_runs: int = 0
    """Host runs spent on tuning; for learned arms the episodes of training, mean over runs."""
    test_reads: int | None = None
    """Maximum number of times a host was scored on the test split; None if not counted."""

    def __post_init__(self) -> None:
        if not self.name or not self.label:
            raise EvidenceError(
                f"an arm has name {self.name!r} and label {self.label!r}; give both."
            )
        if self.kind not in KINDS:
            raise EvidenceError(
                f"arm {self.name} has kind {self.kind!r}; kinds are {', '.join(KINDS)}."
                f"{did_you_mean(self.kind, KINDS)}"
            )
        if self.tuning_runs < 0:
            raise EvidenceError(
                f"arm {self.name} has tuning_runs {self.tuning_runs}; it must be at least 0."
            )
        if self.test_reads is not None and self.test_reads < 1:
            raise EvidenceError(
                f"arm {self.name} has test_reads {self.test_reads}; it must be at least 1."
            )
        for name in (*_PER_HOST, "grown_share"):
            self._store(name, getattr(self, name))
        self._require_shapes()

    def __repr__(self) -> str:
        return f"Arm({self.name!r}, {self._text()})"

    def _repr_html_(self) -> str:
        rows = [(name, text) for name, text in self._means().items()]
        heads = ("", f"{self.name}, mean of {many(self.n_hosts, 'host')}")
        setting = [("setting", self.setting)] if self.setting else []
        return html_table(heads, [("kind", self.kind), *setting, *rows], n_left=2)

    def _means(self) -> dict[str, str]:
        return {
            "accuracy": f"{self.accuracy.mean():.3f}",
            "FLOPs": f"{self.flops.mean():.3f}",
            "parameters": f"{self.parameters.mean():,.0f}",
            "epochs": f"{self.n_epochs.mean():.1f}",
        }

    def _text(self) -> str:
        means = ", ".join(f"{name} {text}" for name, text in self._means().items())
        return f"{many(self.n_hosts, 'host')}: mean {means}"

    @property
    def n_runs(self) -> int:
        """Number of training runs; 1 for arms that do not depend on training."""
        return self.accuracy.shape[0]

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.accuracy.shape[1]

    def score(self, price: float) -> Floats:
        """Return the score ``[R, N]``: accuracy minus the price of the FLOPs."""
        return self.accuracy - price * self.flops

    def to_json(self) -> dict[str, Any]:
        """Return the arm as plain values."""
        return to_json_values(self)

    @classmethod
    def from_json(cls, values: object) -> Arm:
        """Return the values from what :meth:`to_json` returned.

        Raises:
            EvidenceError: If something is missing, unknown or of another type.
        """
        return cls(**read_json_values(cls, values, "an arm"))

    def _store(self, name: str, values: ArrayLike) -> None:
        """Store values as a rounded, read-only array."""
        array = np.round(np.asarray(values, np.float64), DIGITS)
        if not np.isfinite(array).all():
            raise EvidenceError(
                f"arm {self.name} has {name} that is not finite; leave out arms that failed."
            )
        if name != "accuracy" and (array < 0.0).any():
            raise EvidenceError(
                f"arm {self.name} has {name} down to {array.min():g}; it must be at least 0."
            )
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    def _require_shapes(self) -> None:
        shape = self.accuracy.shape
        if len(shape) != 2 or 0 in shape:
            raise EvidenceError(
                f"arm {self.name} has accuracy of shape {shape}; expected runs by hosts."
            )
        for name in _PER_HOST[1:]:
            if getattr(self, name).shape != shape:
                raise EvidenceError(
                    f"arm {self.name} has {name} of shape {getattr(self, name).shape} and "
                    f"accuracy of {shape}; they must be equal."
                )
        if self.grown_share.shape != shape[:1] or (self.grown_share > 1.0).any():
            raise EvidenceError(
                f"arm {self.name} has grown_share {self.grown_share.tolist()}; "
                f"expected a share from 0 to 1 for each of {shape[0]} runs."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All arms of an evaluation at one price of FLOPs, and how they were measured.

    Raises:
        EvidenceError: If arms differ in hosts or runs, or an arm or run appears twice.
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the task, as plain values."""
    price: float
    """Score that the FLOPs of one reference run cost."""
    learned_price: float | None = None
    """Price that the controllers learned at; None if none learned or it is unknown."""
    reference: str = "one run of the widest host"
    """The run that FLOPs are a share of, in words."""
    seed: int = 0
    """Number of the first host."""
    purpose: str = "evaluation"
    """The purpose that hosts were drawn for; purposes never share a host."""
    split: str = "test"
    """The split that hosts were scored on."""
    runs: tuple[str, ...]
    """Names of the training runs, in the order of R."""
    arms: tuple[Arm, ...]
    learned: str = "learned"
    """Name of the arm that claims are about."""
    created: str = ""
    """Date and time, ISO 8601."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Versions of Esper and its dependencies."""
    command: str = ""
    """The command that reproduces these results."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.price) and self.price >= 0.0):
            raise EvidenceError(f"price is {self.price}; it must be at least 0 and finite.")
        learned_price = 0.0 if self.learned_price is None else self.learned_price
        if not (np.isfinite(learned_price) and learned_price >= 0.0):
            raise EvidenceError(
                f"learned_price is {learned_price}; it must be at least 0 and finite."
            )
        names = [arm.name for arm in self.arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise EvidenceError(f"arm {twice[0]} appears twice; give each arm its own name.")
        again = sorted({name for name in self.runs if self.runs.count(name) > 1})
        if again:
            raise EvidenceError(f"run {again[0]} appears twice; give each training run once.")
        own = self.arm(self.learned)
        if own.n_runs != len(self.runs):
            raise EvidenceError(
                f"arm {own.name} has {own.n_runs} runs but {len(self.runs)} are named; name each."
            )
        for arm in self.arms:
            if arm.n_hosts != own.n_hosts or arm.n_runs not in (1, own.n_runs):
                raise EvidenceError(
                    f"arm {arm.name} has {arm.n_runs} runs on {arm.n_hosts} hosts and {own.name} "
                    f"{own.n_runs} on {own.n_hosts}; give all arms the same hosts and runs."
                )

    @property
    def n_hosts(self) -> int:
        """Number of hosts that every arm was measured on."""
        return self.own.n_hosts

    @property
    def own(self) -> Arm:
        """The arm that claims are about."""
        return self.arm(self.learned)

    @property
    def others(self) -> tuple[Arm, ...]:
        """All arms except the one that claims are about."""
        return tuple(arm for arm in self.arms if arm.name != self.learned)

    def __repr__(self) -> str:
        from esper.evidence.claims import verdict_sentences

        at = f"Evidence on {self.task} at price {self.price:g}, {self.n_hosts} held-out hosts"
        return "\n".join([at, *verdict_sentences(self)])

    def _repr_html_(self) -> str:
        from esper.evidence.text import to_html

        return to_html(self)

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as plain values."""
        return to_json_values(self) | {"arms": [arm.to_json() for arm in self.arms]}

    @classmethod
    def from_json(cls, values: object) -> Evidence:
        """Return the values from what :meth:`to_json` returned.

        Raises:
            EvidenceError: If something is missing, unknown or of another type.
        """
        read = read_json_values(cls, values, "an entry")
        read["arms"] = tuple(Arm.from_json(arm) for arm in read["arms"])
        return cls(**read)

    def arm(self, name: str) -> Arm:
        """Return the arm with a name.

        Raises:
            EvidenceError: If there is none.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = [arm.name for arm in self.arms]
        raise EvidenceError(
            f"unknown arm {name!r}; arms are {', '.join(names) or 'none'}."
            f"{did_you_mean(name, names)}"
        )


class EvidenceList(list[Evidence]):
    """The results of an evaluation at each price."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "no evidence"

    def _repr_html_(self) -> str:
        from esper.evidence.text import to_html

        return "".join(map(to_html, self))
