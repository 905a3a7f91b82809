"""Storage for the steps of many environments, and their advantages.

Shapes: ``E`` environments, ``T`` steps stored so far, ``H`` heads, ``K`` choices of the widest
head. Inside, time comes first: one step of all environments is one contiguous write. What is read
from outside is ``[E, T, ...]``, a view.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from esper.arrays import Flags
from esper.config.checks import require_int
from esper.errors import DtypeError, RolloutError, ShapeError
from esper.simic.agent.advantages import estimate_advantages
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.protocol import Decision
from esper.simic.policy.sequences import Indices


class TamiyoRolloutBuffer:
    """The steps of one round of collection.

    A step whose ``truncated`` flag is set was cut short from outside: it needs the value of the
    state it led to (its *bootstrap value*). A step that is ``done`` and not truncated is terminal.
    Environments may hold different numbers of steps: one that has stopped is left out of further
    calls of :meth:`add` by ``active``.
    """

    def __init__(
        self,
        n_envs: int,
        n_steps: int,
        spec: ActionSpec,
        *,
        observation_size: int,
        state_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value in (
            ("n_envs", n_envs),
            ("n_steps", n_steps),
            ("observation_size", observation_size),
            ("state_size", state_size),
        ):
            require_int(name, value, least=1)
        self.n_envs, self.n_steps, self.spec = n_envs, n_steps, spec
        self.device = torch.device(device)

        def store(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n_steps, n_envs, *shape, dtype=dtype, device=self.device)

        self._observations = store(observation_size)
        self._states = store(state_size)
        self._actions = store(spec.n_heads, dtype=torch.int64)
        self._log_probs = store(spec.n_heads)
        self._legal = store(spec.n_heads, spec.n_choices, dtype=torch.bool)
        self._values, self._rewards, self._bootstrap_values = store(), store(), store()
        self._dones, self._truncated = store(dtype=torch.bool), store(dtype=torch.bool)
        self._advantages: Tensor | None = None
        self._returns: Tensor | None = None
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        self._cursor = 0
        self.reset()

    # Everything below is [E, T, ...]: environments first, as far as steps are stored.

    @property
    def observations(self) -> Tensor:
        """``[E, T, observation size]``."""
        return self._view(self._observations)

    @property
    def hidden_states(self) -> Tensor:
        """``[E, T, state size]`` recurrent state before each step."""
        return self._view(self._states)

    @property
    def actions(self) -> Tensor:
        """``[E, T, H]`` choices taken."""
        return self._view(self._actions)

    @property
    def log_probs(self) -> Tensor:
        """``[E, T, H]`` as they were when the actions were taken."""
        return self._view(self._log_probs)

    @property
    def masks(self) -> Tensor:
        """``[E, T, H, K]`` choices that were legal given what was drawn before them."""
        return self._view(self._legal)

    @property
    def values(self) -> Tensor:
        """``[E, T]`` value of the state before each step."""
        return self._view(self._values)

    @property
    def rewards(self) -> Tensor:
        """``[E, T]``."""
        return self._view(self._rewards)

    @property
    def dones(self) -> Tensor:
        """``[E, T]`` whether the environment said that the episode is over."""
        return self._view(self._dones)

    @property
    def truncated(self) -> Tensor:
        """``[E, T]`` whether the episode was cut short from outside."""
        return self._view(self._truncated)

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
        observations: Tensor,
        decision: Decision,
        *,
        rewards: ArrayLike | Tensor,
        dones: ArrayLike | Tensor,
        truncated: ArrayLike | Tensor,
        bootstrap_values: Tensor | None = None,
        active: ArrayLike | Tensor | None = None,
    ) -> None:
        """Store one step of all environments.

        Args:
            observations: ``[E, observation size]`` what the decision was made on.
            decision: What the agent's ``act`` returned for it.
            rewards: ``[E]`` reward received.
            dones: ``[E]`` bool, whether the episode is over, for whatever reason.
            truncated: ``[E]`` bool, whether it was cut short from outside, not ended by itself.
            bootstrap_values: ``[E]`` value of the state that a truncated step led to; read only
                where ``truncated``.
            active: ``[E]`` bool, environments that took this step; all by default.

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
        done = self._row("dones", dones, np.bool_)
        cut = self._row("truncated", truncated, np.bool_)
        took_part = np.ones(self.n_envs, np.bool_)
        if active is not None:
            took_part = self._row("active", active, np.bool_)
        self._check_step(t, reward, took_part)
        needs_bootstrap = cut & took_part
        if bootstrap_values is None and needs_bootstrap.any():
            raise RolloutError(
                f"environment {int(needs_bootstrap.argmax())} was truncated at step {t} but there "
                "is no bootstrap value; pass bootstrap_values, the value of the state it reached."
            )

        self._write(t, observations, decision, bootstrap_values)
        unused = torch.from_numpy(~needs_bootstrap).to(self.device)
        self._bootstrap_values[t].masked_fill_(unused, torch.nan)
        self._rewards[t] = torch.from_numpy(np.where(took_part, reward, 0.0))
        self._dones[t] = torch.from_numpy(done)
        self._truncated[t] = torch.from_numpy(cut)
        self._lengths[took_part] = t + 1
        self._cursor = t + 1
        self._advantages = self._returns = None

    def finish(self, last_values: Tensor) -> None:
        """Give the value ``[E]`` of the state that each environment's last stored step led to.

        Read only for environments whose last stored step did not end an episode.
        """
        _require_fit("last_values", last_values, self._values[0])
        envs = np.flatnonzero(self._lengths)
        rows = torch.from_numpy(self._lengths[envs] - 1).to(self.device)
        columns = torch.from_numpy(envs).to(self.device)
        given = last_values.detach().to(self.device, torch.float32)[columns]
        is_open = ~(self._dones[rows, columns] | self._truncated[rows, columns])
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
        values, bootstraps = self._values[:n_steps], self._bootstrap_values[:n_steps]
        cut = self._truncated[:n_steps]
        terminal = self._dones[:n_steps] & ~cut
        steps_left = self._steps_left()
        is_open = cut | ((steps_left <= 1) & ~terminal)
        self._require_bootstraps(is_open & (steps_left > 0) & ~torch.isfinite(bootstraps))

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
        bad = ((steps_left > 0) & ~torch.isfinite(returns.t())).nonzero()
        if len(bad):
            t, env = (int(index) for index in bad[0])
            raise RolloutError(
                f"the return of environment {env} at step {t} is {float(returns[env, t])}; its "
                f"reward is {float(self._rewards[t, env])} and its value "
                f"{float(self._values[t, env])}. Rewards and values must be finite and moderate."
            )
        # Time beyond an environment's last step holds nothing.
        self._advantages = advantages.t().masked_fill_(steps_left <= 0, 0.0)
        self._returns = returns.t().masked_fill_(steps_left <= 0, 0.0)

    def episode_starts(self) -> Flags:
        """Return ``[T, E]`` bool on the CPU: steps after the first that begin another episode."""
        ends = (self._dones | self._truncated)[: self._cursor]
        starts = torch.zeros_like(ends)
        starts[1:] = ends[:-1]
        return starts.cpu().numpy()

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all stored steps, so that a rollout can go on from its middle."""
        state = {name: store[: self._cursor].clone() for name, store in self._stores().items()}
        return state | {"lengths": torch.from_numpy(self._lengths.copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Hold the steps that :meth:`state_dict` gave, and no others."""
        self.reset()
        self._cursor = len(state["rewards"])
        for name, store in self._stores().items():
            store[: self._cursor].copy_(state[name])
        self._lengths[:] = state["lengths"].numpy()

    def _stores(self) -> dict[str, Tensor]:
        """Return where steps are stored, ``[steps, E, ...]``."""
        return {
            "observations": self._observations,
            "states": self._states,
            "actions": self._actions,
            "log_probs": self._log_probs,
            "legal": self._legal,
            "values": self._values,
            "rewards": self._rewards,
            "bootstrap_values": self._bootstrap_values,
            "dones": self._dones,
            "truncated": self._truncated,
        }

    def flat(self, name: str) -> Tensor:
        """Return what is stored under an attribute's name as ``[T * E, ...]``, time first."""
        view: Tensor = getattr(self, name)
        return view.transpose(0, 1).flatten(0, 1)

    def _write(
        self, t: int, observations: Tensor, decision: Decision, bootstrap_values: Tensor | None
    ) -> None:
        """Store the tensors of step t, all of them or, if one does not fit, none."""
        rows = [
            ("observations", self._observations[t], observations),
            ("decision.state", self._states[t], decision.state),
            ("decision.actions", self._actions[t], decision.actions),
            ("decision.log_probs", self._log_probs[t], decision.log_probs),
            ("decision.legal", self._legal[t], decision.legal),
            ("decision.values", self._values[t], decision.values),
        ]
        if bootstrap_values is not None:
            rows.append(("bootstrap_values", self._bootstrap_values[t], bootstrap_values))
        for name, place, given in rows:
            _require_fit(name, given, place)
        for _, place, given in rows:
            place.copy_(given.detach())

    def _view(self, stored: Tensor) -> Tensor:
        return stored[: self._cursor].transpose(0, 1)

    def _row(self, name: str, given: ArrayLike | Tensor, dtype: type[np.generic]) -> np.ndarray:
        """Return one number for each environment, on the CPU."""
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        if array.shape != (self.n_envs,):
            raise ShapeError(f"{name} has shape {array.shape}; [{self.n_envs}] is needed.")
        return array.astype(dtype, copy=False)

    def _check_step(self, t: int, rewards: np.ndarray, took_part: np.ndarray) -> None:
        missing = took_part & (self._lengths != t)
        if missing.any():
            env = int(missing.argmax())
            raise RolloutError(
                f"environment {env} has no step {int(self._lengths[env])} but was given step {t}; "
                "an environment that was left out cannot come back before reset()."
            )
        if not took_part.any():
            raise RolloutError(f"no environment is active at step {t}; at least one is needed.")
        bad = took_part & ~np.isfinite(rewards)
        if bad.any():
            env = int(bad.argmax())
            raise RolloutError(
                f"the reward of environment {env} at step {t} is {rewards[env]}; "
                "rewards must be finite."
            )

    def _steps_left(self) -> Tensor:
        """Return ``[T, E]``: steps stored from t on, 1 at an environment's last, 0 beyond it."""
        lengths = torch.from_numpy(self._lengths).to(self.device)
        return lengths - torch.arange(self._cursor, device=self.device).unsqueeze(1)

    def _require_bootstraps(self, missing: Tensor) -> None:
        if not bool(missing.any()):
            return
        t, env = (int(index) for index in missing.nonzero()[0])
        raise RolloutError(
            f"environment {env} has no finite bootstrap value at step {t}, which was truncated or "
            "is its last; call finish(last_values) with the values of the states reached."
        )


def _require_fit(name: str, given: Tensor, place: Tensor) -> None:
    """Refuse what cannot be stored in ``place`` as it is."""
    if not isinstance(given, Tensor):
        raise DtypeError(f"{name} is a {type(given).__name__}; a torch.Tensor is needed.")
    if given.shape != place.shape:
        shape, needed = tuple(given.shape), list(place.shape)
        raise ShapeError(f"{name} has shape {shape}; {needed} is needed.")
    kinds = [(t.is_floating_point(), t.dtype == torch.bool) for t in (given, place)]
    if kinds[0] != kinds[1]:
        raise DtypeError(f"{name} has dtype {given.dtype}; {place.dtype} is needed.")


def _require_computed(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise RolloutError(
            "advantages are not computed; call compute_advantages_and_returns(gamma, gae_lambda)."
        )
    return tensor
