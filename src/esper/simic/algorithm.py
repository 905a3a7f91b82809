"""PPO on any environment in one line: ``PPO("CartPole-v1").learn(100_000)``.

:class:`PPO` puts together what the packages below offer: environments (``rollout``), a policy
(``policy``) and the update (``agent``).
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from esper.config.checks import require_int
from esper.config.learning import NetworkConfig, PPOConfig
from esper.errors import (
    CheckpointError,
    ConfigError,
    EsperWarning,
    NonFiniteError,
    ShapeError,
    UnsupportedEnvironmentError,
    did_you_mean,
)
from esper.simic.agent import ActionSpec, PPOAgent, TamiyoRolloutBuffer, UpdateReport
from esper.simic.callbacks import Callback, CallbackLike, as_callbacks
from esper.simic.policy.actor_critic import ActorCriticPolicy
from esper.simic.policy.networks import EncoderTowers
from esper.simic.policy.normalizers import RewardNormalizer
from esper.simic.policy.observations import ObservationSpec
from esper.simic.policy.recurrent import RecurrentPolicy
from esper.simic.progress import ProgressBar
from esper.simic.rollout.actions import ActionCodec, MaskReader, require_spec
from esper.simic.rollout.collector import CollectedEpisodes, CollectedStep, VectorCollector
from esper.simic.rollout.environments import Environments
from esper.simic.rollout.factory import EnvLike, adapt, declared_spec, make_members
from esper.simic.rollout.space_json import decode_space, encode_space
from esper.simic.schedules import Rate, Schedule, rate_at
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.state import from_nested, to_nested

PolicyName = Literal["mlp", "lstm", "cnn", "multi-input"]
POLICIES = ("mlp", "lstm", "cnn", "multi-input")
SCHEDULED = ("learning_rate", "clip_range", "ent_coef")
SB3_NAMES = {
    "policy_kwargs": "network=NetworkConfig(...)",
    "tensorboard_log": 'learn(callbacks=Tracker("tensorboard", folder))',
    "verbose": "learn(progress=True)",
    "lr": "learning_rate",
}
"""What to use in place of settings of Stable-Baselines3 that PPO does not have."""
SMALL_NETWORK = 500_000
"""Parameters below which one thread is faster than several."""
STEPS_PER_ROLLOUT = 2048
"""Steps of all environments that a rollout holds unless ``n_steps`` is given."""
RECURRENT_STEPS = 128
"""The most steps of each environment in a rollout of a policy with memory, unless it is given."""


class PPOSettings(TypedDict, total=False):
    """The settings of :class:`PPOConfig`; rates may be functions of the share of training left."""

    learning_rate: Rate
    n_epochs: int
    batch_size: int
    n_minibatches: int | None
    sequence_length: int | None
    gamma: float
    gae_lambda: float
    clip_range: Rate
    clip: Literal["per-head", "joint"]
    clip_range_vf: float | None
    ent_coef: Rate
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None
    normalize_advantage: bool
    normalize_returns: bool


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
        policy: PolicyName | nn.Module | type[nn.Module] | None = None,
        *,
        n_envs: int | None = None,
        n_steps: int | None = None,
        seed: int = 0,
        network: NetworkConfig | None = None,
        action_spec: ActionSpec | None = None,
        normalize_rewards: bool = False,
        **settings: Unpack[PPOSettings],
    ) -> None:
        """Make environments and a policy for them.

        Args:
            env: An id for ``gymnasium.make``, an environment, a class or function that makes one,
                or a vector environment.
            policy: ``"mlp"``, ``"lstm"``, ``"cnn"``, ``"multi-input"``, or a network of your own
                (see :mod:`esper.simic.policy.networks`), or a class that makes one from the
                observation space. By default what fits the observations: ``"mlp"`` for vectors,
                ``"cnn"`` for images, ``"multi-input"`` for a ``Dict``.
            n_envs: Environments to step side by side, made from an id, class or function.
            n_steps: Steps of each environment in a rollout; by default 2048 of all together, and
                at most 128 of each for a policy with memory.
            seed: Decides weights, actions, minibatches and episodes.
            network: Sizes of the network, observation normalisation, squashing.
            action_spec: Which heads of a factored action matter when; by default all always do.
            normalize_rewards: Scale rewards by the running deviation of returns.
            **settings: Settings of :class:`PPOConfig`, named as in Stable-Baselines3.
        """
        require_int("seed", seed, least=0)
        if isinstance(policy, str) and isinstance(env, str) and env.endswith("Policy"):
            raise ConfigError(
                f"env is {env!r}; the environment comes first: PPO({policy!r}, policy='mlp')."
            )
        if network is not None and not isinstance(network, NetworkConfig):
            raise ConfigError(f"network is {network!r}; it must be a NetworkConfig.")
        members = make_members(env, n_envs)
        first: Any = members[0] if isinstance(members, list) else members
        is_vector = isinstance(members, VectorEnv)
        self.observation_space: spaces.Space[Any] = (
            first.single_observation_space if is_vector else first.observation_space
        )
        self.action_space: spaces.Space[Any] = (
            first.single_action_space if is_vector else first.action_space
        )
        own_spec = declared_spec(first)
        self._env = env
        self._setup(
            policy,
            action_spec or own_spec,
            network or NetworkConfig(),
            seed,
            settings,
        )
        squash = self.network.squash
        self._environments: Environments | None = adapt(
            members, self.agent.spec, squash=squash, device=self.agent.device
        )
        self.n_envs = self._environments.n_envs
        default = max(1, STEPS_PER_ROLLOUT // self.n_envs)
        if self.agent.policy.state_size:
            default = min(default, RECURRENT_STEPS)
        self.n_steps = default if n_steps is None else n_steps
        require_int("n_steps", self.n_steps, least=1)
        self._add_reward_normalizer(normalize_rewards)

    # -- training ---------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        callbacks: CallbackLike | Sequence[CallbackLike] | None = None,
        progress: bool = False,
    ) -> Self:
        """Train for a number of environment steps, rounded up to whole rollouts.

        Small networks train on one thread of PyTorch; afterwards it has as many as before.

        Args:
            total_timesteps: Steps of all environments together. None continues an interrupted
                call to its end, as after :meth:`resume`.
            callbacks: A :class:`Callback`, a function of the model that is called after every
                update, or several of them.
            progress: Show a progress bar with return, speed and time left.
        """
        self._start_learning(total_timesteps)
        active = as_callbacks(callbacks)
        if progress:
            active.append(ProgressBar())
        self._restore_callbacks(active)
        collector, buffer = self._require_collector()
        watches_steps = [c for c in active if type(c).on_step is not Callback.on_step]
        self._is_stopped = False
        self._callbacks = active
        n_threads = torch.get_num_threads()
        cast(nn.Module, self.agent.policy).train()
        try:
            if sum(p.numel() for p in self.agent.policy.parameters()) < SMALL_NETWORK:
                torch.set_num_threads(1)  # more threads would wait for each other
            for callback in active:
                callback.on_start(self)
            while not self.is_done:
                self._run_round(collector, buffer, active, watches_steps)
        finally:
            torch.set_num_threads(n_threads)
            for callback in active:
                callback.on_end(self)
        return self

    def stop(self) -> None:
        """End training after the current update; for callbacks."""
        self._is_stopped = True

    def log(self, name: str, value: float) -> None:
        """Add a number to :attr:`metrics`; for callbacks."""
        self.metrics[name] = float(value)

    def set_rates(self, **rates: float) -> None:
        """Replace the learning rate, clip range or entropy weight, and their schedules."""
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
    def rates(self) -> dict[str, Rate]:
        """Learning rate, clip range and entropy weight: constants, or functions of what is left."""
        return dict(self._rates)

    @property
    def config(self) -> PPOConfig:
        """The settings of the update, with rates as they are now."""
        return self.agent.config

    def _start_learning(self, total_timesteps: int | None) -> None:
        if self._environments is None:
            raise UnsupportedEnvironmentError(
                "the model was loaded without an environment; pass one: PPO.load(path, env=...)."
            )
        if total_timesteps is None:
            if self.num_timesteps >= self.total_timesteps:
                raise ConfigError(
                    "total_timesteps is missing; pass the number of environment steps to train for."
                )
            return
        require_int("total_timesteps", total_timesteps, least=1)
        self._first_timestep = self.num_timesteps
        self.total_timesteps = self.num_timesteps + total_timesteps

    def _require_collector(self) -> tuple[VectorCollector, TamiyoRolloutBuffer]:
        assert self._environments is not None, "checked when learning starts"
        if self._collector is None:
            self._collector = VectorCollector(
                self._environments, self.agent, seed=self.seed, reward_normalizer=self._rewards
            )
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
        episodes = CollectedEpisodes()
        while not buffer.is_full:
            step = collector.step(buffer)
            self.num_timesteps += self.n_envs
            if step.dones.any():
                episodes.returns += step.episode_returns[step.dones].tolist()
                episodes.lengths += step.episode_lengths[step.dones].tolist()
            if watches_steps:
                self.last_step = step
                for callback in watches_steps:
                    callback.on_step(self)
        collector.finish(buffer)
        for callback in callbacks:
            callback.on_rollout_end(self)
        self.agent.set_rates(**self._current_rates())
        report = self._update(buffer)
        self._describe(episodes, report, time.perf_counter() - started)
        buffer.reset()
        for callback in callbacks:
            callback.on_update_end(self)

    def _update(self, buffer: TamiyoRolloutBuffer) -> UpdateReport:
        """Improve the policy, or leave the agent as it was if a number is not finite."""
        before = self.agent.state_dict()
        try:
            report = self.agent.update(buffer)
        except NonFiniteError:
            self.agent.load_state_dict(before)
            raise
        learn_observations = getattr(self.agent.policy, "learn_observations", None)
        if learn_observations is not None:
            learn_observations(buffer.flat("observations"))
        return report

    def _current_rates(self) -> dict[str, float]:
        span = max(1, self.total_timesteps - self._first_timestep)
        remaining = min(1.0, max(0.0, (self.total_timesteps - self.num_timesteps) / span))
        return {name: rate_at(rate, remaining) for name, rate in self._rates.items()}

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

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Tensor | None = None,
        *,
        masks: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Tensor]:
        """Choose an action for one observation or a batch of them.

        Args:
            observation: As an environment gives it, or a batch.
            state: The recurrent state from the last call; None at the start of an episode.
            masks: The legal choices, in any form that environments may give them.
            episode_start: Whether an episode starts here: one flag, or one for each of a batch.
            deterministic: Take the most likely action instead of drawing one.

        Returns:
            The action, as the environment takes it, and the next recurrent state.
        """
        policy, spec = self.agent.policy, self._observation_spec
        batch = spec.batch_of(observation)
        observations = spec.read_list([observation]) if batch is None else spec.read(observation)
        n = batch or 1
        if state is None:
            state = torch.zeros(n, policy.state_size)
        if state.shape != (n, policy.state_size):
            raise ShapeError(
                f"state has shape {tuple(state.shape)}; {[n, policy.state_size]} is needed. Pass "
                "the state that the last call returned, or None at the start of an episode."
            )
        if episode_start is not None:
            starts = torch.from_numpy(np.atleast_1d(np.asarray(episode_start, np.bool_)))
            state = state.masked_fill(starts.unsqueeze(-1), 0.0)
        if masks is not None:
            reader = self._mask_reader
            is_batch = batch is not None and isinstance(masks, Mapping)
            each: list[Any] = [masks] if batch is None else list(cast(Any, masks))
            masks = reader.read_batch(masks) if is_batch else reader.read_each(each)
        module = cast(nn.Module, policy)
        was_training = module.training
        module.train(False)
        decision = policy.act(
            observations, masks, state, None if deterministic else self._generator
        )
        module.train(was_training)
        numbers = None if decision.numbers is None else decision.numbers.numpy()
        if batch is None:
            return self._codec.each(decision.actions.numpy(), numbers)[0], decision.next_state
        return self._codec.batch(decision.actions.numpy(), numbers), decision.next_state

    def make_environments(self, env: Any = None, *, n_envs: int | None = None) -> Environments:
        """Return new environments of the kind the model is trained on, or from ``env``."""
        if isinstance(env, Environments):
            return env
        source = self._env if env is None else env
        is_one = isinstance(source, (gymnasium.Env, VectorEnv))
        if env is None and (source is None or is_one):
            raise UnsupportedEnvironmentError(
                "another environment cannot be made from the one that was given; pass env=, an id "
                "or a function that makes one."
            )
        members = make_members(source, None if is_one else n_envs)
        return adapt(members, self.agent.spec, squash=self.network.squash, device="cpu")

    def close(self) -> None:
        """Close the environments."""
        if self._environments is not None:
            self._environments.close()

    # -- saving -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save the model to a folder: safetensors and JSON, with checksums."""
        self.warn_of_functions()
        return self._save(path, keep_last=1, is_resumable=False)

    def save_checkpoint(self, path: str | os.PathLike[str], *, keep_last: int = 3) -> Path:
        """Save everything that training depends on; see :class:`Checkpoint`."""
        return self._save(path, keep_last=keep_last, is_resumable=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: EnvLike | None = None,
        *,
        policy: nn.Module | type[nn.Module] | None = None,
    ) -> Self:
        """Return a saved model. Nothing is unpickled and no code of the file is run.

        Args:
            path: The folder given to :meth:`save`, or of checkpoints.
            env: An environment to go on training on; by default another with the saved id.
            policy: The network, if it is one of your own.
        """
        saved = to_nested(CheckpointFolder(path).latest().state)
        return cls._from_saved(saved, env, policy, path)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        env: EnvLike | None = None,
        *,
        policy: nn.Module | type[nn.Module] | None = None,
    ) -> Self:
        """Return a model as its last checkpoint left it; ``learn()`` then continues exactly.

        Raises:
            CheckpointError: If the folder holds a saved model and no checkpoint.
        """
        saved = to_nested(CheckpointFolder(path).latest().state)
        if saved.get("training") is None:
            raise CheckpointError(
                f"{path} holds a saved model but no checkpoint; use PPO.load, or save checkpoints "
                "by callbacks=Checkpoint(folder)."
            )
        model = cls._from_saved(saved, env, policy, path)
        if model._environments is None:
            raise UnsupportedEnvironmentError(
                f"{path} was trained on an environment without an id; pass it: "
                "PPO.resume(path, env=...)."
            )
        model._load_training(saved["training"])
        model.resumed_from = Path(path).resolve()
        return model

    def save_environments(self) -> Any:
        """Return the state of the environments as plain values."""
        assert self._environments is not None, "training has environments"
        return self._environments.save_state()

    def settings(self) -> dict[str, Any]:
        """Return everything that decides training, as plain values."""
        rates: dict[str, Any] = {
            name: asdict(rate) if isinstance(rate, Schedule) else float(self._current_rates()[name])
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
        }

    # -- inside -----------------------------------------------------------------------------------

    def _setup(
        self,
        policy: Any,
        action_spec: ActionSpec | None,
        network: NetworkConfig,
        seed: int,
        settings: Any,
    ) -> None:
        """Build the agent for the spaces, which are known."""
        spec = require_spec(self.action_space, action_spec)
        self.network, self.seed = network, seed
        config, self._rates = _split_rates(cast("dict[str, Any]", settings))
        self._observation_spec = ObservationSpec.from_space(self.observation_space)
        # PyTorch draws weights as layers are made; the caller's stream must not notice.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy_name, made = _make_policy(
                policy, spec, self._observation_spec, self.observation_space, network, seed
            )
        config = _fit_config(config, made.state_size > 0, settings)
        self.agent = PPOAgent(spec, made, config, seed=seed)
        self._codec = ActionCodec(self.action_space, spec, squash=network.squash)
        self._mask_reader = MaskReader(spec, self.agent.device, self.action_space)
        self._generator = torch.Generator().manual_seed(seed)
        self._collector: VectorCollector | None = None
        self._callbacks: list[Callback] = []
        self._saved_callbacks: list[Any] | None = None
        self._recent: deque[tuple[float, int]] = deque(maxlen=100)
        self.num_timesteps, self.total_timesteps, self._first_timestep = 0, 0, 0
        self._is_stopped = False
        self.metrics: dict[str, float] = {}
        self.last_step: CollectedStep | None = None
        self.resumed_from: Path | None = None
        """The folder of checkpoints that the model continues from."""

    def _add_reward_normalizer(self, is_wanted: bool) -> None:
        self._rewards = RewardNormalizer(self.n_envs, self.config.gamma) if is_wanted else None

    def _save(self, path: str | os.PathLike[str], *, keep_last: int, is_resumable: bool) -> Path:
        spec = self.agent.spec
        facts: dict[str, Any] = {
            "settings": self.settings(),
            "num_timesteps": self.num_timesteps,
            "observation_space": encode_space(self.observation_space),
            "action_space": encode_space(self.action_space),
            "action_spec": {
                "names": list(spec.names),
                "sizes": list(spec.sizes),
                "op_head": spec.op_head,
                "relevance": [list(row) for row in spec.relevance],
                "dims": list(spec.dims),
            },
            "agent": self.agent.state_dict(),
            "rewards": None if self._rewards is None else self._rewards.state_dict(),
            "training": self._training_state() if is_resumable else None,
        }
        folder = CheckpointFolder(path, keep_last=keep_last)
        folder.save(from_nested(facts), step=self.num_timesteps)
        return Path(path)

    def _training_state(self) -> dict[str, Any]:
        assert self._collector is not None, "checkpoints are saved while learning"
        try:
            envs = self.save_environments()
        except UnsupportedEnvironmentError:
            envs = None
        return {
            "total_timesteps": self.total_timesteps,
            "first_timestep": self._first_timestep,
            "recent": [[float(r), int(n)] for r, n in self._recent],
            "collector": self._collector.state_dict(),
            "environments": envs,
            "callbacks": [[type(c).__name__, c.state_dict()] for c in self._callbacks],
        }

    @classmethod
    def _from_saved(
        cls, saved: dict[Any, Any], env: EnvLike | None, policy: Any, path: Any
    ) -> Self:
        settings = saved["settings"]
        name = settings["policy"]
        if policy is None and name not in POLICIES:
            raise CheckpointError(
                f"{path} was trained with a network of its own, {name}; pass policy={name}."
            )
        # An id with a colon names a module to import, which a file may not decide.
        env_id = settings["env"] if ":" not in (settings["env"] or "") else None
        source = env if env is not None else env_id
        network = NetworkConfig(**settings["network"])
        spec = ActionSpec(**saved["action_spec"])
        ppo = {
            name: Schedule(**cast(Any, value)) if isinstance(value, dict) else value
            for name, value in settings["ppo"].items()
        }
        if source is not None:
            is_one = isinstance(source, (gymnasium.Env, VectorEnv))
            model = cls(
                source,
                policy or name,
                n_envs=None if is_one else settings["n_envs"],
                n_steps=settings["n_steps"],
                seed=settings["seed"],
                network=network,
                action_spec=spec,
                normalize_rewards=settings["normalize_rewards"],
                **cast(Any, ppo),
            )
            model._require_spaces(saved)
        else:
            model = cls.__new__(cls)
            model.observation_space = decode_space(saved["observation_space"])
            model.action_space = decode_space(saved["action_space"])
            model._env, model._environments = None, None
            model.n_envs, model.n_steps = settings["n_envs"], settings["n_steps"]
            model._setup(policy or name, spec, network, settings["seed"], ppo)
            model._add_reward_normalizer(settings["normalize_rewards"])
        model.agent.load_state_dict(saved["agent"])
        model.num_timesteps = model.total_timesteps = saved["num_timesteps"]
        if model._rewards is not None and saved["rewards"] is not None:
            model._rewards.load_state_dict(saved["rewards"])
        return model

    def _require_spaces(self, saved: dict[Any, Any]) -> None:
        for kind in ("observation_space", "action_space"):
            then, now = saved[kind], encode_space(getattr(self, kind))
            if then != now:
                raise UnsupportedEnvironmentError(
                    f"the environment's {kind} is {getattr(self, kind)}; the model was saved with "
                    f"{decode_space(then)}."
                )

    def _load_training(self, training: dict[str, Any]) -> None:
        self.total_timesteps = training["total_timesteps"]
        self._first_timestep = training["first_timestep"]
        self._recent.extend((r, n) for r, n in training["recent"])
        self._saved_callbacks = training["callbacks"]
        collector, _ = self._require_collector()
        if training["environments"] is None:
            self.warn("the checkpoint has no environments; new episodes are started.")
            return
        assert self._environments is not None, "a resumed model has environments"
        self._environments.load_state(training["environments"])
        collector.load_state_dict(training["collector"])

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


