"""The check finds what is wrong with an environment, and nothing in one that is right."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from esper.errors import UnsupportedEnvironmentError
from esper.simic import PPO, ActionSpec
from esper.simic.check import check_env, main
from esper.simic.rollout.contract import Finding
from esper.simic.rollout.space_json import decode_space

OPEN = 1


class Corridor(gymnasium.Env[Any, Any]):
    """A corridor with three doors at its end; a right environment that others break."""

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.MultiDiscrete([2, 3])
    shift = 12

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.time = int(self.np_random.integers(1, 5)), 0
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        move, door = action
        if move == OPEN and (self.left or door == self.locked):
            raise ValueError(f"door {door} is locked")
        self.left, self.time = max(self.left - 1, 0), self.time + 1
        has_opened = bool(move == OPEN)
        is_late = self.time >= self.shift and not has_opened
        return self.observe(), self.reward(has_opened), has_opened, is_late, self.info()

    @property
    def locked(self) -> int:
        return self.time % 3

    def observe(self) -> Any:
        noise = self.np_random.uniform(-1.0, 1.0)
        return np.array([self.left / 5, self.time / self.shift, noise], np.float32)

    def reward(self, has_opened: bool) -> Any:
        return float(has_opened)

    def mask(self) -> Any:
        doors = np.ones(3, np.int8)
        doors[self.locked] = 0
        return np.array([1, self.left == 0], np.int8), doors

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask()}


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


def found(findings: list[Finding], level: str) -> dict[str, str]:
    return {one.check: one.message for one in findings if one.level == level}


def test_a_right_environment_passes_every_check() -> None:
    findings = check_env(Corridor)
    assert set(levels(findings).values()) == {"ok"}
    assert list(levels(findings)) == [
        "observation space",
        "action space",
        "reset",
        "observations",
        "masks",
        "legal actions",
        "ends",
        "rewards",
        "episodes",
        "seeding",
        "exact resume",
        "observation scale",
        "speed",
    ]


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Taxi-v4"],
)
def test_environments_of_gymnasium_have_no_problems(name: str) -> None:
    if name not in gymnasium.registry:
        pytest.skip(f"this version of Gymnasium has no {name}")
    assert not found(check_env(name, n_steps=100), "problem")


def test_dict_observations_mixed_actions_and_conditional_masks_pass() -> None:
    class Mixed(Corridor):
        observation_space = spaces.Dict(
            image=spaces.Box(0, 255, (4, 4, 3), np.uint8), place=spaces.Discrete(6, start=1)
        )
        action_space = spaces.Dict(
            move=spaces.Discrete(2), door=spaces.Discrete(3), force=spaces.Box(-1.0, 1.0, (2,))
        )

        def observe(self) -> Any:
            image = self.np_random.integers(0, 256, (4, 4, 3)).astype(np.uint8)
            return {"image": image, "place": 1 + self.left}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return super().step((action["move"], action["door"]))

        def mask(self) -> Any:
            moves, doors = super().mask()
            return {"move": moves, "door|move": np.stack([np.ones(3), doors])}

    findings = check_env(Mixed)
    assert set(levels(findings).values()) == {"ok"}


# -- deliberately broken ------------------------------------------------------------------------


def broken(**members: Any) -> type[Corridor]:
    """Return a corridor with some of its members replaced."""
    return type("Broken", (Corridor,), members)


def observing(change: Callable[[Any, Any], Any], **members: Any) -> type[Corridor]:
    """Return a corridor whose observations are changed."""
    return broken(observe=lambda self: change(self, Corridor.observe(self)), **members)


def stepping(change: Callable[..., Any]) -> type[Corridor]:
    """Return a corridor that changes what a step returns."""
    return broken(step=lambda self, action: change(*Corridor.step(self, action)))


def masking(mask: Callable[[Any], Any], **members: Any) -> type[Corridor]:
    """Return a corridor with other masks."""
    return broken(mask=mask, **members)


def set_at(index: int, value: float, at_time: int) -> Callable[[Any, Any], Any]:
    """Return a change of an observation: a number at one time, and zero at others."""

    def change(env: Any, observation: Any) -> Any:
        observation[index] = value if env.time == at_time else 0.0
        return observation

    return change


def raising(message: str) -> Callable[..., Any]:
    def fail(self: Any) -> Any:
        raise RuntimeError(message)

    return fail


class MaskAppearsLate(Corridor):
    def info(self) -> dict[str, Any]:
        return super().info() if self.time else {}

    def step(self, action: Any) -> Any:
        return super().step((0, 0))


class SaysIllegal(Corridor):
    def step(self, action: Any) -> Any:
        is_illegal = action[0] == OPEN and action[1] == 2
        *rest, info = super().step(action)
        return *rest, {**info, "illegal_action": is_illegal}


class NoSeed(Corridor):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoSecondReset(Corridor):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if getattr(self, "time", 0):
            raise RuntimeError("only once")
        return super().reset(seed=seed)


class KeepsState(Corridor):
    """Remembers something through a reset with a seed."""

    n_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.n_resets += 1
        return super().reset(seed=seed)

    def reward(self, has_opened: bool) -> Any:
        return float(self.n_resets)


BYTES, NUMBERS = spaces.Box(0, 255, (3,), np.uint8), spaces.Box(-np.inf, np.inf, (3,), np.float32)
PAIR = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))
ONES, NO_DOOR = np.ones(5, np.int8), np.array([[1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    ("env", "check", "message"),
    [
        (observing(lambda _, seen: seen[:2]), "observations", r"space at the first reset.*\(3,\)"),
        (
            observing(lambda *_: np.full(3, 0.5), observation_space=BYTES),
            "observations",
            "uint8, actual type: float64",
        ),
        (
            observing(set_at(1, 1.5, 4)),
            "observations",
            r"not within .* at step 4: .* 1\.5.*-1\.0, 1\.0",
        ),
        (
            observing(set_at(2, np.inf, 3), observation_space=NUMBERS),
            "observations",
            "not finite at step 3: .* inf",
        ),
        (observing(lambda *_: {"a": 0}, observation_space=PAIR), "observations", "keys: \\['a'\\]"),
        (broken(observation_space=spaces.Text(10)), "observation space", "Text"),
        (broken(action_space=spaces.Text(10)), "action space", "Text"),
        (broken(action_spec=ActionSpec.independent([2, 2])), "action space", r"sizes \(2, 2\)"),
        (
            broken(info=lambda self: Corridor.info(self) if self.time < 2 else {}),
            "masks",
            "'action_mask'.* at step 2",
        ),
        (MaskAppearsLate, "masks", "'action_mask'.* at step 1"),
        (masking(lambda _: np.ones(6, np.int8)), "masks", r"shape \(6,\).* 5"),
        (
            masking(lambda self: (np.array([1, 0], np.int8), np.full(3, self.time < 3, np.int8))),
            "masks",
            "'head_1' .* at step 3",
        ),
        (
            masking(lambda _: np.array([[1, 0, 1], [1, 1, 1]])),
            "masks",
            "choice 2 of head 'head_0', which has size 2",
        ),
        (masking(lambda _: {"doors": np.ones(3)}), "masks", "'doors'"),
        (
            masking(lambda self: [np.where(m, 0.0, -np.inf) for m in Corridor.mask(self)]),
            "masks",
            "at the first reset.* -inf for head 'head_0'",
        ),
        (
            broken(info=lambda _: {}, action_mask=lambda _: ONES),
            "masks",
            "action_mask, which is not read",
        ),
        (broken(action_masks=ONES), "masks", "action_masks .* an ndarray"),
        (broken(action_masks=lambda _: ONES), "masks", r"action_masks\(\) at the first reset"),
        (
            broken(info=lambda _: {}, action_masks=raising("not ready")),
            "masks",
            r"RuntimeError: not ready \(test_check\.py, line \d+\)",
        ),
        (
            masking(lambda _: {"head_1|head_0": NO_DOOR}),
            "masks",
            "'head_1' .* 'head_0' is 1",
        ),
        (masking(lambda _: ONES), "legal actions", r"ValueError: door \d is locked \(test_check"),
        (SaysIllegal, "legal actions", "'illegal_action'"),
        (broken(reward=lambda *_: np.array([1.0])), "rewards", "ndarray.* at step 1"),
        (
            broken(reward=lambda _, is_end: np.nan if is_end else 0.0),
            "rewards",
            "NaN value at step",
        ),
        (broken(reward=lambda *_: None), "rewards", "actual type: .*NoneType"),
        (
            stepping(lambda o, r, a, b, info: (o, r, int(a), b, info)),
            "ends",
            "`terminated`.*int.* at step 1",
        ),
        (
            stepping(lambda o, r, a, b, info: (o, r, a, np.full(2, b), info)),
            "ends",
            "`truncated`.*ndarray",
        ),
        (
            stepping(lambda o, r, a, b, info: (o, r, a or b, info)),
            "step",
            "at step 1.* old step API",
        ),
        (
            broken(reset=lambda self, *, seed=None: Corridor.reset(self, seed=seed)[0]),
            "reset",
            r"not a tuple of the form `\(obs, info\)`",
        ),
        (NoSeed, "reset", r"reset\(seed=0\) .* TypeError"),
        (NoSecondReset, "reset", r"reset\(\) at the reset after step \d+ raised RuntimeError"),
        (
            broken(reset=lambda self, *, seed=None: Corridor.reset(self)),
            "seeding",
            "first observation each time.*np_random",
        ),
        (
            broken(reward=lambda *_: float(np.random.default_rng().uniform())),
            "seeding",
            "reward at step 1",
        ),
        (KeepsState, "seeding", "reward at step 1"),
        (broken(__init__=raising("no licence")), "environment", "RuntimeError: no licence"),
    ],
)
def test_what_is_broken_is_found(env: type[Corridor], check: str, message: str) -> None:
    problems = found(check_env(env, n_steps=100), "problem")
    assert list(problems) == [check]
    assert re.search(message, problems[check]), problems[check]


# -- worth a note -------------------------------------------------------------------------------


class Endless(Corridor):
    shift = 10**9

    def mask(self) -> Any:
        return np.array([1, 0, 1, 1, 1], np.int8)


class TerminatesAtLimit(Corridor):
    def mask(self) -> Any:
        return np.array([1, 0, 1, 1, 1], np.int8)

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, self.time >= 7, False, info


class FixedStart(Corridor):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 2
        return np.zeros(3, np.float32), self.info()


class NeverIllegal(Corridor):
    def mask(self) -> Any:
        return np.ones(5, np.int8)

    def step(self, action: Any) -> Any:
        return super().step((0, 0))


class HoldsAnObject(Corridor):
    def __init__(self) -> None:
        self.simulator = object()


class HidesItsState(Corridor):
    """Its reward comes from a counter that a saved state does not hold."""

    def __init__(self) -> None:
        count = [0]

        def pay() -> float:
            count[0] += 1
            return float(count[0])

        def clear() -> None:
            count[0] = 0

        self.pay, self.clear = pay, clear

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.clear()
        return super().reset(seed=seed)

    def reward(self, has_opened: bool) -> Any:
        return self.pay()


class ReusesItsArray(Corridor):
    def __init__(self) -> None:
        self.array = np.zeros(3, np.float32)

    def observe(self) -> Any:
        self.array[:] = super().observe()
        return self.array


class Continuous(Corridor):
    high = np.inf

    def __init__(self) -> None:
        self.action_space = spaces.Box(-self.high, self.high, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step((0, 0))

    def info(self) -> dict[str, Any]:
        return {}


class WideContinuous(Continuous):
    high = 500.0


@pytest.mark.parametrize(
    ("env", "check", "message"),
    [
        (Endless, "episodes", "none ended within 60 steps.*TimeLimit"),
        (lambda: TimeLimit(Endless(), 100), "episodes", "its time limit is 100 steps"),
        (TerminatesAtLimit, "episodes", "exactly 7 steps.*truncated=True"),
        (
            observing(
                lambda env, _: np.array([0.5, 500.0 * env.time, 0.1], np.float32),
                observation_space=spaces.Box(0.0, 1e4, (3,), np.float32),
            ),
            "observation scale",
            r"feature 1 .*normalize_observations=True",
        ),
        (
            observing(lambda _, seen: seen.astype(np.float64)),
            "observations",
            "float32, actual type: float64",
        ),
        (observing(lambda _, seen: seen.tolist()), "observations", "'list'.*converted"),
        (FixedStart, "seeding", "same first observation"),
        (NeverIllegal, "masks", "nothing was ever illegal"),
        (NeverIllegal, "rewards", "all 0 during 60 random steps"),
        (HoldsAnObject, "exact resume", r"HoldsAnObject\.simulator is an object.*state_dict"),
        (HidesItsState, "exact resume", "another reward at step 1.*state_dict"),
        (ReusesItsArray, "observations", "the same array .* return a copy"),
        (broken(reward=lambda *_: time.sleep(0.005) or 1.0), "speed", "AsyncVectorEnv"),
        (
            observing(
                lambda _, seen: seen * np.float32([1, 1, 0]),
                observation_space=spaces.Box(*np.float32([[-1, -1, 0], [1, 1, 0]])),
            ),
            "observation space",
            "maximum and minimum values are equal",
        ),
        (
            broken(reset=lambda self, *, seed=0, options=None: Corridor.reset(self, seed=seed)),
            "reset",
            "default seed argument",
        ),
        (Continuous, "action bounds", "infinite.*log_std_init"),
        (WideContinuous, "action bounds", "span 1000.*RescaleAction"),
    ],
)
def test_what_is_unusual_is_noted(env: Callable[[], Any], check: str, message: str) -> None:
    findings = check_env(env, n_steps=60)
    assert not found(findings, "problem")
    assert re.search(message, found(findings, "note")[check])


def test_a_remark_of_gymnasium_on_every_reset_is_noted_once() -> None:
    env = broken(reset=lambda self, *, seed=None: Corridor.reset(self, seed=seed))
    (note,) = (one for one in check_env(env, n_steps=60) if one.level == "note")
    assert note.check == "reset"
    assert "`options`" in note.message


def test_a_truncated_episode_is_seen_whatever_wraps_the_environment() -> None:
    (message,) = (
        one.message
        for one in check_env(lambda: TimeLimit(Endless(), 20), n_steps=60)
        if one.check == "episodes"
    )
    assert message == "0 terminated and 3 truncated after 20 to 20 steps"


def test_the_only_action_space_without_masks_is_a_continuous_one() -> None:
    assert "masks" not in levels(check_env("Pendulum-v1", n_steps=20))


class Crane(Corridor):
    """Masks as Gymnasium's own ``sample(mask=)`` takes them, under the plural key."""

    action_space = spaces.Dict(
        {
            "hook": spaces.Discrete(3),
            "motors": spaces.MultiBinary(2),
            "speed": spaces.Box(-1.0, 1.0, (2,)),
        }
    )

    def step(self, action: Any) -> Any:
        assert action["hook"] != 1
        assert action["motors"][0] == 1
        return self.observe(), 1.0, self.np_random.random() < 0.1, False, self.info()

    def info(self) -> dict[str, Any]:
        hook, motors = np.array([1, 0, 1], np.int8), np.array([1, 2], np.int8)
        return {"action_masks": {"hook": hook, "motors": motors, "speed": None}}


