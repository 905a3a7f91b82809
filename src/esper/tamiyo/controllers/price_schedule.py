"""Fixed schedules that suit the price of compute.

They were tuned on the prior's tasks: growth pays where compute is free, little of it pays where
compute is dear, and training should then stop early. What no schedule knows is what the host at
hand needs.

Shapes: N = hosts.
"""

from __future__ import annotations

import numpy as np

from esper.arrays import Features, Flags, Floats, Integers
from esper.lifecycle.factored_actions import Op
from esper.tamiyo.controllers.controller import COLUMNS, NamedController
from esper.tamiyo.controllers.schedule import FixedSchedule, Planting
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

Seeds = tuple[tuple[str, ...], ...]
"""The seeds of every slot, one after another; of each, the first that fits."""

_LARGE, _HUGE = ("widen_large",), ("widen_huge", "widen_large")

SCHEDULES: dict[str, Seeds] = {
    "nothing": (),
    "wider once": (_LARGE,),
    "wider twice": (_LARGE, _LARGE),
    "much wider once": (_HUGE,),
    "much wider twice": (_HUGE, _HUGE),
}
"""The schedules that are followed and taught. Taught policies gave up those that grew later, deeper
or other modules."""

BEST: dict[float, str] = {
    0.005: "much wider twice",
    0.015: "wider twice",
    0.08: "wider once",
    np.inf: "nothing",
}
"""The schedule that suits a price, by the highest price that it suits."""

STOP_PRICE = 0.07
"""Training stops at this divided by the price, as a share of the budget."""


class PriceSchedule(NamedController):
    """Follows the fixed schedule that suits each host's price."""

    def __init__(self, layout: ObservationLayout, *, name: str = "price schedule") -> None:
        self.layout, self.name = layout, name
        self._schedules = [follow(layout, SCHEDULES[best]) for best in BEST.values()]
        self._chosen: Integers = np.zeros(0, np.int64)
        self._stop: Floats = np.zeros(0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller for hosts that all start an episode."""
        for schedule in self._schedules:
            schedule.start(n_hosts, seed=seed)
        self._chosen = np.zeros(n_hosts, np.int64)
        self._stop = np.ones(n_hosts)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose a legal action for each host."""
        starts = np.asarray(starts, np.bool_)
        if starts.any():
            prices = self.layout.prices(observations)[starts]
            self._chosen[starts] = np.searchsorted(list(BEST), prices)
            self._stop[starts] = stopping_shares(prices)
        every = np.stack([one.act(observations, masks, starts) for one in self._schedules])
        actions = every[self._chosen, np.arange(len(starts))]
        may_finish: Flags = masks.choices[:, COLUMNS["op"], Op.FINISH].cpu().numpy()
        # Observations are rounded to float32.
        is_over = self.layout.host(observations, "progress") >= self._stop - 1e-6
        actions[is_over & may_finish, COLUMNS["op"]] = Op.FINISH
        return actions


def stopping_shares(prices: Floats) -> Floats:
    """Return the share of the budget after which training stops at each price, ``[N]``."""
    return np.minimum(1.0, STOP_PRICE / np.maximum(prices, 1e-9))


def follow(layout: ObservationLayout, seeds: Seeds) -> FixedSchedule:
    """Return the controller that grows seeds in every slot that some of them fit."""
    config, plantings = layout.slot_config, list[Planting]()
    for names in seeds:
        for slot in filter(config.is_enabled, config.slot_ids):
            known = [name for name in names if name in config.blueprints]
            fitting = [name for name in known if config.does_fit(name, slot)]
            if fitting:
                name, *others = fitting
                plantings.append(Planting(slot=slot, blueprint=name, otherwise=tuple(others)))
    return FixedSchedule(layout, plantings)
