"""sb3-contrib's MaskablePPO trains on the growth environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import esper
from esper.config.growth import PopulationConfig
from esper.environment import GrowthEnv
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.legality import may_apply
from esper.lifecycle.stages import Stage
from esper.tasks import Budget, Samples, Task, TaskData

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("sb3_contrib") is None,
        reason='sb3-contrib is missing; install it with `pip install -e ".[sb3]"`',
    ),
]

N_STEPS = 2000
N_EPOCHS = 16


@dataclass(frozen=True)
class Taken:
    """One step of the agent."""

    action: NDArray[np.int64]
    mask: NDArray[np.bool_]
    """The mask before the step, all heads concatenated."""
    is_open: bool
    """Whether the op is legal for the slot before the step."""
    does_fit: bool
    """Whether the blueprint fits the slot, if the op reads it."""
    stages: tuple[Stage, ...]
    """The stages of the slots before the step."""
    observation: NDArray[np.float32]
    reward: float
    has_ended: bool
    info: dict[str, Any]

    @property
    def is_legal(self) -> bool:
        """Whether the whole combination is legal."""
        return self.is_open and self.does_fit


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records masks, actions and results."""

    def __init__(self, env: gymnasium.Env[Any, Any], *, can_finish: bool = True) -> None:
        """Wrap an environment; without ``can_finish`` that op is hidden from the agent."""
        super().__init__(env)
        self.can_finish = can_finish
        self.taken: list[Taken] = []
        self.seeds: list[int | None] = []
        """The seed of each reset."""
        self.mask: NDArray[np.bool_] | None = None

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks the agent samples from."""
        self.mask = self.env.get_wrapper_attr("action_masks")().copy()
        if not self.can_finish:
            self.mask[len(self.mask) - len(Op) + Op.FINISH] = False
        return self.mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: NDArray[np.int64]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.mask is not None, "the agent did not ask what is legal"
        mask, self.mask = self.mask, None
        stages, is_open, does_fit = look(self.unwrapped, action)
        result = super().step(action)
        observation, reward, terminated, truncated, info = result
        assert not truncated
        self.taken.append(
            Taken(
                action=action.copy(),
                mask=mask,
                is_open=is_open,
                does_fit=does_fit,
                stages=stages,
                observation=observation.copy(),
                reward=float(reward),
                has_ended=terminated,
                info=info,
            )
        )
        return result


def look(env: Any, action: NDArray[np.int64]) -> tuple[tuple[Stage, ...], bool, bool]:
    """Return the stages of the slots, and whether an action's slot and blueprint are legal."""
    assert isinstance(env, GrowthEnv)
    config = env.vector.slot_config
    lives = env.vector.growth.hosts.lives(0)
    states = lives.mask_states
    chosen = dict(zip(HEAD_NAMES, action.tolist(), strict=True))
    op, slot = Op(chosen["op"]), config.slot_ids[chosen["slot"]]
    does_fit = op != Op.GERMINATE or config.does_fit(config.blueprints[chosen["blueprint"]], slot)
    stages = tuple(lives[slot].stage for slot in config.slot_ids)
    return stages, may_apply(op, slot, states, config), does_fit


