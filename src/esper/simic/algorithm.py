"""PPO on any environment in one line: ``PPO("CartPole-v1").learn(100_000)``.

:class:`PPO` puts together what the packages below offer: environments (``rollout``), a policy
(``policy``) and the update (``agent``).
"""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike
from torch import Tensor, nn

from esper.config import sb3_names
from esper.config.checks import PositiveInt, Seed, check, rejects_unknown, require_choice
from esper.config.learning import NetworkConfig, PPOConfig
from esper.config.sb3_names import answers_names, reject_unknown
from esper.errors import (
    CheckpointError,
    ConfigError,
    DtypeError,
    EsperWarning,
    ShapeError,
    UnsupportedEnvironmentError,
)
from esper.formatting import many
from esper.modes import evaluation_mode, suitable_threads
from esper.progress import ShowProgress
from esper.simic.agent import ActionSpec, PPOAgent, TamiyoRolloutBuffer, UpdateReport
from esper.simic.agent.optimizers import MakeOptimizer
from esper.simic.agent.ppo import LossFunction
from esper.simic.callbacks import Callback, CallbackLike, as_callbacks, notify
from esper.simic.policy.factory import PolicyName, make_policy
from esper.simic.policy.mask_reader import MaskLike, MaskReader
from esper.simic.policy.normalizers import RewardNormalizer
from esper.simic.policy.observations import ObservationLike, ObservationSpec, map_leaves
from esper.simic.policy.policy import Policy
from esper.simic.progress import LearningProgress, MetricsTable
from esper.simic.rollout.actions import ActionCodec, require_spec
from esper.simic.rollout.collector import CollectedEpisodes, CollectedStep, VectorCollector
from esper.simic.rollout.environments import Env, Environments
from esper.simic.rollout.factory import EnvLike, adapt, declared_spec, make_members, spaces_of
from esper.simic.rollout.sb3_envs import is_sb3_vec_env
from esper.simic.rollout.space_json import is_same_space
from esper.simic.saving import (
    own_parts,
    read_folder,
    restore,
    restore_training,
    state_of,
)
from esper.simic.schedules import Rate, Schedule, rate_at
from esper.simic.settings import (
    SCHEDULED,
    WITH_IMAGES,
    WITH_MEMORY,
    PPOSettings,
    check_minibatches,
    describe_settings,
    split_rates,
)
from esper.simic.tensors import check_tensor, choose_device, to_device
from esper.storage.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from esper.simic.evaluation import Evaluated

_RESUMES = "resume continues exactly as before, PPO.load(path, ...) changes settings"

MakeNetwork = Callable[[spaces.Space[Any]], nn.Module]
"""A class or function that makes a network from the observation space."""

STEPS_PER_ROLLOUT = 2048
"""Steps of all environments that a rollout holds unless ``n_steps`` is given."""
RECURRENT_STEPS = 128
"""The most steps of each environment in a rollout of a policy with memory, unless it is given."""


