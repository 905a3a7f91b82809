"""Storage for the steps of many environments, and their advantages.

Shapes: ``E`` environments, ``T`` steps stored so far, ``H`` heads, ``D`` discrete heads, ``K``
choices of the widest, ``C`` numbers of continuous heads. Inside, time comes first: one step of all
environments is one contiguous write. What is read from outside is ``[E, T, ...]``, a view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from esper.arrays import Flags
from esper.config.checks import NonNegativeInt, PositiveInt, check
from esper.config.memory import require_memory
from esper.errors import RolloutError, ShapeError
from esper.simic import tensors
from esper.simic.agent.advantages import estimate_advantages
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.observations import Observations, ObservationSpec, map_leaves, named_leaves
from esper.simic.policy.policy import Decision
from esper.simic.policy.sequences import Indices
from esper.simic.tensors import check_tensor, to_device


class TamiyoRolloutBuffer:
    """The steps of one rollout.

    A step whose ``truncated`` flag is set was cut short from outside: it needs the value of the
    state it led to (its *bootstrap value*). A step that is ``done`` and not truncated is terminal.
    Environments may hold different numbers of steps: one that has stopped is left out of further
    calls of :meth:`add` by ``active``. A step that only reset an environment is stored but marked
    by ``skipped``; nothing is learned from it.
    """

    def __init__(
        self,
        n_envs: int,
        n_steps: int,
        spec: ActionSpec,
        *,
        observation_size: int | ObservationSpec,
        state_size: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate an empty buffer.

        Args:
            n_envs: Number of environments.
            n_steps: Steps of each environment that fit.
            spec: The heads of an action.
            observation_size: Length of an observation that is a vector, or what it consists of.
            state_size: Length of an environment's recurrent state.
            device: Where steps are stored.
        """
        check("n_envs", n_envs, PositiveInt)
        check("n_steps", n_steps, PositiveInt)
        check("state_size", state_size, NonNegativeInt)
        if not isinstance(observation_size, ObservationSpec):
            check("observation_size", observation_size, PositiveInt)
        seen = ObservationSpec.of(observation_size)
        check("spec", spec, ActionSpec)
        n_words = 2 * spec.n_discrete + spec.n_numbers + spec.n_heads + state_size + 3
        n_bytes = 4 * n_words + spec.n_discrete * spec.n_choices + seen.n_bytes
        require_memory(float(n_envs) * n_steps * n_bytes, n_envs=n_envs, n_steps=n_steps)
        self.n_envs, self.n_steps, self.spec = n_envs, n_steps, spec
        self.device = torch.device(device)

        def store(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n_steps, n_envs, *shape, dtype=dtype, device=self.device)

        self._observations = seen.zeros(n_steps, n_envs, device=self.device)
        self._states = store(state_size)
        self._actions = store(spec.n_discrete, dtype=torch.int64)
        self._numbers = store(spec.n_numbers)
        self._log_probs = store(spec.n_heads)
        self._legal = store(spec.n_discrete, spec.n_choices, dtype=torch.bool)
        self._values, self._rewards, self._bootstrap_values = store(), store(), store()
        # Flags of a step: done, truncated, skipped.
        self._flags = store(3, dtype=torch.bool)
        self._advantages: Tensor | None = None
        self._returns: Tensor | None = None
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        self._cursor = 0
        # What environments give as arrays, on the host; on the CPU the same memory as the tensors.
        is_shared = self.device.type == "cpu"
        self._host_rewards: NDArray[Any] = (
            self._rewards.numpy() if is_shared else np.zeros((n_steps, n_envs), np.float32)
        )
        self._host_flags: NDArray[Any] = (
            self._flags.numpy() if is_shared else np.zeros((n_steps, n_envs, 3), np.bool_)
        )
        # Where the tensors of each step go; made once, as views take longer than writing.
        stores = {k: v for k, v in self._stores().items() if k not in ("rewards", "flags")}
        self._places = [{k: v[t] for k, v in stores.items()} for t in range(n_steps)]
        self.reset()

    # Everything below is [E, T, ...]: environments first, as far as steps are stored.

    @property
    def observations(self) -> Any:
        """``[E, T, ...]``, a tensor or a dict of tensors."""
        return map_leaves(self._view, self._observations)

    @property
    def hidden_states(self) -> Tensor:
        """``[E, T, state size]`` recurrent state before each step."""
        return self._view(self._states)

    @property
    def actions(self) -> Tensor:
        """``[E, T, D]`` choices taken."""
        return self._view(self._actions)

    @property
    def numbers(self) -> Tensor:
        """``[E, T, C]`` numbers drawn by continuous heads."""
        return self._view(self._numbers)

    @property
    def log_probs(self) -> Tensor:
        """``[E, T, H]`` as they were when the actions were taken."""
        return self._view(self._log_probs)

    @property
    def masks(self) -> Tensor:
        """``[E, T, D, K]`` choices that were legal given what was drawn before them."""
        return self._view(self._legal)

    @property
    def values(self) -> Tensor:
        """``[E, T]`` value of the state before each step."""
        return self._view(self._values)

    @property
    def rewards(self) -> Tensor:
        """``[E, T]``."""
        self._copy_to_device()
        return self._view(self._rewards)

    @property
    def dones(self) -> Tensor:
        """``[E, T]`` whether the environment said that the episode is over."""
        return self._flag(0)

    @property
    def truncated(self) -> Tensor:
        """``[E, T]`` whether the episode was cut short from outside."""
        return self._flag(1)

    @property
    def skipped(self) -> Tensor:
        """``[E, T]`` whether the step only reset the environment; nothing is learned from it."""
        return self._flag(2)

    @property
    def bootstrap_values(self) -> Tensor:
        """``[E, T]`` value of the state a step led to, NaN where none was given."""
        return self._view(self._bootstrap_values)

    @property
    def advantages(self) -> Tensor:
        """``[E, T]`` from :meth:`compute_advantages_and_returns`."""
        return _require_computed(self._advantages).t()

    @property
    def returns(self) -> Tensor:
        """``[E, T]`` the critic's targets, from :meth:`compute_advantages_and_returns`."""
        return _require_computed(self._returns).t()

    @property
    def lengths(self) -> Indices:
        """``[E]`` steps stored for each environment."""
        return self._lengths.copy()

    @property
    def room(self) -> int:
        """Steps that still fit."""
        return self.n_steps - self._cursor

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another step."""
        return self._cursor == self.n_steps

    def reset(self) -> None:
        """Forget all steps."""
        self._bootstrap_values.fill_(torch.nan)
        self._advantages = self._returns = None
        self._lengths[:] = 0
        self._cursor = 0

    def add(
        self,
        observations: Observations,
        decision: Decision,
        *,
        rewards: ArrayLike | Tensor,
        dones: ArrayLike | Tensor,
        truncated: ArrayLike | Tensor,
        bootstrap_values: Tensor | None = None,
        active: ArrayLike | Tensor | None = None,
        skipped: ArrayLike | Tensor | None = None,
    ) -> None:
        """Store one step of all environments.

        Args:
            observations: ``[E, ...]`` that the decision was based on.
            decision: What the agent's ``act`` returned for it.
            rewards: ``[E]`` reward received.
            dones: ``[E]`` bool, whether the episode is over, for whatever reason.
            truncated: ``[E]`` bool, whether it was cut short from outside, not ended by itself.
            bootstrap_values: ``[E]`` value of the state that a truncated step led to; read only
                where ``truncated``.
            active: ``[E]`` bool, environments that took this step; all by default.
            skipped: ``[E]`` bool, environments that were only reset by this step, as in
                Gymnasium's ``NEXT_STEP`` mode; none by default.

        Raises:
            RolloutError: If the buffer is full, a step before this one is missing, a reward is not
                finite, or a truncated step has no bootstrap value; naming environment and step.
        """
        t = self._cursor
        if t == self.n_steps:
            raise RolloutError(
                f"step {t} does not fit: the buffer of {self.n_envs} environments holds "
                f"{self.n_steps} steps of each. Call reset() or make it larger."
            )
        reward = self._row("rewards", rewards, np.float32)
        flags = np.zeros((self.n_envs, 3), np.bool_)
        flags[:, 0] = self._row("dones", dones, np.bool_)
        flags[:, 1] = self._row("truncated", truncated, np.bool_)
        took_part = None
        if active is not None:
            took_part = self._row("active", active, np.bool_)
            reward = np.where(took_part, reward, np.float32(0.0))
        if skipped is not None:
            flags[:, 2] = self._row("skipped", skipped, np.bool_)
            # The reset is a step of nothing: its own episode, without a reward.
            flags[:, 0] |= flags[:, 2]
            reward = np.where(flags[:, 2], np.float32(0.0), reward)
        self._check_step(t, reward, took_part)
        needs_bootstrap = flags[:, 1] if took_part is None else flags[:, 1] & took_part
        any_cut = bool(needs_bootstrap.any())
        if bootstrap_values is None and any_cut:
            raise RolloutError(
                f"environment {int(needs_bootstrap.argmax())} was truncated at step {t} but there "
                "is no bootstrap value; pass bootstrap_values, the value of the state it reached."
            )

        self._write(t, observations, decision, bootstrap_values if any_cut else None)
        if any_cut:
            unused = to_device(torch.from_numpy(~needs_bootstrap), self.device)
            self._bootstrap_values[t].masked_fill_(unused, torch.nan)
        self._host_rewards[t], self._host_flags[t] = reward, flags
        self._lengths[slice(None) if took_part is None else took_part] = t + 1
        self._cursor = t + 1
        self._advantages = self._returns = None

    def finish(self, last_values: Tensor) -> None:
        """Give the value ``[E]`` of the state that each environment's last stored step led to.

        Read only for environments whose last stored step did not end an episode.
        """
        check_tensor("last_values", last_values, [self.n_envs], torch.float32, is_cast=True)
        envs = np.flatnonzero(self._lengths)
        last = self._lengths[envs] - 1
        is_open = ~self._host_flags[last, envs, :2].any(axis=-1)
        rows, columns, is_open = (
            to_device(torch.from_numpy(one), self.device) for one in (last, envs, is_open)
        )
        given = last_values.detach().to(self.device, torch.float32)[columns]
        kept = self._bootstrap_values[rows, columns]
        self._bootstrap_values[rows, columns] = torch.where(is_open, given, kept)

    def compute_advantages_and_returns(self, gamma: float, gae_lambda: float) -> None:
        """Fill :attr:`advantages` and :attr:`returns` for all stored steps.

        Raises:
            RolloutError: If nothing is stored, or a step needs a bootstrap value and has none.
        """
        n_steps = self._cursor
        if n_steps == 0:
            raise RolloutError("the buffer is empty; add at least one step.")
        self._copy_to_device()
        values, bootstraps = self._values[:n_steps], self._bootstrap_values[:n_steps]
        cut = self._flags[:n_steps, :, 1]
        terminal = self._flags[:n_steps, :, 0] & ~cut
        # [T, E] steps stored from t on: 1 at an environment's last, 0 or less beyond it.
        lengths = to_device(torch.from_numpy(self._lengths), self.device)
        steps_left = lengths - torch.arange(n_steps, device=self.device).unsqueeze(1)
        is_open = cut | ((steps_left <= 1) & ~terminal)
        missing = is_open & (steps_left > 0) & ~torch.isfinite(bootstraps)
        next_values = torch.cat([values[1:], bootstraps[-1:]])
        next_values = torch.where(is_open, bootstraps, next_values)
        advantages, returns = estimate_advantages(
            self._rewards[:n_steps].t(),
            values.t(),
            next_values.t(),
            terminated=terminal.t(),
            truncated=is_open.t(),
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        bad = (steps_left > 0) & ~torch.isfinite(returns.t())
        if any(tensors.read_numbers(torch.stack([missing.any(), bad.any()]))):
            self._reject_step(missing, bad, returns.t())
        # Time beyond an environment's last step holds nothing.
        self._advantages = advantages.t().masked_fill_(steps_left <= 0, 0.0)
        self._returns = returns.t().masked_fill_(steps_left <= 0, 0.0)

    def _reject_step(self, missing: Tensor, bad: Tensor, returns: Tensor) -> NoReturn:
        """Name the first step ``[T, E]`` without a bootstrap value, or with a bad return."""
        is_missing = bool(missing.any())
        t, env = (int(index) for index in (missing if is_missing else bad).nonzero()[0])
        if is_missing:
            raise RolloutError(
                f"environment {env} has no finite bootstrap value at step {t}, which was truncated "
                "or is its last; call finish(last_values) with the values of the states reached."
            )
        raise RolloutError(
            f"the return of environment {env} at step {t} is {float(returns[t, env])}; its "
            f"reward is {float(self._rewards[t, env])} and its value "
            f"{float(self._values[t, env])}. Rewards and values must be finite and moderate."
        )

    def episode_starts(self) -> Flags:
        """Return ``[T, E]`` bool on the host: steps after the first that begin another episode."""
        flags = self._host_flags[: self._cursor]
        starts = np.zeros(flags.shape[:2], np.bool_)
        starts[1:] = flags[:-1, :, 0] | flags[:-1, :, 1]
        return starts

    def skipped_steps(self) -> Flags:
        """Return ``[T, E]`` bool on the host: steps that only reset an environment."""
        return np.ascontiguousarray(self._host_flags[: self._cursor, :, 2])

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all stored steps, so that a rollout can go on from its middle."""
        self._copy_to_device()
        state = {name: store[: self._cursor].clone() for name, store in self._stores().items()}
        return state | {"lengths": torch.from_numpy(self._lengths.copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Hold the steps that :meth:`state_dict` gave, and no others."""
        self.reset()
        self.extend([state])
        self._lengths[:] = state["lengths"].numpy()

    def extend(self, parts: Sequence[Mapping[str, Tensor]]) -> None:
        """Store steps that other buffers collected, each of some of the environments, in order.

        Args:
            parts: What the :meth:`state_dict` of each buffer gave, for equally many steps.
        """
        n_new, n_envs = len(parts[0]["rewards"]), sum(part["rewards"].shape[1] for part in parts)
        if n_envs != self.n_envs or self._cursor + n_new > self.n_steps:
            raise RolloutError(
                f"{n_new} steps of {n_envs} environments do not fit; there is room for "
                f"{self.n_steps - self._cursor} steps of {self.n_envs} environments."
            )
        rows = slice(self._cursor, self._cursor + n_new)
        for name, store in self._stores().items():
            store[rows].copy_(torch.cat([part[name] for part in parts], dim=1))
        self._copy_to_host(rows)
        self._cursor += n_new
        self._lengths[:] = self._cursor
        self._advantages = self._returns = None

    def _copy_to_device(self) -> None:
        """Send what environments gave as arrays to the device, all steps at once."""
        if self.device.type != "cpu":
            self._rewards.copy_(to_device(torch.from_numpy(self._host_rewards), self.device))
            self._flags.copy_(to_device(torch.from_numpy(self._host_flags), self.device))

    def _copy_to_host(self, rows: slice) -> None:
        """Keep what environments gave on the host, too."""
        if self.device.type != "cpu":
            self._host_rewards[rows] = tensors.to_host(self._rewards[rows])
            self._host_flags[rows] = tensors.to_host(self._flags[rows])

    def _stores(self) -> dict[str, Tensor]:
        """Return the tensors in which steps are stored, ``[steps, E, ...]``, named as in add()."""
        stores = {
            "state": self._states,
            "actions": self._actions,
            "numbers": self._numbers,
            "log_probs": self._log_probs,
            "legal": self._legal,
            "values": self._values,
            "rewards": self._rewards,
            "bootstrap_values": self._bootstrap_values,
            "flags": self._flags,
            **named_leaves("observations", self._observations),
        }
        return {name: tensor for name, tensor in stores.items() if tensor.numel()}

    def flat(self, name: str) -> Any:
        """Return what is stored under an attribute's name as ``[T * E, ...]``, time first."""
        return map_leaves(lambda view: view.transpose(0, 1).flatten(0, 1), getattr(self, name))

    def _write(
        self,
        t: int,
        observations: Observations,
        decision: Decision,
        bootstrap_values: Tensor | None,
    ) -> None:
        """Store the tensors of step t, all of them or, if one does not fit, none."""
        given = {"bootstrap_values": bootstrap_values, **named_leaves("observations", observations)}
        rows: list[tuple[str, Tensor, Any]] = [
            (name, place, given[name] if name in given else getattr(decision, name, None))
            for name, place in self._places[t].items()
            if name != "bootstrap_values" or bootstrap_values is not None
        ]
        for name, place, value in rows:
            check_tensor(name, value, place.shape, place.dtype, is_cast=True)
        with torch.no_grad():
            for _, place, value in rows:
                place.copy_(value)

    def _flag(self, number: int) -> Tensor:
        self._copy_to_device()
        return self._view(self._flags[..., number])

    def _view(self, stored: Tensor) -> Tensor:
        return stored[: self._cursor].transpose(0, 1)

    def _row(self, name: str, given: ArrayLike | Tensor, dtype: type[np.generic]) -> np.ndarray:
        """Return one number for each environment, on the CPU."""
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        if array.shape != (self.n_envs,):
            raise ShapeError(f"{name} has shape {array.shape}; [{self.n_envs}] is needed.")
        return array.astype(dtype, copy=False)

    def _check_step(self, t: int, rewards: np.ndarray, took_part: np.ndarray | None) -> None:
        missing = self._lengths != t
        if took_part is not None:
            missing &= took_part
            if not took_part.any():
                raise RolloutError(f"no environment is active at step {t}; at least one is needed.")
        if missing.any():
            env = int(missing.argmax())
            raise RolloutError(
                f"environment {env} has no step {int(self._lengths[env])} but was given step {t}; "
                "an environment that was left out cannot come back before reset()."
            )
        if not math.isfinite(rewards.sum()):
            bad = ~np.isfinite(rewards)
            if not bad.any():
                return
            env = int(bad.argmax())
            raise RolloutError(
                f"the reward of environment {env} at step {t} is {rewards[env]}; "
                "rewards must be finite."
            )


def _require_computed(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise RolloutError(
            "advantages are not computed; call compute_advantages_and_returns(gamma, gae_lambda)."
        )
    return tensor
