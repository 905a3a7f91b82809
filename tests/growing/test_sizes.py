"""The rule of a race of sizes, on curves made by hand."""

from __future__ import annotations

import math

import pytest

from esper.growing.sizes import SizeRule


def rule(epochs: int = 24, tolerance: float = 0.01, *, is_better_low: bool = False) -> SizeRule:
    return SizeRule(epochs=epochs, tolerance=tolerance, is_better_low=is_better_low)


def test_the_smallest_size_within_the_tolerance_of_the_best_is_chosen() -> None:
    curves = {1: [0.5, 0.88], 2: [0.915, 0.9], 4: [0.92, 0.91], 8: [0.9, 0.924]}
    assert rule(tolerance=0.01).choose(curves) == 2
    assert rule(tolerance=0.0).choose(curves) == 8
    assert rule(tolerance=0.05).choose(curves) == 1
    assert rule().choose({1: [math.nan], 2: [0.1]}) == 2
    assert rule().choose({1: [math.nan], 2: [math.nan]}) == 1


def test_losses_are_compared_as_shares_of_the_loss() -> None:
    curves = {1: [2.05, 2.03], 2: [2.015], 4: [2.0]}
    assert rule(tolerance=0.01, is_better_low=True).choose(curves) == 2
    small = {size: [value / 1e3 for value in curve] for size, curve in curves.items()}
    assert rule(tolerance=0.01, is_better_low=True).choose(small) == 2


def test_a_small_size_that_is_far_behind_stops() -> None:
    curves = {1: [0.2, 0.3, 0.4], 4: [0.5, 0.7, 0.8]}
    assert rule().losers({s: c[:2] for s, c in curves.items()}, {}, 0.1) == {}
    assert rule().losers(curves, {}, 0.1) == {1: "x1 was 40.0 points behind x4"}
    assert rule().losers(curves, {1: "before"}, 0.1) == {}


def test_a_small_size_that_catches_up_goes_on() -> None:
    curves = {1: [0.2, 0.55, 0.75, 0.84], 4: [0.6, 0.8, 0.86, 0.89]}
    assert 1 not in rule().losers(curves, {}, 0.1)


def test_a_large_size_that_is_not_ahead_stops() -> None:
    curves = {1: [0.6, 0.8, 0.82], 4: [0.7, 0.79, 0.825]}
    assert rule().losers(curves, {}, 0.1) == {4: "x4 was 0.5 points ahead of x1"}
    assert rule(tolerance=0.0).losers(curves, {}, 0.1) == {}
    diverged = {1: [0.6, 0.8, 0.82], 4: [math.nan] * 3}
    assert list(rule().losers(diverged, {}, 0.1)) == [4]


def test_sizes_are_not_compared_with_one_that_stops() -> None:
    # x4 is not enough ahead of x2, nor x8 of x4, but x8 is of x2.
    curves = {2: [0.8, 0.8], 4: [0.807, 0.807], 8: [0.815, 0.815]}
    assert list(rule().losers(curves, {}, 0.1)) == [4]


def test_a_lead_that_grows_is_expected_to_grow_on() -> None:
    growing = {1: [0.6, 0.8, 0.82], 4: [0.6, 0.802, 0.828]}
    steady = {1: [0.6, 0.8, 0.82], 4: [0.608, 0.808, 0.828]}
    assert rule().losers(growing, {}, 0.1) == {}
    assert list(rule().losers(steady, {}, 0.1)) == [4]


@pytest.mark.parametrize(
    "small", [[0.1, 0.11, 0.12], [0.1, 0.11, 0.4]], ids=["has learned nothing", "has just begun"]
)
def test_no_large_size_stops_before_anything_is_learned(small: list[float]) -> None:
    assert rule().losers({1: small, 4: [0.1, 0.1, 0.11]}, {}, 0.1) == {}


def test_one_size_is_always_left() -> None:
    # x2 is far behind x8 and x1 far behind both, while x8 is not ahead of x4, which x2 leads.
    curves = {1: [0.2, 0.2, 0.2], 2: [0.8, 0.85, 0.86], 4: [0.8, 0.85, 0.86], 8: [0.7, 0.8, 0.8]}
    left = set(curves) - set(rule().losers(curves, {}, 0.1))
    assert left == {2}


def test_all_sizes_that_are_left_train_until_the_last_epoch() -> None:
    curves = {1: [0.1] * 3, 2: [0.1] * 3, 4: [], 8: []}
    assert rule(epochs=3).due(curves, {4: "lost"}) == (8,)
    assert rule(epochs=4).due(curves, {1: "lost"}) == (2, 4, 8)
    assert rule(epochs=3).losers(curves, {4: "", 8: ""}, 0.1) == {}
