"""The episode view agrees with the raw records."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard.views import EpisodeDetail, episode_detail, episode_list
from esper.errors import TelemetryError
from esper.lifecycle.stages import Stage
from esper.telemetry import RunTelemetry
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    Record,
    SeedEventRecord,
    StepRecord,
)
from tests.dashboard.views.samples import (
    BLUEPRINTS,
    CHOICES,
    HEADS,
    N_EPOCHS,
    OPS,
    READS,
    SLOTS,
    run_record,
    stored,
)
from tests.dashboard.views.simulation import simulate

RECORDS = simulate(n_rounds=7, seed=1)


def own(records: list[Record], kind: type[Any], env: int, episode: int) -> list[Any]:
    """Return the records of an episode, by scanning all of them."""
    return [
        one
        for one in records
        if isinstance(one, kind) and (one.env, one.episode) == (env, episode)  # type: ignore[attr-defined]
    ]


def episodes_in(records: list[Record]) -> list[tuple[int, int]]:
    return sorted({(one.env, one.episode) for one in records if isinstance(one, StepRecord)})


def detail_of(telemetry: RunTelemetry, env: int, episode: int) -> EpisodeDetail:
    found = episode_detail(telemetry, env, episode)
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def test_every_episode_has_its_own_records_in_order(tmp_path: Path) -> None:
    is_over = set[bool]()
    with stored(tmp_path, RECORDS) as telemetry:
        for env, episode in episodes_in(RECORDS):
            found = detail_of(telemetry, env, episode)
            steps: list[StepRecord] = own(RECORDS, StepRecord, env, episode)
            events: list[SeedEventRecord] = own(RECORDS, SeedEventRecord, env, episode)
            rescues: list[GovernorRecord] = own(RECORDS, GovernorRecord, env, episode)
            ended: list[EpisodeRecord] = own(RECORDS, EpisodeRecord, env, episode)
            assert [one["step"] for one in found["steps"]] == [one.step for one in steps]
            assert [one["reward"] for one in found["steps"]] == [one.reward for one in steps]
            assert [
                (e["epoch"], e["slot"], e["from_stage"], e["to_stage"]) for e in found["events"]
            ] == [(one.epoch, one.slot, one.from_stage, one.to_stage) for one in events]
            assert [one["step"] for one in found["governor"]] == [one.step for one in rescues]
            assert found["is_over"] == bool(ended)
            assert found["host_parameters"] == (ended[0].host_parameters if ended else None)
            seeds = {str(one.draw_seed) for one in (*events, *rescues, *ended)}
            assert found["draw_seed"] == (seeds.pop() if seeds else None)
            assert not seeds
            assert (found["env"], found["episode"], found["slots"]) == (env, episode, SLOTS)
            assert (found["has_steps"], found["n_epochs_max"]) == (True, N_EPOCHS)
            living = [
                slot
                for slot, (stage, *_) in zip(SLOTS, json.loads(steps[-1].slots), strict=True)
                if stage != Stage.DORMANT
            ]
            ends = {bar["slot"]: bar["parts"][-1]["to"] for bar in found["bars"]}
            assert [ends[slot] for slot in living] == [steps[-1].epoch] * len(living)
            for bar in found["bars"]:
                epochs = [epoch for epoch, _ in bar["alphas"]]
                assert epochs == sorted(set(epochs)), "the step that finishes trains no epoch"
            is_over.add(found["is_over"])
    assert is_over == {True, False}


def test_an_episode_says_what_was_drawn_and_how_the_host_does_alone(tmp_path: Path) -> None:
    records = simulate(n_rounds=7, seed=1, is_paired=True)
    n_over = 0
    with stored(tmp_path, records) as telemetry:
        for env, episode in episodes_in(records):
            found = detail_of(telemetry, env, episode)
            ended: list[EpisodeRecord] = own(records, EpisodeRecord, env, episode)
            if not ended:
                assert (found["problem"], found["settings"], found["facts"]) == (None, None, {})
                assert (found["no_growth_scores"], found["n_epochs_max"]) == ([], N_EPOCHS)
                continue
            (record,) = ended
            assert found["problem"] == record.title
            assert found["facts"] == json.loads(record.facts or "")
            size = int(found["facts"]["batch_size"] or 0)
            assert found["settings"] == (
                f"learning rate 0.0031, batch size {size}, FLOP price 0.1, "
                f"{record.n_epochs}-epoch budget"
            )
            assert found["no_growth_scores"] == json.loads(record.no_growth_scores or "")
            assert found["n_epochs_max"] == record.budget_epochs == record.n_epochs
            n_over += 1
    assert n_over > 5


def test_an_episode_says_how_the_schedule_grows_the_same_host(tmp_path: Path) -> None:
    records = simulate(n_rounds=3, seed=1)
    (first, *_) = [one for one in records if isinstance(one, EpisodeRecord)]
    scores = {"schedule_scores": "[0.1, NaN, 0.5]", "schedule_final_score": 0.5}
    changed = replace(first, final_score=0.75, **scores)
    records = [changed if one is first else one for one in records]
    with stored(tmp_path, records) as telemetry:
        found = detail_of(telemetry, first.env, first.episode)
    assert (found["no_growth_scores"], found["schedule_scores"]) == ([], [0.1, None, 0.5])
    result = found["result"]
    assert result is not None
    assert (result["gain"], result["schedule_final_score"]) == (None, 0.5)
    assert result["schedule_gain"] == 0.25
    assert found["reward"] == "dense"


def test_a_host_has_its_own_slots_and_their_names(tmp_path: Path) -> None:
    records = simulate(n_rounds=3, seed=1)
    (first, *_) = [one for one in records if isinstance(one, EpisodeRecord)]
    changed = [
        replace(one, slot_names='["body"]')
        if one is first
        else replace(one, slot="body")
        if isinstance(one, SeedEventRecord) and one.slot == SLOTS[0]
        else one
        for one in records
    ]
    with stored(tmp_path, changed) as telemetry:
        found = detail_of(telemetry, first.env, first.episode)
    assert found["slots"] == ["body"]
    assert {len(step["slots"]) for step in found["steps"]} == {1}
    reading = [one for one in found["steps"] if one["slot"] is not None]
    assert {(one["slot"], one["choices"]["slot"]) for one in reading} <= {("body", 0), ("1", 1)}
    assert reading


def test_the_result_equals_the_entry_in_the_list(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        for line in episode_list(telemetry, order="recent")["episodes"]:
            assert detail_of(telemetry, line["env"], line["episode"])["result"] == line


def test_a_step_has_names_for_indices_and_probabilities_by_head(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        pairs = [
            (record, step)
            for env, episode in episodes_in(RECORDS)
            for record, step in zip(
                own(RECORDS, StepRecord, env, episode),
                detail_of(telemetry, env, episode)["steps"],
                strict=True,
            )
        ]
    assert {step["op"] for _, step in pairs} == set(READS)
    for record, step in pairs:
        op = OPS[record.op]
        assert (step["op"], step["op_done"]) == (op, OPS[record.op_done])
        assert step["choices"] == {head: getattr(record, head) for head in HEADS}
        assert step["relevant"] == [head for head in HEADS if head in READS[op]]
        assert step["slot"] == (SLOTS[record.slot] if "slot" in READS[op] else None)
        assert step["blueprint"] == (BLUEPRINTS[record.blueprint] if op == "germinate" else None)
        assert step["terms"]["flops_cost"] == record.flops_cost
        assert step["terms"]["settlement"] == record.settlement
        assert (step["value"], step["log_prob"]) == (record.value, record.log_prob)
        packed = record.probabilities
        assert packed is not None
        numbers = [packed[k] + 256 * packed[k + 1] for k in range(0, len(packed), 2)]
        expected = [None if number == 65535 else number / 65534 for number in numbers]
        assert step["probabilities"] is not None
        assert list(step["probabilities"]) == HEADS
        assert [len(of_head) for of_head in step["probabilities"].values()] == [
            len(names) for names in CHOICES.values()
        ]
        assert list(itertools.chain(*step["probabilities"].values())) == expected
        assert [
            [
                Stage[s["stage"].upper()],
                s["blueprint"],
                s["alpha"],
                s["contribution"],
                s["parameters"],
            ]
            for s in step["slots"]
        ] == [
            [stage, None if kind < 0 else BLUEPRINTS[kind], alpha, worth, n]
            for stage, kind, alpha, worth, n in json.loads(record.slots)
        ]


def test_a_missing_episode_is_none(tmp_path: Path) -> None:
    n_episodes = 1 + max(episode for env, episode in episodes_in(RECORDS) if env == 0)
    with stored(tmp_path, RECORDS) as telemetry:
        for env, episode in ((0, n_episodes), (0, 999), (0, -1), (99, 0), (99, 1), (-1, 0)):
            assert episode_detail(telemetry, env, episode) is None
    with stored(tmp_path / "empty", []) as telemetry:
        assert episode_detail(telemetry, 0, 0) is None


def test_events_and_the_result_do_not_need_steps(tmp_path: Path) -> None:
    records = simulate(n_rounds=7, seed=1, record_steps=False)
    with stored(tmp_path, records) as telemetry:
        lines = episode_list(telemetry, order="recent", limit=1000)["episodes"]
        details = [detail_of(telemetry, one["env"], one["episode"]) for one in lines]
    assert any(found["bars"] for found in details)
    for found in details:
        events = own(records, SeedEventRecord, found["env"], found["episode"])
        assert (found["has_steps"], found["steps"], found["is_over"]) == (False, [], True)
        assert len(found["events"]) == len(events)
        alphas = sorted(alpha for bar in found["bars"] for _, alpha in bar["alphas"] if alpha)
        assert alphas == sorted(one.alpha for one in events if one.alpha)
        assert all(bar["parameters"] is None for bar in found["bars"])


def test_non_finite_numbers_are_none(tmp_path: Path) -> None:
    (first, *_), nan = own(RECORDS, StepRecord, 0, 0), float("nan")
    slots = "[[3,1,0.5,null,7,0,0],[4,0,0.7,NaN,8,2,30]]"
    broken = replace(
        first, reward=nan, score=float("inf"), value=-float("inf"), shaping=nan, slots=slots
    )
    with stored(tmp_path, [run_record(), broken]) as telemetry:
        (step,) = detail_of(telemetry, 0, 0)["steps"]
    assert (step["reward"], step["score"], step["value"]) == (None, None, None)
    assert step["terms"]["shaping"] is None
    assert [(one["alpha"], one["contribution"]) for one in step["slots"]] == [
        (0.5, None),
        (0.7, None),
    ]
    assert [(one["n_fossils"], one["fossil_parameters"]) for one in step["slots"]] == [
        (0, 0),
        (2, 30),
    ]


def test_probabilities_that_do_not_match_the_heads_are_rejected(tmp_path: Path) -> None:
    broken = replace(own(RECORDS, StepRecord, 0, 0)[0], probabilities=b"\x00\x00")
    with (
        stored(tmp_path, [run_record(), broken]) as telemetry,
        pytest.raises(TelemetryError, match=r"1 .* 20 choices"),
    ):
        episode_detail(telemetry, 0, 0)


def test_an_index_without_a_name_is_shown_as_text(tmp_path: Path) -> None:
    (first, *_) = own(RECORDS, StepRecord, 0, 0)
    broken = replace(first, op=77, op_done=78, slots="[[1,99,0.0,0.0,0]]")
    with stored(tmp_path, [run_record(), broken]) as telemetry:
        (step,) = detail_of(telemetry, 0, 0)["steps"]
    assert (step["op"], step["op_done"], step["slots"][0]["blueprint"]) == ("77", "78", "99")