@pytest.mark.parametrize("is_vector", [False, True])
def test_what_the_checker_accepts_can_be_trained_on(is_vector: bool) -> None:
    report = check_env(Crane, n_steps=100)
    assert not found(report, "problem")
    assert "info['action_masks']" in found(report, "ok")["masks"]
    env: Any = SyncVectorEnv([Crane] * 2) if is_vector else Crane
    assert PPO(env, n_steps=32, n_epochs=1).learn(64).num_timesteps == 64


def test_a_vector_environment_is_refused() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(UnsupportedEnvironmentError, match="vector environment"):
        check_env(envs)
    envs.close()


# -- the command --------------------------------------------------------------------------------

SOURCE = """
import gymnasium
from gymnasium import spaces


class MyEnv(gymnasium.Env):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return int(self.np_random.integers(3)), {}

    def step(self, action):
        self.time += 1
        return int(self.np_random.integers(3)), REWARD, self.np_random.random() < 0.1, False, {}


def make_env():
    return MyEnv()


gymnasium.register("Mine-v0", entry_point=MyEnv, max_episode_steps=20)
"""


@pytest.fixture
def my_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.registry.pop("Mine-v0", None)
    for name in ("my_module", "my_file"):
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(SOURCE.replace("REWARD", "1.0"))
    return tmp_path / "my_file.py"


