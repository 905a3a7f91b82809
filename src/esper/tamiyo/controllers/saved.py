"""A learned controller by itself: kept in a folder, and made for the slots of any host.

controller.safetensors  the weights of its policy
controller.json         what they mean: sizes, blueprints, features and heads by name, its origin
CARD.md                 the same for people, and what it was shown to do
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esper.config import PolicyConfig
from esper.config.growth import GrowthConfig
from esper.config.tasks import Budget
from esper.errors import ControllerError
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo.controllers.controller import Controller
from esper.tamiyo.controllers.learned import LearnedController
from esper.tamiyo.controllers.translating import TranslatedController, with_blueprints
from esper.tamiyo.policy.slot_network import SlotPolicy


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedController:
    """A trained policy, with all that is needed to steer hosts of any number of slots by it."""

    name: str
    """What it is called in comparisons."""
    weights: Mapping[str, Tensor]
    """Of its :class:`SlotPolicy`, by name."""
    policy: PolicyConfig
    """The sizes of the policy."""
    blueprints: tuple[str, ...]
    """What it can grow, in the order of its blueprint head's choices."""
    deterministic: bool = False
    """Whether it takes the likeliest action instead of drawing one."""
    budget: Budget = field(default_factory=Budget)
    """The budget of the hosts that it learned with."""
    growth: GrowthConfig | None = None
    """How long seeds stayed in their stages while it learned; None for the usual."""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Where it comes from, in plain values by name."""

    def make(self, slot_config: SlotConfig, *, deterministic: bool | None = None) -> Controller:
        """Return the controller, ready for hosts with these slots.

        Blueprints are known by name. One that the controller does not know, it never grows; one
        that the hosts do not have, it never sees offered.

        Args:
            slot_config: The slots of the hosts, and what fits them.
            deterministic: Whether it takes the likeliest action; None for its own way.

        Raises:
            ControllerError: If the weights are not those of such a policy, or it knows no
                blueprint that fits any of the slots.
        """
        own = with_blueprints(slot_config, self.blueprints)
        if not any(own.fits[slot] for slot in own.slot_ids):
            raise ControllerError(
                f"controller {self.name!r} knows no blueprint that fits a slot of this host; it "
                f"knows {', '.join(self.blueprints)}. Train one with what the host can grow."
            )
        is_greedy = self.deterministic if deterministic is None else deterministic
        controller = LearnedController(
            self.make_policy(own), deterministic=is_greedy, name=self.name
        )
        if own.blueprints == slot_config.blueprints:
            return controller
        return TranslatedController(controller, own, slot_config)

    def make_policy(self, slot_config: SlotConfig) -> SlotPolicy:
        """Return its policy for slots whose blueprints are numbered as its own.

        Raises:
            ControllerError: If the weights are not those of such a policy.
        """
        with torch.random.fork_rng(devices=[]):  # layers draw first weights, which are replaced
            policy = SlotPolicy(slot_config, self.policy)
        try:
            policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ControllerError(
                f"the weights of controller {self.name!r} are not those of a policy with "
                f"{len(self.blueprints)} blueprints and its sizes ({reason}); export it again."
            ) from error
        if not all(torch.isfinite(tensor).all() for tensor in policy.state_dict().values()):
            raise ControllerError(
                f"the weights of controller {self.name!r} are not all finite; export it again."
            )
        return policy
