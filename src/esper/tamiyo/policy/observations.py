"""Observations: named features of a host, all finite and between -1 and 1.

Shapes: N = hosts, S = slots, F = features of a host or slot, D = features of an observation.

An observation holds the features of the host, then those of each slot. :data:`HOST_FEATURES` and
:data:`SLOT_FEATURES` describe them; :meth:`ObservationLayout.table` prints them by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.errors import UnknownFeatureError, did_you_mean
from esper.lifecycle.factored_actions import ALPHA_CURVES, ALPHA_SPEED_EPOCHS, STYLES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage

SCORE_STEP = 0.05
"""The unit of score differences in observations."""

STYLE_NAMES = tuple(f"style_{style.name.lower()}" for style in STYLES)
OP_NAMES = tuple(f"did_{op.name.lower()}" for op in Op)
STAGE_NAMES = tuple(f"is_{stage.name.lower()}" for stage in Stage)

TENSOR_KINDS = ("feature_map", "sequence", "vector")
"""The kinds of tensor at slots, in the order of their numbers."""

KIND_NAMES = tuple(f"on_{kind}" for kind in TENSOR_KINDS)

HOST_FEATURES: dict[str, tuple[float, str]] = {
    "progress": (0.0, "epochs trained, as a share of the budget"),
    "train_loss": (0.0, "squashed training loss, relative to guessing"),
    "validation_loss": (0.0, "squashed validation loss, relative to guessing"),
    "loss_gap": (-1.0, "squashed validation loss minus training loss, relative to guessing"),
    "loss_trend": (
        -1.0,
        "squashed decrease of the validation loss in the last epoch, in tenths of guessing",
    ),
    "score": (-1.0, "validation score (accuracy, or the share of bits saved)"),
    "score_trend": (-1.0, "squashed increase of the score in the last epoch, in units of 0.05"),
    "score_trend_slow": (-1.0, "the same over the last four epochs"),
    "below_best": (-1.0, "the same relative to the best score so far; 0 at the best"),
    "gradient_norm": (-1.0, "gradient norm, on a log scale from 1e-4 to 1e2"),
    "gradient_trend": (-1.0, "squashed change of the log gradient norm in the last epoch"),
    "flops_used": (0.0, "squashed FLOPs spent, relative to a reference run"),
    "parameters_added": (0.0, "squashed parameters of the seeds, relative to the host's"),
    "was_restored": (0.0, "1 if the governor rolled the host back in the last epoch"),
    "was_refused": (0.0, "1 if a gate turned the last action into a wait"),
    **dict.fromkeys(OP_NAMES, (0.0, "1 if this was the last op")),
    "task_classes": (-1.0, "number of classes, on a log scale from 2 to 1,000"),
    "task_samples": (-1.0, "training samples, on a log scale from 10 to 100,000"),
    "task_learning_rate": (-1.0, "learning rate, on a log scale from 1e-5 to 1"),
    "task_host_size": (-1.0, "parameters of the host, on a log scale from 100 to 1e8"),
    "task_slots": (-1.0, "slots of the host, on a log scale from 1 to 64"),
    "task_epochs": (-1.0, "epochs of the budget, on a log scale from 1 to 1,000"),
    "task_flop_price": (0.0, "squashed FLOP price, times ten"),
}
"""Each host feature: its smallest value (the largest is 1) and its meaning."""

SLOT_FEATURES: dict[str, tuple[float, str]] = {
    **dict.fromkeys(STAGE_NAMES, (0.0, "1 in this stage")),
    "age": (0.0, "epochs since germination, as a share of the budget, at most 1"),
    "stage_age": (0.0, "squashed epochs in this stage, in units of 3"),
    "alpha": (0.0, "how strongly the seed is blended in"),
    "alpha_target": (0.0, "target of alpha"),
    "alpha_at_rest": (0.0, "1 if alpha has reached its target"),
    "ramp_left": (0.0, "epochs until alpha reaches its target, in units of 8, at most 1"),
    "curve": (0.0, "curve of the ramp, from 0 (linear) to 1 (sigmoid sharp)"),
    **dict.fromkeys(STYLE_NAMES, (0.0, "1 if the seed is blended in this style")),
    "contribution": (-1.0, "squashed score with the seed minus without, in units of 0.05"),
    "is_measured": (0.0, "1 if the contribution was measured in the last epoch"),
    "parameter_share": (
        0.0,
        "squashed parameters of the seed and the fossils, relative to the host's",
    ),
    "gradient_health": (
        -1.0,
        "gradient norm of the seed relative to the host's, on a log scale from 1e-3 to 10",
    ),
    "position": (0.0, "0 for the host's first slot, 1 for its last; 0 if there is only one"),
    **dict.fromkeys(KIND_NAMES, (0.0, "1 if the slot sees this kind of tensor")),
    "width": (-1.0, "channels or features at the slot, on a log scale from 1 to 4,096"),
    "hidden": (-1.0, "hidden units of the block and its fossils, on the same scale; -1 if unknown"),
    "blueprint": (0.0, "(1 + index of the blueprint) / number of blueprints; 0 without a seed"),
}
"""Each slot feature: its smallest value (the largest is 1) and its meaning."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostFacts:
    """The unscaled quantities of each host, ``[N]``."""

    epoch: Integers
    n_epochs: Integers
    train_loss: Floats
    """In the last epoch; NaN before the first."""
    validation_loss: Floats
    previous_validation_loss: Floats
    """One epoch earlier; NaN if there was none."""
    score: Floats
    previous_score: Floats
    older_score: Floats
    """Four epochs earlier, or the first."""
    best_score: Floats
    gradient_norm: Floats
    previous_gradient_norm: Floats
    flops_used: Floats
    """Relative to a reference run."""
    was_restored: Flags
    was_refused: Flags
    last_op: Integers
    """-1 before the first action."""
    n_classes: Integers
    n_samples: Integers
    learning_rate: Floats
    n_parameters: Integers
    flop_price: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotFacts:
    """The unscaled quantities of each slot, ``[N, S]``."""

    stage: Integers
    age_epochs: Integers
    stage_epochs: Integers
    alpha: Floats
    alpha_target: Floats
    alpha_at_rest: Flags
    ramp_epochs_left: Integers
    curve: Integers
    style: Integers
    contribution: Floats
    """Score with the seed minus without, as last measured; 0 if never measured."""
    is_measured: Flags
    parameters: Integers
    """Parameters of the seed and the fossils; 0 without any."""
    gradient_norm: Floats
    blueprint: Integers
    """-1 without a seed."""
    kind: Integers
    """Index into :data:`TENSOR_KINDS`."""
    width: Integers
    """Channels or features of the block's output."""
    hidden: Integers
    """Units between the block's two layers, with those of fossils; 0 if unknown."""


