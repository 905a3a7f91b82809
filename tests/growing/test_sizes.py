"""The rule of a race of sizes, on curves made by hand."""

from __future__ import annotations

import math

import pytest

from esper.growing.sizes import SizeRule


def rule(epochs: int = 24, tolerance: float = 0.01, *, is_better_low: bool = False) -> SizeRule:
    return SizeRule(epochs=epochs, tolerance=tolerance, is_better_low=is_better_low)


def losers(first: list[float], second: list[float], before: float = 0.1) -> list[int]:
    """Return which of x1 and x8 stops, in a race of 24 epochs."""
    return list(rule().losers({1: first, 8: second}, {}, before))


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


def test_the_given_size_meets_the_widest_then_that_the_next_smaller_one() -> None:
    curves: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
    assert rule().due(curves, {}) == (1, 8)
    curves |= {1: [0.1] * 3, 8: [0.5] * 3}
    assert rule().due(curves, {8: "lost"}) == (1,)
    assert rule().due(curves, {1: "lost"}) == (4, 8)
    curves |= {4: [0.5] * 4, 8: [0.5] * 4}
    assert rule().due(curves, {1: "lost"}) == (4, 8)
    assert rule().due(curves, {1: "lost", 4: "lost"}) == (8,)
    assert rule().due(curves, {1: "lost", 8: "lost"}) == (2, 4)
    curves |= {2: [0.5] * 5, 4: [0.5] * 5}
    assert rule().due(curves, {1: "lost", 8: "lost", 4: "lost"}) == (2,)
    assert rule().due({1: []}, {}) == (1,)


def test_sizes_train_until_the_last_epoch() -> None:
    curves = {1: [0.1] * 2, 2: [], 4: [], 8: [0.9] * 3}
    assert rule(epochs=3).due(curves, {}) == (1,)
    assert rule(epochs=3).due(curves, {1: "lost"}) == ()
    assert rule(epochs=3).losers({1: [0.1] * 3, 8: [0.9] * 3}, {}, 0.1) == {}


def test_a_small_size_that_is_far_behind_stops() -> None:
    curves = {1: [0.2, 0.3, 0.4], 4: [0.5, 0.7, 0.8]}
    assert rule().losers({s: c[:2] for s, c in curves.items()}, {}, 0.1) == {}
    assert rule().losers(curves, {}, 0.1) == {1: "x1 was 40.0 points behind x4"}
    assert rule().losers(curves, {1: "before"}, 0.1) == {}
    assert rule().losers({**curves, 8: [0.9]}, {}, 0.1).keys() == {1}


def test_a_small_size_that_catches_up_goes_on() -> None:
    # A lead of 25 points is 5 when the epochs have doubled: a fifth, and after 24 epochs 0.08.
    assert losers([0.2, 0.55, 0.75, 0.84], [0.6, 0.8, 0.86, 0.89]) == []
    # A lead of 25 points is still 20, which will be 11.
    assert losers([0.2, 0.55, 0.6, 0.69], [0.6, 0.8, 0.86, 0.89]) == [1]


def test_a_large_size_that_is_not_ahead_stops() -> None:
    curves = {1: [0.6, 0.8, 0.82, 0.82, 0.82], 4: [0.7, 0.805, 0.825, 0.825, 0.825]}
    assert rule().losers({size: own[:4] for size, own in curves.items()}, {}, 0.1) == {}
    assert rule().losers(curves, {}, 0.1) == {4: "x4 was 0.5 points ahead of x1"}
    assert rule(tolerance=0.0).losers(curves, {}, 0.1) == {}
    assert losers([0.6, 0.8, 0.82, 0.82, 0.82], [math.nan] * 5) == [8]
    assert losers([math.nan] * 3, [0.6, 0.8, 0.82]) == [1]


def test_a_lead_that_grows_is_expected_to_grow_on() -> None:
    same = [0.82] * 3
    assert losers([0.6, 0.802, *same], [0.6, 0.804, *([0.828] * 3)]) == []
    assert losers([0.6, 0.8, *same], [0.608, 0.808, *([0.828] * 3)]) == [8]


@pytest.mark.parametrize(
    "small", [[0.1, 0.11, 0.12], [0.1, 0.11, 0.4]], ids=["has learned nothing", "has just begun"]
)
def test_no_large_size_stops_before_anything_is_learned(small: list[float]) -> None:
    assert losers([0.1, 0.1, *small], [0.1, 0.1, 0.1, 0.1, 0.11]) == []


@pytest.mark.parametrize(("lead", "loser"), [(0.009, 8), (0.011, 1)])
def test_a_race_is_decided_after_two_fifths_of_the_epochs(lead: float, loser: int) -> None:
    small = [0.8] * 4 + [0.9] * 6
    large = [0.8 + lead] * 4 + [0.9 + lead] * 6
    assert losers(small[:9], large[:9], before=0.89) == []
    assert losers(small, large, before=0.89) == [loser]


def test_reasons_say_what_was_seen() -> None:
    curves = {1: [0.5, 0.7, 0.85, 0.87], 8: [0.7, 0.85, 0.88, 0.89]}
    assert rule(10).losers(curves, {}, 0.1) == {8: "x1 was catching up with x8"}
    level = {1: [0.5, 0.7, 0.89, 0.89], 8: [0.7, 0.85, 0.88, 0.89]}
    assert rule(10).losers(level, {}, 0.1) == {8: "x8 was level with x1"}


def test_wide_sizes_of_a_large_model_come_only_if_they_promise_more() -> None:
    large = SizeRule(epochs=20, tolerance=0.01, is_better_low=False, is_large=True)
    curves: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
    assert large.due(curves, {}) == (1, 4)
    assert large.due({1: [], 2: []}, {}) == (1, 2)
    level = curves | {1: [0.5] * 2, 4: [0.5] * 2}
    assert large.due(level, {4: "lost"}) == (1,)
    near = curves | {1: [0.5] * 2, 4: [0.525] * 2}  # a third of the lead is less than a point
    assert large.due(near, {1: "lost"}) == (2, 4)
    ahead = curves | {1: [0.5] * 2, 4: [0.535] * 2}
    assert large.due(ahead, {1: "lost"}) == (4, 8)
    ahead |= {4: [0.535] * 3, 8: [0.55] * 3}
    assert large.due(ahead, {1: "lost", 4: "lost"}) == (8,)
    assert large.due(ahead, {1: "lost", 8: "lost"}) == (2, 4)


def test_a_race_of_a_large_model_is_decided_in_half_the_time() -> None:
    large = SizeRule(epochs=20, tolerance=0.01, is_better_low=False, is_large=True)
    for lead, loser in ((0.009, 4), (0.011, 1)):
        small = [0.9] * 4
        wide = [0.9 + lead] * 4
        assert large.losers({1: small[:3], 4: wide[:3]}, {}, before=0.89) == {}
        assert list(large.losers({1: small, 4: wide}, {}, before=0.89)) == [loser]
    level = {1: [0.5, 0.9], 4: [0.5, 0.9]}
    assert large.losers(level, {}, before=0.1) == {}  # most of it was learned just now
    level = {1: [0.9, 0.9], 4: [0.9, 0.9]}
    assert large.losers(level, {}, before=0.1).keys() == {4}