class PPO:
    """Proximal policy optimization on an environment.

    Example:
        >>> from esper.simic import PPO
        >>> model = PPO("CartPole-v1", n_envs=8, seed=0)
        >>> model = model.learn(4096)
        >>> action, state = model.predict([0.0, 0.1, 0.0, -0.1])
    """

    def __init__(
        self,
        env: EnvLike,
        policy: PolicyName | nn.Module | MakeNetwork | None = None,
        *,
        n_envs: int | None = None,
        n_steps: int | None = None,
        seed: int | None = 0,
        network: NetworkConfig | None = None,
        action_spec: ActionSpec | None = None,
        normalize_rewards: bool = False,
        verbose: int = 0,
        device: str | torch.device = "cpu",
        loss: LossFunction | None = None,
        optimizer: MakeOptimizer | None = None,
        **settings: Unpack[PPOSettings],
    ) -> None:
        """Make environments and a policy for them.

        Args:
            env: An id for ``gymnasium.make``, an environment, a class or function that makes one,
                or a vector environment of Gymnasium or of Stable-Baselines3.
            policy: ``"mlp"``, ``"lstm"``, ``"cnn"``, ``"multi-input"``, or a network of your own
                (see :mod:`esper.simic.policy.networks`), or a class or function that makes one from
                the observation space. By default what fits the observations: ``"mlp"`` for vectors,
                ``"cnn"`` for images, ``"multi-input"`` for a ``Dict``.
            n_envs: Environments to step side by side, made from an id, class or function; by
                default 1.
            n_steps: Steps of each environment in a rollout; by default 2048 of all together, and
                at most 128 of each for a policy with memory.
            seed: Decides weights, actions, minibatches and episodes; None draws one, which
                :attr:`seed` then tells.
            network: Sizes of the network, observation normalisation, squashing; by default
                ``NetworkConfig()``.
            action_spec: Which heads of a factored action matter when; by default all always do.
            normalize_rewards: Scale rewards by the running deviation of returns; by default not.
            verbose: 1 prints the metrics of every update; 0, the default, prints nothing.
            device: Where the policy acts and learns: ``"cpu"`` (the default), ``"cuda"``, ``"mps"``
                or ``"auto"``, the best that there is. Environments stay on the CPU.
            loss: What to minimise instead of :meth:`PPOAgent.loss`: a function of the agent and a
                minibatch that returns a scalar and a dict of terms to report.
            optimizer: A class of ``torch.optim``, or a function that makes an optimizer of
                parameters; by default Adam.
            **settings: Settings of :class:`PPOConfig`, named as in Stable-Baselines3. The learning
                rate, clip range and entropy weight may be functions of the share of training left.
                With memory, batch_size is 128 and sequence_length 64 by default; with images,
                normalize_returns is off.

                {settings}
        """
        check("seed", 0 if seed is None else seed, Seed)
        if isinstance(env, str) and env in sb3_names.POLICIES:
            given = repr(policy) if isinstance(policy, str) else "env"
            raise ConfigError(
                f"env is {env!r}; the environment comes first: "
                f"PPO({given}, policy={sb3_names.POLICIES[env]!r})."
            )
        check("network", network, NetworkConfig | None)
        self._device = choose_device(device)
        self.verbose = require_choice("verbose", verbose, (0, 1))
        self.seed = secrets.randbelow(2**31) if seed is None else int(seed)
        members = make_members(env, n_envs)
        self._env: EnvLike | None = env
        self.observation_space, self.action_space = spaces_of(members)
        own_spec = declared_spec(members[0] if isinstance(members, list) else members)
        self._setup(
            policy, action_spec or own_spec, network or NetworkConfig(), settings, loss, optimizer
        )
        self._attach(members)
        default = max(1, STEPS_PER_ROLLOUT // self.n_envs)
        if self.policy.state_size:
            default = min(default, RECURRENT_STEPS)
        self.n_steps = default if n_steps is None else n_steps
        check("n_steps", self.n_steps, PositiveInt)
        warning = check_minibatches(
            self.config, settings, self.n_envs, self.n_steps, bool(self.policy.state_size)
        )
        if warning is not None:
            self.warn(warning)
        self._add_reward_normalizer(normalize_rewards)

    def __repr__(self) -> str:
        """Return what the model is and how far it is trained."""
        env = self._env if isinstance(self._env, str | None) else _name_of(self._env)
        n_parameters = sum(parameter.numel() for parameter in self.policy.parameters())
        return (
            f"PPO({env!r}, {self.policy_name!r}, n_envs={self.n_envs}, n_steps={self.n_steps}, "
            f"seed={self.seed}, num_timesteps={self.num_timesteps}, n_parameters={n_parameters})"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            near = sb3_names.ATTRIBUTES.get(name)
            if name in PPOConfig.__dataclass_fields__:
                near = f"model.config.{name}"
            advice = f" Use {near}." if near else ""
            raise AttributeError(f"PPO has no attribute {name!r}.{advice}", name=name, obj=self)

        def __setattr__(self, name: str, value: Any) -> None:
            # Python would create the attribute, and nothing would read it.
            instead = sb3_names.ATTRIBUTES.get(name)
            if name in PPOConfig.__dataclass_fields__:
                instead = f"PPO(..., {name}=...) for a new model"
                if name in SCHEDULED:
                    instead = f"model.set_rates({name}=...)"
            if instead is not None:
                raise AttributeError(
                    f"{name} cannot be set to {value!r} on a model. Use {instead}.",
                    name=name,
                    obj=self,
                )
            super().__setattr__(name, value)

    @property
    def policy(self) -> Policy:
        """The policy: an ``nn.Module`` that acts and values."""
        return self.agent.policy

    @property
    def env(self) -> list[Env] | VectorEnv[Any, Any, Any] | None:
        """The environments that it trains on: a list, or the vector environment that was given.

        None for a model that was loaded without one.
        """
        return None if self._environments is None else self._environments.envs

    @property
    def env_name(self) -> str:
        """The name of the environment: its id, or its class."""
        name = self._env if isinstance(self._env, str) else _name_of(self._env)
        return name.rpartition(":")[2]

    @property
    def device(self) -> torch.device:
        """Where the policy is."""
        return self.agent.device

    # -- training ---------------------------------------------------------------------------------

    @answers_names("learn")
    def learn(
        self,
        total_timesteps: float | None = None,
        *,
        callbacks: CallbackLike | Sequence[CallbackLike] | None = None,
        progress: ShowProgress = "auto",
    ) -> Self:
        """Train for a number of environment steps, rounded up to whole rollouts.

        Small networks train on one thread of PyTorch; afterwards it has as many as before.

        Ctrl-C raises KeyboardInterrupt. The model can still be used, and a :class:`Checkpoint`
        among the callbacks saves where the last update ended, so that :meth:`resume` continues
        exactly.

        Args:
            total_timesteps: Steps of all environments together. None continues an interrupted
                call to its end, as after :meth:`resume`.
            callbacks: A :class:`Callback`, a function of the model that is called after every
                update, or several of them.
            progress: Whether to show a bar with return, speed and time left; by default in
                terminals and notebooks.
        """
        self._start_learning(total_timesteps)
        active = as_callbacks(callbacks)
        if self.verbose:
            active.append(MetricsTable())
        bar = LearningProgress(progress)
        if bar.is_shown:
            active.append(bar)
        self._restore_callbacks(active)
        collector, buffer = self._require_collector()
        watches_steps = [c for c in active if type(c).on_step is not Callback.on_step]
        self._is_stopped = False
        self._callbacks = active
        policy = self.policy.train()
        try:
            with suitable_threads(policy):
                notify(active, "on_start", self)
                while not self.is_done:
                    self._run_round(collector, buffer, active, watches_steps)
        except KeyboardInterrupt:
            for callback in active:
                callback.on_interrupt(self)
            raise
        finally:
            for callback in active:
                callback.on_end(self)
        return self

    def stop(self) -> None:
        """End training after the current update; for callbacks."""
        self._is_stopped = True

    def log(self, name: str, value: float) -> None:
        """Add a number to :attr:`metrics`; for callbacks."""
        self.metrics[name] = float(value)

    def set_env(self, env: EnvLike) -> None:
        """Train on other environments, of the same spaces, from the next call of learn on.

        Args:
            env: As for :class:`PPO`; an id, class or function makes as many as there are now.
        """
        members = self._make_members(env, self.n_envs)
        rewards = self._rewards
        self._env, self._collector = env, None
        self._attach(members)
        self._add_reward_normalizer(rewards is not None)
        if self._rewards is not None and rewards is not None:
            self._rewards.load_state_dict(rewards.state_dict())

    def set_rates(self, **rates: float) -> None:
        """Replace the learning rate, clip ranges or entropy weight, and their schedules."""
        for name, value in rates.items():
            if name not in SCHEDULED:
                raise ConfigError(f"there is no rate {name!r}; rates are {', '.join(SCHEDULED)}.")
            self._rates[name] = float(value)
        self.agent.set_rates(**self._current_rates())

    def warn(self, message: str) -> None:
        """Tell the user something that is not an error."""
        warnings.warn(message, EsperWarning, stacklevel=3)

    def warn_of_functions(self) -> None:
        """Warn of rates that cannot be saved."""
        for name, rate in self._rates.items():
            if callable(rate) and not isinstance(rate, Schedule):
                self.warn(
                    f"{name} is a function, which cannot be saved: a loaded model keeps the rate "
                    "it has now. Use linear(), cosine() or a Schedule."
                )

    @property
    def is_done(self) -> bool:
        """Whether the running call of :meth:`learn` is at its end."""
        return self._is_stopped or self.num_timesteps >= self.total_timesteps

    @property
    def rates(self) -> dict[str, Rate | None]:
        """Learning rate, clip ranges, entropy weight: constants, or functions of what is left."""
        return dict(self._rates)

    @property
    def config(self) -> PPOConfig:
        """The settings of the update, with rates as they are now."""
        return self.agent.config

    def _start_learning(self, total_timesteps: float | None) -> None:
        if self._environments is None:
            raise UnsupportedEnvironmentError(
                "the model was loaded without an environment; pass one: PPO.load(path, env=...)."
            )
        if total_timesteps is None:
            if self.num_timesteps >= self.total_timesteps:
                done = "total_timesteps is missing"
                if self.resumed_from is not None:
                    done = f"the run is complete: {self.num_timesteps:,} steps are done"
                raise ConfigError(
                    f"{done}; pass the number of further environment steps to train for, such as "
                    "learn(100_000)."
                )
            return
        if isinstance(total_timesteps, float) and total_timesteps.is_integer():
            total_timesteps = int(total_timesteps)
        check("total_timesteps", total_timesteps, PositiveInt)
        self._first_timestep = self.num_timesteps
        self.total_timesteps = self.num_timesteps + int(total_timesteps)

    def _require_collector(self) -> tuple[VectorCollector, TamiyoRolloutBuffer]:
        assert self._environments is not None, "checked when learning starts"
        if self._collector is None:
            self._collector = VectorCollector(
                self._environments, self.agent, seed=self.seed, reward_normalizer=self._rewards
            )
        self._has_masks = self._collector.has_masks
        return self._collector, self.agent.make_buffer(self.n_envs, self.n_steps)

    def _run_round(
        self,
        collector: VectorCollector,
        buffer: TamiyoRolloutBuffer,
        callbacks: list[Callback],
        watches_steps: list[Callback],
    ) -> None:
        """Collect a rollout, learn from it, and tell the callbacks."""
        started = time.perf_counter()

        def count(step: CollectedStep) -> None:
            self.num_timesteps += self.n_envs
            if watches_steps:
                self.last_step = step
                notify(watches_steps, "on_step", self)

        try:
            episodes = collector.collect(buffer, count)
        except BaseException:
            # Some environments may have taken the step and others not: the next call resets.
            self._collector = None
            raise
        collected = time.perf_counter()
        notify(callbacks, "on_rollout_end", self)
        self.agent.set_rates(**self._current_rates())
        report = self._update(buffer)
        ended = time.perf_counter()
        self._describe(episodes, report, ended - started)
        self.last_seconds = {"rollout": collected - started, "update": ended - collected}
        self.last_episodes, self.last_update, self.last_evaluation = episodes, report, None
        notify(callbacks, "on_update_end", self)

    def _update(self, buffer: TamiyoRolloutBuffer) -> UpdateReport:
        report = self.agent.update(buffer)
        self.policy.learn_observations(buffer.flat("observations"))
        return report

    def _current_rates(self) -> dict[str, float]:
        span = max(1, self.total_timesteps - self._first_timestep)
        remaining = min(1.0, max(0.0, (self.total_timesteps - self.num_timesteps) / span))
        return {
            name: rate_at(name, rate, remaining)
            for name, rate in self._rates.items()
            if rate is not None
        }

    def _describe(self, episodes: CollectedEpisodes, report: UpdateReport, seconds: float) -> None:
        """Set :attr:`metrics`, under the names of Stable-Baselines3."""
        self._recent.extend(zip(episodes.returns, episodes.lengths, strict=True))
        self.metrics = {
            "time/total_timesteps": float(self.num_timesteps),
            "time/fps": self.n_envs * self.n_steps / seconds,
            "train/learning_rate": self.config.learning_rate,
            "train/clip_range": self.config.clip_range,
            "train/ent_coef": self.config.ent_coef,
            "train/approx_kl": report.approx_kl,
            "train/joint_kl": report.joint_kl,
            "train/clip_fraction": report.clip_fraction,
            "train/policy_gradient_loss": report.policy_loss,
            "train/value_loss": report.value_loss,
            "train/entropy": report.entropy,
            "train/explained_variance": report.explained_variance,
            "train/gradient_norm": report.gradient_norm,
            "train/n_gradient_steps": float(report.gradient_steps),
            "train/loss": report.loss,
            **{f"train/{name}": value for name, value in report.other_terms.items()},
        }
        if self._recent:
            returns, lengths = zip(*self._recent, strict=True)
            self.metrics["rollout/ep_rew_mean"] = float(np.mean(returns))
            self.metrics["rollout/ep_len_mean"] = float(np.mean(lengths))
        if self.agent.spec.n_heads > 1:
            for head, entropy in report.entropy_by_head.items():
                self.metrics[f"train/entropy/{head}"] = entropy
                self.metrics[f"train/approx_kl/{head}"] = report.approx_kl_by_head[head]

    # -- using a policy ---------------------------------------------------------------------------

    @answers_names("predict")
    @torch.no_grad()
    def predict(
        self,
        observation: ObservationLike,
        state: Tensor | None = None,
        *,
        masks: MaskLike | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,
    ) -> tuple[Any, Tensor]:
        """Choose an action for one observation or a batch of them.

        Args:
            observation: As an environment gives it, or a batch.
            state: The recurrent state from the last call; None at the start of an episode.
            masks: The legal choices, in any form that environments may give them; a model whose
                environment gives masks warns once if they are missing.
            episode_start: Whether an episode starts here: one flag, or one for each of a batch.
            deterministic: Take the most likely action instead of drawing one.

        Returns:
            The action, as the environment takes it, and the next recurrent state.
        """
        self._reject_reset_result(observation)
        policy, spec = self.agent.policy, self._observation_spec
        batch = spec.batch_of(observation)
        observations = spec.read_list([observation]) if batch is None else spec.read(observation)
        n = batch or 1
        if state is None:
            state = torch.zeros(n, policy.state_size, device=self.device)
        check_tensor("state", state, (n, policy.state_size))
        if episode_start is not None:
            starts = torch.from_numpy(np.atleast_1d(np.asarray(episode_start, np.bool_)))
            starts = to_device(starts, self.device)
            state = state.masked_fill(starts.unsqueeze(-1), 0.0)
        legal = self._read_masks(masks, batch)
        with evaluation_mode(policy):
            decision = policy.act(
                map_leaves(lambda tensor: to_device(tensor, self.device), observations),
                legal,
                state,
                None if deterministic else self._generator,
            )
        actions, numbers = decision.read(policy.spec)
        if batch is None:
            return self._codec.each(actions, numbers)[0], decision.next_state
        return self._codec.batch(actions, numbers), decision.next_state

    def _read_masks(self, masks: Any, batch: int | None) -> Any:
        """Return masks given to :meth:`predict` as the policy reads them; warn once of none."""
        if masks is None:
            if not self._is_warned_of_masks and self._expects_masks():
                self._is_warned_of_masks = True
                warnings.warn(
                    "predict got no masks, but the model's environment gives masks, so it may "
                    "choose an illegal action; pass masks=.",
                    EsperWarning,
                    stacklevel=5,  # the caller of predict, which is decorated twice
                )
            return None
        reader = self._mask_reader
        read = reader.read_each([masks]) if batch is None else reader.read_batch(masks)
        n = batch or 1
        if len(read.legal) != n:
            raise ShapeError(
                f"masks holds {many(len(read.legal), 'mask')} for {many(n, 'observation')}; "
                "give a list with one for each."
            )
        return read

    def _expects_masks(self) -> bool:
        """Return whether masks go with the model, as far as is known before it is trained."""
        if self._has_masks is None and self._environments is not None:
            return self._environments.has_mask_method
        return bool(self._has_masks)

    def _reject_reset_result(self, observation: Any) -> None:
        """Reject what ``env.reset()`` returns, given as the observation."""
        is_pair = isinstance(observation, tuple) and len(cast(Any, observation)) == 2
        is_space = isinstance(self.observation_space, spaces.Tuple)
        if is_pair and not is_space and isinstance(observation[1], dict):
            raise DtypeError(
                "observation is a tuple of an observation and a dict, which reset() returns; pass "
                "its first part: observation, info = env.reset()."
            )

    def make_environments(
        self, env: EnvLike | Environments | None = None, *, n_envs: int | None = None
    ) -> Environments:
        """Return new environments of the kind the model is trained on, or from ``env``."""
        if isinstance(env, Environments):
            return env
        source = self._env if env is None else env
        if source is None or (env is None and _is_made(source)):
            why = "another environment cannot be made from the one that was given"
            if source is None:
                why = "the model was loaded without an environment"
            raise UnsupportedEnvironmentError(
                f"{why}; pass env=, an id or a function that makes one."
            )
        members = self._make_members(source, n_envs)
        return adapt(members, self.agent.spec, squash=self.network.squash, device=self.device)

    def close(self) -> None:
        """Close the environments."""
        if self._environments is not None:
            self._environments.close()

    # -- saving -----------------------------------------------------------------------------------

    @answers_names("save")
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save the model to a folder: safetensors and JSON, with a manifest of hashes.

        Other files of the folder stay as they are.
        """
        self.warn_of_functions()
        return self.save_checkpoint(path, state_of(self, is_resumable=False), keep_last=1)

    def save_checkpoint(
        self, path: str | os.PathLike[str], state: dict[str, Any], *, keep_last: int
    ) -> Path:
        """Save what :meth:`checkpoint_state` returned, now or before."""
        folder = CheckpointFolder(path, keep_last=keep_last)
        with suitable_threads(self.policy):  # a checkpoint says with how many it was trained
            folder.save(state, step=state["num_timesteps"])
        return Path(path)

    def checkpoint_state(self) -> dict[str, Any]:
        """Return a copy of everything that training depends on, between two updates."""
        return state_of(self, is_resumable=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: EnvLike | None = None,
        *,
        policy: nn.Module | MakeNetwork | None = None,
        device: str | torch.device = "cpu",
        loss: LossFunction | None = None,
        optimizer: MakeOptimizer | None = None,
        **settings: Unpack[PPOSettings],
    ) -> Self:
        """Return a saved model. Nothing is unpickled and no code of the file is run.

        Args:
            path: The folder given to :meth:`save`, or of checkpoints.
            env: An environment to continue training on; by default another with the saved id.
            policy: The network, if it is one of your own.
            device: As for :class:`PPO`.
            loss: The loss, if it is one of your own.
            optimizer: The optimizer, if it is not the default; another one than before starts
                without moments.
            **settings: Settings of :class:`PPOConfig` to change.
        """
        reject_unknown("load", settings, (*_LOADED, *PPOConfig.__dataclass_fields__))
        chosen = choose_device(device)
        own = {"policy": policy, "loss": loss, "optimizer": optimizer, "device": chosen}
        return restore(cls, read_folder(path), env, path, own, settings)

    @classmethod
    @rejects_unknown("resume", dict.fromkeys(PPOConfig.__dataclass_fields__, _RESUMES))
    def resume(
        cls,
        path: str | os.PathLike[str],
        env: EnvLike | None = None,
        *,
        policy: nn.Module | MakeNetwork | None = None,
        device: str | torch.device = "cpu",
        loss: LossFunction | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> Self:
        """Return a model as its last checkpoint left it; ``learn()`` then continues exactly.

        Raises:
            CheckpointError: If the folder holds a saved model and no checkpoint.
        """
        loaded = read_folder(path)
        if loaded.state.get("training") is None:
            raise CheckpointError(
                f"{path} holds a saved model but no checkpoint; use PPO.load, or save checkpoints "
                "by callbacks=Checkpoint(folder)."
            )
        own = {"policy": policy, "loss": loss, "optimizer": optimizer, "device": device}
        model = restore(cls, loaded, env, path, own, {})
        if model._environments is None:
            raise UnsupportedEnvironmentError(
                f"{path} was trained on an environment without an id; pass it: "
                "PPO.resume(path, env=...)."
            )
        restore_training(model, loaded.state, path)
        model.resumed_from = Path(path).resolve()
        model.folders.add(("checkpoints", model.resumed_from))
        return model

    def save_environments(self) -> Any:
        """Return the state of the environments as plain values."""
        assert self._environments is not None, "training has environments"
        return self._environments.save_state()

    def settings(self) -> dict[str, Any]:
        """Return everything that decides training, as plain values."""
        rates: dict[str, Any] = {
            name: asdict(rate) if isinstance(rate, Schedule) else self._current_rates().get(name)
            for name, rate in self._rates.items()
        }
        return {
            "env": self._env if isinstance(self._env, str) else None,
            "policy": self.policy_name,
            "n_envs": self.n_envs,
            "n_steps": self.n_steps,
            "seed": self.seed,
            "normalize_rewards": self._rewards is not None,
            "network": {**asdict(self.network), "hidden_sizes": list(self.network.hidden_sizes)},
            "ppo": {**asdict(self.config), **rates},
            **self._own_parts,
        }

    # -- inside -----------------------------------------------------------------------------------

    def _setup(
        self,
        policy: Any,
        action_spec: ActionSpec | None,
        network: NetworkConfig,
        settings: Any,
        loss: LossFunction | None,
        optimizer: MakeOptimizer | None,
    ) -> None:
        """Build the agent for the spaces, which are known."""
        spec = require_spec(self.action_space, action_spec)
        seed, self.network = self.seed, network
        config, self._rates = split_rates(cast("dict[str, Any]", settings))
        self._observation_spec = ObservationSpec.from_space(self.observation_space)
        # PyTorch draws weights as layers are made; the caller's stream must not notice.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy_name, made = make_policy(
                policy, spec, self._observation_spec, self.observation_space, network, seed
            )
        own = WITH_MEMORY if made.state_size else {}
        if self.policy_name == "cnn":
            own = WITH_IMAGES
        config = replace(config, **{k: v for k, v in own.items() if k not in settings})
        self.agent = PPOAgent(
            spec, made, config, seed=seed, device=self._device, loss=loss, optimizer=optimizer
        )
        self._own_parts = own_parts(self, loss, optimizer)
        self._codec = ActionCodec(self.action_space, spec, squash=network.squash)
        self._mask_reader = MaskReader(spec, self.agent.device, self.action_space)
        self._generator = torch.Generator().manual_seed(seed)
        self._collector: VectorCollector | None = None
        self._callbacks: list[Callback] = []
        self._saved_callbacks: list[Any] | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=100)
        self.num_timesteps, self.total_timesteps, self._first_timestep = 0, 0, 0
        self._has_masks: bool | None = None
        """Whether the environments say what is legal; None until it is known."""
        self._is_stopped, self._is_warned_of_masks = False, False
        self.metrics: dict[str, float] = {}
        self.last_step: CollectedStep | None = None
        self.last_episodes = CollectedEpisodes()
        """The episodes that ended in the last rollout."""
        self.last_update: UpdateReport | None = None
        self.last_seconds: dict[str, float] = {}
        """What the last rollout and the update after it took."""
        self.last_evaluation: Evaluated | None = None
        """The result of :class:`Evaluate` after the last update; None if it was not due."""
        self.resumed_from: Path | None = None
        """The folder of checkpoints that the model continues from."""
        self.folders: set[tuple[str, Path]] = set()
        """What callbacks of this run write, and the folders in which they do."""

    def _attach(self, members: list[Env] | VectorEnv[Any, Any, Any]) -> None:
        """Train on environments, which have the model's spaces."""
        self._environments: Environments | None = adapt(
            members, self.agent.spec, squash=self.network.squash, device=self.agent.device
        )
        self.n_envs = self._environments.n_envs

    def _add_reward_normalizer(self, is_wanted: bool) -> None:
        self._rewards = RewardNormalizer(self.n_envs, self.config.gamma) if is_wanted else None

    def _make_members(
        self, source: EnvLike, n_envs: int | None
    ) -> list[Env] | VectorEnv[Any, Any, Any]:
        """Make environments; reject other spaces than the model was trained with."""
        members = make_members(source, None if _is_made(source) else n_envs)
        for kind, now in zip(("observation", "action"), spaces_of(members), strict=True):
            then = getattr(self, f"{kind}_space")
            # Observations are read by name; heads follow the order of the action space.
            is_same = now == then if kind == "observation" else is_same_space(now, then)
            if not is_same:
                raise UnsupportedEnvironmentError(
                    f"the environment's {kind} space is {now}; the model was trained with {then}, "
                    "and needs an environment that has the same."
                )
        return members

    def _restore_callbacks(self, callbacks: list[Callback]) -> None:
        """Give callbacks the state they had in a checkpoint, by kind and order."""
        saved, self._saved_callbacks = self._saved_callbacks, None
        left = list(callbacks)
        for name, state in saved or ():
            for callback in left:
                if type(callback).__name__ == name:
                    callback.load_state_dict(state)
                    left.remove(callback)
                    break


_LOADED = ("path", "env", "policy", "device", "loss", "optimizer")
"""Arguments of ``PPO.load`` that are not settings of the update."""


def _is_made(env: Any) -> bool:
    """Return whether it is an environment and not what makes one."""
    return isinstance(env, (gymnasium.Env, VectorEnv)) or is_sb3_vec_env(env)


def _name_of(env: Any) -> str:
    """Return the name of an environment, class or function for a message."""
    if isinstance(env, (gymnasium.Env, VectorEnv)):
        return type(cast(Any, env).unwrapped).__name__
    return getattr(env, "__name__", type(env).__name__)


PPO.__init__.__doc__ = (PPO.__init__.__doc__ or "").replace("{settings}", describe_settings())
