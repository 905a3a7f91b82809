"""The controller that asks a trained policy. Shapes: N = hosts, D = features."""

from __future__ import annotations

import numpy as np
import torch

from esper.config.checks import require_bool, require_int
from esper.errors import ConfigError
from esper.tamiyo.controllers.controller import Flags, Floats, Integers, require_hosts
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.recurrent_trunk import RecurrentTrunk


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
    def act(self, observations: Floats, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        starts = np.asarray(starts, np.bool_)
        require_hosts(len(self._state), observations, starts)
        self._require_fit(observations, masks)
        is_start = torch.from_numpy(starts).to(self._state.device)
        state = self._state.masked_fill(is_start.unsqueeze(1), 0.0)
        seen = torch.from_numpy(np.ascontiguousarray(observations)).to(state)
        actions, _, _, _, self._state = self.policy.act(seen, masks, state, self._generator)
        return actions.cpu().numpy()

    def _require_fit(self, observations: Floats, masks: ActionMasks) -> None:
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
