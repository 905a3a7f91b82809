"""What the controller sees of a host: named features, all finite and between -1 and 1.

Shapes: N = hosts, S = slots, D = features of an observation.

An observation is the host's features, then each slot's, slot by slot. The tables below say what
each feature means; :meth:`ObservationLayout.table` prints them with their columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.errors import UnknownFeatureError, did_you_mean
from esper.lifecycle.factored_actions import ALPHA_CURVES, ALPHA_SPEED_EPOCHS, STYLES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.scales import clip, log_scale, one_hot, squash

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SCORE_STEP = 0.05
"""A change of the score that counts as 1 before it is squashed."""

_STYLE_NAMES = tuple(style.name.lower() for style in STYLES)

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
    **{f"did_{op.name.lower()}": (0.0, "1 if it was the last op") for op in Op},
    "task_classes": (-1.0, "classes, by logarithm from 2 to 1,000"),
    "task_samples": (-1.0, "training samples, by logarithm from 10 to 100,000"),
    "task_learning_rate": (-1.0, "learning rate, by logarithm from 1e-5 to 1"),
    "task_host_size": (-1.0, "parameters of the host, by logarithm from 100 to 1e8"),
    "task_epochs": (-1.0, "epochs of the budget, by logarithm from 1 to 1,000"),
    "task_flop_price": (0.0, "x / (1 + x) of ten times the price of a reference run"),
}
"""Each feature of a host: its least value (the greatest is 1) and what it means."""

SLOT_FEATURES: dict[str, tuple[float, str]] = {
    **{f"is_{stage.name.lower()}": (0.0, "1 in this stage") for stage in Stage},
    "age": (0.0, "epochs since the seed germinated, as a share of the budget's, at most 1"),
    "stage_age": (0.0, "x / (1 + x) of the epochs in this stage over 3"),
    "alpha": (0.0, "how strongly the seed counts"),
    "alpha_target": (0.0, "where alpha goes, or will go on its first ramp"),
    "alpha_at_rest": (0.0, "1 if alpha is not on its way"),
    "ramp_left": (0.0, "epochs until alpha is at rest, over 8, at most 1"),
    "curve": (0.0, "the curve of the ramp: 0 linear to 1 sigmoid sharp"),
    **{f"style_{name}": (0.0, "1 if the seed is blended like this") for name in _STYLE_NAMES},
    "contribution": (-1.0, "squashed score with the seed minus without, in steps of 0.05"),
    "is_measured": (0.0, "1 if the contribution was measured in the last epoch"),
    "parameter_share": (0.0, "x / (1 + x) of the seed's parameters over the host's"),
    "gradient_health": (-1.0, "norm of the seed's gradient over the host's, from 1e-3 to 1e1"),
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
            host = np.concatenate(_host_columns(hosts, slots), axis=1)
            slot = np.concatenate(_slot_columns(hosts, slots, self.n_blueprints), axis=2)
        return np.concatenate([host, slot.reshape(len(host), -1)], axis=1).astype(np.float32)

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


def _host_columns(hosts: HostFacts, slots: SlotFacts) -> list[Floats]:
    """Return the features of hosts in the order of :data:`HOST_FEATURES`, ``[N, ...]`` each."""
    guess = np.log(np.maximum(hosts.n_classes, 2))
    train, validation = hosts.train_loss / guess, hosts.validation_loss / guess
    added = slots.parameters.sum(1) / np.maximum(hosts.n_parameters, 1)
    fall = (hosts.previous_validation_loss - hosts.validation_loss) / guess
    gradient_trend = np.log(hosts.gradient_norm / hosts.previous_gradient_norm)
    rises = [
        squash((hosts.score - score) / SCORE_STEP)
        for score in (hosts.previous_score, hosts.older_score, hosts.best_score)
    ]
    gap = squash(validation - train)
    columns = [
        clip(hosts.epoch / np.maximum(hosts.n_epochs, 1), 0.0, 1.0),
        squash(np.maximum(train, 0.0), missing=1.0),
        squash(np.maximum(validation, 0.0), missing=1.0),
        gap,
        squash(fall / 0.1),
        clip(hosts.score, -1.0, 1.0, missing=-1.0),
        *rises[:2],
        np.minimum(rises[2], 0.0),
        log_scale(hosts.gradient_norm, 1e-4, 1e2),
        squash(gradient_trend),
        squash(np.maximum(hosts.flops_used, 0.0), missing=1.0),
        squash(added),
        hosts.was_restored.astype(np.float64),
        hosts.was_refused.astype(np.float64),
    ]
    descriptors = [
        log_scale(hosts.n_classes.astype(np.float64), 2, 1e3),
        log_scale(hosts.n_samples.astype(np.float64), 10, 1e5),
        log_scale(hosts.learning_rate, 1e-5, 1.0),
        log_scale(hosts.n_parameters.astype(np.float64), 1e2, 1e8),
        log_scale(hosts.n_epochs.astype(np.float64), 1, 1e3),
        squash(10.0 * np.maximum(hosts.flop_price, 0.0)),
    ]
    ops = one_hot(hosts.last_op, len(Op))
    return [np.stack(columns, axis=1), ops, np.stack(descriptors, axis=1)]


def _slot_columns(hosts: HostFacts, slots: SlotFacts, n_blueprints: int) -> list[Floats]:
    """Return the features of slots in the order of :data:`SLOT_FEATURES`, ``[N, S, ...]`` each."""
    has_seed = slots.blueprint >= 0
    n_epochs = np.maximum(hosts.n_epochs, 1)[:, None]
    health = slots.gradient_norm / hosts.gradient_norm[:, None]
    life = [
        clip(slots.age_epochs / n_epochs, 0.0, 1.0),
        squash(slots.stage_epochs / 3.0),
        clip(slots.alpha, 0.0, 1.0),
        clip(slots.alpha_target, 0.0, 1.0),
        slots.alpha_at_rest.astype(np.float64),
        clip(slots.ramp_epochs_left / max(ALPHA_SPEED_EPOCHS), 0.0, 1.0),
        clip(slots.curve / (len(ALPHA_CURVES) - 1), 0.0, 1.0),
    ]
    worth = [
        squash(slots.contribution / SCORE_STEP),
        slots.is_measured.astype(np.float64),
        squash(slots.parameters / np.maximum(hosts.n_parameters, 1)[:, None]),
        log_scale(np.where(has_seed, health, 0.0), 1e-3, 1e1),
        clip((slots.blueprint + 1) / n_blueprints, 0.0, 1.0),
    ]
    return [
        one_hot(slots.stage, len(Stage)),
        np.stack(life, axis=2),
        one_hot(np.where(has_seed, slots.style, -1), len(STYLES)),
        np.stack(worth, axis=2),
    ]
