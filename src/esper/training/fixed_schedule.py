"""The fixed schedule that a run is compared with: all hosts grow alike. Shapes: N = hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from esper.arrays import Flags, Floats
from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.episodes import GrowthEpisodes
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo import Controller, FixedSchedule, Planting
from esper.tamiyo.controllers.controller import rank_blueprints

FIRST_CHOICE = "widen_medium"
"""The blueprint that grows wherever it fits."""


def plan_growth(slot_config: SlotConfig) -> tuple[Planting, ...]:
    """Return what the schedule grows in each slot: the first choice, or else what is preferred."""
    plantings: list[Planting] = []
    for slot in slot_config.slot_ids:
        ranked = rank_blueprints(slot_config, slot, (FIRST_CHOICE, *PREFERRED_BLUEPRINTS))
        ranked = [name for name in ranked if name != "noop"]
        if slot_config.is_enabled(slot) and ranked:
            plantings.append(Planting(slot=slot, blueprint=ranked[0]))
    return tuple(plantings)


def make_fixed(envs: GrowthVectorEnv, stop: int) -> FixedSchedule:
    """Return the schedule that stops after so many epochs, if finishing is allowed."""
    return FixedSchedule(envs.layout, plan_growth(envs.slot_config), finish_after=stop)


def returns_by_stop(
    envs: GrowthVectorEnv, *, seed: int, wrap: Callable[[Controller], Controller]
) -> Floats:
    """Return the return ``[T + 1, N]`` of stopping the schedule after 0, 1, 2, ... epochs.

    The hosts are trained once. Before each step, the return of stopping there is computed, which
    is free and changes nothing. A host that may not stop has the return of its last epoch;
    if none may, stopping early is minus infinity.

    Args:
        envs: The environments to train in.
        seed: Determines the hosts.
        wrap: Wraps the controller that steers them.
    """
    reader = _StopReader(make_fixed(envs, envs.task.budget.n_epochs), envs.growth)
    run_episodes(envs, wrap(reader), seed=seed)
    reader.read()
    n_left = envs.task.budget.n_epochs + 1 - len(reader.returns)  # all budgets were shorter
    returns = np.stack([*reader.returns, *reader.returns[-1:] * n_left])
    if reader.may_finish.any():  # those that may not finish train on when the others stop
        return np.where(reader.may_finish, returns, returns[-1])
    returns[:-1] = -np.inf
    return returns


def best_stop(returns: Floats) -> int:
    """Return the epoch at which stopping gives the best mean return, given ``[T + 1, N]``."""
    # Rounded, so that ties go to the earliest epoch and not to the last digit.
    return int(returns.mean(1).round(9).argmax())


class _StopReader:
    """A controller wrapper that records, before each step, the return of stopping there."""

    def __init__(self, controller: Controller, growth: GrowthEpisodes) -> None:
        self._controller, self._growth = controller, growth
        self.name = controller.name
        self.returns: list[Floats] = []
        """``[N]`` each, after 0, 1, 2, ... epochs."""
        self.may_finish: Flags = np.ones(growth.n_hosts, np.bool_)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the wrapped controller."""
        self.returns = []
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Any, masks: Any, starts: Any) -> Any:
        """Record the returns, then let the wrapped controller act."""
        if not self.returns:
            self.may_finish = masks["op"][:, Op.FINISH].numpy()
        self.read()
        return self._controller.act(observations, masks, starts)

    def read(self) -> None:
        """Record the returns of stopping now."""
        self.returns.append(self._growth.returns_if_stopped())
