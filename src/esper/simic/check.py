"""Check that PPO can train on an environment, and report what is wrong with it.

    python -m esper.simic.check CartPole-v1
    python -m esper.simic.check my_module:make_env
    python -m esper.simic.check my_file.py:MyEnv

Random legal actions are taken for a few hundred steps. Each check prints one line: ``ok``, a
``note`` (it works, but you may want to know), or a ``problem`` (training fails, or learns from
wrong numbers). The exit code is 0 without problems, 1 with problems and 2 for a bad argument.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import runpy
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import passive_env_checker
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit
from torch import Tensor

from esper.config.checks import NonNegativeInt, PositiveInt, check
from esper.errors import (
    ActionSpecError,
    ConfigError,
    EsperError,
    UnsupportedEnvironmentError,
    did_you_mean,
    shown,
)
from esper.formatting import many
from esper.simic.policy.action_spec import ActionSpec, action_parts
from esper.simic.policy.observations import ObservationLeaf, ObservationSpec, leaves_of
from esper.simic.rollout.actions import require_spec
from esper.simic.rollout.contract import (
    Findings,
    Outcome,
    RandomGame,
    describe_error,
    remarks_of,
)
from esper.simic.rollout.env_state import load_env_state, save_env_state
from esper.simic.rollout.environments import Env
from esper.simic.rollout.factory import EnvLike, declared_spec, make_members
from esper.simic.rollout.space_json import decode_space, encode_space, is_same_space

N_REPLAYED = 200
"""Steps that are repeated to compare them with what happened before."""

MAX_SECONDS = 20.0
"""Time that random steps may take; a slow environment is checked for fewer."""

SLOW = 300
"""Steps per second below which worker processes are worth their overhead."""


def check_env(env: EnvLike, *, n_steps: int = 500, seed: int = 0) -> Findings:
    """Check one environment and return what was found, in the order of the checks.

    Args:
        env: An id for ``gymnasium.make``, an environment, or a class or function that makes one.
        n_steps: Random steps to take.
        seed: Decides the episodes and the actions.

    Raises:
        UnsupportedEnvironmentError: If ``env`` is a vector environment, or nothing of the above.
    """
    check("n_steps", n_steps, PositiveInt)
    if isinstance(env, VectorEnv):
        raise UnsupportedEnvironmentError(
            "env is a vector environment; check one of its environments, or the function that "
            "makes one."
        )
    report = Findings()
    try:
        (one,) = cast("list[Env]", make_members(env, None))
    except EsperError:
        raise
    except Exception as error:
        report.problem("environment", f"making it raised {describe_error(error)}")
        return report
    try:
        _run_checks(one, n_steps, seed, report)
    finally:
        if one is not env:
            one.close()
    return report


def _run_checks(env: Env, n_steps: int, seed: int, report: Findings) -> None:
    spec = _check_spaces(env, report)
    if spec is None:
        return
    game = RandomGame(env, spec, report, seed)
    if not game.reset(seed):
        return
    first = game.observation
    while game.n_steps < n_steps and game.seconds < MAX_SECONDS and game.step():
        pass
    if game.outcomes:
        game.summarize()
        _check_episodes(env, game, report)
        _check_seeding(env, game, first, seed)
        _check_saving(env, game, report)
        _check_scale(env, game, report)
        _check_speed(game, report)


# -- spaces ---------------------------------------------------------------------------------------


def _check_spaces(env: Env, report: Findings) -> ActionSpec | None:
    """Return the heads of an action; None if a space is not supported."""
    for kind in ("observation_space", "action_space"):
        if not isinstance(getattr(env, kind, None), spaces.Space):
            report.problem(kind.replace("_", " "), f"the environment has no {kind}.")
            return None
    try:
        ObservationSpec.from_space(env.observation_space)
        report.ok("observation space", shown(env.observation_space))
    except UnsupportedEnvironmentError as error:
        report.problem("observation space", str(error))
    try:
        spec = require_spec(env.action_space, declared_spec(env))
    except ActionSpecError as error:
        report.problem("action space", str(error))
        return None
    heads = f"; heads {', '.join(spec.names)}" if spec.n_heads > 1 else ""
    report.ok("action space", f"{shown(env.action_space)}{heads}")
    for kind in ("observation_space", "action_space"):
        look = getattr(passive_env_checker, f"check_{kind}")
        for remark in remarks_of(partial(look, getattr(env, kind))):
            report.note(kind.replace("_", " "), remark)
    for name, part in action_parts(env.action_space):
        if isinstance(part, spaces.Box):
            _check_bounds(name, cast("spaces.Box[Any]", part), report)
    return None if report.has_problem("observation space") else spec


def _check_bounds(name: str, part: spaces.Box[Any], report: Findings) -> None:
    check = f"action bounds of {name}" if name else "action bounds"
    if not part.is_bounded():
        report.note(
            check,
            "infinite. Actions are drawn with standard deviation 1 and are never clipped; give the "
            "Box bounds, or set NetworkConfig(log_std_init=...).",
        )
        return
    half = float(np.abs(part.high - part.low).max()) / 2.0
    if not 0.1 <= half <= 10.0:
        report.note(
            check,
            f"they span {2 * half:.4g}, but actions are first drawn with standard deviation 1; "
            "wrap the environment in gymnasium.wrappers.RescaleAction(env, -1, 1).",
        )


# -- after the game -------------------------------------------------------------------------------


def _check_episodes(env: Env, game: RandomGame, report: Findings) -> None:
    limit = _time_limit(env)
    lengths = [length for length, _ in game.episodes]
    n_truncated = sum(truncated for _, truncated in game.episodes)
    if not lengths:
        known = f"; its time limit is {limit} steps" if limit else ""
        advice = "" if limit else " Wrap it in gymnasium.wrappers.TimeLimit if it never ends."
        report.note("episodes", f"none ended within {game.n_steps} steps{known}.{advice}")
    elif not n_truncated and len(lengths) > 1 and len(set(lengths)) == 1 and lengths[0] > 1:
        report.note(
            "episodes",
            f"all {len(lengths)} terminated after exactly {lengths[0]} steps. If that is a time "
            "limit and not the end of the task, return truncated=True instead.",
        )
    else:
        report.ok(
            "episodes",
            f"{len(lengths) - n_truncated} terminated and {n_truncated} truncated after "
            f"{min(lengths)} to {max(lengths)} steps",
        )


def _check_seeding(env: Env, game: RandomGame, expected: Any, seed: int) -> None:
    """Play the same actions again, and compare."""
    report = game.report
    if report.has_problem("reset", "observations", "rewards"):
        return
    advice = "Draw all random numbers from self.np_random, after super().reset(seed=seed)."
    try:
        first, _ = env.reset(seed=seed)
        if not data_equivalence(first, expected, exact=True):
            report.problem(
                "seeding", f"reset(seed={seed}) gives another first observation each time. {advice}"
            )
            return
        wrong = _replay(env, game.actions[:N_REPLAYED], game.outcomes)
        if wrong is not None:
            report.problem("seeding", f"the same seed and the same actions give {wrong}. {advice}")
            return
        others = [env.reset(seed=seed + number)[0] for number in (1, 2, 3)]
    except Exception as error:
        report.problem("seeding", f"repeating the same actions raised {describe_error(error)}")
        return
    if all(data_equivalence(first, other, exact=True) for other in others):
        report.note("seeding", "four seeds give the same first observation; fine if it is fixed.")
    else:
        n_steps = min(len(game.actions), N_REPLAYED)
        report.ok(
            "seeding", f"a seed decides the first observation and the {n_steps} steps after it"
        )


def _check_saving(env: Env, game: RandomGame, report: Findings) -> None:
    """Save the state, play on, restore it, play the same, and compare."""
    if report.has_problem("masks", "legal actions", "seeding", "reset"):
        return
    try:
        for space in (env.observation_space, env.action_space):
            restored = decode_space(json.loads(json.dumps(encode_space(space))))
            if not is_same_space(restored, space):
                report.problem("exact resume", f"{shown(space)} is saved as {shown(restored)}.")
                return
        game.reset()
        for _ in range(3):
            game.step()
        saved = json.loads(json.dumps(save_env_state(env)))
        start = len(game.actions)
        while len(game.actions) < start + min(N_REPLAYED, start) and game.step():
            pass
        load_env_state(env, saved)
        wrong = _replay(env, game.actions[start:], game.outcomes[start:])
    except UnsupportedEnvironmentError as error:
        report.note("exact resume", f"not possible: {error}")
        return
    except Exception as error:
        report.note("exact resume", f"not possible: restoring it raised {describe_error(error)}")
        return
    if wrong is None:
        report.ok("exact resume", "its state can be saved and restored")
        return
    report.note(
        "exact resume",
        f"not possible: the restored state gives {wrong}. Give the environment state_dict() and "
        "load_state_dict() that hold all of its state.",
    )


def _check_scale(env: Env, game: RandomGame, report: Findings) -> None:
    if report.has_problem("observations"):
        return
    spec = ObservationSpec.from_space(env.observation_space)
    seen = spec.read_list([outcome.observation for outcome in game.outcomes])
    for name, values in leaves_of(seen).items():
        wrong = _describe_scale(spec.leaves[name], values, f" of {name!r}" if name else "")
        if wrong is not None:
            report.note("observation scale", wrong)
            return
    report.ok("observation scale", "near unit scale")


def _describe_scale(leaf: ObservationLeaf, values: Tensor, where: str) -> str | None:
    """Return in words which feature is furthest from unit scale; None if none is far."""
    if leaf.kind == "category" or leaf.is_byte_image or len(values) < 2:
        return None
    rows = values.flatten(1).double()
    means, deviations = rows.mean(0).abs(), rows.std(0)
    # A feature that never varies teaches nothing about its scale.
    far = (deviations > 0.0) & ((deviations > 10.0) | (means > 10.0) | (deviations < 0.01))
    if not far.any():
        return None
    worst = int(torch.where(far, deviations.log().abs(), -1.0).argmax())
    fix = "use NetworkConfig(normalize_observations=True)"
    if leaf.kind == "image":
        fix = "use uint8, which is scaled, or scale them to 0 to 1"
    return (
        f"feature {worst}{where} has mean {rows[:, worst].mean():.3g} and standard deviation "
        f"{deviations[worst]:.3g}; networks learn best near unit scale: {fix}."
    )


def _check_speed(game: RandomGame, report: Findings) -> None:
    speed = game.n_steps / max(game.seconds, 1e-9)
    text = f"{speed:,.0f} steps/s" if speed >= 10 else f"{speed:.2g} steps/s"
    if speed >= SLOW:
        report.ok("speed", text)
    else:
        report.note("speed", f"{text}; gymnasium.vector.AsyncVectorEnv steps several at once.")


def _replay(env: Env, actions: Sequence[Any], expected: Sequence[Outcome]) -> str | None:
    """Take actions again; return the first difference in words."""
    for number, (action, before) in enumerate(zip(actions, expected, strict=False), start=1):
        observation, reward, terminated, truncated, _ = env.step(copy.deepcopy(action))
        ends = [bool(np.any(terminated)), bool(np.any(truncated))]
        now = {
            "observation": (observation, before.observation),
            "reward": (reward, before.reward),
            "end": (ends, [before.terminated, before.truncated]),
        }
        for name, (value, old) in now.items():
            if not data_equivalence(value, old, exact=True):
                return f"another {name} at step {number}"
        if before.terminated or before.truncated:
            first, _ = env.reset()
            if not data_equivalence(first, before.first, exact=True):
                return f"another first observation after the episode that ends at step {number}"
    return None


def _time_limit(env: Env) -> int | None:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            return int(env._max_episode_steps)  # pyright: ignore[reportPrivateUsage]
        env = env.env
    return None


# -- the command ----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the line and leave with exit code 2."""
        self.exit(2, f"error: {message}; see python -m esper.simic.check --help\n")


