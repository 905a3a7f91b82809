"""Names of Stable-Baselines3 and sb3-contrib, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from esper.config import checks

P = ParamSpec("P")
R = TypeVar("R")

_NO_PICKLES = "leave it out: nothing is pickled"
_EVALUATE = "write callbacks=Evaluate(every, n_episodes=, env=)"

POLICIES = {
    "MlpPolicy": "mlp",
    "CnnPolicy": "cnn",
    "MultiInputPolicy": "multi-input",
    "MlpLstmPolicy": "lstm",
    "CnnLstmPolicy": "lstm",
    "MultiInputLstmPolicy": "lstm",
}

ARGUMENTS: dict[str, dict[str, str]] = {
    "PPO": {
        "policy_kwargs": "write network=NetworkConfig(...)",
        "tensorboard_log": 'write learn(callbacks=Tracker("tensorboard", folder))',
        "lr": "write learning_rate=",
        "use_sde": "leave it out: there is no gSDE",
        "sde_sample_freq": "leave it out: there is no gSDE",
        "rollout_buffer_class": "leave it out: there is one kind of buffer",
        "rollout_buffer_kwargs": "leave it out: there is one kind of buffer",
        "stats_window_size": "leave it out: metrics are means over the last 100 episodes",
        "monitor_wrapper": "leave it out: returns and lengths are always counted",
        "_init_setup_model": "leave it out",
    },
    "NetworkConfig": {
        "net_arch": "write hidden_sizes=(64, 64), and value_sizes= if the critic differs",
        "activation_fn": "write activation='relu' or 'tanh'",
        "squash_output": "write squash=True",
        "lstm_hidden_size": "write lstm_size=",
        "n_lstm_layers": "leave it out: the LSTM has one layer",
        "shared_lstm": "leave it out: policy and value share the LSTM",
        "enable_critic_lstm": "leave it out: policy and value share the LSTM",
        "ortho_init": "leave it out: weights are always drawn so",
        "normalize_images": "leave it out: uint8 images are always scaled to 0 to 1",
        "features_extractor_class": "pass a network of your own as PPO(policy=...)",
        "features_extractor_kwargs": "pass a network of your own as PPO(policy=...)",
        "optimizer_class": "write PPO(optimizer=torch.optim.AdamW)",
        "optimizer_kwargs": "write PPO(optimizer=lambda p: torch.optim.Adam(p, eps=1e-8))",
    },
    "learn": {
        "callback": "write callbacks=",
        "progress_bar": "write progress=",
        "log_interval": "leave it out: every update is logged",
        "tb_log_name": 'write callbacks=Tracker("tensorboard", "runs/name")',
        "reset_num_timesteps": "leave it out: a second call continues to count",
        "use_masking": "leave it out: masks that an environment gives are always used",
        "eval_env": _EVALUATE,
        "eval_freq": _EVALUATE,
        "n_eval_episodes": _EVALUATE,
        "eval_log_path": _EVALUATE,
    },
    "predict": {"action_masks": "write masks="},
    "save": {"exclude": _NO_PICKLES, "include": _NO_PICKLES},
    "load": {
        "custom_objects": _NO_PICKLES,
        "print_system_info": "leave it out: a warning names versions that differ",
        "force_reset": "leave it out: a loaded model starts new episodes; PPO.resume does not",
    },
    "evaluate": {
        "n_eval_episodes": "write n_episodes=",
        "return_episode_rewards": "leave it out: the result has returns and lengths",
        "reward_threshold": "compare the result's mean, low or high",
        "render": "make the environment with render_mode='human' and pass it",
        "callback": "leave it out: step the environment with model.predict in a loop of your own",
        "warn": "leave it out",
        "use_masking": "leave it out: masks that an environment gives are always used",
    },
    "Evaluate": {
        "eval_env": "write env=",
        "eval_freq": "write every=, in steps of all environments",
        "n_eval_episodes": "write n_episodes=",
        "best_model_save_path": "write save_best=",
        "log_path": 'read evaluate.results, or add Tracker("csv", folder)',
        "callback_on_new_best": "compare best_mean in a callback of your own",
        "callback_after_eval": "add a callback of your own",
        "render": "make the environment with render_mode='human'",
        "verbose": "write PPO(verbose=1)",
        "warn": "leave it out",
        "use_masking": "leave it out: masks that an environment gives are always used",
    },
    "Checkpoint": {
        "save_freq": "write every=, in steps of all environments",
        "save_path": "write folder=",
        "name_prefix": "leave it out: checkpoints are named after their step",
        "save_replay_buffer": "leave it out: everything that training needs is saved",
        "save_vecnormalize": "leave it out: everything that training needs is saved",
        "verbose": "leave it out",
    },
}
"""Arguments of each function; those of ``NetworkConfig`` are ``policy_kwargs`` there."""

ATTRIBUTES = {
    "get_env": "model.env",
    "logger": "model.log(name, value) and model.metrics",
    "dump_logs": "model.metrics",
    "set_logger": 'callbacks=Tracker("csv", folder)',
    "get_parameters": "model.policy.state_dict()",
    "set_parameters": "PPO.load(path)",
    "set_random_seed": "PPO(seed=...)",
    "get_vec_normalize_env": "NetworkConfig(normalize_observations=True)",
    "ep_info_buffer": "model.metrics",
    "lr_schedule": "model.rates",
    "rollout_buffer": "model.agent.make_buffer(n_envs, n_steps)",
    "train": "model.learn(total_timesteps)",
    "collect_rollouts": "model.learn(total_timesteps)",
    "policy_class": "model.policy_name",
    "policy_kwargs": "model.network",
    "tensorboard_log": 'callbacks=Tracker("tensorboard", folder)',
}
"""Attributes and methods of a model."""

CALLBACK_METHODS = {
    "_on_step": "on_step",
    "_on_rollout_end": "on_rollout_end",
    "_on_rollout_start": "on_start or on_update_end",
    "_on_training_start": "on_start",
    "_on_training_end": "on_end",
    "_init_callback": "on_start",
    "on_rollout_start": "on_start or on_update_end",
    "on_training_start": "on_start",
    "on_training_end": "on_end",
}
"""Methods of a callback."""

EXPORTS = {
    "MaskablePPO": "PPO, which reads masks by itself",
    "RecurrentPPO": 'PPO(env, "lstm")',
    "BaseCallback": "Callback",
    "CallbackList": "callbacks=[...]",
    "CheckpointCallback": "Checkpoint",
    "EvalCallback": "Evaluate",
    "MaskableEvalCallback": "Evaluate",
    "ProgressBarCallback": "learn(progress=True)",
    "StopTrainingOnRewardThreshold": "a function of the model that returns False",
    "ActionMasker": "a method action_masks(), or info['action_mask']",
    "DummyVecEnv": "PPO(env, n_envs=...)",
    "SubprocVecEnv": "gymnasium.vector.AsyncVectorEnv",
    "VecNormalize": "NetworkConfig(normalize_observations=True) and PPO(normalize_rewards=True)",
    "VecFrameStack": "gymnasium.wrappers.FrameStackObservation",
    "Monitor": "PPO alone, which counts returns and lengths",
    "make_vec_env": "PPO(env, n_envs=...)",
    "evaluate_policy": "evaluate",
}
"""Classes and functions that users import."""


def answers_names(function: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of ours say what to write for an argument that it does not have."""
    return checks.rejects_unknown(function, ARGUMENTS[function])


def reject_unknown(function: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ConfigError for the first given argument that a function of ours does not have."""
    checks.reject_unknown(function, given, allowed, ARGUMENTS[function])