@pytest.mark.parametrize(
    "target", ["my_module:make_env", "my_module:MyEnv", "my_file.py:MyEnv", "CartPole-v1"]
)
def test_the_command_prints_a_line_for_each_check_and_a_summary(
    target: str, my_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([target, "--steps", "50"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert all(line.split(" ")[0] in ("ok", "note") for line in lines)
    assert last.startswith(f"{target}: 0 problems, ")


def test_the_command_takes_an_id_that_a_module_registers(
    my_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["my_module:Mine-v0", "--steps", "50"]) == 0
    assert "0 problems" in capsys.readouterr().out


def test_a_problem_is_exit_code_1(my_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    my_file.write_text(SOURCE.replace("REWARD", "'much'"))
    assert main([f"{my_file}:MyEnv"]) == 1
    printed = capsys.readouterr().out
    assert re.search("problem  rewards: The reward .* must be a float.* 'str'.* at step 1", printed)
    assert "1 problem, " in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPol-v1"], "Did you mean 'CartPole-v1'"),
        (["my_file.py"], "write my_file.py:MyEnv"),
        (["nothing.py:MyEnv"], "no file nothing.py"),
        (["no_such_module:MyEnv"], "cannot be imported: ModuleNotFoundError"),
        (["my_file.py:MyEnvi"], "Did you mean 'MyEnv'"),
        (["my_file.py:SOURCE_FILE"], "has no 'SOURCE_FILE'"),
        (["my_module:gymnasium"], "env is a module"),
        (["CartPole-v1", "--steps", "0"], "--steps"),
        (["CartPole-v1", "--steps", "many"], "--steps"),
        ([], "target"),
    ],
)
def test_a_bad_argument_is_exit_code_2_and_one_line(
    arguments: list[str], message: str, my_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    captured = capsys.readouterr()
    assert code == 2
    assert not captured.out
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_the_command_runs_as_a_module(my_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "esper.simic.check", "my_file.py:make_env", "--steps", "20"],
        capture_output=True,
        text=True,
        cwd=my_file.parent,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("my_file.py:make_env: 0 problems")


def test_spaces_that_would_be_restored_in_another_order_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pair(Corridor):
        observation_space = spaces.Dict(b=Corridor.observation_space, a=spaces.Discrete(2))

        def observe(self) -> Any:
            return {"b": super().observe(), "a": 0}

    assert levels(check_env(Pair, n_steps=30))["exact resume"] == "ok"

    def sort(values: dict[str, Any]) -> spaces.Space[Any]:
        space = decode_space(values)
        return spaces.Dict(dict(space)) if isinstance(space, spaces.Dict) else space

    monkeypatch.setattr("esper.simic.check.decode_space", sort)
    assert levels(check_env(Pair, n_steps=30))["exact resume"] == "problem"
