"""The controller that follows a trained policy. Shapes: N = hosts, D = features."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from esper.arrays import Features, Flags, Integers
from esper.config.checks import PositiveInt, Seed, check
from esper.config.growth import RELATIVE_REWARDS, RewardForm
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.policy import Decision
from esper.simic.policy.recurrent import RecurrentTrunk
from esper.tamiyo.controllers.controller import Controller, NamedController, require_hosts
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout


class LearnedController(NamedController):
    """Samples actions from a recurrent policy, or takes the most likely ones."""

    def __init__(
        self,
        policy: RecurrentTrunk,
        *,
        deterministic: bool = False,
        name: str = "learned",
        return_scale: tuple[float, float] | None = None,
        rewards: RewardForm = "dense",
    ) -> None:
        """Create the controller.

        Args:
            policy: The policy, which is not changed.
            deterministic: Take the most likely op, then the most likely choice of each head.
            name: The controller's name in comparisons.
            return_scale: Mean and standard deviation of the returns that the policy's values are
                in units of; None if they are unknown.
            rewards: The form of the rewards that the policy was trained with.
        """
        check("policy", policy, RecurrentTrunk)
        check("deterministic", deterministic, bool)
        self.policy = policy
        self.deterministic = deterministic
        self.name = name
        self.rewards: RewardForm = rewards
        self._return_scale = return_scale
        self._state = torch.zeros(0, policy.state_size)
        self._generator: torch.Generator | None = None
        self._last: Decision | None = None
        """What the policy decided last."""

    @property
    def state(self) -> Tensor:
        """``[N, state size]`` the policy's memory after the last decision."""
        return self._state

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller, with the seed of its samples."""
        check("n_hosts", n_hosts, PositiveInt)
        check("seed", seed, Seed)
        weight = self.policy.features.weight
        self._state = weight.new_zeros(n_hosts, self.policy.state_size)
        self._last = None
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
        decision = self.policy.act(seen, masks, state, self._generator)
        self._last = decision
        self._state = decision.next_state
        return decision.actions.cpu().numpy()

    def choice_probabilities(self, host: int = 0) -> dict[str, list[float | None]]:
        """Return how likely each choice was for a host in the last decision, by head.

        None for a masked choice; empty before the first decision.
        """
        if self._last is None:
            return {}
        decision = self._last
        shares = cast("list[float]", self.policy.probabilities(decision)[host].tolist())
        legal = cast("list[list[bool]]", decision.legal[host].tolist())
        by_head: dict[str, list[float | None]] = {}
        for name, size, may in zip(
            self.policy.spec.names, self.policy.spec.sizes, legal, strict=True
        ):
            own, shares = shares[:size], shares[size:]
            by_head[name] = [s if is_legal else None for s, is_legal in zip(own, may, strict=False)]
        return by_head

    def expected_return(self, host: int = 0) -> float | None:
        """Return the sum of rewards that the policy expected for a host in the last decision.

        At the start of an episode, that is the final score minus all costs; if rewards were
        relative to a baseline, how much better that is than no growth of the same host. None before
        the first decision, and if the units of the policy's values are unknown.
        """
        if self._last is None or self._return_scale is None:
            return None
        mean, std = self._return_scale
        return mean + std * float(self._last.values[host])

    def _require_fit(self, observations: Features, masks: ActionMasks) -> None:
        """Reject hosts that the policy was not created for."""
        advice = "create the policy for the slots and blueprints of these hosts."
        seen, leaf = observations.shape[1:], self.policy.observation_spec.single
        if leaf is None or seen != leaf.shape:
            known = leaf.shape[0] if leaf is not None else 0
            raise ConfigError(
                f"observations have {seen[0]} features but the policy expects {known}; {advice}"
            )
        for head, choices in zip(self.policy.spec.names, self.policy.spec.sizes, strict=True):
            legal = masks[head].shape[-1]
            if legal != choices:
                raise ConfigError(
                    f"head {head!r} has {legal} choices but the policy expects {choices}; {advice}"
                )


def choice_probabilities(controller: Controller, host: int = 0) -> dict[str, list[float | None]]:
    """Return how likely each choice was in a controller's last decision; empty without odds."""
    ask = getattr(controller, "choice_probabilities", None)
    return {} if ask is None else ask(host)


def op_probabilities(controller: Controller, host: int = 0) -> dict[str, float]:
    """Return how likely each op was in a controller's last decision; empty without odds."""
    shares = choice_probabilities(controller, host).get("op", [])
    return {op.name.lower(): share for op, share in zip(Op, shares, strict=False) if share}


def expected_return(controller: Controller, host: int = 0) -> float | None:
    """Return the sum of rewards that a controller expected in its last decision, if it did."""
    ask = getattr(controller, "expected_return", None)
    return None if ask is None else ask(host)


def expects_gain(controller: Controller) -> bool:
    """Return whether a controller's returns are relative to the same host with no growth."""
    if isinstance(controller, TranslatedController):
        controller = controller.controller
    # One that was trained against a schedule has learned gains at the end.
    return isinstance(controller, LearnedController) and controller.rewards in RELATIVE_REWARDS


_BLUEPRINT = HEAD_NAMES.index("blueprint")


def with_blueprints(slot_config: SlotConfig, blueprints: tuple[str, ...]) -> SlotConfig:
    """Return a host's slots with the blueprints of a controller.

    A blueprint that the host does not have fits no slot.
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


class TranslatedController(NamedController):
    """Translates between the blueprint numbers of hosts and those of a controller."""

    def __init__(self, controller: Controller, own: SlotConfig, hosts: SlotConfig) -> None:
        """Wrap a controller.

        Args:
            controller: The controller, which uses its own blueprint numbers.
            own: The hosts' slots with the controller's blueprints.
            hosts: The hosts' slots with their own blueprints.
        """
        self.controller = controller
        self.name = controller.name
        self._own = own
        self._seen, self._shown = ObservationLayout(hosts), ObservationLayout(own)
        ours = [_index(name, own.blueprints) for name in hosts.blueprints]
        self._to_own = np.array([*ours, -1], np.int64)
        """The controller's number of each blueprint of the hosts, -1 if it has none. The last
        entry maps -1, no blueprint, to itself."""
        theirs = [_index(name, hosts.blueprints) for name in own.blueprints]
        # A blueprint that the hosts lack is never germinated, so its number does not matter.
        self._to_hosts = np.maximum(np.array(theirs, np.int64), 0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller."""
        self.controller.start(n_hosts, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        shown = np.array(observations, np.float32)
        numbers = self._to_own[self._seen.blueprints(shown)]
        self._shown.slot(shown, "blueprint")[...] = (numbers + 1) / self._shown.n_blueprints
        actions = self.controller.act(shown, masks.within(self._own), starts).copy()
        actions[:, _BLUEPRINT] = self._to_hosts[actions[:, _BLUEPRINT]]
        return actions

    def choice_probabilities(self, host: int = 0) -> dict[str, list[float | None]]:
        """Return how likely each choice was in the last decision, with the hosts' blueprints."""
        found = choice_probabilities(self.controller, host)
        if found:
            own = found["blueprint"]
            # The last entry of the map is for slots without a seed.
            found["blueprint"] = [None if k < 0 else own[k] for k in self._to_own[:-1].tolist()]
        return found

    def expected_return(self, host: int = 0) -> float | None:
        """Return the sum of rewards that was expected in the last decision; None if unknown."""
        return expected_return(self.controller, host)


def _index(name: str, names: tuple[str, ...]) -> int:
    return names.index(name) if name in names else -1