def squash(values: Floats, *, missing: float = 0.0) -> Floats:
    """Return ``x / (1 + |x|)``, in [-1, 1]; ``missing`` for NaN."""
    limited = np.minimum(np.maximum(values, -1e300), 1e300)
    ratios = limited / (1.0 + np.abs(limited))
    return np.where(np.isnan(values), missing, ratios)


def clip(values: Floats, low: float, high: float, *, missing: float = 0.0) -> Floats:
    """Return the values clipped to [low, high]; ``missing`` for NaN."""
    return np.where(np.isnan(values), missing, np.minimum(np.maximum(values, low), high))


def log_scale(
    values: Floats, low: float | Floats, high: float | Floats, *, missing: float = -1.0
) -> Floats:
    """Return values on a log scale that is -1 at ``low`` and 1 at ``high``; ``missing`` for NaN.

    Values outside are clipped.
    """
    clipped = np.minimum(np.maximum(values, low), high)
    scaled = 2.0 * np.log(clipped / low) / np.log(high / low) - 1.0
    return np.where(np.isnan(values), missing, scaled)


def one_hot(numbers: NDArray[np.int64], n: int) -> Floats:
    """Return the one-hot encoding ``[n, ...]`` of numbers; all zeros for -1."""
    rows = np.arange(n).reshape(-1, *(1,) * numbers.ndim)
    return (numbers == rows).astype(np.float64)


