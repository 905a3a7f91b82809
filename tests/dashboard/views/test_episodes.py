"""Episode lists agree with sorting and filtering the raw rows."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard.views import episode_list
from esper.errors import ConfigError
from esper.telemetry.records import EpisodeRecord, SeedEventRecord
from tests.dashboard.views.samples import stored
from tests.dashboard.views.simulation import simulate

RECORDS = simulate(n_rounds=12, seed=3)
ENDED = [one for one in RECORDS if isinstance(one, EpisodeRecord)]


def brute_force(order: str, **bounds: int | None) -> list[tuple[int, int]]:
    """Return the episodes in an order, by sorting all of them."""
    env, first, last = (bounds.get(name) for name in ("env", "first_round", "last_round"))
    kept = [
        one
        for one in ENDED
        if (env is None or one.env == env)
        and (first is None or one.round >= first)
        and (last is None or one.round <= last)
    ][::-1]
    if kept and order != "recent":
        middle = statistics.median(one.ep_rew for one in kept)
        signs = {
            "best": lambda one: (one.seed_parameters <= 0, -one.ep_rew),
            "worst": lambda one: one.ep_rew,
            "typical": lambda one: abs(one.ep_rew - middle),
        }
        kept.sort(key=signs[order])
    return [(one.env, one.episode) for one in kept]


def test_orders_and_filters_agree_with_sorting_all_rows(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        for order, env, first, last in itertools.product(
            ("recent", "best", "worst", "typical"), (None, 1, 77), (None, 4), (None, 9, 0)
        ):
            bounds: dict[str, Any] = {"env": env, "first_round": first, "last_round": last}
            expected = brute_force(order, **bounds)
            found = episode_list(telemetry, order=order, limit=1000, **bounds)  # type: ignore[arg-type]
            assert found["total"] == len(expected)
            assert [(one["env"], one["episode"]) for one in found["episodes"]] == expected


def test_the_best_of_paired_episodes_kept_a_seed_and_gained_most(tmp_path: Path) -> None:
    records = simulate(n_rounds=12, seed=3, is_paired=True)
    ended = [one for one in records if isinstance(one, EpisodeRecord)][::-1]
    gains = {
        (one.env, one.episode): None
        if one.final_score is None or one.no_growth_final_score is None
        else one.final_score - one.no_growth_final_score
        for one in ended
    }

    def place(one: EpisodeRecord) -> tuple[bool, float, bool, float]:
        gain = gains[one.env, one.episode]
        is_grown = gain is not None and one.seed_parameters > 0
        by_gain = -(gain or 0.0) if is_grown else 0.0
        return not is_grown, by_gain, one.seed_parameters <= 0, -one.ep_rew

    assert 3 < sum(place(one)[0] for one in ended) < len(ended) - 3
    with stored(tmp_path, records) as telemetry:
        found = episode_list(telemetry, order="best", limit=1000)["episodes"]
    expected = [(one.env, one.episode) for one in sorted(ended, key=place)]
    assert [(one["env"], one["episode"]) for one in found] == expected
    assert {(one["env"], one["episode"]): one["gain"] for one in found} == gains


def test_nan_scores_are_no_gain(tmp_path: Path) -> None:
    nan = float("nan")
    last = replace(ENDED[0], final_score=0.9, no_growth_final_score=nan, ep_rew=0.1)
    first = replace(ENDED[1], final_score=0.3, no_growth_final_score=0.4, ep_rew=0.0)
    middle = replace(ENDED[2], final_score=nan, no_growth_final_score=-0.9, ep_rew=0.2)
    with stored(tmp_path, [last, first, middle]) as telemetry:
        found = episode_list(telemetry, order="best")["episodes"]
    assert [one["gain"] for one in found] == [pytest.approx(-0.1), None, None]
    assert [one["ep_rew"] for one in found] == [0.0, 0.2, 0.1]


def test_pages_add_up_to_the_whole_list(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        whole = episode_list(telemetry, order="best", limit=1000)["episodes"]
        pages = [
            episode_list(telemetry, order="best", limit=4, offset=start)["episodes"]
            for start in range(0, len(ENDED) + 4, 4)
        ]
    assert len(whole) == len(ENDED) > 10
    assert list(itertools.chain(*pages)) == whole
    assert pages[-1] == []


def test_an_episode_is_as_recorded_with_its_fossilized_seeds(tmp_path: Path) -> None:
    grown = {
        (one.env, one.episode): [
            event
            for event in RECORDS
            if isinstance(event, SeedEventRecord)
            and (event.env, event.episode, event.to_stage) == (one.env, one.episode, "fossilized")
        ]
        for one in ENDED
    }
    assert {len(events) for events in grown.values()} >= {0, 1}
    with stored(tmp_path, RECORDS) as telemetry:
        found = episode_list(telemetry, order="recent", limit=1000)["episodes"]
    for one, record in zip(reversed(found), ENDED, strict=True):
        assert one.pop("n_grown") == len(grown[record.env, record.episode])  # type: ignore[misc]
        assert one.pop("draw_seed") == str(record.draw_seed)  # type: ignore[misc]
        assert one.pop("gain") is None  # type: ignore[misc]
        assert one.pop("schedule_gain") is None  # type: ignore[misc]
        assert one == {name: getattr(record, name) for name in one}


def test_a_nan_return_is_none_and_comes_last(tmp_path: Path) -> None:
    broken = replace(ENDED[0], ep_rew=float("nan"), final_score=float("nan"), flops=float("inf"))
    with stored(tmp_path, [broken, *ENDED[1:5]]) as telemetry:
        for order in ("best", "worst", "typical"):
            last = episode_list(telemetry, order=order)["episodes"][-1]
            assert (last["ep_rew"], last["final_score"], last["flops"]) == (None, None, None)
        json.dumps(episode_list(telemetry, order="recent"), allow_nan=False)
    alone = tmp_path / "alone"
    alone.mkdir()
    with stored(alone, [broken]) as telemetry:
        assert episode_list(telemetry, order="typical")["total"] == 1


def test_without_episodes_the_list_is_empty(tmp_path: Path) -> None:
    with stored(tmp_path, []) as telemetry:
        for order in ("recent", "best", "worst", "typical"):
            nothing = {"order": order, "total": 0, "episodes": []}
            assert episode_list(telemetry, order=order) == nothing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "bset"}, "order is 'bset'.* Did you mean 'best'"),
        ({"order": "best", "limit": 0}, "limit is 0"),
        ({"order": "best", "offset": -1}, "offset is -1"),
    ],
)
def test_invalid_arguments_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with stored(tmp_path, []) as telemetry, pytest.raises(ConfigError, match=message):
        episode_list(telemetry, **options)
