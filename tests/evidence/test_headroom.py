"""Headroom is the gain of the best setting of each host over the best one for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esper.errors import ConfigError
from esper.evidence.headroom import Headroom, headroom
from esper.statistics import Interval


@pytest.fixture(scope="module")
def measured() -> Headroom:
    return headroom(
        "spirals",
        n_hosts=4,
        tuning_runs=12,
        price=0.1,
        task_options={"n_epochs": 4, "batches_per_epoch": 1},
    )


def test_the_optimistic_estimate_is_at_least_the_headroom(measured: Headroom) -> None:
    assert measured.optimistic.mean >= max(0.0, measured.headroom.mean)
    assert measured.n_candidates >= 2
    assert measured.tuning_runs <= 24
    assert measured.task_options == {"n_epochs": 4, "batches_per_epoch": 1}
    assert "4 hosts are too few" in measured.sentence


def test_the_sentence_states_what_the_interval_supports(measured: Headroom) -> None:
    room = replace(
        measured,
        n_hosts=99,
        headroom=Interval(0.02, 0.01, 0.03, 99),
        optimistic=Interval(0.05, 0.04, 0.06, 99),
    )
    assert room.sentence.startswith("There is headroom of about +2.0 [1.0, 3.0] points on spirals")
    assert "at most 6.0 points" in room.sentence
    none = replace(room, headroom=Interval(0.001, -0.01, 0.012, 99))
    assert none.sentence.startswith(
        "No headroom is shown on spirals at price 0.1: +0.1 [-1.0, 1.2]"
    )
    assert room.to_json()["sentence"] == room.sentence


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="tuning_runs is 0"):
        headroom("spirals", tuning_runs=0)
