"""Observations: named features of a host, all finite and between -1 and 1.

Shapes: N = hosts, S = slots, F = features of a host or slot, D = features of an observation.

An observation holds the features of the host, then those of each slot. :data:`HOST_FEATURES` and
:data:`SLOT_FEATURES` describe them; :meth:`ObservationLayout.table` prints them by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.errors import UnknownFeatureError, did_you_mean
from esper.lifecycle.factored_actions import ALPHA_CURVES, ALPHA_SPEED_EPOCHS, STYLES, Op
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 2
"""The version of these features. Controllers that were trained with another one do not fit."""

HISTORY = 6
"""Epochs whose losses and scores are kept, the current one last."""

MIN_ERROR, MAX_ERROR = 0.005, 2.0
"""The ends of the log scale of errors; an error is 1 minus the score."""

MIN_UNIT = 0.02
"""The smallest error that contributions are measured in."""

MAX_EPOCHS = 1000.0
"""The upper end of the log scale of ``task_epochs``."""

SLOPE = 10.0
"""Factor of changes per epoch, which are a few percent."""

MAX_BATCHES = 12
"""The largest number of batches that is observed. The prior's tasks have at most as many, and a
policy cannot know what more would mean."""

PRICE_SCALE = 10.0
"""Factor of prices, most of which are below 0.3."""

STYLE_NAMES = tuple(f"style_{style.name.lower()}" for style in STYLES)
OP_NAMES = tuple(f"did_{op.name.lower()}" for op in Op)
STAGE_NAMES = tuple(f"is_{stage.name.lower()}" for stage in Stage)

TENSOR_KINDS = ("feature_map", "sequence", "vector")
"""The kinds of tensor at slots, in the order of their numbers."""

KIND_NAMES = tuple(f"on_{kind}" for kind in TENSOR_KINDS)

HOST_FEATURES: dict[str, tuple[float, str]] = {
    "progress": (0.0, "epochs trained, as a share of the budget"),
    "epochs_left": (-1.0, "epochs left, on a log scale from 1 to 100"),
    "train_loss": (-1.0, "squashed training loss, relative to the first validation loss"),
    "validation_loss": (-1.0, "squashed validation loss, relative to the first"),
    "loss_gap": (
        -1.0,
        "squashed validation loss minus training loss, relative to the validation loss, times 4",
    ),
    "loss_over_best": (0.0, "squashed log ratio of the validation loss to the lowest, times 10"),
    "loss_slope": (
        -1.0,
        "squashed log ratio of the validation loss to that of the epoch before, times 10",
    ),
    "loss_slope_slow": (-1.0, "the same over the last four epochs, per epoch, times 10"),
    "loss_curvature": (
        -1.0,
        "the same over the last two epochs minus that over the two before, per epoch, times 10",
    ),
    "loss_noise": (
        0.0,
        "squashed mean second difference of the last six validation losses, relative to their "
        "mean, times 10",
    ),
    "train_slope": (-1.0, "`loss_slope_slow` of the training loss"),
    "error": (-1.0, "1 minus the validation score, on a log scale from 0.005 to 2"),
    "error_slope": (-1.0, "squashed log ratio of the error to that of the epoch before, times 10"),
    "error_slope_slow": (-1.0, "the same over the last four epochs, per epoch, times 10"),
    "error_over_best": (0.0, "squashed log ratio of the error to the lowest so far, times 10"),
    "gradient_noise": (
        0.0,
        "squashed standard deviation of the batches' gradient norms in the last epoch, relative "
        "to their mean, times 2",
    ),
    "gradient_trend": (
        -1.0,
        "squashed log ratio of the gradient norm to that of the epoch before, times 5",
    ),
    "gradient_decay": (-1.0, "squashed log ratio of the gradient norm to that of the first epoch"),
    "flops_used": (0.0, "squashed FLOPs spent, relative to a reference run"),
    "parameters_added": (0.0, "squashed parameters of the seeds, relative to the host's"),
    "was_restored": (0.0, "1 if the governor rolled the host back in the last epoch"),
    "was_refused": (0.0, "1 if a gate turned the last action into a wait"),
    **dict.fromkeys(OP_NAMES, (0.0, "1 if this was the last op")),
    "data_per_parameter": (
        -1.0,
        "training samples for each parameter of the host, on a log scale from 0.001 to 1,000",
    ),
    "batches_per_epoch": (
        -1.0,
        "batches of an epoch, 12 if there are more or it is not known yet, on a log scale from 1 "
        "to 1,000",
    ),
    "task_epochs": (-1.0, "epochs of the budget, on a log scale from 1 to 1,000"),
    "task_slots": (-1.0, "slots of the host, on a log scale from 1 to 64"),
    "price": (0.0, "squashed FLOP price, times ten"),
    "is_free": (0.0, "1 if FLOPs cost nothing"),
}
"""Each host feature: its smallest value (the largest is 1) and its meaning.

