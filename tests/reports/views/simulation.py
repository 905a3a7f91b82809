"""A run made up for tests: records in the order in which training writes them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from esper.config.run import RunConfig, TelemetryConfig
from esper.config.tasks import Budget
from esper.config.toml import write_toml
from esper.lifecycle.stages import TRANSITIONS, Stage
from esper.telemetry import RunTelemetry, TelemetryWriter, open_run
from esper.telemetry.records import (
    EpisodeRecord,
    EvaluationRecord,
    GovernorRecord,
    Record,
    RoundRecord,
    RunRecord,
    SeedEventRecord,
    StepRecord,
    UpdateRecord,
)
from tests.telemetry.samples import FILE, example

SLOTS = ["blocks.0", "blocks.1"]
BLUEPRINTS = ["noop", "norm", "widen"]
HEADS = ["slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve", "op"]
OPS = ["wait", "germinate", "set_alpha_target", "prune", "fossilize", "advance", "finish"]
WAIT, GERMINATE, FOSSILIZE, FINISH = (OPS.index(op) for op in OPS if op in {
    "wait", "germinate", "fossilize", "finish"
})  # fmt: skip
N_EPOCHS = 6


def run_record(*, rounds: int = 9, record_steps: bool = True, **changes: Any) -> RunRecord:
    config = RunConfig(
        rounds=rounds,
        envs=3,
        budget=Budget(n_epochs=N_EPOCHS),
        telemetry=TelemetryConfig(record_steps=record_steps),
        task_options={"n_classes": 3},
    )
    values: dict[str, Any] = {
        "name": "made-up",
        "task": config.task,
        "config": write_toml(config),
        "slots": json.dumps(SLOTS),
        "blueprints": json.dumps(BLUEPRINTS),
        "heads": json.dumps(HEADS),
        "ops": json.dumps(OPS),
        "created_at": "2030-01-02T03:04:05+00:00",
    }
    return example(RunRecord, **(values | changes))


@dataclass
class _Host:
    """A host in the middle of its episode."""

    draw_seed: int
    episode: int
    epoch: int = 0
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    stages: list[Stage] = field(default_factory=lambda: [Stage.DORMANT] * len(SLOTS))
    blueprints: list[int] = field(default_factory=lambda: [-1] * len(SLOTS))
    alphas: list[float] = field(default_factory=lambda: [0.0] * len(SLOTS))


class Simulation:
    """Gives the records of a run, drawn by a generator."""

    def __init__(self, seed: int = 0, *, n_envs: int = 3, record_steps: bool = True) -> None:
        self._random = random.Random(seed)
        self._record_steps = record_steps
        self._hosts = [self._new_host(0) for _ in range(n_envs)]
        self._step = 0
        self._ended: list[EpisodeRecord] = []
        self._n_finished = 0

    def _new_host(self, episode: int) -> _Host:
        return _Host(draw_seed=self._random.getrandbits(62), episode=episode)

    def first(self) -> list[Record]:
        """Return what a run writes before its first round."""
        run = run_record(record_steps=self._record_steps)
        return [run, trial(0, "wait", score_mean=0.5), trial(0, "fixed", ep_rew_mean=0.6)]

    def round(self, number: int, n_steps: int = 4) -> list[Record]:
        """Return what one round writes."""
        self._ended, self._n_finished = [], 0
        found: list[Record] = []
        for _ in range(n_steps):
            found += self.step(number)
        found += [self._update(number), self._round(number, n_steps)]
        if number % 2 == 0:
            score = self._random.random()
            found.append(trial(number, "learned", score_mean=score, is_best=number % 4 == 0))
        return found

    def step(self, round_: int) -> list[Record]:
        """Return what one step of all environments writes."""
        self._step += 1
        place = {"round": round_, "step": self._step}
        steps: list[Record] = []
        events: list[Record] = []
        rescues: list[Record] = []
        episodes: list[Record] = []
        for env, host in enumerate(self._hosts):
            before = list(host.stages)
            op = self._choose_op(host)
            self._act(host, op)
            host.epoch += op != FINISH
            at = {**place, "env": env, "episode": host.episode}
            row = self._step_record(at, host, op)
            host.steps.append(row)
            steps.append(row)
            full = {**at, "draw_seed": host.draw_seed, "epoch": host.epoch}
            events += self._events(full, host, before)
            if self._random.random() < 0.05:
                rescues.append(GovernorRecord(**full, reason="the loss is nan"))
            if op == FINISH or host.epoch == N_EPOCHS:
                episodes.append(self._end(at, env, host))
                self._n_finished += op == FINISH
        return [*(steps if self._record_steps else []), *events, *rescues, *episodes]

    def _choose_op(self, host: _Host) -> int:
        if host.steps and self._random.random() < 0.1:
            return FINISH
        return self._random.choice([WAIT, GERMINATE, FOSSILIZE])

    def _act(self, host: _Host, op: int) -> None:
        """Let each slot go on by up to three stages that may follow, at random."""
        for slot in range(len(SLOTS)):
            if host.stages[slot] is not Stage.DORMANT or op == GERMINATE:
                for _ in range(self._random.choice([0, 1, 2, 3])):
                    self._go_on(host, slot)

    def _go_on(self, host: _Host, slot: int) -> None:
        stage = host.stages[slot]
        ways = sorted(TRANSITIONS[stage])
        if not ways:
            return
        # Rather on to the next stage than away: half of the seeds are given up otherwise.
        host.stages[slot] = after = self._random.choice([ways[0], *ways[:2]])
        if stage is Stage.DORMANT:
            host.blueprints[slot] = self._random.randrange(len(BLUEPRINTS))
        if after in (Stage.EMBARGOED, Stage.DORMANT):
            host.blueprints[slot] = -1
        host.alphas[slot] = round(self._random.random(), 3)

    def _step_record(self, at: dict[str, int], host: _Host, op: int) -> StepRecord:
        draw = self._random.random
        slots = zip(host.stages, host.blueprints, host.alphas, strict=True)
        state = [[int(stage), kind, alpha, round(draw(), 3)] for stage, kind, alpha in slots]
        refused = op == FOSSILIZE and draw() < 0.3
        values: dict[str, Any] = {name: round(draw(), 4) for name in ("score", "flops", "value")}
        return example(
            StepRecord,
            **at,
            **values,
            epoch=host.epoch,
            op=op,
            op_done=WAIT if refused else op,
            slot=self._random.randrange(len(SLOTS)),
            blueprint=self._random.randrange(len(BLUEPRINTS)),
            is_illegal=draw() < 0.1,
            refusal="too young" if refused else None,
            reward=round(draw(), 4),
            slots=json.dumps(state),
        )

    def _events(self, full: dict[str, int], host: _Host, before: list[Stage]) -> list[Record]:
        return [
            SeedEventRecord(
                **full,
                slot=SLOTS[slot],
                blueprint="" if host.blueprints[slot] < 0 else BLUEPRINTS[host.blueprints[slot]],
                from_stage=old.name.lower(),
                to_stage=host.stages[slot].name.lower(),
                alpha=host.alphas[slot],
                contribution=self._random.choice([0.25, float("nan")]),
            )
            for slot, old in enumerate(before)
            if old is not host.stages[slot]
        ]

    def _end(self, at: dict[str, int], env: int, host: _Host) -> EpisodeRecord:
        ended = example(
            EpisodeRecord,
            **at,
            draw_seed=host.draw_seed,
            ep_rew=round(sum(step.reward for step in host.steps), 2),
            ep_len=len(host.steps),
            n_epochs=host.epoch,
            final_score=self._random.choice([None, round(self._random.random(), 3)]),
            host_parameters=100 + env,
            was_truncated=self._random.random() < 0.2,
        )
        self._ended.append(ended)
        self._hosts[env] = self._new_host(host.episode + 1)
        return ended

    def _round(self, number: int, n_steps: int) -> RoundRecord:
        n = len(self._ended)
        record: RoundRecord = example(
            RoundRecord,
            round=number,
            env_steps=self._step * len(self._hosts),
            n_episodes=n,
            ep_rew_mean=sum(one.ep_rew for one in self._ended) / n if n else None,
            op_finish=self._n_finished / n if n else None,
            n_illegal=self._random.randrange(5),
            n_refused=self._random.randrange(5),
            seconds=self._random.random(),
            steps_per_second=self._random.random() * 100,
            seconds_by_part=json.dumps({"training": 1.0, f"part {number % 3}": 0.5}),
        )
        ops = [name for name in record.__slots__ if name.startswith("op_")]
        return record if n else replace(record, **dict.fromkeys(ops))

    def _update(self, number: int) -> UpdateRecord:
        was_refused = self._random.random() < 0.2
        return example(
            UpdateRecord,
            round=number,
            was_refused=was_refused,
            refusal="a gradient is nan" if was_refused else None,
            approx_kl=None if was_refused else self._random.random(),
            stopped_early=self._random.random() < 0.3,
            entropy_by_head="{}" if was_refused else json.dumps(dict.fromkeys(HEADS, 0.5)),
        )


def trial(round_: int, arm: str, **changes: Any) -> EvaluationRecord:
    values: dict[str, Any] = {"purpose": "tuning", "split": "validation", "is_best": False}
    values |= {"fixed_reward": 0.6 if arm == "learned" else None}
    return example(EvaluationRecord, round=round_, arm=arm, **(values | changes))


def simulate(n_rounds: int = 8, seed: int = 0, **options: Any) -> list[Record]:
    """Return the records of a run of some rounds."""
    simulation = Simulation(seed, **options)
    records = simulation.first()
    for number in range(1, n_rounds + 1):
        records += simulation.round(number)
    return records


@contextmanager
def stored(folder: Path, records: list[Record]) -> Iterator[RunTelemetry]:
    """Give the telemetry of records written to a folder, with one session that ended."""
    with TelemetryWriter(folder / FILE) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="2")
        writer.write_many(records)
        writer.end_session("done")
    with open_run(folder) as telemetry:
        yield telemetry
