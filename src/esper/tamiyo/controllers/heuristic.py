"""The heuristic controller: rules that an engineer would write by hand.

Shapes: N = hosts, S = slots, B = blueprints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.arrays import Features, Flags, Floats, Integers
from esper.config.checks import check, require_choice
from esper.config.controllers import HeuristicConfig
from esper.lifecycle.factored_actions import (
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_EPOCHS,
    BlendStyle,
    Op,
)
from esper.lifecycle.stages import LIVE_STAGES, Stage
from esper.tamiyo.controllers.controller import (
    COLUMNS,
    ActionRows,
    EpochCounter,
    NamedController,
    rank_blueprints,
)
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import (
    MAX_EPOCHS,
    MAX_ERROR,
    MIN_ERROR,
    MIN_UNIT,
    SLOPE,
    ObservationLayout,
    from_log_scale,
    log_scale,
    squash,
    unsquash,
)

ROUNDING = 1e-6
"""What the precision of observations leaves uncertain of a score or a loss."""

_IS_LIVE = np.array([stage in LIVE_STAGES for stage in Stage])


@dataclass(frozen=True, kw_only=True, eq=False)
class _View:
    """The features that the rules use, ``[N, S]`` of slots and ``[N]`` of hosts."""

    stage: Integers
    age: Features
    stage_age: Features
    alpha_at_rest: Flags
    contribution: Floats
    gradient_health: Features
    score_rise: Floats
    """Rise of the score over the last four epochs."""
    loss_rise: Floats
    """Rise of the validation loss in the last epoch, relative to the first one."""
    epochs_left: Integers


class Heuristic(NamedController):
    """Germinates on a plateau, keeps seeds that help and prunes the others.

    At each epoch it applies the first rule that matches:

    1. fossilize a held seed whose contribution is above ``min_contribution``;
    2. prune a seed that has been held for ``judging_epochs`` without contributing that much, or
       that has trained for ``training_patience`` epochs and is still not healthy;
    3. advance a seed: a germinated one at once; a training one after ``training_epochs`` if its
       gradient is large enough and the loss is not rising; a blending one once alpha is at rest;
    4. germinate in the first free slot, if the score is on a plateau, fewer than
       ``max_live_seeds`` are alive and the budget leaves time to commit the seed. It uses the
       first of ``blueprints`` that fits, after each lost seed the next, with alpha 1;
    5. finish, if the score has not risen for ``finish_patience`` epochs and nothing more can be
       grown: no seed is alive, and no time or attempt is left.

    The oldest seed comes first. A seed is lost if a rule prunes it or the governor rolls its host
    back; ``max_prunes`` counts both.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        config: HeuristicConfig | None = None,
        *,
        name: str = "heuristic",
    ) -> None:
        """Create the controller for hosts whose observations have this layout."""
        check("layout", layout, ObservationLayout)
        check("config", config, HeuristicConfig | None)
        self.layout = layout
        self.config = config or HeuristicConfig()
        self.name = name
        require_choice("tempo_epochs", self.config.tempo_epochs, TEMPO_EPOCHS)
        ratio = np.asarray(self.config.min_gradient_ratio)
        self._min_health = np.float32(log_scale(ratio, 1e-3, 1e1))
        self._blueprints = self._rank_by_slot()
        self._epochs = EpochCounter()
        self._epochs_stuck: Integers = np.zeros(0, np.int64)
        self._n_lost: Integers = np.zeros(0, np.int64)
        self._grows: Flags = np.zeros((0, layout.n_slots), np.bool_)
        """``[N, S]`` slots whose seed should still be alive after the last action."""

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller; it ignores the seed."""
        self._epochs.start(n_hosts)
        self._epochs_stuck = np.zeros(n_hosts, np.int64)
        self._n_lost = np.zeros(n_hosts, np.int64)
        self._grows = np.zeros((n_hosts, self.layout.n_slots), np.bool_)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        starts = np.asarray(starts, np.bool_)
        epochs = self._epochs.count(observations, starts)
        self._epochs_stuck[starts] = 0
        self._n_lost[starts] = 0
        self._grows[starts] = False
        actions, seen = ActionRows(masks, len(epochs)), self._read(observations, epochs)
        is_live = _IS_LIVE[seen.stage]
        # Those that should be alive and are not were removed by the governor.
        self._n_lost += (self._grows & ~is_live).sum(1)
        self._grows = is_live
        is_warm = epochs >= self.config.warmup_epochs
        is_stuck = is_warm & (seen.score_rise < self.config.finish_rise - ROUNDING)
        self._epochs_stuck = np.where(is_stuck, self._epochs_stuck + 1, 0)
        self._tend(actions, seen)
        has_time = seen.epochs_left >= self.config.commit_epochs + self.config.profit_epochs
        may_try = has_time & (self._n_lost < self.config.max_prunes)
        is_flat = is_warm & (seen.score_rise < self.config.plateau_rise - ROUNDING)
        has_room = is_live.sum(1) < self.config.max_live_seeds
        self._germinate(actions, may_try & is_flat & has_room)
        if self.config.finish_patience is not None:
            # A slot without a live seed is free sooner or later.
            has_slot = bool((self._blueprints[:, 0] >= 0).any())
            is_done = ~is_live.any(1) & ~(may_try & has_slot)
            actions.finish(is_done & (self._epochs_stuck >= self.config.finish_patience))
        return actions.rows

    def _tend(self, actions: ActionRows, seen: _View) -> None:
        """Prune, fossilize or advance one seed of each host."""
        config = self.config
        is_held = seen.stage == Stage.HOLDING
        is_training = seen.stage == Stage.TRAINING
        helps = seen.contribution > config.min_contribution + ROUNDING
        is_healthy = seen.gradient_health >= self._min_health
        is_healthy = is_healthy & (seen.loss_rise <= config.max_loss_rise + ROUNDING)[:, None]
        useless = is_held & ~helps & _has_lasted(seen, config.judging_epochs)
        useless |= is_training & ~is_healthy & _has_lasted(seen, config.training_patience)
        ready = is_training & is_healthy & _has_lasted(seen, config.training_epochs)
        ready |= seen.stage == Stage.GERMINATED
        ready |= (seen.stage == Stage.BLENDING) & seen.alpha_at_rest

        is_proven = is_held & helps & _has_lasted(seen, config.holding_epochs)
        taken = actions.choose(Op.FOSSILIZE, is_proven, oldest=seen.age)
        self._grows[taken, actions.rows[taken, COLUMNS["slot"]]] = False
        taken = actions.choose(Op.PRUNE, useless, oldest=seen.age)
        actions.fill(taken, "alpha_speed", ALPHA_SPEED_EPOCHS.index(0))
        self._n_lost += taken
        self._grows[taken, actions.rows[taken, COLUMNS["slot"]]] = False
        actions.choose(Op.ADVANCE, ready, oldest=seen.age)

    def _germinate(self, actions: ActionRows, wanted: Flags) -> None:
        taken = actions.choose(Op.GERMINATE, wanted[:, None] & (self._blueprints[:, 0] >= 0))
        slots = actions.rows[:, COLUMNS["slot"]]
        self._grows[taken, slots[taken]] = True
        actions.fill(taken, "blueprint", self._next_blueprints(actions, slots))
        actions.fill(taken, "style", STYLES.index(BlendStyle.ADD_LINEAR))
        actions.fill(taken, "tempo", TEMPO_EPOCHS.index(self.config.tempo_epochs))
        actions.fill(taken, "alpha_target", ALPHA_TARGETS.index(1.0))

    def _next_blueprints(self, actions: ActionRows, slots: Integers) -> Integers:
        """Return the blueprint ``[N]`` for a slot of each host, after each lost seed the next."""
        hosts, ranked = np.arange(len(slots)), self._blueprints[slots]
        fits = (ranked >= 0) & actions.fits[hosts[:, None], slots[:, None], ranked]
        n_fitting = fits.cumsum(1)
        wanted = np.minimum(self._n_lost + 1, n_fitting[:, -1])
        return ranked[hosts, (n_fitting == wanted[:, None]).argmax(1)]

    def _read(self, observations: Features, epochs: Integers) -> _View:
        """Return the features that the rules use, given the epochs ``[N]`` of training so far."""
        layout = self.layout
        progress = self._host(observations, "progress")
        n_epochs = np.rint(from_log_scale(self._host(observations, "task_epochs"), 1.0, MAX_EPOCHS))
        # The scale ends at 1,000 epochs; a longer budget follows from the progress per epoch.
        is_longer = (n_epochs >= MAX_EPOCHS) & (epochs > 0) & (progress > 0.0)
        by_progress = epochs / np.where(is_longer, progress, 1.0)
        n_epochs = np.where(is_longer, by_progress, n_epochs)
        n_slow = np.minimum(np.rint(progress * n_epochs), 4)
        error = from_log_scale(self._host(observations, "error"), MIN_ERROR, MAX_ERROR)
        slow = unsquash(self._host(observations, "error_slope_slow")) / SLOPE
        loss = unsquash(self._host(observations, "validation_loss"))
        slope = unsquash(self._host(observations, "loss_slope")) / SLOPE
        contribution = unsquash(layout.slot(observations, "contribution").astype(np.float64))
        return _View(
            stage=layout.stages(observations),
            age=layout.slot(observations, "age"),
            stage_age=layout.slot(observations, "stage_age"),
            alpha_at_rest=layout.slot(observations, "alpha_at_rest") > 0.5,
            contribution=contribution * np.maximum(error, MIN_UNIT)[:, None],
            gradient_health=layout.slot(observations, "gradient_health"),
            score_rise=error * _growth(-slow * n_slow),
            loss_rise=np.where(loss > 0.0, -loss * _growth(-slope), slope),
            epochs_left=np.rint((1.0 - progress) * n_epochs).astype(np.int64),
        )

    def _host(self, observations: Features, name: str) -> Floats:
        return self.layout.host(observations, name).astype(np.float64)

    def _rank_by_slot(self) -> Integers:
        """Return each slot's blueprints in order of preference, ``[S, B]``, then -1."""
        slot_config = self.layout.slot_config
        table = np.full((self.layout.n_slots, len(slot_config.blueprints)), -1, np.int64)
        for row, slot in enumerate(slot_config.slot_ids):
            ranked = rank_blueprints(slot_config, slot, self.config.blueprints)
            if slot_config.is_enabled(slot):
                indices = [slot_config.blueprint_index(name) for name in ranked]
                table[row, : len(indices)] = indices
        return table


def _has_lasted(seen: _View, n_epochs: int) -> Flags:
    """Return which slots ``[N, S]`` have been in their stage for ``n_epochs``."""
    # Observations show the age squashed, in units of three epochs; half an epoch allows rounding.
    return seen.stage_age > np.float32(squash(np.asarray((n_epochs - 0.5) / 3.0)))


def _growth(log_ratios: Floats) -> Floats:
    """Return ratios minus 1."""
    return np.expm1(np.clip(log_ratios, -50.0, 50.0))
