"""The results of several controllers on the same hosts, and how they were measured."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import numpy as np

from esper.arrays import Floats
from esper.config.checks import NonNegativeFloat, check, types_of
from esper.errors import ConfigError, EvidenceError, did_you_mean, shown
from esper.results.arms import LEARNED, NO_GROWTH, Arm
from esper.statistics import Interval, paired_interval
from esper.version import __version__

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BestHost:
    """The episode with the highest return, so that its host can be grown again."""

    number: int
    """Number of the host, from 0."""
    actions: list[list[int]]
    """The action of each step, a choice for each head."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All arms of an evaluation at one price of FLOPs, and how they were measured.

    Raises:
        EvidenceError: If arms differ in hosts or runs, or an arm or run appears twice.
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the task, as plain values."""
    price: float | None
    """Score that the FLOPs of one reference run cost; None if each host has its own price."""
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
    learned: str = LEARNED
    """Name of the arm that claims are about."""
    created: str = ""
    """Date and time, ISO 8601."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Versions of Esper and its dependencies."""
    command: str = ""
    """The command that reproduces these results."""
    notes: tuple[str, ...] = ()
    """Further sentences about the controller that claims are about."""
    unfinished: tuple[str, ...] = ()
    """Training runs that were not done, or that other software resumed, and how."""
    test_pool: int | None = None
    """Test samples that all hosts share; None if each host has its own."""
    best_host: BestHost | None = None
    """Its best episode, if it is known."""

    def __post_init__(self) -> None:
        try:
            for name in ("price", "learned_price"):
                check(name, getattr(self, name), NonNegativeFloat | None)
        except ConfigError as error:
            raise EvidenceError(str(error)) from error
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
        """All arms except the one under test."""
        return tuple(arm for arm in self.arms if arm.name != self.learned)

    @property
    def gain(self) -> Interval | None:
        """The score minus that of the same hosts with no growth; None if not measured."""
        plain = next((arm for arm in self.arms if arm.name == NO_GROWTH), None)
        if plain is None:
            return None
        return paired_interval(self.own.score, plain.score)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was shown, in words: the verdict, a line for each other arm, and notes."""
        from esper.results.sentences import comparison_sentences, verdict_sentences

        return (*verdict_sentences(self), *comparison_sentences(self), *self.notes)

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        at = "" if self.price is None else f" at price {self.price:g}"
        return f"Evidence on {self.task}{at}, {self.n_hosts} held-out hosts\n{self}"

    def _repr_html_(self) -> str:
        from esper.results.tables import to_html

        return to_html(self)

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as plain values."""
        return to_json_values(self)

    @classmethod
    def from_json(cls, values: object) -> Evidence:
        """Return the values from what :meth:`to_json` returned.

        Raises:
            EvidenceError: If something is missing, unknown or of another type.
        """
        return read_json_values(cls, values)

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
        from esper.results.tables import to_html

        return "".join(map(to_html, self))


def make_evidence(
    arms: Sequence[Arm],
    *,
    task: str,
    task_options: Mapping[str, Any],
    n_epochs: int,
    price: float | None,
    runs: tuple[str, ...],
    **facts: Any,
) -> Evidence:
    """Return the evidence of arms, the first of which claims are about, with today's versions.

    Args:
        arms: The results.
        task: The task that they were measured on.
        task_options: Its options.
        n_epochs: Epochs of its reference run.
        price: Score that the FLOPs of one reference run cost.
        runs: Names of the training runs.
        **facts: Further fields of :class:`Evidence`.
    """
    import torch

    defaults: dict[str, Any] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "esper": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    return Evidence(
        task=task,
        task_options=dict(task_options),
        price=price,
        reference=f"training the reference host of {task} for {n_epochs} epochs",
        runs=runs,
        arms=tuple(arms),
        learned=arms[0].name,
        **(defaults | facts),
    )


def to_json_values(value: Any) -> Any:
    """Return a dataclass, and what it holds, as JSON values: arrays and tuples as lists."""
    if is_dataclass(value):
        return {field.name: to_json_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return cast("Any", value).tolist()
    if isinstance(value, tuple):
        return [to_json_values(one) for one in cast("tuple[Any, ...]", value)]
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value


def read_json_values(kind: type[T], values: object) -> T:
    """Return the dataclass that :func:`to_json_values` was given.

    Raises:
        EvidenceError: If a field is missing, unknown or of another type.
    """
    what = kind.__name__
    if not isinstance(values, dict):
        raise EvidenceError(f"{what} is {shown(values)}; it must be a JSON object.")
    read, known = cast("dict[str, Any]", values), types_of(kind)
    for name in read:
        if name not in known:
            raise EvidenceError(
                f"{what} has a field {name!r}; fields are {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )
    for name in known:
        if name not in read:
            raise EvidenceError(f"{what} has no field {name!r}; the file is incomplete.")
    try:
        return kind(**{name: _read(f"{what}.{name}", read[name], known[name]) for name in known})
    except ConfigError as error:
        raise EvidenceError(str(error)) from error


def _read(name: str, value: Any, kind: Any) -> Any:
    if kind == Floats:
        return _numbers(name, value)
    for inner in (kind, *get_args(kind)):
        if is_dataclass(inner) and isinstance(inner, type):
            if isinstance(value, list):
                return tuple(read_json_values(inner, one) for one in cast("list[Any]", value))
            is_none = value is None and NoneType in get_args(kind)
            return None if is_none else read_json_values(inner, value)
    return check(name, value, kind)


def _numbers(name: str, value: object) -> Floats:
    try:
        array = np.asarray(cast("Any", value) if isinstance(value, list) else "")
    except ValueError:  # ragged
        array = np.asarray("")
    if array.dtype.kind not in "if":
        raise EvidenceError(
            f"{name} is {shown(cast(object, value))}; it must be an array of numbers."
        )
    return array.astype(np.float64)