def _split_rates(settings: dict[str, Any]) -> tuple[PPOConfig, dict[str, Rate]]:
    """Return the settings at the start of training, and the rates that may change."""
    known = [field.name for field in fields(PPOConfig)]
    for name in settings:
        if name not in known:
            own = ["n_envs", "n_steps", "seed", "network", "action_spec", "normalize_rewards"]
            near = SB3_NAMES.get(name)
            hint = f" Use {near} instead." if near else did_you_mean(name, [*known, *own])
            raise ConfigError(
                f"there is no setting {name!r}; settings are {', '.join([*own, *known])}.{hint}"
            )
    first: dict[str, Any] = {
        name: rate_at(cast(Any, value), 1.0) if name in SCHEDULED and callable(value) else value
        for name, value in settings.items()
    }
    config = PPOConfig(**first)
    return config, {name: settings.get(name, getattr(config, name)) for name in SCHEDULED}


def _fit_config(config: PPOConfig, has_memory: bool, settings: Any) -> PPOConfig:
    """Return settings with defaults for policies with memory, where none were given."""
    if not has_memory:
        return config
    defaults: dict[str, Any] = {"batch_size": 128, "sequence_length": 64}
    return replace(config, **{k: v for k, v in defaults.items() if k not in settings})


def _make_policy(
    policy: Any,
    spec: ActionSpec,
    observation_spec: ObservationSpec,
    observation_space: spaces.Space[Any],
    network: NetworkConfig,
    seed: int,
) -> tuple[str, Any]:
    """Return the name of a policy and the policy."""
    if policy is None:
        single = observation_spec.single
        policy = "multi-input" if single is None else "cnn" if single.kind == "image" else "mlp"
    generator = torch.Generator().manual_seed(seed)
    heads: dict[str, Any] = {"squash": network.squash, "log_std_init": network.log_std_init}
    if policy == "lstm":
        return policy, RecurrentPolicy(spec, observation_spec, network, generator=generator)
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ConfigError(
                f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}, or a network of "
                f"your own.{did_you_mean(policy, POLICIES)}"
            )
        _require_kind(policy, observation_spec, observation_space)
        towers = EncoderTowers(observation_spec, network)
        return policy, ActorCriticPolicy(
            spec, observation_spec, towers, generator=generator, **heads
        )
    if network.normalize_observations:
        raise ConfigError(
            "normalize_observations is on, but the network is your own; normalise observations in "
            "it, or use gymnasium.wrappers.NormalizeObservation."
        )
    if isinstance(policy, type):
        try:
            policy = policy(observation_space)
        except TypeError as error:
            raise ConfigError(
                f"policy(observation_space) failed: {error}. The class of a network takes the "
                "observation space; pass an instance otherwise."
            ) from error
    if not isinstance(policy, nn.Module):
        raise ConfigError(
            f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}, an nn.Module, or a "
            "class that makes one from the observation space."
        )
    made = ActorCriticPolicy(spec, observation_spec, policy, generator=generator, **heads)
    try:
        with torch.no_grad():
            made.value(observation_spec.zeros(2), torch.zeros(2, made.state_size))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the network {type(policy).__name__} failed on two observations of zeros: {error}. "
            "esper.simic.policy.networks says what a network takes and returns."
        ) from error
    return type(policy).__name__, made


def _require_kind(policy: str, observation_spec: ObservationSpec, space: spaces.Space[Any]) -> None:
    single = observation_spec.single
    if policy == "cnn" and (single is None or single.kind != "image"):
        raise ConfigError(
            f"policy is 'cnn', but the observation space is {space}; an image is a Box with three "
            "axes. Use 'mlp' or 'multi-input'."
        )
