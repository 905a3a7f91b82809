"""Growing many hosts at once as a Gymnasium vector environment. Shapes: E = environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from esper.arrays import Flags
from esper.config.ablation import AblationConfig
from esper.config.checks import PositiveFloat, PositiveInt, check, require_choice
from esper.config.growth import RewardConfig
from esper.config.memory import require_memory, return_large_blocks
from esper.environment.draws import FinalSplit, Purpose, draw_seed
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.environment.options import (
    find_task,
    require_options,
    require_same_arguments,
    require_splits,
    spread_seeds,
)
from esper.environment.rewards import REWARD_TERMS
from esper.errors import ConfigError, DtypeError, ResetNeededError
from esper.lifecycle.factored_actions import growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import Form
from esper.simic.policy.action_spec import ActionSpec
from esper.tamiyo.policy.ablation import shuffle_columns, shuffled_columns
from esper.tamiyo.policy.action_masks import SLOT_BY_OP, ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import Task

MIN_HOST_BYTES = 40_000.0
"""Memory of the smallest host, its slots and its records."""


class GrowthVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """Many hosts; each step trains all of them for one epoch.

    An episode is *terminated* by the end of its budget or by the op finish. A limit from outside
    (``max_episode_steps``, ``episode_seconds``) *truncates* it. Environments reset in the step
    that ends their episode; the final observation is in ``info["final_obs"]``.

    ``info["action_mask"]`` holds, for each environment, a mask of each head's choices: the union
    over ops, in the form that ``MultiDiscrete.sample(mask=)`` takes. Not every combination of such
    choices is legal: an illegal one is treated as wait and flagged in ``info["illegal_action"]``.
    :attr:`masks` holds the exact masks, which Esper's own policies sample from.

    Examples:
        >>> envs = esper.GrowthVectorEnv("spirals", 2)
        >>> observations, info = envs.reset(seed=0)
        >>> observations.shape[0]
        2
    """

    def __init__(
        self,
        task: str | Task = "digits",
        num_envs: int = 1,
        *,
        reward: RewardConfig | str = "dense",
        form: Form = "auto",
        purpose: Purpose = "training",
        final_split: FinalSplit = "validation",
        autoreset: bool = True,
        max_episode_steps: int | None = None,
        episode_seconds: float | None = None,
        **task_options: Any,
    ) -> None:
        """Make the environments.

        Args:
            task: A task, or the name of one.
            num_envs: Number of hosts.
            reward: Settings of the reward, or "dense" or "sparse" for the defaults of either form.
            form: How hosts are trained; see :func:`esper.make_population`.
            purpose: "training", "tuning" or "evaluation"; different purposes never share a host.
            final_split: What the final score is measured on: the half of validation that is not
                observed or, for evaluations, the test split.
            autoreset: Whether the step that ends an episode starts a new one. If not, a host whose
                episode is over stays as it is until :meth:`reset` with ``options["reset_mask"]``.
            max_episode_steps: Steps after which an episode is truncated.
            episode_seconds: Wall time after which an episode is truncated.
            task_options: Options of the task, if it is given by name.
        """
        check("num_envs", num_envs, PositiveInt)
        check("autoreset", autoreset, bool)
        require_splits(purpose, final_split)
        check("max_episode_steps", max_episode_steps, PositiveInt | None)
        check("episode_seconds", episode_seconds, PositiveFloat | None)
        require_memory(MIN_HOST_BYTES * num_envs, num_envs=num_envs)
        return_large_blocks()
        self.task = find_task(task, task_options)
        self.num_envs = num_envs
        given: Any = reward
        is_whole = isinstance(reward, RewardConfig)
        self.rewards = reward if is_whole else RewardConfig(reward=given)
        self.form: Form = form
        self.purpose: Purpose = purpose
        self.final_split: FinalSplit = final_split
        self.max_episode_steps = max_episode_steps
        self.episode_seconds = episode_seconds
        mode = AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        self._weights: Mapping[str, float] = {}
        self._shuffled: list[int] = []
        self._seeds = np.zeros(num_envs, np.int64)
        self._episodes = np.zeros(num_envs, np.int64)
        self._started = np.zeros(num_envs)
        self.growth = GrowthEpisodes(
            self.task,
            self._draw_seeds(range(num_envs)),
            form=form,
            rewards=self.rewards,
            final_split=final_split,
        )
        """The hosts and their episodes."""
        self._has_seeds = False
        self.slot_config: SlotConfig = self.growth.slot_config
        """The slots of the task's own hosts."""
        self.layout: ObservationLayout = self.growth.layout
        """The meaning of each column of an observation."""
        self.action_spec: ActionSpec = growth_action_spec(self.slot_config)
        """The heads of an action, and which of them each op reads."""
        self.last_step: StepResult | None = None
        """The result of the last step, before any reset; None before the first step."""
        low = self.layout.low
        self.single_observation_space = spaces.Box(low, np.ones_like(low), dtype=np.float32)
        self.single_action_space = spaces.MultiDiscrete(np.array(self.action_spec.sizes))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def __repr__(self) -> str:
        return f"GrowthVectorEnv({self.task.name!r}, num_envs={self.num_envs})"

    @property
    def masks(self) -> ActionMasks:
        """The current legal actions of each environment."""
        return self.growth.masks()

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, by part."""
        return self.growth.stopwatch.seconds

    def action_masks(self) -> Flags:
        """Return the concatenated masks of all heads, the union over ops, ``[E, sum of sizes]``."""
        masks = self.masks
        return np.concatenate([masks[n].numpy() for n in masks if n != SLOT_BY_OP], axis=1)

    def ablate(self, ablation: AblationConfig) -> None:
        """Weigh terms of the reward and shuffle observations among hosts as an ablation says.

        Raises:
            ConfigError: If there is no such term or observation.
        """
        for name in ablation.rewards:
            require_choice("a name in ablation.rewards", name, REWARD_TERMS)
        self._weights = dict(ablation.rewards)
        self._shuffled = shuffled_columns(ablation.shuffled, self.layout.n_slots)

    def _observe(self) -> NDArray[np.float32]:
        """Return what is observed; shuffled as a function of the position alone."""
        seen = self.growth.observe()
        if not self._shuffled:
            return seen
        n_steps = int(self.growth.records.n_steps.sum())
        rng = np.random.default_rng((int(self._seeds[0]), int(self._episodes.sum()), n_steps))
        return shuffle_columns(seen, np.arange(len(seen)), self._shuffled, rng)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: Determines all following episodes: environment i gets ``seed + i``, or the i-th
                of a list. Without one, the current seeds continue with their next episodes.
            options: ``{"reset_mask": [E] bool}`` to reset only some environments.
        """
        chosen = self._selected(options or {})
        self._set_seeds(seed, chosen)
        self._begin(chosen)
        return self._observe(), self._mask_info()

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[Any], Flags, Flags, dict[str, Any]]:
        """Apply one action to each environment, ``[E, 8]``, and train for one epoch."""
        if not self._has_seeds:
            raise ResetNeededError("step() was called before reset(); call reset(seed=...) first.")
        result, truncated = self.advance(actions)
        info = self._step_info(result)
        done = np.flatnonzero(result.terminated | truncated)
        observations = self._observe()
        if len(done):
            info |= self._final_info(done, result)
            if self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP:
                last = {env: observations[env] for env in done.tolist()}
                info["final_obs"] = _spread(last, None, self.num_envs)
                info["_final_obs"] = info["_final_info"]
                self._episodes[done] += 1
                self._begin(done.tolist())
                observations = self._observe()
        info |= self._mask_info()
        reward = result.terms.weighted(self._weights)
        return observations, reward, result.terminated, truncated, info

    def advance(self, actions: NDArray[np.int64]) -> tuple[StepResult, Flags]:
        """Step without resetting; return the result and which episodes were truncated."""
        result = self.growth.step(_as_choices(actions))
        self.last_step = result
        truncated = self._find_truncated() & ~result.terminated & result.was_running
        for env in np.flatnonzero(truncated).tolist():
            self.growth.stop(env)
        return result, truncated

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on: tensors and plain values."""
        state = self.growth.state_dict()
        state["facts"]["made_with"] = self._arguments()
        state["facts"]["has_seeds"] = self._has_seeds
        state["facts"]["seeds"] = self._seeds.tolist()
        state["facts"]["episodes"] = self._episodes.tolist()
        state["facts"]["elapsed"] = (monotonic() - self._started).tolist()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, bit for bit.

        Raises:
            ConfigError: If the state is from environments that were made with other arguments.
        """
        require_same_arguments(self._arguments(), state)
        self.growth.load_state_dict(state)
        self._seeds[:] = state["facts"]["seeds"]
        self._episodes[:] = state["facts"]["episodes"]
        self._started[:] = monotonic() - np.array(state["facts"]["elapsed"])
        self._has_seeds = state["facts"]["has_seeds"]

    @cached_property
    def _description(self) -> dict[str, Any]:
        """What determines the hosts; computed once, as it hashes the data."""
        return self.growth.hosts.describe()

    def _arguments(self) -> dict[str, Any]:
        """Return what must be equal for one environment to load the state of another."""
        return {
            "num_envs": self.num_envs,
            **self._description,
            "purpose": self.purpose,
            "final_split": self.final_split,
            "rewards": asdict(self.rewards),
            "autoreset": self.metadata["autoreset_mode"].value,
            "max_episode_steps": self.max_episode_steps,
            "episode_seconds": self.episode_seconds,
        }

    def _begin(self, envs: list[int]) -> None:
        self.growth.begin(envs, self._draw_seeds(envs))
        self._started[envs] = monotonic()

    def _draw_seeds(self, envs: Sequence[int]) -> list[int]:
        seeds, episodes = self._seeds, self._episodes
        return [draw_seed(self.purpose, int(seeds[env]), int(episodes[env])) for env in envs]

    def _selected(self, options: dict[str, Any]) -> list[int]:
        require_options(options, ("reset_mask",))
        mask = options.get("reset_mask")
        if mask is None:
            return list(range(self.num_envs))
        if not self._has_seeds:
            raise ConfigError(
                "options['reset_mask'] was given to the first reset; reset all environments first."
            )
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ConfigError(
                f"options['reset_mask'] has shape {mask.shape} and dtype {mask.dtype}; expected "
                f"{self.num_envs} booleans, one for each environment."
            )
        return np.flatnonzero(mask).tolist()

    def _set_seeds(self, seed: int | Sequence[int | None] | None, chosen: list[int]) -> None:
        if seed is None and not self._has_seeds:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        given = spread_seeds(seed, self.num_envs)
        for env in chosen:
            value = given[env]
            if value is None:
                self._episodes[env] += 1
            else:
                self._seeds[env], self._episodes[env] = value, 0
        self._has_seeds = True

    def _find_truncated(self) -> Flags:
        """Return the episodes that have reached a limit from outside."""
        records, is_cut = self.growth.records, np.zeros(self.num_envs, np.bool_)
        if self.max_episode_steps is not None:
            is_cut |= records.n_steps >= self.max_episode_steps
        if self.episode_seconds is not None:
            is_cut |= monotonic() - self._started >= self.episode_seconds
        return is_cut

    def _mask_info(self) -> dict[str, Any]:
        """Return, for each environment, a mask of each head in the form Gymnasium expects."""
        choices = self.masks.choices.to(torch.int8).numpy()
        heads = [choices[:, head, :size] for head, size in enumerate(self.action_spec.sizes)]
        table = np.empty(self.num_envs, object)
        table[:] = list(zip(*heads, strict=True))
        return {"action_mask": table}

    def _step_info(self, result: StepResult) -> dict[str, Any]:
        records = self.growth.records
        return {
            "reward_terms": result.terms.by_name(),
            "illegal_action": result.is_illegal,
            "op": result.op_done,
            "was_refused": records.was_refused.copy(),
            "refusal": _spread(result.refusals, "", self.num_envs),
            "was_restored": records.was_restored.copy(),
            "intervention": _spread(result.interventions, "", self.num_envs),
            "score": result.score,
            "flops": result.flops,
        }

    def _final_info(self, done: NDArray[np.int64], result: StepResult) -> dict[str, Any]:
        """Return the outcomes of the episodes that ended, which ``_final_info`` marks."""
        records, is_done = self.growth.records, np.zeros(self.num_envs, np.bool_)
        is_done[done] = True
        described = {env: self.growth.describe(env) for env in done.tolist()}
        final = {
            "final_score": result.final_score,
            "flops": result.flops,
            "rent": records.paid_rent.copy(),
            "penalty": records.paid_penalty.copy(),
            "n_epochs": result.epoch,
            "n_steps": records.n_steps.copy(),
            "host_parameters": records.n_parameters.copy(),
            "seed_parameters": records.settled.grown_parameters.sum(1),
            "draw_seed": records.draw_seed.copy(),
            "reward_terms": result.terms.by_name(),
            "illegal_action": result.is_illegal,
            "description": _spread(described, None, self.num_envs),
        }
        return {"final_info": final, "_final_info": is_done}


def _as_choices(actions: Any) -> NDArray[np.int64]:
    """Return actions as int64; reject other than integer types."""
    choices = np.asarray(actions)
    if choices.dtype.kind not in "iu":
        raise DtypeError(
            f"actions have dtype {choices.dtype}; expected integers, one choice for each head."
        )
    return np.ascontiguousarray(choices, np.int64)


def _spread(values: Mapping[int, Any], missing: Any, n_envs: int) -> NDArray[Any]:
    """Return the value of each environment, or ``missing``."""
    table = np.full(n_envs, missing, object)
    for env, value in values.items():
        table[env] = value
    return table
