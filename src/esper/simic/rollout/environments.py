"""Environments as a collector drives them: many at once, each reset as soon as its episode ends.

:class:`LocalEnvironments` steps environments of this process one after another;
:class:`VectorEnvironments` drives any Gymnasium vector environment in any of its autoreset modes.
Shapes: ``E`` environments.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from esper.arrays import Flags
from esper.errors import ShapeError, UnsupportedEnvironmentError, type_of
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.mask_reader import MaskReader, PolicyMasks
from esper.simic.policy.masks import join_masks
from esper.simic.policy.observations import Observations, ObservationSpec, leaves_of
from esper.simic.rollout.actions import ActionCodec
from esper.simic.rollout.env_state import load_env_state, save_env_state
from esper.simic.rollout.mask_sources import (
    MASK_KEYS,
    Env,
    MaskSource,
    all_or_none,
    find_vector_method,
    mask_method,
    reject_unread_masks,
    warn_of_observed_masks,
)


@dataclass(frozen=True, eq=False)
class EnvStep:
    """What a step of all environments led to."""

    observations: Observations
    """``[E, ...]``, those of a new episode where one ended."""
    rewards: NDArray[np.float32]
    """``[E]``."""
    terminated: Flags
    """``[E]``."""
    truncated: Flags
    """``[E]`` cut short from outside and not terminated."""
    final: Observations | None
    """``[E, ...]`` the last observations of truncated episodes; None if none was truncated."""
    masks: Any
    """The choices that are legal next; None for all."""
    info: Any
    """As the environments gave it."""
    skipped: Flags | None = None
    """``[E]`` environments that were only reset by this step; None for none."""


class Environments(ABC):
    """Many environments, stepped together."""

    envs: Any
    """A list of environments, or a vector environment."""
    n_envs: int

    observation_spec: ObservationSpec
    codec: ActionCodec
    mask_source: MaskSource
    """Where they say what is legal."""

    @property
    def has_mask_method(self) -> bool:
        """Whether the environments have a method that tells what is legal."""
        return self.mask_source.ask is not None

    @abstractmethod
    def reset(self, seed: int | None) -> tuple[Observations, Any]:
        """Start new episodes; return observations ``[E, ...]`` and masks."""

    @abstractmethod
    def step(self, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None) -> EnvStep:
        """Take discrete choices ``[E, D]`` and numbers ``[E, C]``."""

    @abstractmethod
    def save_state(self) -> Any:
        """Return the state of all environments as plain values.

        Raises:
            UnsupportedEnvironmentError: If an environment's state cannot be saved.
        """

    @abstractmethod
    def load_state(self, state: Any) -> None:
        """Restore what :meth:`save_state` returned."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""

    @abstractmethod
    def _growth_masks(self) -> Any: ...

    @abstractmethod
    def _has_unread_masks(self) -> bool: ...

    @abstractmethod
    def _offered(self, *infos: dict[str, Any]) -> dict[str, tuple[Any, Sequence[bool]]]:
        """Return the masks in ``info`` by key, and which environments gave one."""

    def read_masks(self, *infos: dict[str, Any]) -> Any:
        """Return what is legal after a reset or step; None for everything."""
        masks = self._growth_masks()
        if masks is None:
            masks = self.mask_source.read(self._offered(*infos))
            if masks is None and self.mask_source.steps == 0:
                reject_unread_masks(self._has_unread_masks())
                warn_of_observed_masks(self.observation_spec)
        return masks


