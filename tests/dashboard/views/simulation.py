"""A simulated run: random records in the order in which training writes them."""

from __future__ import annotations

import json
import random
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from esper.lifecycle.stages import TRANSITIONS, Stage
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    SeedEventRecord,
    StepRecord,
    UpdateRecord,
)
from tests.dashboard.views.samples import (
    BLUEPRINTS,
    CHOICES,
    FINISH,
    FOSSILIZE,
    GERMINATE,
    HEADS,
    N_EPOCHS,
    OPS,
    SLOTS,
    WAIT,
    run_record,
    trial,
)
from tests.telemetry.samples import example

_PLAIN_STEP, _PLAIN_EPISODE = example(StepRecord), example(EpisodeRecord)
_PLAIN_ROUND, _PLAIN_UPDATE = example(RoundRecord), example(UpdateRecord)


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
    """Generates the records of a run from a random seed."""

    def __init__(
        self,
        seed: int = 0,
        *,
        n_envs: int = 3,
        record_steps: bool = True,
        is_paired: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self._record_steps, self._is_paired = record_steps, is_paired
        self._hosts = [self._new_host(0) for _ in range(n_envs)]
        self._step = 0
        self._ended: list[EpisodeRecord] = []
        self._ops: Counter[int] = Counter()

    def _new_host(self, episode: int) -> _Host:
        return _Host(draw_seed=self._random.getrandbits(62), episode=episode)

    def first(self) -> list[Record]:
        """Return the records before the first round."""
        run = run_record(record_steps=self._record_steps)
        return [run, trial(0, "no-growth", score_mean=0.5), trial(0, "fixed", ep_rew_mean=0.6)]

    def round(self, number: int, n_steps: int = 4) -> list[Record]:
        """Return the records of one round."""
        self._ended, self._ops = [], Counter()
        found: list[Record] = []
        for _ in range(n_steps):
            found += self.step(number)
        found += [self._update(number), self._round(number)]
        if number % 2 == 0:
            score = self._random.random()
            found.append(trial(number, "learned", score_mean=score, is_best=number % 4 == 0))
            found.append(NoticeRecord(round=number, kind="test", message=f"round {number}"))
        return found

    def step(self, round_: int) -> list[Record]:
        """Return the records of one step of all environments."""
        self._step += 1
        steps: list[Record] = []
        events: list[Record] = []
        rescues: list[Record] = []
        episodes: list[Record] = []
        for env, host in enumerate(self._hosts):
            before, op = list(host.stages), self._choose_op(host)
            self._act(host, op)
            host.epoch += op != FINISH
            at = {"round": round_, "step": self._step, "env": env, "episode": host.episode}
            host.steps.append(self._step_record(at, host, op))
            steps.append(host.steps[-1])
            full = {**at, "draw_seed": host.draw_seed, "epoch": host.epoch}
            events += self._events(full, host, before)
            if self._random.random() < 0.05:
                rescues.append(GovernorRecord(**full, reason="the loss is nan"))
            if op == FINISH or host.epoch == N_EPOCHS:
                episodes.append(self._end(at, env, host))
        return [*(steps if self._record_steps else []), *events, *rescues, *episodes]

    def _choose_op(self, host: _Host) -> int:
        if host.steps and self._random.random() < 0.1:
            return FINISH
        return self._random.choice([WAIT, GERMINATE, FOSSILIZE])

    def _act(self, host: _Host, op: int) -> None:
        """Advance each slot by up to five allowed stages."""
        for slot in range(len(SLOTS)):
            if host.stages[slot] is not Stage.DORMANT or op == GERMINATE:
                for _ in range(self._random.choice([0, 1, 2, 3, 5])):
                    self._go_on(host, slot)
                    if host.stages[slot] is Stage.DORMANT:
                        break

    def _go_on(self, host: _Host, slot: int) -> None:
        stage = host.stages[slot]
        ways = sorted(TRANSITIONS[stage])
        if not ways:
            return
        # Rather on to the next stage than away: hardly a seed is fossilized otherwise.
        onward = [one for one in ways if one == stage + 1 and self._random.random() < 0.7]
        host.stages[slot] = after = self._random.choice(onward or ways)
        if stage is Stage.DORMANT:
            host.blueprints[slot] = self._random.randrange(len(BLUEPRINTS))
        if after in (Stage.EMBARGOED, Stage.DORMANT):
            host.blueprints[slot] = -1
        host.alphas[slot] = round(self._random.random(), 3)

    def _step_record(self, at: dict[str, int], host: _Host, op: int) -> StepRecord:
        draw = self._random.random
        slots = zip(host.stages, host.blueprints, host.alphas, strict=True)
        state = [
            [int(stage), kind, alpha, round(draw(), 3), 10 * (kind + 1)]
            for stage, kind, alpha in slots
        ]
        was_refused = op == FOSSILIZE and draw() < 0.3
        values: dict[str, Any] = {name: round(draw(), 4) for name in ("score", "flops", "reward")}
        values |= {head: self._random.randrange(len(CHOICES[head])) for head in HEADS}
        values |= {"op": op, "op_done": WAIT if was_refused else op}
        n_choices = sum(map(len, CHOICES.values()))
        return replace(
            _PLAIN_STEP,
            **at,
            **values,
            epoch=host.epoch,
            is_illegal=draw() < 0.1,
            refusal="too young" if was_refused else None,
            slots=json.dumps(state),
            probabilities=array("H", self._random.choices(range(65536), k=n_choices)).tobytes(),
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
        ended = replace(
            _PLAIN_EPISODE,
            **at,
            draw_seed=host.draw_seed,
            ep_rew=round(sum(step.reward for step in host.steps), 2),
            ep_len=len(host.steps),
            n_epochs=host.epoch,
            final_score=self._random.choice([None, round(self._random.random(), 3)]),
            host_parameters=100 + env,
            was_truncated=self._random.random() < 0.2,
            slot_names=json.dumps(SLOTS),
            budget_epochs=N_EPOCHS,
            flop_price=0.1,
            **dict.fromkeys(("title", "facts", "no_growth_scores", "no_growth_final_score")),
            **dict.fromkeys(("schedule_scores", "schedule_final_score")),
        )
        if self._is_paired:
            ended = self._pair(ended)
        self._ended.append(ended)
        self._ops.update(step.op_done for step in host.steps)
        self._hosts[env] = self._new_host(host.episode + 1)
        return ended

    def _pair(self, ended: EpisodeRecord) -> EpisodeRecord:
        """Add a drawn problem, a budget that was used up, and the same host with no growth."""
        drawn = random.Random(ended.draw_seed)
        size = drawn.choice((16, 112))
        return replace(
            ended,
            title=f"rings, {drawn.randrange(2, 9)} classes; MLP",
            facts=json.dumps({"learning_rate": 0.00314159, "batch_size": float(size)}),
            budget_epochs=ended.n_epochs,
            no_growth_scores=json.dumps(
                [round(drawn.random(), 3) for _ in range(ended.n_epochs + 1)]
            ),
            no_growth_final_score=round(drawn.random(), 3),
            seed_parameters=drawn.choice((0, 40)),
        )

    def _round(self, number: int) -> RoundRecord:
        n = len(self._ended)
        record: RoundRecord = replace(
            _PLAIN_ROUND,
            round=number,
            env_steps=self._step * len(self._hosts),
            n_episodes=n,
            ep_rew_mean=sum(one.ep_rew for one in self._ended) / n if n else None,
            n_illegal=self._random.randrange(5),
            n_refused=self._random.randrange(5),
            seconds=self._random.random(),
            steps_per_second=self._random.random() * 100,
            seconds_by_part=json.dumps({"training": 1.0, f"part {number % 3}": 0.5}),
        )
        ops = {f"op_{op}": self._ops[k] / n if n else None for k, op in enumerate(OPS)}
        return replace(record, **ops)  # type: ignore[arg-type]

    def _update(self, number: int) -> UpdateRecord:
        was_refused = self._random.random() < 0.2
        return replace(
            _PLAIN_UPDATE,
            round=number,
            was_refused=was_refused,
            refusal="a gradient is nan" if was_refused else None,
            approx_kl=None if was_refused else self._random.random(),
            stopped_early=self._random.random() < 0.3,
            entropy_by_head="{}" if was_refused else json.dumps(dict.fromkeys(HEADS, 0.5)),
        )


def simulate(n_rounds: int = 8, seed: int = 0, **options: Any) -> list[Record]:
    """Return the records of a run."""
    simulation = Simulation(seed, **options)
    records = simulation.first()
    for number in range(1, n_rounds + 1):
        records += simulation.round(number)
    return records
