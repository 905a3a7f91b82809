"""Tasks beside a task have their share of the hosts, and what is no share is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.joint_tasks import make_joint_task

from esper.config.growth import Budget
from esper.errors import ConfigError, TaskError
from esper.tasks import Task, make_task
from esper.tasks.digits_family import CNN_SHARE
from esper.tasks.sharing import share_out


def test_hosts_are_shared_out_as_near_to_the_shares_as_whole_hosts_can_be() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n_tasks = int(rng.integers(2, 5))
        shares = rng.dirichlet(np.ones(n_tasks))
        n_hosts = int(rng.integers(n_tasks, 200))
        counts = share_out(n_hosts, shares[1:].tolist())
        assert sum(counts) == n_hosts
        assert min(counts) >= 1
        small = shares * n_hosts < 1
        if not small.any():
            assert np.abs(np.array(counts) - shares * n_hosts).max() < n_tasks / 2


def test_shares_worked_by_hand() -> None:
    assert share_out(64, [0.15]) == [54, 10]
    assert share_out(2, [0.15]) == [1, 1]
    assert share_out(10, [0.25, 0.25], least=2) == [5, 3, 2]
    assert share_out(1, [0.15], least=2) == [2, 2]
    assert share_out(7, []) == [7]


def test_a_task_and_those_beside_it_are_spread_by_themselves() -> None:
    task = make_joint_task()
    (own, n_own), (other, n_other) = task.spread(10)
    assert (n_own, n_other) == (6, 4)
    assert own.beside == other.beside == ()
    assert own.sample(0).data.train.inputs.shape[1:] == (64,)
    assert other is task.beside[0][0]
    assert own.spread(10) == [(own, 10)]


def test_another_budget_is_that_of_all() -> None:
    budget = Budget(n_epochs=3, flop_price=0.5)
    task = make_joint_task().with_budget(budget)
    assert task.budget == task.beside[0][0].budget == budget
    assert task.beside[0][1] == make_joint_task().beside[0][1]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (5, "beside of task 'digits' is 5; it must be a tuple of pairs"),
        (("cnn",), "must be a tuple of pairs"),
        ((("cnn", 0.5),), "must be a tuple of pairs, each of a Task"),
        ([0.0], r"gives 'spirals' the share 0\.0 of the environments; .* above 0 and below 1"),
        ([1.0], r"the share 1\.0"),
        ([True], "the share True"),
        (["half"], "the share 'half'"),
        ([float("nan")], "the share nan"),
        ([0.5, 0.6], r"gives away 1\.1 of the environments; it must be less than 1"),
    ],
)
def test_what_is_no_task_with_a_share_is_refused(beside: Any, message: str) -> None:
    if isinstance(beside, list):
        beside = [(make_task("spirals"), share) for share in beside]
    with pytest.raises(TaskError, match=message):
        replace(make_task("digits"), beside=beside)


def test_tasks_beside_a_task_have_none_beside_them() -> None:
    with pytest.raises(TaskError, match="has 'digits', which has tasks beside it; put them beside"):
        replace(make_task("spirals"), beside=((make_joint_task(), 0.5),))


def test_a_task_with_others_beside_it_is_refused_where_one_is_needed() -> None:
    task: Task = make_joint_task()
    with pytest.raises(TaskError, match="'digits' has 'digits' beside it; a map takes one task"):
        task.require_alone("a map")
    task.beside[0][0].require_alone("a map")


def test_the_family_of_digits_has_both_kinds_of_hosts() -> None:
    task = make_task("digits-family", host="both", n_epochs=5)
    (mlps, n_mlps), (cnns, n_cnns) = task.spread(64)
    assert n_mlps + n_cnns == 64
    assert n_cnns == round(64 * CNN_SHARE)
    assert mlps.budget == cnns.budget == task.budget
    assert mlps.sample(3).data.train.inputs.shape[1:] == (64,)
    assert cnns.sample(3).data.train.inputs.shape[1:] == (1, 8, 8)
    with pytest.raises(ConfigError, match="host is 'both' and width is 4"):
        make_task("digits-family", host="both", width=4)
