"""The variants of a task get their share of the hosts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.joint_tasks import make_joint_task

from esper.config.growth import Budget
from esper.errors import ConfigError, TaskError
from esper.tasks import Task, make_task
from esper.tasks.digits_family import CNN_SHARE


def with_shares(*shares: float) -> Task:
    variant = make_task("spirals")
    return replace(variant, variants=tuple((variant, share) for share in shares))


def test_hosts_are_divided_as_close_to_the_shares_as_possible() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n_designs = int(rng.integers(2, 5))
        shares = rng.dirichlet(np.ones(n_designs))
        n_hosts = int(rng.integers(n_designs, 200))
        counts = with_shares(*shares[1:].tolist()).share_out(n_hosts)
        assert sum(counts) == n_hosts
        assert min(counts) >= 1
        if (shares * n_hosts >= 1).all():
            assert np.abs(np.array(counts) - shares * n_hosts).max() < n_designs / 2


def test_shares_worked_by_hand() -> None:
    assert with_shares(0.15).share_out(64) == [54, 10]
    assert with_shares(0.15).share_out(2) == [1, 1]
    assert with_shares(0.25, 0.25).share_out(10, minimum=2) == [5, 3, 2]
    assert with_shares(0.15).share_out(1, minimum=2) == [2, 2]
    assert with_shares().share_out(1, minimum=2) == [1]


def test_each_design_is_a_task_with_the_same_budget() -> None:
    budget = Budget(n_epochs=3, flop_price=0.5)
    task = replace(make_joint_task(), budget=budget)
    own, other = task.designs
    assert own.variants == other.variants == ()
    assert own.budget == other.budget == budget
    assert own.sample(0).data.train.inputs.shape[1:] == (64,)
    assert other.sample(0).data.train.inputs.shape[1:] == (1, 8, 8)
    assert own.designs == (own,)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (5, "variants is 5"),
        ((("cnn", 0.5),), r"variants\[0\]\[0\] is 'cnn'"),
        ([0.0], r"variants\[0\]\[1\] is 0\.0"),
        ([1.0], "share of 1;"),
        ([True], "is True"),
        (["half"], "is 'half'"),
        ([float("nan")], "is nan"),
        ([0.5, 0.6], r"share of 1\.1"),
    ],
)
def test_invalid_variants_are_rejected(variants: Any, message: str) -> None:
    if isinstance(variants, list):
        variants = [(make_task("spirals"), share) for share in variants]
    with pytest.raises(TaskError, match=message):
        replace(make_task("digits"), variants=variants)


def test_a_variant_cannot_have_variants() -> None:
    with pytest.raises(TaskError, match="'digits', which has variants"):
        replace(make_task("spirals"), variants=((make_joint_task(), 0.5),))


def test_a_task_with_variants_is_rejected_where_one_design_is_needed() -> None:
    task = make_joint_task()
    with pytest.raises(TaskError, match=r"'digits'.* a map"):
        task.require_one_design("a map")
    task.designs[1].require_one_design("a map")


def test_digits_family_has_both_kinds_of_hosts() -> None:
    task = make_task("digits-family", host="both", n_epochs=5)
    n_mlps, n_cnns = task.share_out(64)
    assert n_mlps + n_cnns == 64
    assert n_cnns == round(64 * CNN_SHARE)
    mlps, cnns = task.designs
    assert mlps.budget == cnns.budget == task.budget
    assert mlps.sample(3).data.train.inputs.shape[1:] == (64,)
    assert cnns.sample(3).data.train.inputs.shape[1:] == (1, 8, 8)
    with pytest.raises(ConfigError, match="host is 'both' and width is 4"):
        make_task("digits-family", host="both", width=4)