Losses, gradients, parameters and samples only appear as ratios, so that hosts of any size that
behave alike look alike. What is not known yet is 0; a loss that is not known is 1/2, as the first.
"""

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
    "contribution": (-1.0, "squashed score with the seed minus without, relative to the error"),
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
    "has_hidden": (0.0, "1 if the block's hidden units are known"),
    "growth": (0.0, "doublings of the hidden units since the start, in units of 4, at most 1"),
    "step_size": (
        0.0,
        "squashed parameters of as many more hidden units, relative to the host's",
    ),
    "blueprint": (0.0, "(1 + index of the blueprint) / number of blueprints; 0 without a seed"),
}
"""Each slot feature: its smallest value (the largest is 1) and its meaning.

A slot that sees no kind of tensor is absent: the host has fewer slots than others beside it. All
its features are 0.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostFacts:
    """The unscaled quantities of each host, ``[N]``."""

    epoch: Integers
    n_epochs: Integers
    first_loss: Floats
    """The first validation loss; NaN if it is not known."""
    train_losses: Floats
    """``[N, HISTORY]`` the current one last; NaN before the first epoch."""
    validation_losses: Floats
    """``[N, HISTORY]`` the current one last; NaN before the first."""
    best_loss: Floats
    """The lowest validation loss."""
    scores: Floats
    """``[N, HISTORY]`` the current one last; NaN before the first."""
    best_score: Floats
    gradient_norm: Floats
    previous_gradient_norm: Floats
    first_gradient_norm: Floats
    gradient_noise: Floats
    """Standard deviation of the batches' gradient norms relative to their mean."""
    flops_used: Floats
    """Relative to a reference run."""
    was_restored: Flags
    was_refused: Flags
    last_op: Integers
    """-1 before the first action."""
    n_samples: Integers
    """0 if not known yet."""
    n_batches: Integers
    """Batches of an epoch; 0 if not known yet."""
    n_parameters: Integers
    flop_price: Floats


def squash(values: Floats, *, missing: float = 0.0) -> Floats:
    """Return ``x / (1 + |x|)``, in [-1, 1]; ``missing`` for NaN."""
    limited = np.minimum(np.maximum(values, -1e300), 1e300)
    ratios = limited / (1.0 + np.abs(limited))
    return np.where(np.isnan(values), missing, ratios)


def reprice(observations: Tensor, prices: Tensor) -> Tensor:
    """Return observations ``[..., D]`` of hosts that pay other prices ``[...]`` for FLOPs."""
    columns, scaled = list(HOST_FEATURES), PRICE_SCALE * prices
    changed = observations.clone()
    changed[..., columns.index("price")] = scaled / (1.0 + scaled)
    changed[..., columns.index("is_free")] = (prices == 0.0).to(changed.dtype)
    return changed


def unsquash(values: Floats) -> Floats:
    """Return what :func:`squash` was given."""
    return values / np.maximum(1.0 - np.abs(values), 1e-9)


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


def from_log_scale(values: Floats, low: float, high: float) -> Floats:
    """Return what :func:`log_scale` was given, if it was between ``low`` and ``high``."""
    return low * (high / low) ** ((values + 1.0) / 2.0)


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

    def log_scale(
        self, raw: dict[str, tuple[NDArray[Any], float, float]], *, missing: float = -1.0
    ) -> None:
        """Set features from sizes, each with the two ends of its log scale."""
        values, lows, highs = zip(*raw.values(), strict=True)
        shape = (-1, *(1,) * (self.values.ndim - 1))
        ends = (np.array(lows).reshape(shape), np.array(highs).reshape(shape))
        scaled = log_scale(np.array(values, np.float64), *ends, missing=missing)
        self.fill(tuple(raw), scaled)

    def one_hot(self, names: tuple[str, ...], numbers: Integers) -> None:
        """Set features to the one-hot encoding of numbers; -1 for none."""
        self.fill(names, one_hot(numbers, len(names)))


