"""The controllers of evaluations: groups, replays, shuffling and matched random growth."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.environment.episodes import GrowthEpisodes
from esper.evidence.matched_arms import MatchedRandom, derange, make_random, make_wrong_task
from esper.evidence.tuning import ControllerGroup
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo import FixedSchedule, NoGrowth, Planting, RandomController, Replay
from esper.tamiyo.policy.ablation import shuffled_columns
from esper.tamiyo.policy.observations import HOST_FEATURES
from esper.training.host_trainer import HostTrainer
from esper.training.trials import Shuffled, shuffle_for
from tests.training.test_host_runs import make_trainer

OP = HEAD_NAMES.index("op")
HOSTS = range(6)


@pytest.fixture(scope="module")
def trainer() -> HostTrainer:
    return make_trainer()


def test_a_group_of_controllers_does_what_each_does_alone(trainer: HostTrainer) -> None:
    planting = Planting(slot="blocks.0", blueprint="mlp_small")

    def schedule(growth: GrowthEpisodes) -> FixedSchedule:
        return FixedSchedule(growth.layout, [planting])

    together = trainer.run(
        HOSTS,
        lambda growth, _: ControllerGroup([schedule(growth), NoGrowth()], [4, len(HOSTS) - 4]),
    )
    grown = trainer.run(HOSTS, lambda growth, _: schedule(growth))
    left_alone = trainer.run(HOSTS, lambda *_: NoGrowth())
    np.testing.assert_allclose(together.flops[:4], grown.flops[:4])
    np.testing.assert_allclose(together.score[:4], grown.score[:4])
    np.testing.assert_allclose(together.flops[4:], left_alone.flops[4:])
    np.testing.assert_allclose(together.score[4:], left_alone.score[4:])


def test_a_replay_on_the_same_hosts_gives_the_same_results(trainer: HostTrainer) -> None:
    random = RandomController(op_weights={Op.FINISH: 0.2})
    first = trainer.run(HOSTS, lambda *_: random)
    again = trainer.run(HOSTS, lambda *_: Replay(first.actions))
    np.testing.assert_array_equal(again.actions, first.actions)
    np.testing.assert_array_equal(again.score, first.score)
    np.testing.assert_array_equal(again.n_epochs, first.n_epochs)


def test_the_wrong_task_arm_replays_the_legal_actions_of_another_host(
    trainer: HostTrainer,
) -> None:
    random = RandomController(op_weights={Op.FINISH: 0.2})
    own = trainer.run(HOSTS, lambda *_: random)
    wrong = trainer.run(HOSTS, partial(make_wrong_task, own.actions, HOSTS[0]))
    source = derange(len(HOSTS), seed=0)
    for host in HOSTS:
        theirs, taken = own.actions[source[host]], wrong.actions[host]
        n_steps = int((taken[:, 0] >= 0).sum())
        differs = (taken[:n_steps] != theirs[:n_steps]).any(1)
        assert (taken[:n_steps][differs, OP] == Op.WAIT).all()
        assert wrong.n_epochs[host] >= own.n_epochs[source[host]]


@settings(deadline=None)
@given(n=st.integers(2, 40), seed=st.integers(0, 9))
def test_a_derangement_is_a_permutation_without_fixed_points(n: int, seed: int) -> None:
    numbers = derange(n, seed=seed)
    assert sorted(numbers.tolist()) == list(range(n))
    assert (numbers != np.arange(n)).all()


class _Seen:
    """Waits, and keeps its observations."""

    name = "seen"

    def __init__(self) -> None:
        self.shown: list[np.ndarray] = []
        self._waiting = NoGrowth()

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        self._waiting.start(n_hosts)

    def act(self, observations: np.ndarray, masks: object, starts: np.ndarray) -> np.ndarray:
        self.shown.append(observations.copy())
        return self._waiting.act(observations, masks, starts)  # type: ignore[arg-type]


def test_shuffling_permutes_the_observations_of_running_hosts_only() -> None:
    seen, is_running = _Seen(), np.array([True, True, False, True])
    trainer = make_trainer()
    growth = trainer.start(range(4))
    columns = shuffled_columns(["*"], growth.layout.n_slots)
    shuffled = Shuffled(seen, columns, lambda: is_running)
    growth.step(np.zeros((4, len(HEAD_NAMES)), np.int64))  # before, all hosts look alike
    observations = growth.observe()
    shuffled.start(4, seed=3)
    for _ in range(6):
        shuffled.act(observations, growth.masks(), np.zeros(4, np.bool_))
    orders = set()
    for shown in seen.shown:
        order = [int(np.flatnonzero((observations == row).all(1))[0]) for row in shown]
        assert order[2] == 2
        assert sorted(order) == [0, 1, 2, 3]
        orders.add(tuple(order))
    assert len(orders) > 1


def test_shuffling_does_not_affect_a_controller_that_ignores_observations(
    trainer: HostTrainer,
) -> None:
    plain = trainer.run(HOSTS, lambda *_: RandomController())
    shuffled = trainer.run(
        HOSTS, lambda growth, _: shuffle_for(RandomController(), ["*"], growth, len(HOSTS))
    )
    np.testing.assert_array_equal(shuffled.actions, plain.actions)


def test_only_the_named_observations_are_shuffled() -> None:
    seen, growth = _Seen(), make_trainer().start(range(4))
    growth.step(np.zeros((4, len(HEAD_NAMES)), np.int64))
    observations = growth.observe()
    shuffled = shuffle_for(seen, ["error", "slots"], growth, 4)
    shuffled.start(4, seed=1)
    shuffled.act(observations, growth.masks(), np.zeros(4, np.bool_))
    differs = np.flatnonzero((seen.shown[0] != observations).any(0))
    error = list(HOST_FEATURES).index("error")
    assert error in differs
    assert ((differs == error) | (differs >= len(HOST_FEATURES))).all()
    assert shuffle_for(seen, (), growth, 4) is seen


def test_random_growth_matches_the_numbers_of_actions_and_epochs(trainer: HostTrainer) -> None:
    planting = Planting(slot="blocks.1", blueprint="mlp_small")
    followed = trainer.run(HOSTS, lambda growth, _: FixedSchedule(growth.layout, [planting]))
    n_waits = followed.op_counts[:, Op.WAIT] + followed.op_counts[:, Op.FINISH]
    wanted = followed.op_counts.sum(1) - n_waits
    assert (wanted == 5).all()
    runs = trainer.run(HOSTS, partial(make_random, followed))
    np.testing.assert_array_equal(runs.n_epochs, followed.n_epochs)
    n_waits = runs.op_counts[:, Op.WAIT] + runs.op_counts[:, Op.FINISH]
    done = runs.op_counts.sum(1) - n_waits
    assert (done <= wanted).all()
    assert (done == wanted).sum() >= 5
    # Actions that gates refused were retried until the end.
    last = runs.actions[np.arange(len(HOSTS)), followed.n_epochs - 1, OP]
    assert (last[done < wanted] != Op.WAIT).all()


def test_a_refused_action_does_not_count() -> None:
    growth, done = make_trainer().start(range(2)), np.full(2, -1)
    controller = MatchedRandom(np.array([1, 1]), np.array([12, 12]), lambda: done)
    controller.start(2, seed=1)
    asked = np.zeros(2, np.int64)
    for step in range(12):
        actions = controller.act(growth.observe(), growth.masks(), np.full(2, step == 0))
        asked += actions[:, OP] == Op.GERMINATE
        done = np.array([Op.WAIT, actions[1, OP]])
    assert asked[0] > 1
    assert asked[1] == 1


def test_random_actions_are_spread_over_the_epochs() -> None:
    trainer, n = make_trainer(), 100
    n_actions, n_epochs = np.ones(n, np.int64), np.full(n, 4)
    runs = trainer.run(
        range(n),
        lambda growth, _: MatchedRandom(n_actions, n_epochs, lambda: growth.records.last_op[:n]),
    )
    acts = (runs.actions[:, :4, OP] != Op.WAIT).sum(0)
    assert acts.sum() == n
    # Each of the four epochs has a quarter of the actions, within five standard deviations.
    assert (np.abs(acts - n / 4) < 5 * np.sqrt(n * 0.25 * 0.75)).all()