class LocalEnvironments(Environments):
    """Environments of this process, stepped one after another."""

    def __init__(
        self,
        envs: Sequence[Env],
        spec: ActionSpec,
        *,
        squash: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.envs: list[Env] = list(envs)
        self.n_envs = len(self.envs)
        first = self.envs[0]
        for number, env in enumerate(self.envs[1:], start=1):
            for kind in ("observation_space", "action_space"):
                if getattr(env, kind) != getattr(first, kind):
                    raise UnsupportedEnvironmentError(
                        f"environment {number} has {kind} {getattr(env, kind)} and environment 0 "
                        f"has {getattr(first, kind)}; all need the same."
                    )
        self.observation_spec = ObservationSpec.from_space(first.observation_space)
        self.codec = ActionCodec(first.action_space, spec, squash=squash)
        reader = MaskReader(spec, torch.device(device), first.action_space)
        self._bases: list[Any] = [env.unwrapped for env in self.envs]
        found = list(map(mask_method, self.envs))
        has_method = all_or_none([one is not None for one in found])
        self._mask_methods = cast("list[Callable[[], Any]]", found)
        # A bound method, because that of a copy asks the copy's environments.
        self.mask_source = MaskSource(reader, self._ask_for_masks if has_method else None)

    def reset(self, seed: int | None) -> tuple[Observations, Any]:
        """Start new episodes; environment i gets ``seed + i``."""
        self.mask_source.steps = -1
        results = [
            self._reset_one(i, None if seed is None else seed + i) for i in range(self.n_envs)
        ]
        infos = [info for _, info in results]
        return self._read_observations([o for o, _ in results]), self.read_masks(*infos)

    def step(self, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None) -> EnvStep:
        """Step each environment, and reset those whose episode ended."""
        n_envs = self.n_envs
        observations, infos = list[Any](), list[dict[str, Any]]()
        rewards = np.zeros(n_envs, np.float32)
        ends = np.zeros((2, n_envs), np.bool_)
        final: list[Any] | None = None
        chosen = self.codec.each(actions, numbers)
        for i, env in enumerate(self.envs):
            result = env.step(chosen[i])
            if len(result) != 5:
                raise UnsupportedEnvironmentError(
                    f"step() of environment {i} returned {len(cast(Any, result))} values at "
                    f"{self._now}; Gymnasium's step returns observation, reward, terminated, "
                    "truncated and info."
                )
            observation, reward, terminated, truncated, info = result
            rewards[i] = reward if isinstance(reward, float) else self._read_reward(i, reward)
            if terminated or truncated:
                ends[0, i], ends[1, i] = terminated, truncated and not terminated
                if ends[1, i]:
                    final = final or [None] * n_envs
                    # An environment may write its next observation to the same array.
                    final[i] = copy.deepcopy(observation)
                last, (observation, info) = info, env.reset()
                info = {**info, "final_info": last}
            observations.append(observation)
            infos.append(info)
        if final is not None:
            final = [observations[i] if one is None else one for i, one in enumerate(final)]
        return EnvStep(
            observations=self._read_observations(observations),
            rewards=rewards,
            terminated=ends[0],
            truncated=ends[1],
            final=None if final is None else self._read_observations(final),
            masks=self.read_masks(*infos),
            info=infos,
        )

    def save_state(self) -> Any:
        """Return the state of each environment and its wrappers."""
        envs = [save_env_state(env) for env in self.envs]
        return {"envs": envs, "masks": [self.mask_source.kind, self.mask_source.steps]}

    def load_state(self, state: Any) -> None:
        """Restore what :meth:`save_state` returned."""
        if len(state["envs"]) != self.n_envs:
            raise UnsupportedEnvironmentError(
                f"there are {self.n_envs} environments; {len(state['envs'])} were saved. Pass a "
                "class, function or id, which makes as many."
            )
        if state["masks"][0] == "method" and not self.has_mask_method:
            raise UnsupportedEnvironmentError(
                "the saved environments had a method action_masks(); these have none."
            )
        self.mask_source.kind, self.mask_source.steps = state["masks"]
        for env, saved in zip(self.envs, state["envs"], strict=True):
            load_env_state(env, saved)

    def _reset_one(self, number: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Reset one environment with a seed."""
        try:
            result: Any = self.envs[number].reset(seed=seed)
        except TypeError as error:
            if "'seed'" not in str(error):
                raise
            raise UnsupportedEnvironmentError(
                f"reset() of environment {number} takes no seed ({error}); define it as "
                "reset(self, *, seed=None, options=None) and call super().reset(seed=seed)."
            ) from error
        if type(result) is not tuple or len(cast("tuple[Any, ...]", result)) != 2:
            raise UnsupportedEnvironmentError(
                f"reset() of environment {number} returned {type_of(cast(object, result))}; "
                "Gymnasium's reset returns an observation and a dict (info)."
            )
        return cast("tuple[Any, dict[str, Any]]", result)

    def _read_reward(self, number: int, reward: Any) -> float:
        """Return the reward of one environment as a number."""
        try:
            if np.ndim(reward) == 0:
                return float(reward)
        except (TypeError, ValueError):
            pass
        raise UnsupportedEnvironmentError(
            f"environment {number} gave the reward {reward!r} at {self._now}; it must be a number, "
            "such as float(reward)."
        )

    def _read_observations(self, observations: list[Any]) -> Observations:
        """Return observations as tensors; an error names the environment and the step."""
        spec = self.observation_spec
        try:
            return spec.read_list(observations)
        except (ShapeError, TypeError, ValueError):
            for number, one in enumerate(observations):
                try:
                    wrong = spec.misfit(one)
                except ShapeError as error:
                    wrong = str(error).rstrip(".")
                if wrong is not None:
                    raise ShapeError(f"environment {number}, {self._now}: {wrong}.") from None
            raise

    @property
    def _now(self) -> str:
        """The reset or step that is being taken, in words."""
        return (
            "the first reset"
            if self.mask_source.steps < 0
            else f"step {self.mask_source.steps + 1}"
        )

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _growth_masks(self) -> Any:
        if not hasattr(getattr(self._bases[0], "masks", None), "for_policy"):
            return None
        return join_masks([cast(PolicyMasks, base.masks).for_policy() for base in self._bases])

    def _ask_for_masks(self) -> list[Any]:
        return [one() for one in self._mask_methods]

    def _has_unread_masks(self) -> bool:
        return self.envs[0].has_wrapper_attr("action_mask")

    def _offered(self, *infos: dict[str, Any]) -> dict[str, tuple[Any, Sequence[bool]]]:
        return {
            key: ([info.get(key) for info in infos], [key in info for info in infos])
            for key in MASK_KEYS
            if any(key in info for info in infos)
        }


class VectorEnvironments(Environments):
    """A Gymnasium vector environment, in any of its autoreset modes."""

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        spec: ActionSpec,
        *,
        squash: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.envs: VectorEnv[Any, Any, Any] = envs
        self.n_envs = envs.num_envs
        single = cast(Any, envs)
        self.observation_spec = ObservationSpec.from_space(single.single_observation_space)
        self.codec = ActionCodec(single.single_action_space, spec, squash=squash)
        reader = MaskReader(spec, torch.device(device), single.single_action_space)
        self.mask_source = MaskSource(reader, find_vector_method(envs))
        self._mode = _autoreset_mode(envs)
        self._was_done: Flags = np.zeros(self.n_envs, np.bool_)

    def reset(self, seed: int | None) -> tuple[Observations, Any]:
        """Start new episodes."""
        self.mask_source.steps = -1
        self._was_done = np.zeros(self.n_envs, np.bool_)
        observations, info = self.envs.reset(seed=seed)
        return self.observation_spec.read(observations), self.read_masks(info)

    def step(self, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None) -> EnvStep:
        """Step all environments."""
        chosen = self.codec.batch(actions, numbers)
        observations, rewards, terminated, truncated, info = self.envs.step(chosen)
        is_cut = truncated & ~terminated
        ends = terminated | truncated
        final, skipped = None, None
        if is_cut.any():
            final = self._final_observations(observations, info, is_cut)
        if self._mode == AutoresetMode.NEXT_STEP:
            skipped = self._was_done if self._was_done.any() else None
            self._was_done = ends
        elif self._mode == AutoresetMode.DISABLED and ends.any():
            observations, new_info = self.envs.reset(options={"reset_mask": ends})
            info = _merge_masks(info, new_info, ends)
        return EnvStep(
            observations=self.observation_spec.read(observations),
            rewards=np.asarray(rewards, np.float32),
            terminated=np.asarray(terminated, np.bool_),
            truncated=is_cut,
            final=final,
            masks=self.read_masks(info),
            info=info,
            skipped=skipped,
        )

    def save_state(self) -> Any:
        """Return the state of the environment, or of each of its members."""
        own, members = getattr(self.envs.unwrapped, "state_dict", None), self._members()
        if own is None and members is None:
            raise UnsupportedEnvironmentError(
                f"the state of {type(self.envs.unwrapped).__name__} cannot be saved; give it "
                "state_dict() and load_state_dict(), or pass a function that makes one "
                "environment."
            )
        return {
            "envs": own() if own is not None else [save_env_state(env) for env in members or ()],
            "masks": [self.mask_source.kind, self.mask_source.steps],
            "was_done": self._was_done.tolist(),
        }

    def load_state(self, state: Any) -> None:
        """Restore what :meth:`save_state` returned."""
        self.mask_source.kind, self.mask_source.steps = state["masks"]
        self._was_done = np.array(state["was_done"], np.bool_)
        load = getattr(self.envs.unwrapped, "load_state_dict", None)
        if load is not None:
            load(state["envs"])
            return
        for env, saved in zip(self._members() or (), state["envs"], strict=True):
            load_env_state(env, saved)

    def _members(self) -> list[Env] | None:
        """Return the environments of a SyncVectorEnv."""
        # It resets those that it remembers as done; only the mode without that memory is whole.
        if self._mode == AutoresetMode.NEXT_STEP:
            return None
        return getattr(self.envs, "envs", None)

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()

    def _growth_masks(self) -> Any:
        masks = getattr(self.envs.unwrapped, "masks", None)
        return masks if hasattr(masks, "for_policy") else None

    def _has_unread_masks(self) -> bool:
        call = getattr(self.envs.unwrapped, "call", None)
        return call is not None and any(call("has_wrapper_attr", "action_mask"))

    def _offered(self, *infos: dict[str, Any]) -> dict[str, tuple[Any, Sequence[bool]]]:
        (info,) = infos
        # Gymnasium fills in what an environment did not give, and says so beside it.
        return {
            key: (info[key], info.get(f"_{key}", [True] * self.n_envs))
            for key in MASK_KEYS
            if key in info
        }

    def _final_observations(self, observations: Any, info: dict[str, Any], is_cut: Flags) -> Any:
        """Return observations with the last ones of episodes that were cut short."""
        spec = self.observation_spec
        final = spec.read(observations)
        if self._mode != AutoresetMode.SAME_STEP:
            return final  # the observation of a step that ends an episode is its last one
        given = info.get("final_obs", info.get("final_observation"))
        if given is None:
            raise UnsupportedEnvironmentError(
                f"environment {int(is_cut.argmax())} was truncated, but info has no 'final_obs'; "
                "the value of the state it reached cannot be estimated. Set "
                "metadata['autoreset_mode'] to the mode that the vector environment has."
            )
        for env in np.flatnonzero(is_cut):
            one = (
                {name: values[env] for name, values in cast("dict[str, Any]", given).items()}
                if isinstance(given, dict)
                else given[env]
            )
            last = leaves_of(spec.read_list([one]))
            for name, values in leaves_of(final).items():
                values[env] = last[name][0]
        return final


def _merge_masks(stepped: dict[str, Any], reset: dict[str, Any], is_reset: Flags) -> dict[str, Any]:
    """Return the info of a reset, with masks of environments that were not reset from a step."""
    names = {*MASK_KEYS, *(f"_{key}" for key in MASK_KEYS)}
    merged = {name: value for name, value in reset.items() if name not in names}
    for name in names & stepped.keys() & reset.keys():
        merged[name] = _choose(is_reset, reset[name], stepped[name])
    return merged


def _choose(flags: Flags, first: Any, second: Any) -> Any:
    """Return ``first`` where flags ``[E]`` are set and else ``second``, in each array of dicts."""
    if isinstance(first, Mapping):
        named = cast("Mapping[str, Any]", first)
        return {name: _choose(flags, value, second[name]) for name, value in named.items()}
    shape = (-1, *[1] * (np.ndim(first) - 1))
    return cast(Any, np.where(flags.reshape(shape), first, second))


def _autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    if mode is None:
        raise UnsupportedEnvironmentError(
            "the vector environment's metadata has no 'autoreset_mode'; set it to "
            "gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED."
        )
    return AutoresetMode(mode)
