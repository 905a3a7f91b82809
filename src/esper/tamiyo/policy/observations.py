"""What the controller sees of a host: named features, all finite and between -1 and 1.

Shapes: N = hosts, S = slots, D = features of an observation.

An observation is the host's features, then each slot's, slot by slot. The tables of
:mod:`observation_facts` say what each feature means; :meth:`ObservationLayout.table` prints them
with their columns.
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
"""A change of the score that counts as 1 before it is squashed."""

STYLE_NAMES = tuple(f"style_{style.name.lower()}" for style in STYLES)
OP_NAMES = tuple(f"did_{op.name.lower()}" for op in Op)
STAGE_NAMES = tuple(f"is_{stage.name.lower()}" for stage in Stage)

TENSOR_KINDS = ("feature_map", "sequence", "vector")
"""The kinds of tensor that slots sit on, in the order of their numbers."""

KIND_NAMES = tuple(f"on_{kind}" for kind in TENSOR_KINDS)

HOST_FEATURES: dict[str, tuple[float, str]] = {
    "progress": (0.0, "epochs done, as a share of the budget's"),
    "train_loss": (0.0, "x / (1 + x) of the training loss over that of guessing"),
    "validation_loss": (0.0, "x / (1 + x) of the validation loss over that of guessing"),
    "loss_gap": (-1.0, "squashed validation loss minus training loss, over that of guessing"),
    "loss_trend": (-1.0, "squashed fall of the validation loss in the last epoch, in tenths"),
    "score": (-1.0, "validation score (accuracy, or the share of bits saved)"),
    "score_trend": (-1.0, "squashed rise of the score in the last epoch, in steps of 0.05"),
    "score_trend_slow": (-1.0, "the same over the last four epochs"),
    "below_best": (-1.0, "the same from the best score so far; 0 at the best"),
    "gradient_norm": (-1.0, "norm of the gradient, by logarithm from 1e-4 to 1e2"),
    "gradient_trend": (-1.0, "squashed change of the logarithm of that norm in the last epoch"),
    "flops_used": (0.0, "x / (1 + x) of the FLOPs spent over those of a reference run"),
    "parameters_added": (0.0, "x / (1 + x) of the seeds' parameters over the host's"),
    "was_restored": (0.0, "1 if the governor stepped in in the last epoch"),
    "was_refused": (0.0, "1 if a gate turned the last action into a wait"),
    **dict.fromkeys(OP_NAMES, (0.0, "1 if it was the last op")),
    "task_classes": (-1.0, "classes, by logarithm from 2 to 1,000"),
    "task_samples": (-1.0, "training samples, by logarithm from 10 to 100,000"),
    "task_learning_rate": (-1.0, "learning rate, by logarithm from 1e-5 to 1"),
    "task_host_size": (-1.0, "parameters of the host, by logarithm from 100 to 1e8"),
    "task_slots": (-1.0, "slots of the host, by logarithm from 1 to 64"),
    "task_epochs": (-1.0, "epochs of the budget, by logarithm from 1 to 1,000"),
    "task_flop_price": (0.0, "x / (1 + x) of ten times the price of a reference run"),
}
"""Each feature of a host: its least value (the greatest is 1) and what it means."""

SLOT_FEATURES: dict[str, tuple[float, str]] = {
    **dict.fromkeys(STAGE_NAMES, (0.0, "1 in this stage")),
    "age": (0.0, "epochs since the seed germinated, as a share of the budget's, at most 1"),
    "stage_age": (0.0, "x / (1 + x) of the epochs in this stage over 3"),
    "alpha": (0.0, "how strongly the seed counts"),
    "alpha_target": (0.0, "where alpha goes, or will go on its first ramp"),
    "alpha_at_rest": (0.0, "1 if alpha is not on its way"),
    "ramp_left": (0.0, "epochs until alpha is at rest, over 8, at most 1"),
    "curve": (0.0, "the curve of the ramp: 0 linear to 1 sigmoid sharp"),
    **dict.fromkeys(STYLE_NAMES, (0.0, "1 if the seed is blended like this")),
    "contribution": (-1.0, "squashed score with the seed minus without, in steps of 0.05"),
    "is_measured": (0.0, "1 if the contribution was measured in the last epoch"),
    "parameter_share": (0.0, "x / (1 + x) of the seed's parameters over the host's"),
    "gradient_health": (-1.0, "norm of the seed's gradient over the host's, from 1e-3 to 1e1"),
    "position": (0.0, "0 for the host's first slot to 1 for its last; 0 for a single one"),
    **dict.fromkeys(KIND_NAMES, (0.0, "1 if this is what passes here")),
    "width": (-1.0, "channels or features that pass here, by logarithm from 1 to 4,096"),
    "hidden": (-1.0, "hidden units of the host's block, the same; -1 if there are none known"),
    "blueprint": (0.0, "1 + number of the blueprint, over how many there are; 0 without a seed"),
}
"""Each feature of a slot: its least value (the greatest is 1) and what it means."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostFacts:
    """What is known of each host, ``[N]``, in its own units."""

    epoch: Integers
    n_epochs: Integers
    train_loss: Floats
    """Of the last epoch; NaN before the first."""
    validation_loss: Floats
    previous_validation_loss: Floats
    """One epoch before; NaN if there was none."""
    score: Floats
    previous_score: Floats
    older_score: Floats
    """Four epochs before, or the first."""
    best_score: Floats
    gradient_norm: Floats
    previous_gradient_norm: Floats
    flops_used: Floats
    """As a share of a reference run's."""
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
    """What is known of each slot of each host, ``[N, S]``, in its own units."""

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
    """Score with the seed minus without; the last that was measured, 0 if never."""
    is_measured: Flags
    parameters: Integers
    """Of the seed; 0 without one."""
    gradient_norm: Floats
    blueprint: Integers
    """-1 without a seed."""
    kind: Integers
    """The number of what passes there in :data:`TENSOR_KINDS`."""
    width: Integers
    """Channels or features of the block's output."""
    hidden: Integers
    """Units between the block's two layers; 0 if they were not recognised."""


