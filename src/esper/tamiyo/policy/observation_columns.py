"""From what is known of hosts and slots to features, all finite and between -1 and 1.

Shapes: F = features, N = hosts, S = slots.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.lifecycle.factored_actions import ALPHA_CURVES, ALPHA_SPEED_EPOCHS
from esper.tamiyo.policy.observation_facts import (
    HOST_FEATURES,
    KIND_NAMES,
    OP_NAMES,
    SCORE_STEP,
    SLOT_FEATURES,
    STAGE_NAMES,
    STYLE_NAMES,
    Floats,
    HostFacts,
    Integers,
    SlotFacts,
)
from esper.tamiyo.policy.scales import clip, log_scale, one_hot, squash


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
