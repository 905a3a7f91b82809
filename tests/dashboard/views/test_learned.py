"""The learned view agrees with counts over the raw records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from esper.dashboard.views import LearnedPart, learned
from esper.errors import ConfigError
from esper.telemetry.records import (
    EpisodeRecord,
    Record,
    RoundRecord,
    SeedEventRecord,
    StepRecord,
)
from tests.dashboard.views.samples import FINISH, OPS, stored
from tests.dashboard.views.simulation import Simulation, simulate

RECORDS = simulate(n_rounds=20, seed=7)


def shares(names: list[str]) -> dict[str, Any]:
    named = [name for name in names if name]
    return {name: pytest.approx(n / len(named)) for name, n in Counter(named).items()}


def brute_force(first: int, last: int) -> dict[str, Any]:
    """Return what was done in a range of rounds, by scanning all records."""
    mine = [one for one in RECORDS if first <= getattr(one, "round", 0) <= last]
    events = [one for one in mine if isinstance(one, SeedEventRecord)]
    ended = [one for one in mine if isinstance(one, EpisodeRecord)]
    episodes = {(one.env, one.episode) for one in ended}
    steps = [
        one for one in RECORDS if isinstance(one, StepRecord) and (one.env, one.episode) in episodes
    ]
    ops = Counter(OPS[one.op_done] for one in steps)
    begun = [one for one in events if one.from_stage == "dormant"]
    scores = [one.final_score for one in ended if one.final_score is not None]
    return {
        "first_round": first,
        "last_round": last,
        "n_episodes": len(ended),
        "ops": {op: pytest.approx(ops[op] / len(ended)) for op in OPS},
        "blueprints": shares([one.blueprint for one in begun]),
        "germination_epochs": dict(Counter(one.epoch for one in begun)),
        "finish_epochs": dict(Counter(one.epoch for one in steps if one.op_done == FINISH)),
        "mean_return": pytest.approx(mean(one.ep_rew for one in ended)),
        "mean_score": pytest.approx(mean(scores)) if scores else None,
    }


def test_each_part_agrees_with_its_rounds(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        for n_parts in (1, 3, 4):
            parts = learned(telemetry, n_parts)["parts"]
            assert [dict(part) for part in parts] == [
                brute_force(part["first_round"], part["last_round"]) for part in parts
            ]
    assert any(part["finish_epochs"] for part in parts)


def bounds(parts: list[LearnedPart]) -> list[tuple[int, int]]:
    return [(part["first_round"], part["last_round"]) for part in parts]


def test_parts_cover_all_rounds_evenly(tmp_path: Path) -> None:
    for done, n_parts in ((20, 6), (7, 3), (3, 6), (1, 1)):
        with stored(tmp_path / f"{done}", simulate(n_rounds=done)) as telemetry:
            found = bounds(learned(telemetry, n_parts)["parts"])
        rounds = [number for first, last in found for number in range(first, last + 1)]
        assert rounds == list(range(1, done + 1))
        sizes = {last - first + 1 for first, last in found}
        assert max(sizes) - min(sizes) <= 1
        assert len(found) == min(n_parts, done)


def test_an_unfinished_round_is_not_counted(tmp_path: Path) -> None:
    simulation = Simulation(seed=7)
    records = [*simulation.first(), *simulation.round(1), *simulation.round(2)]
    more = [*simulation.step(3), *simulation.step(3), *simulation.step(3)]
    with stored(tmp_path / "a", records) as telemetry:
        before = learned(telemetry)
    with stored(tmp_path / "b", [*records, *more]) as telemetry:
        assert learned(telemetry) == before
    assert any(isinstance(one, EpisodeRecord) for one in more)


def test_shares_are_sorted_and_valid_json(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        found = learned(telemetry)
    json.dumps(found, allow_nan=False)
    for part in found["parts"]:
        shares = list(part["blueprints"].values())
        assert shares == sorted(shares, reverse=True)
        assert not shares or sum(shares) == pytest.approx(1.0)
        for epochs in (part["germination_epochs"], part["finish_epochs"]):
            assert list(epochs) == sorted(epochs)


def test_a_run_without_rounds_has_no_parts(tmp_path: Path) -> None:
    with stored(tmp_path / "a", simulate(n_rounds=0)) as telemetry:
        found = learned(telemetry)
        assert (found["summary"], found["parts"]) == (None, [])
        with pytest.raises(ConfigError, match="n_parts is 0"):
            learned(telemetry, 0)


def test_rounds_without_finished_episodes_have_no_means(tmp_path: Path) -> None:
    simulation = Simulation(seed=0)
    records = [*simulation.first(), *simulation.round(1, n_steps=1)]
    assert not any(isinstance(one, EpisodeRecord) for one in records)
    with stored(tmp_path, records) as telemetry:
        (part,) = learned(telemetry)["parts"]
    assert (part["n_episodes"], part["ops"], part["finish_epochs"]) == (0, {}, {})
    assert (part["mean_return"], part["mean_score"]) == (None, None)


def test_nan_scores_are_left_out_of_the_mean(tmp_path: Path) -> None:
    records = simulate(n_rounds=3, seed=7)
    ended = [k for k, one in enumerate(records) if isinstance(one, EpisodeRecord)]
    for k, score in zip(ended, (0.25, float("nan"), 0.75), strict=False):
        records[k] = replace(records[k], final_score=score)  # type: ignore[call-arg]
    for k in ended[3:]:
        records[k] = replace(records[k], final_score=None)  # type: ignore[call-arg]
    with stored(tmp_path, records) as telemetry:
        assert learned(telemetry, 1)["parts"][0]["mean_score"] == 0.5


def rounds_with(germinated: tuple[float, float]) -> list[Record]:
    """Return records in which germination has one rate in the first half and one in the second."""
    same = {f"op_{op}": 1.0 for op in OPS}
    return [
        replace(one, **(same | {"op_germinate": germinated[one.round > 10]}))
        if isinstance(one, RoundRecord)
        else one
        for one in RECORDS
    ]


@pytest.mark.parametrize(
    ("germinated", "words"),
    [
        ((0.5, 6.0), "ops per episode changed: germinate 0.50 to 6.00."),
        ((6.0, 0.5), "ops per episode changed: germinate 6.00 to 0.50."),
        ((1.0, 1.05), "ops per episode are the same within noise."),
    ],
)
def test_the_summary_names_only_changes_outside_noise(
    tmp_path: Path, germinated: tuple[float, float], words: str
) -> None:
    with stored(tmp_path, rounds_with(germinated)) as telemetry:
        summary = learned(telemetry, 2)["summary"]
    assert summary is not None
    assert summary.startswith("Since rounds 1 to 10, the controller's ")
    assert words in summary


def test_a_single_part_has_no_summary(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        assert learned(telemetry, 1)["summary"] is None
