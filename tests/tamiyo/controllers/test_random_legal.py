"""Random actions are legal, follow their weights and are repeatable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from esper.errors import ConfigError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo import RandomController
from esper.tamiyo.controllers.simple import pick
from tests.tamiyo.controllers.simulated_hosts import SimulatedHosts
from tests.tamiyo.random_states import States

SLOTS = SlotConfig(("a", "b", "c"), blueprints=("noop", "norm"), fits={"a": ["norm"]})
COLUMN = {name: column for column, name in enumerate(HEAD_NAMES)}
# Slot a can advance, b can be pruned and so on, c can germinate: every op is legal somewhere.
STAGES = (Stage.BLENDING, Stage.HOLDING, Stage.DORMANT)


def draw(
    controller: RandomController, n_steps: int, n_hosts: int, stages: tuple[Stage, ...] = STAGES
) -> np.ndarray:
    """Return actions ``[steps, hosts, heads]`` drawn for hosts in fixed states."""
    shape = (n_hosts, 3)
    states = States(
        np.broadcast_to(np.array(stages), shape).copy(), np.ones(shape, int), np.ones(shape, bool)
    )
    masks, seen = states.masks(SLOTS), np.zeros((n_hosts, 1), np.float32)
    starts = np.zeros(n_hosts, np.bool_)
    return np.stack([controller.act(seen, masks, starts) for _ in range(n_steps)])


def is_likely(counts: np.ndarray, shares: np.ndarray) -> bool:
    """Return whether a chi-square test accepts counts for these shares."""
    expected = counts.sum() * np.asarray(shares, float) / np.sum(shares)
    return stats.chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.parametrize(
    "weights", [{}, dict.fromkeys(Op, 1.0), {Op.WAIT: 5.0, Op.PRUNE: 0.5, Op.FINISH: 2}]
)
def test_ops_are_drawn_in_proportion_to_their_weights(weights: dict[Op, float]) -> None:
    controller = RandomController(op_weights=weights)
    controller.start(50, seed=1)
    ops = draw(controller, 400, 50)[..., COLUMN["op"]]
    usual = {Op.SET_ALPHA_TARGET: 0.1, Op.PRUNE: 0.05, Op.FINISH: 0.01}
    full = dict.fromkeys(Op, 1.0) | usual | weights
    assert is_likely(np.bincount(ops.ravel(), minlength=7), np.array([full[op] for op in Op]))


def test_the_other_heads_are_uniform_given_the_earlier_ones() -> None:
    controller = RandomController()
    controller.start(50)
    rows = draw(controller, 1000, 50, (Stage.DORMANT, Stage.DORMANT, Stage.HOLDING))
    rows = rows.reshape(-1, 8)
    germinate = rows[rows[:, COLUMN["op"]] == Op.GERMINATE]
    slots, blueprints = germinate[:, 0], germinate[:, 1]
    assert is_likely(np.bincount(slots), np.array([1, 1]))
    assert set(blueprints[slots == 0]) == {1}
    assert is_likely(np.bincount(blueprints[slots == 1]), np.array([1, 1]))
    for head, size in (("style", 4), ("tempo", 3), ("alpha_target", 3)):
        assert is_likely(np.bincount(germinate[:, COLUMN[head]]), np.ones(size))
    prune = rows[rows[:, COLUMN["op"]] == Op.PRUNE]
    assert set(prune[:, 0]) == {2}
    for head, size in (("alpha_speed", 4), ("alpha_curve", 5)):
        assert is_likely(np.bincount(prune[:, COLUMN[head]]), np.ones(size))


def test_an_op_of_weight_0_is_drawn_only_if_no_other_is_legal() -> None:
    weights = {Op.WAIT: 0.0, Op.FINISH: 0.0, Op.GERMINATE: 0.0}
    controller = RandomController(op_weights=weights)
    controller.start(20)
    ops = draw(controller, 50, 20)[..., COLUMN["op"]]
    assert not np.isin(ops, [Op.WAIT, Op.FINISH, Op.GERMINATE]).any()
    # Nothing but waiting and finishing is legal in a host all of whose slots cool down.
    cooling = draw(controller, 50, 20, (Stage.EMBARGOED,) * 3)[..., COLUMN["op"]]
    assert set(cooling.ravel().tolist()) == {Op.WAIT, Op.FINISH}


def test_the_stream_of_a_host_depends_only_on_seed_and_host() -> None:
    def rows(n_hosts: int, seed: int) -> np.ndarray:
        controller = RandomController()
        controller.start(n_hosts, seed=seed)
        return draw(controller, 150, n_hosts)

    few, many = rows(2, 5), rows(7, 5)
    assert np.array_equal(few, many[:, :2])
    assert np.array_equal(few, rows(2, 5))
    assert not np.array_equal(few, rows(2, 6))
    assert not np.array_equal(many[:, 0], many[:, 1])


def test_starting_again_restarts_the_streams() -> None:
    controller = RandomController()
    controller.start(3, seed=2)
    first = draw(controller, 10, 3)
    controller.start(3, seed=2)
    assert np.array_equal(first, draw(controller, 10, 3))


def test_earlier_masks_do_not_change_the_stream() -> None:
    ends = []
    for stages in (STAGES, (Stage.EMBARGOED,) * 3):
        controller = RandomController()
        controller.start(4)
        draw(controller, 70, 4, stages)
        ends.append(draw(controller, 20, 4))
    assert np.array_equal(*ends)


def test_most_episodes_of_16_epochs_reach_their_last_epoch() -> None:
    hosts = SimulatedHosts(SlotConfig(("a", "b")), 400)
    hosts.run(RandomController(), 16)
    share = np.mean(["finish" not in log for log in hosts.log])
    assert 0.88 < share < 0.98


def test_many_hosts_commit_a_seed() -> None:
    def share(**options: Any) -> float:
        hosts = SimulatedHosts(SlotConfig(("a", "b")), 400)
        hosts.run(RandomController(**options), 16)
        return float(np.mean([any("fossilize" in op for op in log) for log in hosts.log]))

    assert share() >= 1 / 3
    assert share(op_weights={Op.PRUNE: 1.0, Op.SET_ALPHA_TARGET: 1.0}) < 0.15


def test_a_weight_of_0_is_never_picked() -> None:
    weights = np.array([0.0, 0.1, 0.0, 0.7, 0.0])
    points = np.array([0.0, 0.124, 0.126, 0.5, 1.0 - 2.0**-53])
    assert pick(np.tile(weights, (5, 1)), points).tolist() == [1, 1, 3, 3, 3]


def test_the_largest_number_below_1_picks_the_last_choice() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random((20_000, 3)) * 10.0 ** rng.integers(-3, 4, (20_000, 1))
    assert set(pick(weights, np.full(20_000, 1.0 - 2.0**-53))) == {2}


def test_invalid_weights_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'wait'; .* Op\.WAIT"):
        RandomController(op_weights={"wait": 1.0})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"op_weights\[Op\.PRUNE\] is -1"):
        RandomController(op_weights={Op.PRUNE: -1})
    for wrong in (5, [Op.WAIT], "wait"):
        with pytest.raises(ConfigError, match="op_weights is"):
            RandomController(op_weights=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seed is -1"):
        RandomController().start(1, seed=-1)
