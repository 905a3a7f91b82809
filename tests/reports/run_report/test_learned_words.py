"""Sentences about what was learned say what the counts say, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from esper.reports.run_report.learned_words import epoch_by, learned_sentences
from esper.reports.views import LearnedPart


def part(first: int, last: int, **changes: Any) -> LearnedPart:
    values: dict[str, Any] = {
        "first_round": first,
        "last_round": last,
        "n_episodes": 200,
        "ops": {"wait": 3.0, "germinate": 1.0, "prune": 0.04, "finish": 0.5},
        "blueprints": {"norm": 0.5, "widen": 0.3, "noop": 0.2},
        "committed": {"widen": 1.0},
        "germination_epochs": {1: 50, 2: 40, 5: 10},
        "finish_epochs": {3: 60, 4: 40},
        "mean_return": 0.5,
        "mean_score": 0.6,
    }
    return LearnedPart(**(values | changes))  # type: ignore[typeddict-item]


def test_the_last_part_is_told_beside_the_first() -> None:
    late = part(
        11,
        20,
        ops={"wait": 1.25, "germinate": 2.0, "fossilize": 1.5, "finish": 1.0},
        blueprints={"widen": 0.996, "noop": 0.004},
        germination_epochs={1: 400},
        finish_epochs={2: 150, 3: 50},
    )
    assert learned_sentences({"parts": [part(1, 10), late]}, n_epochs=6) == (
        "In rounds 11 to 20 the controller germinates 2.0 seeds, fossilizes 1.5 seeds and waits "
        "1.2 times in an episode; in rounds 1 to 10 it germinated 1.0 seeds and waited 3.0 times.",
        "Of the seeds that it germinates in rounds 11 to 20, more than 99% are widen and less than "
        "1% are noop; in rounds 1 to 10 the most frequent was norm with 50%.",
        "Of those that it keeps there, 100% are widen.",
        "Half of its seeds there are germinated by epoch 1 of 6, nine in ten by epoch 1; in rounds "
        "1 to 10 that was by epochs 1 and 2.",
        "It ends 100% of these episodes itself, half of them by epoch 2 of 6; in rounds 1 to 10 it "
        "ended 50%, half of them by epoch 3.",
    )


def test_a_run_of_one_part_is_compared_with_nothing() -> None:
    told = learned_sentences({"parts": [part(1, 1)]}, n_epochs=6)
    assert told[0] == (
        "In round 1 the controller germinates 1.0 seeds and waits 3.0 times in an episode."
    )
    assert not any(";" in sentence for sentence in told)


def test_a_controller_that_neither_grows_nor_stops_is_told_so() -> None:
    idle = part(
        5,
        6,
        ops={"wait": 6.0},
        blueprints={},
        committed={},
        germination_epochs={},
        finish_epochs={},
    )
    told = learned_sentences({"parts": [part(1, 4), idle]}, n_epochs=6)
    assert "In rounds 5 to 6 it germinates nothing." in told
    assert told[-1] == (
        "It ends no episode itself in rounds 5 to 6: hosts train all 6 epochs; in rounds 1 to 4 it "
        "ended 50%, half of them by epoch 3."
    )


def test_seeds_none_of_which_is_kept_are_told_so() -> None:
    assert "None of them is kept there." in learned_sentences(
        {"parts": [part(1, 1, committed={})]}, n_epochs=6
    )


def test_few_episodes_are_called_few_and_none_says_nothing() -> None:
    few = part(1, 1, n_episodes=3, finish_epochs={2: 3})
    assert learned_sentences({"parts": [few]}, n_epochs=6)[-1] == (
        "Round 1 has 3 episodes only; what is said of it may be chance."
    )
    nothing = part(1, 1, n_episodes=0)
    assert learned_sentences({"parts": [nothing]}, n_epochs=6) == (
        "No episode has ended yet, so nothing can be said of what was learned.",
    )
    assert learned_sentences({"parts": []}, n_epochs=6)[0].startswith("No episode")


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.9, 1.0])
def test_the_epoch_by_which_a_share_has_happened_is_that_of_sorted_events(wanted: float) -> None:
    counts = {7: 3, 1: 4, 2: 1, 9: 2}
    events = sorted(epoch for epoch, n in counts.items() for _ in range(n))
    expected = next(
        epoch for place, epoch in enumerate(events, start=1) if place >= wanted * len(events)
    )
    assert epoch_by(counts, wanted) == expected