def squash(values: Floats, *, missing: float = 0.0) -> Floats:
    """Return ``x / (1 + |x|)``, in [-1, 1]: 0.5 at 1, 1 at infinity; ``missing`` where NaN."""
    limited = np.minimum(np.maximum(values, -1e300), 1e300)
    ratios = limited / (1.0 + np.abs(limited))
    return np.where(np.isnan(values), missing, ratios)


def clip(values: Floats, low: float, high: float, *, missing: float = 0.0) -> Floats:
    """Return the values limited to [low, high]; ``missing`` where NaN."""
    return np.where(np.isnan(values), missing, np.minimum(np.maximum(values, low), high))


def log_scale(
    values: Floats, low: float | Floats, high: float | Floats, *, missing: float = -1.0
) -> Floats:
    """Return where values are between two sizes by their logarithm: -1 at low, 1 at high, limited.

    Zero and what is negative count as small; ``missing`` where NaN.
    """
    inside = np.minimum(np.maximum(values, low), high)
    scaled = 2.0 * np.log(inside / low) / np.log(high / low) - 1.0
    return np.where(np.isnan(values), missing, scaled)


def one_hot(numbers: NDArray[np.int64], n: int) -> Floats:
    """Return ``[n, ...]`` with a 1 where a number is that of its row; zeros for any other."""
    rows = np.arange(n).reshape(-1, *(1,) * numbers.ndim)
    return (numbers == rows).astype(np.float64)


class _Sheet:
    """Features on their way into an observation, ``[F, ...]``, many at a time.

    An operation on a few numbers costs as much as on many, so features that are brought to the
    scale in the same way are brought there together.
    """

    def __init__(self, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
        self.names = names
        self.values = np.empty((len(names), *shape))

    def fill(self, names: tuple[str, ...], block: NDArray[Any]) -> None:
        """Take over some features, ``[F, ...]``."""
        self.values[_places(names, self.names)] = block

    def squash(self, raw: dict[str, Floats], *, missing: float = 0.0) -> None:
        """Take over features of any size."""
        self.fill(tuple(raw), squash(np.array(list(raw.values())), missing=missing))

    def clip(self, raw: dict[str, Floats]) -> None:
        """Take over shares."""
        self.fill(tuple(raw), clip(np.array(list(raw.values())), 0.0, 1.0))

    def log_scale(self, raw: dict[str, tuple[NDArray[Any], float, float]]) -> None:
        """Take over sizes, each with the sizes that are the ends of its scale."""
        values, lows, highs = zip(*raw.values(), strict=True)
        shape = (-1, *(1,) * (self.values.ndim - 1))
        ends = (np.array(lows).reshape(shape), np.array(highs).reshape(shape))
        self.fill(tuple(raw), log_scale(np.array(values, np.float64), *ends))

    def one_hot(self, names: tuple[str, ...], numbers: Integers) -> None:
        """Take over a choice among features, the first of which is number 0; -1 is none."""
        self.fill(names, one_hot(numbers, len(names)))


@lru_cache(maxsize=64)
def _places(names: tuple[str, ...], among: tuple[str, ...]) -> list[int]:
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
    """Which column of an observation means what, for hosts of one design."""

    def __init__(self, slot_config: SlotConfig) -> None:
        self.slot_config = slot_config
        self.n_slots = slot_config.max_slots
        self.n_blueprints = len(slot_config.blueprints)
        self._host = {name: column for column, name in enumerate(HOST_FEATURES)}
        self._slot = {name: column for column, name in enumerate(SLOT_FEATURES)}

    @property
    def size(self) -> int:
        """Features of an observation."""
        return len(self._host) + self.n_slots * len(self._slot)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column: ``progress``, ..., ``blocks.0/alpha``, ..."""
        slots = self.slot_config.slot_ids
        return (*self._host, *(f"{slot}/{name}" for slot in slots for name in self._slot))

    @property
    def low(self) -> NDArray[np.float32]:
        """``[D]`` the least value of each column; the greatest is 1 everywhere."""
        host = [low for low, _ in HOST_FEATURES.values()]
        slot = [low for low, _ in SLOT_FEATURES.values()]
        return np.array([*host, *slot * self.n_slots], np.float32)

    @property
    def categories(self) -> dict[int, int]:
        """Columns that hold a category, with how many there are beside none: ``k / n`` is k."""
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
        # What is divided by zero or not there is brought to the scale like everything else.
        with np.errstate(all="ignore"):
            host = host_columns(hosts, slots)
            slot = slot_columns(hosts, slots, self.n_blueprints)
        observations = np.empty((host.shape[1], self.size), np.float32)
        observations[:, : len(host)] = host.T
        self._by_slot(observations)[...] = slot.transpose(1, 2, 0)
        return observations

    def table(self) -> str:
        """Return the layout as a table in Markdown."""
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
