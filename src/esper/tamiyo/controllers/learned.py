"""The controller that asks a trained policy. Shapes: N = hosts, D = features."""

from __future__ import annotations

import numpy as np
import torch

from esper.arrays import Features, Flags, Integers
from esper.config.checks import require_bool, require_int
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.recurrent import RecurrentTrunk
from esper.tamiyo.controllers.controller import Controller, require_hosts
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout


class LearnedController:
    """Draws actions from a recurrent policy, or takes its likeliest, and keeps its memory."""

    def __init__(
        self, policy: RecurrentTrunk, *, deterministic: bool = False, name: str = "learned"
    ) -> None:
        """Make the controller.

        Args:
            policy: What decides; it is not changed.
            deterministic: Take the likeliest op, then the likeliest of every head given it.
            name: What the controller is called in comparisons.
        """
        if not isinstance(policy, RecurrentTrunk):
            raise ConfigError(
                f"policy is a {type(policy).__name__}; it must be a RecurrentPolicy or a "
                "SlotPolicy, which esper.tamiyo.policy has."
            )
        require_bool("deterministic", deterministic)
        self.policy = policy
        self.deterministic = deterministic
        self.name = name
        self._state = torch.zeros(0, policy.state_size)
        self._generator: torch.Generator | None = None

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Forget everything and get ready to steer hosts, drawing from this seed."""
        require_int("n_hosts", n_hosts, least=1)
        require_int("seed", seed, least=0)
        weight = self.policy.features.weight
        self._state = weight.new_zeros(n_hosts, self.policy.state_size)
        if not self.deterministic:
            self._generator = torch.Generator(weight.device).manual_seed(seed)

    @torch.no_grad()
    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        starts = np.asarray(starts, np.bool_)
        require_hosts(len(self._state), observations, starts)
        self._require_fit(observations, masks)
        is_start = torch.from_numpy(starts).to(self._state.device)
        state = self._state.masked_fill(is_start.unsqueeze(1), 0.0)
        seen = torch.from_numpy(np.ascontiguousarray(observations)).to(state)
        actions, _, _, _, self._state = self.policy.act(seen, masks, state, self._generator)
        return actions.cpu().numpy()

    def _require_fit(self, observations: Features, masks: ActionMasks) -> None:
        """Refuse hosts that the policy was not made for."""
        advice = "steer hosts with the slots and blueprints that it was made for."
        seen, known = observations.shape[1], self.policy.observation_size
        if seen != known:
            raise ConfigError(
                f"observations have {seen} numbers and the policy was made for {known}; {advice}"
            )
        for head, choices in zip(self.policy.spec.names, self.policy.spec.sizes, strict=True):
            legal = masks[head].shape[-1]
            if legal != choices:
                raise ConfigError(
                    f"head {head!r} has {legal} choices and the policy was made for {choices}; "
                    f"{advice}"
                )


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

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        shown = np.array(observations, np.float32)
        numbers = self._to_own[self._seen.blueprints(shown)]
        self._shown.slot(shown, "blueprint")[...] = (numbers + 1) / self._shown.n_blueprints
        actions = self.controller.act(shown, masks.within(self._own), starts).copy()
        actions[:, _BLUEPRINT] = self._to_hosts[actions[:, _BLUEPRINT]]
        return actions


def _index(name: str, names: tuple[str, ...]) -> int:
    return names.index(name) if name in names else -1