def load_target(target: str) -> Any:
    """Return what ``module:name``, ``file.py:name`` or a Gymnasium id stands for.

    Raises:
        ConfigError: If there is no such thing, or its module cannot be imported.
    """
    place, _, name = target.rpartition(":")
    if not place:
        if target.endswith(".py"):
            raise ConfigError(f"{target!r} names no environment; write {target}:MyEnv.")
        if target not in gymnasium.registry:
            hint = did_you_mean(target, gymnasium.registry)
            raise ConfigError(
                f"Gymnasium has no environment {target!r}.{hint} Write my_module:MyEnv or "
                "my_file.py:MyEnv for one of yours."
            )
        return target
    module: Any = _import(place)
    found = module
    for word in name.split("."):
        found = getattr(found, word, None)
    if found is not None:
        return found
    if name in gymnasium.registry:
        return name
    names = [known for known in dir(module) if callable(getattr(module, known))]
    raise ConfigError(f"{place} has no {name!r}.{did_you_mean(name, names)}")


def _import(place: str) -> Any:
    path = Path(place).resolve()
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ConfigError(f"there is no file {place}.")
    try:
        if not is_file:
            return importlib.import_module(place)
        sys.path.insert(0, str(path.parent))
        return SimpleNamespace(**runpy.run_path(str(path), run_name=path.stem))
    except Exception as error:
        raise ConfigError(f"{place} cannot be imported: {describe_error(error)}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _Parser(
        prog="python -m esper.simic.check",
        description="Check that PPO can train on an environment, and say what is wrong with it.",
    )
    parser.add_argument("target", help="a Gymnasium id, my_module:make_env, or my_file.py:MyEnv")
    parser.add_argument("--steps", type=int, default=500, help="random steps to take (500)")
    parser.add_argument("--seed", type=int, default=0, help="decides episodes and actions (0)")
    chosen = parser.parse_args(arguments)
    try:
        check("--steps", chosen.steps, PositiveInt)
        check("--seed", chosen.seed, NonNegativeInt)
        findings = check_env(load_target(chosen.target), n_steps=chosen.steps, seed=chosen.seed)
    except EsperError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for finding in findings:
        print(finding)
    problems, notes = (
        sum(finding.level == level for finding in findings) for level in ("problem", "note")
    )
    n_ok = len(findings) - problems - notes
    print(f"{chosen.target}: {many(problems, 'problem')}, {many(notes, 'note')}, {n_ok} ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
