"""What an evaluation measured, host by host. Shapes: R = training runs, N = hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from esper.arrays import Floats
from esper.errors import EvidenceError, did_you_mean
from esper.storage.dataclass_json import read_json_values, to_json_values

Kind = Literal[
    "learned", "tuned", "simple", "same_epochs", "same_flops", "same_parameters", "ablation"
]
"""What an arm is for the learned one, which decides what can be claimed against it:

learned          a controller that was trained
tuned            a rule or setting that was chosen with host runs of its own
simple           a rule that nothing was chosen for
same_epochs      the learned arm's final architecture from scratch, for as many epochs
same_flops       the learned arm's final architecture from scratch, for as many FLOPs
same_parameters  a static network with as many parameters
ablation         the learned arm with something taken from it
"""
KINDS: tuple[Kind, ...] = get_args(Kind)

DIGITS = 6
"""Decimals that results are kept with, in memory as in files, so that both give one verdict."""

_PER_HOST = ("accuracy", "flops", "parameters", "n_epochs")


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """How one way of training hosts did, on the hosts that all arms share.

    Arms that follow no training run have R = 1. Values are rounded to six decimals.

    Raises:
        EvidenceError: If shapes do not fit together or a value is not finite.
    """

    name: str
    """For machines, such as ``heuristic``."""
    label: str
    """For sentences, such as "the tuned heuristic"."""
    kind: Kind = "simple"
    """What it is for the learned arm."""
    setting: str = ""
    """What was chosen, such as "widen_large in blocks.0 at epoch 0, stop after 7"."""
    accuracy: Floats
    """``[R, N]`` score on the test split."""
    flops: Floats
    """``[R, N]`` all training FLOPs, as a share of the reference run's."""
    parameters: Floats
    """``[R, N]`` of the final network."""
    n_epochs: Floats
    """``[R, N]`` that the host trained."""
    grown_share: Floats
    """``[R]`` share of hosts in which something was committed while they trained."""
    tuning_runs: int = 0
    """Host runs spent on the choice; for learned arms those of training, mean over runs."""
    test_reads: int | None = None
    """How often a host was scored on the test split, at most; None if it was not counted."""

    def __post_init__(self) -> None:
        if not self.name or not self.label:
            raise EvidenceError(f"an arm is named {self.name!r}, {self.label!r}; name it in both.")
        if self.kind not in KINDS:
            raise EvidenceError(
                f"arm {self.name} is of kind {self.kind!r}; kinds are {', '.join(KINDS)}."
                f"{did_you_mean(self.kind, KINDS)}"
            )
        if self.tuning_runs < 0:
            raise EvidenceError(
                f"arm {self.name} has {self.tuning_runs} tuning_runs; count from 0."
            )
        if self.test_reads is not None and self.test_reads < 1:
            raise EvidenceError(f"arm {self.name} has {self.test_reads} test_reads; count from 1.")
        for name in (*_PER_HOST, "grown_share"):
            self._keep(name, getattr(self, name))
        self._require_shapes()

    @property
    def n_runs(self) -> int:
        """How many training runs it has results of; 1 for arms that have none."""
        return self.accuracy.shape[0]

    @property
    def n_hosts(self) -> int:
        """How many hosts it has results of."""
        return self.accuracy.shape[1]

    def score(self, price: float) -> Floats:
        """Return ``[R, N]`` accuracy minus the price of its FLOPs."""
        return self.accuracy - price * self.flops

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return to_json_values(self)

    @classmethod
    def from_json(cls, values: object) -> Arm:
        """Return what :meth:`to_json` gave.

        Raises:
            EvidenceError: If something is missing, unknown or of another type.
        """
        return cls(**read_json_values(cls, values, "an arm"))

    def _keep(self, name: str, values: ArrayLike) -> None:
        """Store values rounded, where nobody can change them."""
        array = np.round(np.asarray(values, np.float64), DIGITS)
        if not np.isfinite(array).all():
            raise EvidenceError(
                f"arm {self.name} has {name} that are not finite; leave out arms that failed."
            )
        if name != "accuracy" and (array < 0.0).any():
            raise EvidenceError(
                f"arm {self.name} has {name} down to {array.min():g}; count from 0."
            )
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    def _require_shapes(self) -> None:
        shape = self.accuracy.shape
        if len(shape) != 2 or 0 in shape:
            raise EvidenceError(
                f"arm {self.name} has accuracy of shape {shape}; runs by hosts are needed."
            )
        for name in _PER_HOST[1:]:
            if getattr(self, name).shape != shape:
                raise EvidenceError(
                    f"arm {self.name} has {name} of shape {getattr(self, name).shape} and "
                    f"accuracy of {shape}; give every host of every run both."
                )
        if self.grown_share.shape != shape[:1] or (self.grown_share > 1.0).any():
            raise EvidenceError(
                f"arm {self.name} has grown_share {self.grown_share.tolist()}; "
                f"give a share from 0 to 1 for each of {shape[0]} runs."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All arms of an evaluation at one price of computing, and how they were measured.

    Raises:
        EvidenceError: If arms are not of the same hosts and runs, or an arm or run is there twice.
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the task, as plain values."""
    price: float
    """Score that the FLOPs of one reference run cost."""
    learned_price: float | None = None
    """Price that the controllers learned at; None if none learned, or it is not known."""
    reference: str = "one run of the widest host"
    """What the FLOPs are a share of, in words."""
    seed: int = 0
    """Which the draws of hosts follow from."""
    purpose: str = "evaluation"
    """The space of draws, shared with no training and no tuning."""
    split: str = "test"
    """What hosts were scored on."""
    runs: tuple[str, ...]
    """Names of the training runs, in the order of R."""
    arms: tuple[Arm, ...]
    learned: str = "learned"
    """Name of the arm that claims are about."""
    created: str = ""
    """Day and time, ISO 8601."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of Esper and of what it computed with."""
    command: str = ""
    """What gives these results again."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.price) and self.price >= 0.0):
            raise EvidenceError(f"price is {self.price}; give a finite number from 0.")
        learned_price = 0.0 if self.learned_price is None else self.learned_price
        if not (np.isfinite(learned_price) and learned_price >= 0.0):
            raise EvidenceError(f"learned_price is {learned_price}; give a finite number from 0.")
        names = [arm.name for arm in self.arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise EvidenceError(f"arm {twice[0]} is there twice; give each arm a name of its own.")
        again = sorted({name for name in self.runs if self.runs.count(name) > 1})
        if again:
            raise EvidenceError(f"run {again[0]} is there twice; a training run counts once.")
        own = self.arm(self.learned)
        if own.n_runs != len(self.runs):
            raise EvidenceError(
                f"arm {own.name} has {own.n_runs} runs and {len(self.runs)} are named; name each."
            )
        for arm in self.arms:
            if arm.n_hosts != own.n_hosts or arm.n_runs not in (1, own.n_runs):
                raise EvidenceError(
                    f"arm {arm.name} has {arm.n_runs} runs on {arm.n_hosts} hosts and {own.name} "
                    f"{own.n_runs} on {own.n_hosts}; give all arms the same hosts and runs."
                )

    @property
    def n_hosts(self) -> int:
        """How many hosts every arm was measured on."""
        return self.own.n_hosts

    @property
    def own(self) -> Arm:
        """The arm that claims are about."""
        return self.arm(self.learned)

    @property
    def others(self) -> tuple[Arm, ...]:
        """Every arm but the one that claims are about."""
        return tuple(arm for arm in self.arms if arm.name != self.learned)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return to_json_values(self) | {"arms": [arm.to_json() for arm in self.arms]}

    @classmethod
    def from_json(cls, values: object) -> Evidence:
        """Return what :meth:`to_json` gave.

        Raises:
            EvidenceError: If something is missing, unknown or of another type.
        """
        read = read_json_values(cls, values, "an entry")
        read["arms"] = tuple(Arm.from_json(arm) for arm in read["arms"])
        return cls(**read)

    def arm(self, name: str) -> Arm:
        """Return the arm of a name.

        Raises:
            EvidenceError: If there is none.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = [arm.name for arm in self.arms]
        raise EvidenceError(
            f"there is no arm {name!r}; arms are {', '.join(names) or 'none'}."
            f"{did_you_mean(name, names)}"
        )