@lru_cache(maxsize=64)
def _indices(names: tuple[str, ...], among: tuple[str, ...]) -> list[int]:
    return [among.index(name) for name in names]


def change(now: Floats, before: Floats, scale: Floats) -> Floats:
    """Return the log ratio of losses, or their difference relative to a scale if one is <= 0."""
    is_positive = (now > 0.0) & (before > 0.0)
    return np.where(is_positive, np.log(now / before), (now - before) / np.abs(scale))


def slow_change(history: Floats, scale: Floats) -> Floats:
    """Return the mean :func:`change` per epoch over the last four epochs, or as many as known."""
    recent = history[:, -5:]
    first_known = (~np.isnan(recent)).argmax(1)
    before = recent[np.arange(len(recent)), first_known]
    return change(recent[:, -1], before, scale) / np.maximum(4 - first_known, 1)


def loss_noise(history: Floats) -> Floats:
    """Return the mean absolute second difference of losses ``[N, H]``, relative to their mean."""
    return _mean_size(np.diff(history, n=2, axis=1)) / _mean_size(history)


def _mean_size(values: Floats) -> Floats:
    """Return the mean absolute value of each row, without its NaN."""
    is_known = ~np.isnan(values)
    return np.where(is_known, np.abs(values), 0.0).sum(1) / is_known.sum(1)


def errors_of(scores: Floats) -> Floats:
    """Return the error that observations show for a score, at least :data:`MIN_ERROR`."""
    return np.maximum(1.0 - scores, MIN_ERROR)


def host_columns(hosts: HostFacts, slots: SlotArrays) -> Floats:
    """Return the features of hosts in the order of :data:`HOST_FEATURES`, ``[F, N]``."""
    sheet = _Sheet(tuple(HOST_FEATURES), hosts.epoch.shape)
    first, losses = hosts.first_loss, hosts.validation_losses
    loss, train, errors = losses[:, -1], hosts.train_losses[:, -1], errors_of(hosts.scores)
    two, before = change(loss, losses[:, -3], first), change(losses[:, -3], losses[:, -5], first)
    sheet.squash(
        {"train_loss": train / np.abs(first), "validation_loss": loss / np.abs(first)},
        missing=0.5,
    )
    sheet.squash(
        {
            "loss_gap": 4.0 * (loss - train) / np.abs(loss),
            "loss_over_best": SLOPE * np.maximum(change(loss, hosts.best_loss, first), 0.0),
            "loss_slope": SLOPE * change(loss, losses[:, -2], first),
            "loss_slope_slow": SLOPE * slow_change(losses, first),
            "loss_curvature": SLOPE * (two - before) / 2.0,
            "loss_noise": SLOPE * loss_noise(losses),
            "train_slope": SLOPE * slow_change(hosts.train_losses, first),
            "error_slope": SLOPE * np.log(errors[:, -1] / errors[:, -2]),
            "error_slope_slow": SLOPE * slow_change(errors, first),
            "error_over_best": SLOPE
            * np.maximum(np.log(errors[:, -1] / errors_of(hosts.best_score)), 0.0),
            "gradient_noise": 2.0 * np.maximum(hosts.gradient_noise, 0.0),
            "gradient_trend": 5.0 * np.log(hosts.gradient_norm / hosts.previous_gradient_norm),
            "gradient_decay": np.log(hosts.gradient_norm / hosts.first_gradient_norm),
            "flops_used": np.maximum(hosts.flops_used, 0.0),
            "parameters_added": slots.grown_parameters.sum(1) / np.maximum(hosts.n_parameters, 1),
            "price": PRICE_SCALE * np.maximum(hosts.flop_price, 0.0),
        }
    )
    n_samples = np.where(hosts.n_samples > 0, hosts.n_samples, np.nan)
    n_batches = np.where(hosts.n_batches > 0, hosts.n_batches, MAX_BATCHES)
    sheet.log_scale(
        {
            "epochs_left": (hosts.n_epochs - hosts.epoch, 1.0, 100.0),
            "error": (errors[:, -1], MIN_ERROR, MAX_ERROR),
            "data_per_parameter": (n_samples / np.maximum(hosts.n_parameters, 1), 1e-3, 1e3),
            "batches_per_epoch": (np.minimum(n_batches, MAX_BATCHES), 1.0, 1e3),
            "task_epochs": (hosts.n_epochs, 1.0, MAX_EPOCHS),
            "task_slots": ((slots.kind >= 0).sum(1), 1.0, 64.0),
        },
        missing=0.0,
    )
    sheet.clip({"progress": hosts.epoch / np.maximum(hosts.n_epochs, 1)})
    flags = hosts.was_restored, hosts.was_refused, hosts.flop_price == 0.0
    sheet.fill(("was_restored", "was_refused", "is_free"), np.array(flags))
    sheet.one_hot(OP_NAMES, hosts.last_op)
    return sheet.values