class TwoKinds(nn.Module):
    """A host with an image map and a vector, which fit different blueprints."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.vector = nn.Sequential(nn.Linear(64, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.vector(self.image(x).flatten(1)))


def make_two_kinds(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        host = TwoKinds()
    return esper.add_slots(host, ["image", "vector"], torch.zeros(2, 1, 4, 4))


def two_kinds() -> Task:
    """Classify whether two corners of a small image have the same sign."""
    x = torch.randn(240, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, 0, 0] * x[:, 0, 3, 3] > 0).long()
    parts = (slice(120), slice(120, 180), slice(180, None))
    train, validation, test = (Samples(x[part], y[part]) for part in parts)
    return Task(
        name="two-kinds",
        make_host=make_two_kinds,
        data=TaskData(train=train, validation=validation, test=test),
        budget=Budget(n_epochs=N_EPOCHS),
        training=PopulationConfig(batch_size=32, learning_rate=1e-2, batches_per_epoch=2),
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "spirals": {"task": "spirals", "n_epochs": N_EPOCHS, "batches_per_epoch": 2},
    "two kinds of slots": {"task": two_kinds()},
}


def make_env(name: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Esper/Growth-v0", **OPTIONS[name])


def train(envs: list[Recorder]) -> None:
    """Train MaskablePPO for 2,000 steps in total."""
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    makers: list[Callable[[], Any]] = [lambda env=env: env for env in envs]
    agent = MaskablePPO(
        "MlpPolicy",
        envs[0] if len(envs) == 1 else DummyVecEnv(makers),
        n_steps=250 // len(envs),
        batch_size=125,
        n_epochs=2,
        seed=0,
        device="cpu",
    )
    before = [parameter.detach().clone() for parameter in agent.policy.parameters()]
    agent.learn(N_STEPS)
    after = list(agent.policy.parameters())
    assert all(parameter.isfinite().all() for parameter in after)
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@dataclass(frozen=True)
class Run:
    """The records of one training run."""

    name: str
    recorders: list[Recorder]

    @property
    def taken(self) -> list[Taken]:
        """All steps of all environments."""
        return [taken for recorder in self.recorders for taken in recorder.taken]


# An agent that knows no better finishes early; seeds grow old only where it cannot.
@pytest.fixture(scope="module", params=list(OPTIONS))
def run(request: pytest.FixtureRequest) -> Run:
    """Return a run of one host that may finish, or of two hosts that may not."""
    name = request.param
    can_finish = name == "spirals"
    n = 1 if can_finish else 2
    recorders = [Recorder(make_env(name), can_finish=can_finish) for _ in range(n)]
    train(recorders)
    return Run(name, recorders)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_the_environment_passes_the_checker_of_stable_baselines(name: str) -> None:
    from stable_baselines3.common.env_checker import check_env

    check_env(make_env(name).unwrapped)


def test_every_choice_of_every_head_was_legal_under_its_mask(run: Run) -> None:
    sizes = run.recorders[0].action_space.nvec
    starts = np.cumsum(sizes) - sizes
    for taken in run.taken:
        assert taken.mask.shape == (sizes.sum(),)
        assert taken.mask[starts + taken.action].all()
    # Fossilizing needs a seed that is holding, so the first mask of all forbids it.
    assert not run.taken[0].mask[starts[-1] + Op.FOSSILIZE]


def test_illegal_combinations_were_executed_as_wait_and_counted(run: Run) -> None:
    n_illegal = sum(taken.info["illegal_action"] for taken in run.taken)
    assert n_illegal == sum(not taken.is_legal for taken in run.taken)
    assert any(not taken.is_open for taken in run.taken)
    assert any(not taken.does_fit for taken in run.taken)
    for taken in run.taken:
        assert taken.info["illegal_action"] is not taken.is_legal
        is_done = taken.is_legal and not taken.info["was_refused"]
        assert taken.info["op"] == (taken.action[-1] if is_done else Op.WAIT)


def test_waiting_where_it_was_illegal_gives_the_same_run(run: Run) -> None:
    wait = np.zeros(len(HEAD_NAMES), np.int64)
    for recorder in run.recorders:
        env, seeds = make_env(run.name), iter(recorder.seeds)
        env.reset(seed=next(seeds))
        for taken in recorder.taken:
            action = taken.action if taken.is_legal else wait
            observation, reward, terminated, _, info = env.step(action)
            np.testing.assert_array_equal(observation, taken.observation)
            assert (float(reward), terminated) == (taken.reward, taken.has_ended)
            assert info["illegal_action"] is False
            if terminated:
                env.reset(seed=next(seeds))


def test_episodes_ended_and_started_again(run: Run) -> None:
    assert len(run.taken) == N_STEPS
    for recorder in run.recorders:
        ends = [number for number, taken in enumerate(recorder.taken, 1) if taken.has_ended]
        assert len(ends) >= len(recorder.taken) // N_EPOCHS
        assert len(recorder.seeds) == len(ends) + 1
        for start, end in zip([0, *ends], ends, strict=False):
            info = recorder.taken[end - 1].info
            is_finished = info["op"] == Op.FINISH
            assert 0.0 <= info["final_score"] <= 1.0
            assert end - start == info["n_epochs"] + is_finished
            assert is_finished or info["n_epochs"] == N_EPOCHS


def test_seeds_reached_every_stage(run: Run) -> None:
    ops = {taken.info["op"] for taken in run.taken}
    stages = {stage for taken in run.taken for stage in taken.stages}
    if run.name == "spirals":
        assert ops >= {Op.WAIT, Op.GERMINATE, Op.FINISH}
    else:
        assert ops == set(Op) - {Op.FINISH}
        assert stages == set(Stage)
