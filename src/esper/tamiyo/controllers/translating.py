"""A controller between its own blueprints and a host's. Shapes: N = hosts, D = features, S = slots.

A controller learned with certain blueprints in a certain order. A host may offer others, or the
same in another order; then what the controller sees and does is translated by name.
"""

from __future__ import annotations

import numpy as np

from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo.controllers.controller import Controller, Flags, Floats, Integers
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

_BLUEPRINT = HEAD_NAMES.index("blueprint")


def with_blueprints(slot_config: SlotConfig, blueprints: tuple[str, ...]) -> SlotConfig:
    """Return a host's slots as a controller sees them that knows these blueprints.

    A blueprint that the host does not have fits nowhere.
    """
    return SlotConfig(
        slot_config.slot_ids,
        enabled=slot_config.enabled,
        seed_limit=slot_config.seed_limit,
        blueprints=blueprints,
        fits={
            slot: [
                name
                for name in blueprints
                if name in slot_config.blueprints and slot_config.does_fit(name, slot)
            ]
            for slot in slot_config.slot_ids
        },
        allow_finish=slot_config.allow_finish,
    )


class TranslatedController:
    """Steers hosts whose blueprints are numbered otherwise than its controller's."""

    def __init__(self, controller: Controller, own: SlotConfig, hosts: SlotConfig) -> None:
        """Make the controller.

        Args:
            controller: What decides, in its own numbers.
            own: The hosts' slots as the controller sees them.
            hosts: The hosts' slots as they are.
        """
        self.controller = controller
        self.name = controller.name
        self._own = own
        self._seen, self._shown = ObservationLayout(hosts), ObservationLayout(own)
        ours = [_index(name, own.blueprints) for name in hosts.blueprints]
        self._to_own = np.array([*ours, -1], np.int64)
        """The controller's number of each of the hosts' blueprints, -1 for none; last that of no
        blueprint."""
        theirs = [_index(name, hosts.blueprints) for name in own.blueprints]
        # A blueprint that hosts do not have is never germinated, so its number is never read.
        self._to_hosts = np.maximum(np.array(theirs, np.int64), 0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Forget everything and get ready to steer hosts."""
        self.controller.start(n_hosts, seed=seed)

    def act(self, observations: Floats, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        shown = np.array(observations, np.float32)
        numbers = self._to_own[self._seen.blueprints(shown)]
        self._shown.slot(shown, "blueprint")[...] = (numbers + 1) / self._shown.n_blueprints
        actions = self.controller.act(shown, masks.within(self._own), starts).copy()
        actions[:, _BLUEPRINT] = self._to_hosts[actions[:, _BLUEPRINT]]
        return actions


def _index(name: str, names: tuple[str, ...]) -> int:
    return names.index(name) if name in names else -1