def slot_columns(hosts: HostFacts, slots: SlotArrays, n_blueprints: int) -> Floats:
    """Return the features of slots in the order of :data:`SLOT_FEATURES`, ``[F, N, S]``."""
    is_present, has_seed = slots.kind >= 0, slots.blueprint >= 0
    health = slots.gradient_norm / hosts.gradient_norm[:, None]
    unit = np.maximum(errors_of(hosts.scores[:, -1]), MIN_UNIT)[:, None]
    size = np.maximum(hosts.n_parameters, 1)[:, None]
    has_hidden, hidden = slots.first_hidden > 0, slots.hidden
    doublings = np.log2(hidden / np.where(has_hidden, slots.first_hidden, np.nan))
    order = np.maximum(is_present.cumsum(1) - 1, 0)
    sheet = _Sheet(tuple(SLOT_FEATURES), slots.stage.shape)
    sheet.squash(
        {
            "stage_age": slots.stage_epochs / 3.0,
            "contribution": slots.contribution / unit,
            "parameter_share": slots.grown_parameters / size,
            "step_size": np.where(has_hidden, hidden / size * slots.unit_parameters, 0.0),
        }
    )
    sheet.clip(
        {
            "age": slots.age_epochs / np.maximum(hosts.n_epochs, 1)[:, None],
            "alpha": slots.alpha,
            "alpha_target": slots.alpha_target,
            "ramp_left": slots.ramp_epochs_left / max(ALPHA_SPEED_EPOCHS),
            "curve": slots.curve / (len(ALPHA_CURVES) - 1),
            "position": order / np.maximum(is_present.sum(1) - 1, 1)[:, None],
            "growth": doublings / 4.0,
            "blueprint": (slots.blueprint + 1) / n_blueprints,
        }
    )
    sheet.log_scale({"gradient_health": (np.where(has_seed, health, 0.0), 1e-3, 1e1)})
    known = slots.alpha_at_rest, slots.is_measured, has_hidden
    sheet.fill(("alpha_at_rest", "is_measured", "has_hidden"), np.array(known))
    sheet.one_hot(KIND_NAMES, slots.kind)
    sheet.one_hot(STAGE_NAMES, slots.stage)
    sheet.one_hot(STYLE_NAMES, np.where(has_seed, slots.style, -1))
    return sheet.values * is_present


__all__ = [
    "HISTORY",
    "HOST_FEATURES",
    "SLOT_FEATURES",
    "TENSOR_KINDS",
    "HostFacts",
    "ObservationLayout",
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

    def prices(self, observations: NDArray[np.float32]) -> Floats:
        """Return the price of a reference run's FLOPs, ``[N]``, from observations ``[N, D]``."""
        return unsquash(self.host(observations, "price").astype(np.float64)) / PRICE_SCALE

    def stages(self, observations: NDArray[np.float32]) -> Integers:
        """Return the stage of each slot, ``[N, S]``, from observations ``[N, D]``."""
        return self._by_slot(observations)[:, :, : len(Stage)].argmax(2)

    def blueprints(self, observations: NDArray[np.float32]) -> Integers:
        """Return the blueprint in each slot, ``[N, S]``, -1 for none, from ``[N, D]``."""
        shares = self.slot(observations, "blueprint")
        return np.rint(shares * self.n_blueprints).astype(np.int64) - 1

    def encode(self, hosts: HostFacts, slots: SlotArrays) -> NDArray[np.float32]:
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
