"""Step records hold the decisions of the policy and the interventions of the governor."""

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from esper.environment import GrowthVectorEnv
from esper.environment.episodes import GrowthEpisodes
from esper.lifecycle.factored_actions import HEAD_NAMES, HEADS_READ_BY, Op
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.stages import Stage
from esper.simic.rollout import VectorCollector
from esper.simic.rollout.collector import CollectedStep
from esper.tamiyo import NoGrowth
from esper.tamiyo.controllers.price_schedule import PriceSchedule
from esper.tasks import Task, make_task
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    RoundRecord,
    RunRecord,
    StepRecord,
)
from esper.telemetry.schema import unpack_probabilities
from esper.training import expectations, setup, step_records
from esper.training.step_records import log_probability, seed_events
from tests.training.stopped_run import make_trainer
from tests.training.tiny import Seen, tiny_config

CONFIG = tiny_config(
    rounds=2,
    n_steps=4,
    budget__n_epochs=5,
    evaluation__eval_freq=2,
    evaluation__n_eval_episodes=1,
)
"""Two rounds of four steps of four hosts; episodes end in the second."""


class Steps:
    """Keeps every step of a collector and the critic's values before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[CollectedStep] = []
        self.values: list[torch.Tensor] = []
        step = VectorCollector.step

        def kept(collector: VectorCollector, buffer: Any) -> CollectedStep:
            before = collector.state_dict()
            state = before["state"].masked_fill(before["starts"].unsqueeze(-1), 0.0)
            self.values.append(collector.agent.value(before["observations"], state))
            self.taken.append(step(collector, buffer))
            return self.taken[-1]

        monkeypatch.setattr(VectorCollector, "step", kept)


def of(seen: Seen, kind: type) -> list[Any]:
    return [record for record in seen.records if isinstance(record, kind)]


def test_log_probabilities_cover_the_heads_that_the_op_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, seen = Steps(monkeypatch), Seen()
    trainer, _, _ = make_trainer(CONFIG, seen)
    trainer.run()
    recorded = of(seen, StepRecord)
    assert len(recorded) == 32
    n_unread = 0
    for record in recorded:
        decision = steps.taken[record.step - 1].decision
        by_head = dict(zip(HEAD_NAMES, decision.log_probs[record.env].tolist(), strict=True))
        read = HEADS_READ_BY[Op(record.op)]
        assert record.log_prob == pytest.approx(sum(by_head[head] for head in read), abs=1e-6)
        n_unread += abs(record.log_prob - sum(by_head.values())) > 0.1
        value = steps.values[record.step - 1][record.env].item()
        assert record.value == pytest.approx(value, abs=1e-6)
    assert n_unread > 10
    # A new policy values every state the same.
    assert len({record.value for record in recorded}) > 14


def test_recorded_probabilities_are_those_of_the_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, seen = Steps(monkeypatch), Seen()
    trainer, _, _ = make_trainer(CONFIG, seen)
    trainer.run()
    (run,) = of(seen, RunRecord)
    choices: dict[str, list[str]] = json.loads(run.choices)
    spec = trainer.parts.agent.spec
    assert tuple(choices) == spec.names
    sizes = [len(names) for names in choices.values()]
    assert tuple(sizes) == spec.sizes
    n_masked = 0
    for record in of(seen, StepRecord):
        decision = steps.taken[record.step - 1].decision
        heads = unpack_probabilities(record.probabilities, sizes)
        for k, (name, found) in enumerate(zip(HEAD_NAMES, heads, strict=True)):
            legal = decision.legal[record.env, k, : len(found)].tolist()
            assert [p is not None for p in found] == legal
            assert sum(p or 0.0 for p in found) == pytest.approx(1.0, abs=1e-3)
            chosen = math.exp(decision.log_probs[record.env, k].item())
            assert found[getattr(record, name)] == pytest.approx(chosen, abs=1e-5)
            n_masked += found.count(None)
    assert n_masked > 100


def test_a_seed_that_is_fossilized_as_its_slot_becomes_free_has_both_events() -> None:
    trainer, _, _ = make_trainer(CONFIG, Seen())
    envs, at = GrowthVectorEnv(trainer.task, CONFIG.envs), (0, 1)

    def outcome(stage: Stage, alpha: float, n_fossils: int) -> SlotArrays:
        slots = SlotArrays.blank(CONFIG.envs, envs.slot_config.max_slots)
        slots.stage[at], slots.n_fossils[at], slots.alpha[at] = stage, n_fossils, alpha
        slots.blueprint[at] = 2 if stage else -1
        return slots

    def events(before: SlotArrays, after: SlotArrays) -> list[tuple[Any, ...]]:
        found = seed_events(np.full(4, 3), [envs.slot_config] * 4, before, after)
        columns = ("blueprint", "from_stage", "to_stage", "alpha")
        assert {env for env, _ in found} == {0}
        return [tuple(values[name] for name in columns) for _, values in found]

    name = envs.slot_config.blueprints[2]
    held, kept = outcome(Stage.HOLDING, 0.7, 1), outcome(Stage.FOSSILIZED, 0.7, 1)
    free = outcome(Stage.DORMANT, 0.0, 2)
    assert events(held, free) == [
        (name, "holding", "fossilized", 0.7),
        (name, "fossilized", "dormant", 0.0),
    ]
    assert events(kept, free) == [(name, "fossilized", "dormant", 0.0)]
    assert events(held, kept) == [(name, "holding", "fossilized", 0.7)]


def test_the_run_record_has_the_heads_read_by_ops_and_the_hosts_layers() -> None:
    seen = Seen()
    trainer, _, _ = make_trainer(CONFIG, seen)
    trainer.run()
    (run,) = of(seen, RunRecord)
    reads = json.loads(run.reads)
    assert {op: set(heads) for op, heads in reads.items()} == {
        op.name.lower(): set(heads) for op, heads in HEADS_READ_BY.items()
    }
    host, parts = trainer.task.make_host(0), json.loads(run.host)
    assert {part["slot"] for part in parts if part["slot"]} == set(json.loads(run.slots))
    assert sum(part["parameters"] for part in parts) == sum(p.numel() for p in host.parameters())


def test_rolled_back_hosts_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(name: str, options: dict[str, Any]) -> Task:
        task = make_task(name, **options)
        wild = dataclasses.replace(task.training, optimizer="sgd", learning_rate=1e6)
        return dataclasses.replace(task, training=wild)

    monkeypatch.setattr(setup, "create_task", diverging)
    steps, seen = Steps(monkeypatch), Seen()
    trainer, _, _ = make_trainer(CONFIG, seen)
    trainer.run()
    found = of(seen, GovernorRecord)
    infos = [step.info for step in steps.taken]
    expected = [
        (number, env, infos[number - 1]["intervention"][env])
        for number in range(1, 9)
        for env in range(4)
        if infos[number - 1]["was_restored"][env]
    ]
    assert len(expected) > 4
    assert [(record.step, record.env, record.reason) for record in found] == expected
    assert all(record.reason for record in found)
    by_round = [sum(record.round == number for record in found) for number in (1, 2)]
    assert [record.n_restored for record in of(seen, RoundRecord)] == by_round
    epochs = {(record.step, record.env): record.epoch for record in of(seen, StepRecord)}
    assert all(record.epoch == epochs[record.step, record.env] for record in found)
    draws = {(r.env, r.episode): r.draw_seed for r in of(seen, EpisodeRecord)}
    known = [r for r in found if (r.env, r.episode) in draws]
    assert known
    assert all(record.draw_seed == draws[record.env, record.episode] for record in known)


@pytest.mark.parametrize("form", ["paired", "scheduled"])
def test_episodes_record_what_was_drawn_and_the_baseline_that_rewards_are_relative_to(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    task = make_task("prior", kind="rings", n_epochs=3)
    monkeypatch.setattr(setup, "create_task", lambda *_, **__: task)
    monkeypatch.setattr(expectations, "N_HOSTS", 2)
    config = tiny_config(
        task="prior",
        task_options={},
        rounds=1,
        envs=2,
        n_steps=4,
        budget__n_epochs=3,
        ppo__n_minibatches=1,
        budget__flop_price=0.0,
        budget__parameter_rent=0.0,
        rewards__reward=form,
        evaluation__n_eval_episodes=1,
    )
    seen = Seen()
    trainer, _, _ = make_trainer(config, seen)
    trainer.run()
    episodes = of(seen, EpisodeRecord)
    # Their environments have other hosts by the time they are recorded.
    assert {one.env for one in episodes} == {0, 1}
    for record in episodes:
        draw = task.sample(record.draw_seed)
        assert (record.title, json.loads(record.facts)) == (draw.title, draw.facts)
        assert (record.budget_epochs, record.flop_price) == (3, draw.flop_price)
        same = GrowthEpisodes(task, [record.draw_seed])
        padded = same.hosts.slot_config_of(0).slot_ids
        own = [name for name in padded if not name.startswith("absent.")]
        assert json.loads(record.slot_names) == own
        baseline = NoGrowth() if form == "paired" else PriceSchedule(same.layout)
        scores, starts = [same.records.score[0]], np.ones(1, np.bool_)
        baseline.start(1)
        for _ in range(3):
            same.step(baseline.act(same.observe(), same.masks(), starts))
            starts = np.zeros(1, np.bool_)
            scores.append(same.records.score[0])
        columns = {
            "paired": (record.no_growth_scores, record.no_growth_final_score),
            "scheduled": (record.schedule_scores, record.schedule_final_score),
        }
        recorded, final = columns.pop(form)
        assert json.loads(recorded) == pytest.approx(scores, abs=1e-6)
        assert final == pytest.approx(same.records.final_score[0], abs=1e-6)
        assert list(columns.values()) == [(None, None)]
    (run,) = of(seen, RunRecord)
    assert json.loads(run.host) == []


def test_without_relative_rewards_no_baseline_is_recorded() -> None:
    seen = Seen()
    trainer, _, _ = make_trainer(CONFIG, seen)
    trainer.run()
    episodes, (run,) = of(seen, EpisodeRecord), of(seen, RunRecord)
    assert episodes
    for record in episodes:
        draw = trainer.task.sample(record.draw_seed)
        assert (record.title, json.loads(record.facts)) == (draw.title, draw.facts)
        assert (record.no_growth_scores, record.no_growth_final_score) == (None, None)
        assert (record.schedule_scores, record.schedule_final_score) == (None, None)
        assert (record.budget_epochs, record.flop_price) == (5, CONFIG.budget.flop_price)
        assert record.slot_names == run.slots


def test_a_watcher_of_steps_gets_their_numbers_instead_of_step_records() -> None:
    class Counter(Seen):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[int] = []

        def watch_step(self, step: int) -> None:
            self.steps.append(step)

    counter, seen = Counter(), Seen()
    trainer, _, _ = make_trainer(CONFIG, counter, seen)
    trainer.run()
    assert counter.steps == list(range(1, 9))
    assert counter.records == [r for r in seen.records if not isinstance(r, StepRecord)]


def test_the_log_probability_of_an_action_does_not_depend_on_the_order_of_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = (0.9031, 0.1277, 0.0079, 0.3713, 0.6191, 0.2047)
    found = set[float]()
    for order in itertools.permutations(("op", "slot", "blueprint", "style", "tempo")):
        monkeypatch.setattr(step_records, "HEADS_READ_BY", {Op.GERMINATE: order})
        probabilities = {head: [share] for head, share in zip(sorted(order), shares, strict=False)}
        choices = dict.fromkeys(order, 0) | {"op": int(Op.GERMINATE)}
        probabilities["op"] = [None] * int(Op.GERMINATE) + probabilities["op"]
        found.add(log_probability(probabilities, choices))
    assert len(found) == 1
    assert found.pop() == pytest.approx(math.log(math.prod(shares[:5])))