class _Sheet:
    """A table of features ``[F, ...]`` that is filled several at a time.

    A NumPy operation costs about as much for one feature as for several, so features with the
    same kind of scale are scaled together.
    """

    def __init__(self, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.names = names
        self.values = np.empty((len(names), *shape))

    def fill(self, names: tuple[str, ...], block: NDArray[Any]) -> None:
        """Set some features."""
        self.values[_indices(names, self.names)] = block

    def squash(self, raw: dict[str, Floats], *, missing: float = 0.0) -> None:
        """Set features from unbounded values."""
        self.fill(tuple(raw), squash(np.array(list(raw.values())), missing=missing))

    def clip(self, raw: dict[str, Floats]) -> None:
        """Set features from shares in [0, 1]."""
        self.fill(tuple(raw), clip(np.array(list(raw.values())), 0.0, 1.0))

    def log_scale(self, raw: dict[str, tuple[NDArray[Any], float, float]]) -> None:
        """Set features from sizes, each with the two ends of its log scale."""
        values, lows, highs = zip(*raw.values(), strict=True)
        shape = (-1, *(1,) * (self.values.ndim - 1))
        ends = (np.array(lows).reshape(shape), np.array(highs).reshape(shape))
        self.fill(tuple(raw), log_scale(np.array(values, np.float64), *ends))

    def one_hot(self, names: tuple[str, ...], numbers: Integers) -> None:
        """Set features to the one-hot encoding of numbers; -1 for none."""
        self.fill(names, one_hot(numbers, len(names)))


@lru_cache(maxsize=64)
def _indices(names: tuple[str, ...], among: tuple[str, ...]) -> list[int]:
    return [among.index(name) for name in names]


def host_columns(hosts: HostFacts, slots: SlotFacts) -> Floats:
    """Return the features of hosts in the order of :data:`HOST_FEATURES`, ``[F, N]``."""
    guess = np.log(np.maximum(hosts.n_classes, 2))
    train, validation = hosts.train_loss / guess, hosts.validation_loss / guess
    before = hosts.previous_validation_loss / guess
    sheet = _Sheet(tuple(HOST_FEATURES), hosts.epoch.shape)
    losses = {"train_loss": train, "validation_loss": validation, "flops_used": hosts.flops_used}
    sheet.squash({name: np.maximum(values, 0.0) for name, values in losses.items()}, missing=1.0)
    sheet.squash(
        {
            "loss_gap": validation - train,
            "loss_trend": (before - validation) / 0.1,
            "score_trend": (hosts.score - hosts.previous_score) / SCORE_STEP,
            "score_trend_slow": (hosts.score - hosts.older_score) / SCORE_STEP,
            "below_best": np.minimum((hosts.score - hosts.best_score) / SCORE_STEP, 0.0),
            "gradient_trend": np.log(hosts.gradient_norm / hosts.previous_gradient_norm),
            "parameters_added": slots.parameters.sum(1) / np.maximum(hosts.n_parameters, 1),
            "task_flop_price": 10.0 * np.maximum(hosts.flop_price, 0.0),
        }
    )
    sheet.log_scale(
        {
            "gradient_norm": (hosts.gradient_norm, 1e-4, 1e2),
            "task_classes": (hosts.n_classes, 2.0, 1e3),
            "task_samples": (hosts.n_samples, 10.0, 1e5),
            "task_learning_rate": (hosts.learning_rate, 1e-5, 1.0),
            "task_host_size": (hosts.n_parameters, 1e2, 1e8),
            "task_slots": (np.full(hosts.epoch.shape, slots.stage.shape[1]), 1.0, 64.0),
            "task_epochs": (hosts.n_epochs, 1.0, 1e3),
        }
    )
    sheet.clip({"progress": hosts.epoch / np.maximum(hosts.n_epochs, 1)})
    sheet.fill(("score",), clip(hosts.score, -1.0, 1.0, missing=-1.0)[None])
    sheet.fill(("was_restored", "was_refused"), np.array([hosts.was_restored, hosts.was_refused]))
    sheet.one_hot(OP_NAMES, hosts.last_op)
    return sheet.values


def slot_columns(hosts: HostFacts, slots: SlotFacts, n_blueprints: int) -> Floats:
    """Return the features of slots in the order of :data:`SLOT_FEATURES`, ``[F, N, S]``."""
    has_seed = slots.blueprint >= 0
    health = slots.gradient_norm / hosts.gradient_norm[:, None]
    sheet = _Sheet(tuple(SLOT_FEATURES), slots.stage.shape)
    sheet.squash(
        {
            "stage_age": slots.stage_epochs / 3.0,
            "contribution": slots.contribution / SCORE_STEP,
            "parameter_share": slots.parameters / np.maximum(hosts.n_parameters, 1)[:, None],
        }
    )
    sheet.clip(
        {
            "age": slots.age_epochs / np.maximum(hosts.n_epochs, 1)[:, None],
            "alpha": slots.alpha,
            "alpha_target": slots.alpha_target,
            "ramp_left": slots.ramp_epochs_left / max(ALPHA_SPEED_EPOCHS),
            "curve": slots.curve / (len(ALPHA_CURVES) - 1),
            "blueprint": (slots.blueprint + 1) / n_blueprints,
        }
    )
    sheet.log_scale(
        {
            "gradient_health": (np.where(has_seed, health, 0.0), 1e-3, 1e1),
            "width": (slots.width, 1.0, 4096.0),
            "hidden": (slots.hidden, 1.0, 4096.0),
        }
    )
    position = np.linspace(0.0, 1.0, slots.stage.shape[1])
    known = (slots.alpha_at_rest, slots.is_measured, np.broadcast_to(position, has_seed.shape))
    sheet.fill(("alpha_at_rest", "is_measured", "position"), np.array(known))
    sheet.one_hot(KIND_NAMES, slots.kind)
    sheet.one_hot(STAGE_NAMES, slots.stage)
    sheet.one_hot(STYLE_NAMES, np.where(has_seed, slots.style, -1))
    return sheet.values


__all__ = [
    "HOST_FEATURES",
    "SCORE_STEP",
    "SLOT_FEATURES",
    "TENSOR_KINDS",
    "HostFacts",
    "ObservationLayout",
    "SlotFacts",
]


class ObservationLayout:
    """The meaning of each column of an observation, for hosts of one design."""

    def __init__(self, slot_config: SlotConfig) -> None:
        self.slot_config = slot_config
        self.n_slots = slot_config.max_slots
        self.n_blueprints = len(slot_config.blueprints)
        self._host = {name: column for column, name in enumerate(HOST_FEATURES)}
        self._slot = {name: column for column, name in enumerate(SLOT_FEATURES)}

    @property
    def size(self) -> int:
        """Number of features of an observation."""
        return len(self._host) + self.n_slots * len(self._slot)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column: ``progress``, ..., ``blocks.0/alpha``, ..."""
        slots = self.slot_config.slot_ids
        return (*self._host, *(f"{slot}/{name}" for slot in slots for name in self._slot))

    @property
    def low(self) -> NDArray[np.float32]:
        """``[D]`` the smallest value of each column; the largest is always 1."""
        host = [low for low, _ in HOST_FEATURES.values()]
        slot = [low for low, _ in SLOT_FEATURES.values()]
        return np.array([*host, *slot * self.n_slots], np.float32)

    @property
    def categories(self) -> dict[int, int]:
        """The number of categories n of each categorical column, whose values are k / n."""
        first, width = len(self._host) + self._slot["blueprint"], len(self._slot)
        return {first + slot * width: self.n_blueprints for slot in range(self.n_slots)}

    def host(self, observations: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """Return a feature of hosts, ``[N]``, from observations ``[N, D]``."""
        return observations[:, _find(name, self._host)]

    def slot(self, observations: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """Return a feature of all slots, ``[N, S]``, from observations ``[N, D]``."""
        return self._by_slot(observations)[:, :, _find(name, self._slot)]

    def stages(self, observations: NDArray[np.float32]) -> Integers:
        """Return the stage of each slot, ``[N, S]``, from observations ``[N, D]``."""
        return self._by_slot(observations)[:, :, : len(Stage)].argmax(2)

    def blueprints(self, observations: NDArray[np.float32]) -> Integers:
        """Return the blueprint in each slot, ``[N, S]``, -1 for none, from ``[N, D]``."""
        shares = self.slot(observations, "blueprint")
        return np.rint(shares * self.n_blueprints).astype(np.int64) - 1

    def encode(self, hosts: HostFacts, slots: SlotFacts) -> NDArray[np.float32]:
        """Return the observations ``[N, D]``."""
        # The scales handle the NaN and infinite values of divisions by zero.
        with np.errstate(all="ignore"):
            host = host_columns(hosts, slots)
            slot = slot_columns(hosts, slots, self.n_blueprints)
        observations = np.empty((host.shape[1], self.size), np.float32)
        observations[:, : len(host)] = host.T
        self._by_slot(observations)[...] = slot.transpose(1, 2, 0)
        return observations

    def table(self) -> str:
        """Return the layout as a Markdown table."""
        rows = ["| columns | feature | range | meaning |", "|---|---|---|---|"]
        for column, (name, (low, meaning)) in enumerate(HOST_FEATURES.items()):
            rows.append(f"| {column} | `{name}` | {low:g} to 1 | {meaning} |")
        width, first = len(self._slot), len(self._host)
        for column, (name, (low, meaning)) in enumerate(SLOT_FEATURES.items()):
            at = f"{first + column} + {width} i"
            rows.append(f"| {at} | `slot/{name}` | {low:g} to 1 | {meaning} |")
        return "\n".join(rows)

    def _by_slot(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        return observations[:, len(self._host) :].reshape(len(observations), self.n_slots, -1)


def _find(name: str, columns: dict[str, int]) -> int:
    if name not in columns:
        hint = did_you_mean(name, columns)
        raise UnknownFeatureError(
            f"there is no feature {name!r}; see ObservationLayout.table().{hint}"
        )
    return columns[name]
