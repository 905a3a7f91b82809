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
from esper.tamiyo.controllers.controller import COLUMNS, Controller, NamedController
from esper.tamiyo.controllers.schedule import FixedSchedule, Planting
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

Seeds = tuple[tuple[str, ...], ...]
"""The seeds of every slot, one after another; of each, the first that fits."""

SCHEDULES: dict[str, Seeds] = {
    "nothing": (),
    "wider once": (("widen_large",),),
    "wider twice": (("widen_large",), ("widen_large",)),
    "much wider once": (("widen_huge", "widen_large"),),
    "much wider twice": (("widen_huge", "widen_large"), ("widen_huge", "widen_large")),
    "of everything": (
        ("widen_large",),
        ("deepen", "widen_large"),
        ("mlp_large", "conv_heavy", "lora_large"),
    ),
}

SHARES: dict[float, dict[str, float]] = {
    0.005: {"much wider twice": 0.85, "much wider once": 0.075, "of everything": 0.075},
    0.015: {"wider twice": 0.85, "much wider once": 0.075, "wider once": 0.075},
    0.08: {"wider once": 0.85, "wider twice": 0.05, "nothing": 0.1},
    np.inf: {"nothing": 0.85, "wider once": 0.15},
}
"""The schedules that suit a price, by the highest one that they suit; the best comes first.

The numbers are how often each is followed by a controller that varies them.
"""

STOP_PRICE = 0.07
"""Training stops at this divided by the price, as a share of the budget."""

STOP_SPREAD = 0.15
"""How much earlier or later a controller stops that varies schedules."""


class PriceSchedule(NamedController):
    """Follows the fixed schedule that suits each host's price, or varies those that nearly do."""

    def __init__(
        self, layout: ObservationLayout, *, is_varied: bool = False, name: str = "price schedule"
    ) -> None:
        self.layout, self.is_varied, self.name = layout, is_varied, name
        self._schedules: list[Controller] = [
            FixedSchedule(layout, _plan(layout, seeds)) for seeds in SCHEDULES.values()
        ]
        self._chosen: Integers = np.zeros(0, np.int64)
        self._stop: Floats = np.zeros(0)
        self._rng = np.random.default_rng(0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller for hosts that all start an episode."""
        for schedule in self._schedules:
            schedule.start(n_hosts, seed=seed)
        self._chosen = np.zeros(n_hosts, np.int64)
        self._stop = np.ones(n_hosts)
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose a legal action for each host."""
        starts = np.asarray(starts, np.bool_)
        if starts.any():
            prices = self.layout.prices(observations)[starts]
            rng = self._rng if self.is_varied else None
            self._chosen[starts] = choose_schedules(prices, rng)
            self._stop[starts] = choose_stops(prices, rng)
        every = np.stack([one.act(observations, masks, starts) for one in self._schedules])
        actions = every[self._chosen, np.arange(len(starts))]
        may_finish: Flags = masks.choices[:, COLUMNS["op"], Op.FINISH].cpu().numpy()
        # Observations are rounded to float32.
        is_over = self.layout.host(observations, "progress") >= self._stop - 1e-6
        actions[is_over & may_finish, COLUMNS["op"]] = Op.FINISH
        return actions


def choose_schedules(prices: Floats, rng: np.random.Generator | None = None) -> Integers:
    """Return the number of the best schedule for each price, ``[N]``, or of one that is drawn."""
    limits, names = np.array(list(SHARES)), list(SCHEDULES)
    rows = np.searchsorted(limits, prices)
    if rng is None:
        return np.array([names.index(next(iter(some))) for some in SHARES.values()])[rows]
    weights = np.array([[some.get(name, 0.0) for name in names] for some in SHARES.values()])
    return (rng.random(len(prices))[:, None] > weights.cumsum(1)[rows]).sum(1)


def choose_stops(prices: Floats, rng: np.random.Generator | None = None) -> Floats:
    """Return the share of the budget after which training stops, ``[N]``; varied by a generator."""
    shares = STOP_PRICE / np.maximum(prices, 1e-9)
    if rng is not None:
        shares = shares * rng.uniform(1.0 - STOP_SPREAD, 1.0 + STOP_SPREAD, len(prices))
    return np.minimum(1.0, shares)


def _plan(layout: ObservationLayout, seeds: Seeds) -> list[Planting]:
    """Return a schedule's seeds for every slot that some of them fit."""
    config, plantings = layout.slot_config, list[Planting]()
    for names in seeds:
        for slot in filter(config.is_enabled, config.slot_ids):
            known = [name for name in names if name in config.blueprints]
            fitting = [name for name in known if config.does_fit(name, slot)]
            if fitting:
                others = tuple(fitting[1:])
                plantings.append(Planting(slot=slot, blueprint=fitting[0], otherwise=others))
    return plantings
