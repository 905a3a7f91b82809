"""The records of a run are consistent: sums, counts and the stages of seeds."""

import json
from collections import defaultdict

import pytest

from esper.lifecycle.factored_actions import Op
from esper.lifecycle.stages import Stage
from esper.telemetry.records import (
    EpisodeRecord,
    EvaluationRecord,
    RoundRecord,
    SeedEventRecord,
    StepRecord,
    UpdateRecord,
)
from esper.training.run import Run

TERMS = ("progress", "settlement", "flops_cost", "rent", "shaping", "penalty")


def all_rows(run: Run, kind: type) -> list:
    with run.telemetry() as telemetry:
        return telemetry.rows(kind)


def steps_by_episode(run: Run) -> dict[tuple[int, int], list[StepRecord]]:
    found: dict[tuple[int, int], list[StepRecord]] = defaultdict(list)
    for step in all_rows(run, StepRecord):
        found[step.env, step.episode].append(step)
    return found


def test_every_step_of_every_environment_is_recorded_once(done_run: Run) -> None:
    steps = [(step.step, step.env) for step in all_rows(done_run, StepRecord)]
    assert steps == [(step, env) for step in range(1, 19) for env in range(4)]
    rounds = [step.round for step in all_rows(done_run, StepRecord)]
    assert rounds == [1] * 24 + [2] * 24 + [3] * 24


def test_terms_sum_to_rewards_and_rewards_to_returns(done_run: Run) -> None:
    steps = steps_by_episode(done_run)
    episodes = all_rows(done_run, EpisodeRecord)
    terms = [name for name in TERMS if hasattr(episodes[0], name)]
    assert len(terms) >= 5
    for some in steps.values():
        for step in some:
            parts = [getattr(step, name) for name in TERMS if hasattr(step, name)]
            assert sum(parts) == pytest.approx(step.reward, abs=1e-6)
    assert len(episodes) >= 4
    for episode in episodes:
        own = steps[episode.env, episode.episode]
        assert episode.ep_len == len(own)
        assert episode.ep_rew == pytest.approx(sum(step.reward for step in own), abs=1e-9)
        for name in terms:
            total = sum(getattr(step, name) for step in own)
            assert getattr(episode, name) == pytest.approx(total, abs=1e-9), name
        assert episode.step == own[-1].step
        assert episode.n_epochs == own[-1].epoch
        assert episode.flops == pytest.approx(own[-1].flops)


def test_rounds_average_the_episodes_that_ended_in_them(done_run: Run) -> None:
    steps, episodes = steps_by_episode(done_run), all_rows(done_run, EpisodeRecord)
    rounds = all_rows(done_run, RoundRecord)
    assert [record.round for record in rounds] == [1, 2, 3]
    assert [record.env_steps for record in rounds] == [24, 48, 72]
    assert sum(record.n_episodes for record in rounds) == len(episodes)
    for record in rounds:
        ended = [episode for episode in episodes if episode.round == record.round]
        assert record.n_episodes == len(ended)
        if not ended:
            assert record.ep_rew_mean is None
            assert record.op_wait is None
            continue
        own = [step for e in ended for step in steps[e.env, e.episode]]
        for op in Op:
            count = sum(step.op_done == op for step in own)
            assert getattr(record, f"op_{op.name.lower()}") == count / len(ended)
        for name, column in {"ep_rew": "ep_rew_mean", "ep_len": "ep_len_mean"}.items():
            mean = sum(getattr(e, name) for e in ended) / len(ended)
            assert getattr(record, column) == pytest.approx(mean)
        for name in ("flops", "host_parameters", "seed_parameters"):
            mean = sum(getattr(e, name) for e in ended) / len(ended)
            assert getattr(record, f"{name}_mean") == pytest.approx(mean)
        scores = [e.final_score for e in ended if e.final_score is not None]
        assert record.score_mean == pytest.approx(sum(scores) / len(scores))
        refused = [s for s in all_rows(done_run, StepRecord) if s.round == record.round]
        assert record.n_refused == sum(step.refusal is not None for step in refused)
        assert record.n_illegal == sum(step.is_illegal for step in refused)


def test_seed_events_are_consecutive_and_agree_with_the_steps(done_run: Run) -> None:
    with done_run.telemetry() as telemetry:
        slots: list[str] = json.loads(telemetry.run.slots)
    stages: dict[tuple[int, int, str], str] = {}
    events = all_rows(done_run, SeedEventRecord)
    by_step = defaultdict(list)
    for event in events:
        by_step[event.step, event.env].append(event)
    assert {event.to_stage for event in events} >= {"germinated", "blending", "fossilized"}
    for step in all_rows(done_run, StepRecord):
        for event in by_step.pop((step.step, step.env), []):
            place = (event.env, event.episode, event.slot)
            assert event.from_stage == stages.get(place, "dormant")
            assert event.from_stage != event.to_stage
            assert (event.episode, event.epoch) == (step.episode, step.epoch)
            stages[place] = event.to_stage
        for slot, (stage, *_) in zip(slots, json.loads(step.slots), strict=True):
            known = stages.get((step.env, step.episode, slot), "dormant")
            assert Stage(stage).name.lower() == known
    assert not by_step


def test_rounds_updates_and_evaluations_agree(done_run: Run) -> None:
    updates, rounds = all_rows(done_run, UpdateRecord), all_rows(done_run, RoundRecord)
    assert [update.round for update in updates] == [1, 2, 3]
    assert [update.n_updates for update in updates] == [1, 2, 3]
    assert [r.learning_rate for r in rounds] == pytest.approx([3e-3, 1.8e-3, 0.6e-3])
    evaluations = all_rows(done_run, EvaluationRecord)
    static = next(e for e in evaluations if e.purpose == "tuning" and e.arm == "no-growth")
    assert {record.no_growth_score for record in rounds} == {static.score_mean}
    final = [e.arm for e in evaluations if e.purpose == "final"]
    assert final == ["learned", "no-growth", "random", "fixed", "heuristic", "progressive"]
    fixed = next(e for e in evaluations if e.purpose == "tuning" and e.arm == "fixed")
    on_the_way = [e for e in evaluations if e.purpose == "tuning" and e.arm == "learned"]
    assert [e.fixed_reward for e in on_the_way] == [fixed.ep_rew_mean] * 3
    ops = json.loads(next(e for e in evaluations if e.arm == "no-growth").ops)
    assert ops == {op.name.lower(): 10.0 * (op == Op.WAIT) for op in Op}
