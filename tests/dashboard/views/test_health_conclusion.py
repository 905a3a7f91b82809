"""The conclusion about a run's health names what is wrong, and only that."""

from __future__ import annotations

from typing import Any

import pytest

from esper.dashboard.views.health import Conclusion, HealthCounts, conclude

STEADY = [100.0] * 12


def concluded(
    *,
    speeds: list[float] = STEADY,
    sizes: list[float] = STEADY,
    n_restarts: int | None = 0,
    **counts: int,
) -> Conclusion:
    """Return the conclusion about a run that is in order, apart from the given values."""
    values: dict[str, Any] = {"episodes": 100, "updates": 20}
    values |= dict.fromkeys(("restored", "rejected", "stopped", "illegal"), 0)
    return conclude(
        HealthCounts(**(values | counts)), speeds=speeds, sizes=sizes, n_restarts=n_restarts
    )


def test_a_run_in_order_has_nothing_wrong() -> None:
    found = concluded(restored=5, stopped=10)
    assert (found["level"], found["summary"]) == ("ok", "Nothing is wrong.")
    assert {one["level"] for one in found["findings"]} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "level", "word"),
    [
        ({"rejected": 1}, "bad", "not finite: 1 of 20 updates"),
        ({"illegal": 3}, "bad", "Illegal actions"),
        ({"stopped": 11}, "warn", "KL limit: 55% of 20 updates"),
        ({"restored": 6}, "warn", "often unstable: 6 rollbacks in 100 episodes"),
        ({"n_restarts": 2}, "warn", "died"),
        ({"speeds": [100.0] * 9 + [60.0] * 3}, "warn", "slower: 60 steps per second"),
        ({"sizes": [1e8] * 9 + [2e8] * 3}, "warn", "growing: 200 MB lately, 100 MB"),
    ],
)
def test_what_is_wrong_comes_first(changes: dict[str, Any], level: str, word: str) -> None:
    found = concluded(**changes)
    assert (found["level"], found["summary"]) == (level, "1 thing to look at.")
    first, *others = found["findings"]
    assert first["level"] == level
    assert word in first["text"]
    assert {one["level"] for one in others} == {"ok"}


def test_the_worst_level_counts() -> None:
    found = concluded(rejected=1, restored=50)
    assert (found["level"], found["summary"]) == ("bad", "2 things to look at.")
    assert [one["level"] for one in found["findings"][:3]] == ["bad", "warn", "ok"]


def test_a_run_that_has_just_started_is_not_judged() -> None:
    found = concluded(episodes=0, updates=0, speeds=[5.0], sizes=[5.0], n_restarts=None)
    assert found == {"level": "ok", "summary": "Nothing to judge yet.", "findings": []}
