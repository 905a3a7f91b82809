"""run_episodes runs any controller for one episode on each host."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import VectorRewardWrapper

from esper.environment import GrowthEnv, GrowthVectorEnv, run_episodes
from esper.errors import ConfigError, UnsupportedEnvironmentError
from esper.lifecycle.factored_actions import Op, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy import RecurrentPolicy
from esper.tamiyo import (
    Controller,
    LearnedController,
    NoGrowth,
    controller_names,
    grow_everywhere,
    grow_once,
    make_controller,
)
from tests.environment.worlds import make_envs

TASKS = {
    "spirals": {},
    "digits": {},
    "digits-family": {},
    "text": {"batches_per_epoch": 1},
}
N_EPOCHS = 8


def make(task: str, num_envs: int = 2, **options: object) -> GrowthVectorEnv:
    given = {"n_epochs": N_EPOCHS, "batches_per_epoch": 1, **TASKS[task], **options}
    return GrowthVectorEnv(task, num_envs, autoreset=False, **given)  # type: ignore[arg-type]


def make_named(name: str, envs: GrowthVectorEnv) -> Controller:
    if name == "learned":
        spec, layout = growth_action_spec(envs.slot_config), envs.layout
        policy = RecurrentPolicy(spec, layout.size)
        return LearnedController(policy)
    return make_controller(name, envs.layout)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        # Each task and each controller at least once; all pairs in the slow tests.
        pytest.param(task, name, marks=() if (i - j) % len(TASKS) == 0 else pytest.mark.slow)
        for i, task in enumerate(TASKS)
        for j, name in enumerate([*controller_names(), "learned"])
    ],
)
def test_every_controller_runs_on_every_task(task: str, name: str) -> None:
    envs = make(task)
    results = run_episodes(envs, make_named(name, envs), seed=0)
    assert np.isfinite(results.scores).all()
    assert np.isfinite(results.returns).all()
    assert (results.n_illegal == 0).all()
    assert (results.n_epochs <= N_EPOCHS).all()
    n_finished = results.op_counts[:, Op.FINISH]
    assert (results.op_counts.sum(1) == results.n_epochs + n_finished).all()


def test_waiting_does_nothing_and_a_fixed_schedule_commits() -> None:
    envs = make("spirals")
    waiting = run_episodes(envs, NoGrowth(), seed=0)
    assert (waiting.op_counts[:, Op.WAIT] == N_EPOCHS).all()
    assert (waiting.seed_parameters == 0).all()
    grown = run_episodes(envs, grow_once(envs.layout, blueprint="widen_large"), seed=0)
    assert (grown.op_counts[:, Op.GERMINATE] == 1).all()
    assert (grown.seed_parameters > 0).all()
    np.testing.assert_array_equal(waiting.draw_seeds, grown.draw_seeds)
    assert (grown.flops > waiting.flops).all()


def test_equal_seeds_give_equal_episodes() -> None:
    envs = make("digits-family", 3)
    first = run_episodes(envs, make_controller("random", envs.layout), seed=5)
    again = run_episodes(envs, make_controller("random", envs.layout), seed=5)
    np.testing.assert_array_equal(first.returns, again.returns)
    np.testing.assert_array_equal(first.op_counts, again.op_counts)


def test_an_early_finish_ends_only_its_own_episode() -> None:
    class FinishFirst(NoGrowth):
        def act(self, observations: np.ndarray, masks: object, starts: np.ndarray) -> np.ndarray:
            actions = np.zeros((len(observations), 8), np.int64)
            actions[0, -1] = Op.FINISH
            return actions

    results = run_episodes(make("spirals"), FinishFirst(), seed=0)
    assert results.n_epochs.tolist() == [0, N_EPOCHS]
    assert results.op_counts[0].tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_autoresetting_environments_are_rejected() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="autoreset=False"):
        run_episodes(make_envs(2), NoGrowth(), seed=0)


def test_wrappers_are_ignored() -> None:
    class Doubled(VectorRewardWrapper):
        def reward(self, rewards: np.ndarray) -> np.ndarray:
            return 2.0 * rewards

    envs = make("spirals")
    plain = run_episodes(envs, NoGrowth(), seed=np.int64(3))  # type: ignore[arg-type]
    wrapped = run_episodes(Doubled(envs), NoGrowth(), seed=3)
    np.testing.assert_array_equal(plain.returns, wrapped.returns)
    np.testing.assert_array_equal(plain.draw_seeds, wrapped.draw_seeds)


def test_other_environments_are_rejected() -> None:
    for envs, kind in ((GrowthEnv("spirals"), "GrowthEnv"), (5, "int"), (None, "NoneType")):
        with pytest.raises(UnsupportedEnvironmentError, match=f"envs is an? {kind}"):
            run_episodes(envs, NoGrowth(), seed=0)  # type: ignore[arg-type]


def test_invalid_seeds_and_controllers_are_rejected() -> None:
    envs = make("spirals", 1)
    for seed in (None, 1.5, -1, "0", True):
        with pytest.raises(ConfigError, match="seed is"):
            run_episodes(envs, NoGrowth(), seed=seed)  # type: ignore[arg-type]
    for controller in (None, "wait", NoGrowth):
        with pytest.raises(ConfigError, match="controller is"):
            run_episodes(envs, controller, seed=0)  # type: ignore[arg-type]


def test_a_truncated_episode_counts_the_seeds_of_its_best_epoch() -> None:
    envs = make("digits", 2, max_episode_steps=7)
    controller = grow_everywhere(envs.layout, blueprint="widen_small", every=0)
    results = run_episodes(envs, controller, seed=0)
    assert np.isnan(results.scores).all()
    settled = envs.growth.records.settled.grown_parameters.sum(1)
    assert results.seed_parameters.tolist() == settled.tolist()
    assert settled.max() > 0


def test_slot_names_are_those_of_the_host() -> None:
    envs = make("text")
    assert isinstance(envs.slot_config, SlotConfig)
    assert envs.slot_config.slot_ids[:2] == ("blocks.*.mlp", "blocks.*")
