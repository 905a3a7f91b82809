"""Compare committing new units at once with blending them in by a ramp of alpha.

Run:  python benchmarks/evidence/real/download.py
      python benchmarks/commit_at_once.py
      python benchmarks/commit_at_once.py --only prior --hosts 64     fewer hosts, no real data

The same hosts (weights, batches, held-out seeds) follow the same schedules in both ways, which
differ in one setting, `GrowthConfig.commits_at_once`: first hosts of the task `prior`, then six
models on real data. Every finished training is a line of a file and is not repeated, so an
interrupted run goes on; results of other source code are not used.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import esper
from esper import GrowthConfig, GrowthVectorEnv
from esper.environment.episodes import StepResult
from esper.evidence.cache import program_digest
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import SlotConfig
from esper.statistics import Interval, mean_interval
from esper.tamiyo import FixedSchedule, Planting
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks.prior.family import KINDS

sys.path.insert(0, str(Path(__file__).parent / "evidence" / "real"))
from arms import EVALUATION_BATCH, EpochBatches, evaluate, make_model, make_optimizer
from download import DATA
from problems import PROBLEMS
from sets import Library, split

RESULTS = Path(__file__).parent / "results" / "commit_at_once.jsonl"
WAYS = {"at once": True, "ramp": False}
FIRST_HOST = 150_000
"""Number of the first held-out host; evaluations of controllers take those from 100,000."""
GROUPS = {"drawn": None, "CNN": "filters", "GPT": "markov"}
"""The kind of problem of each group of hosts: drawn, or one whose hosts are rare among those."""
RARE_HOSTS = {"CNN": 96, "GPT": 32}
BLOCKS = {"drawn": 64, "CNN": 32, "GPT": 32}
"""Hosts that are trained together."""

WIDER, MUCH_WIDER = ("widen_large",), ("widen_huge", "widen_large")
DEEPER = ("deepen", "widen_large")
SCHEDULES: dict[str, tuple[tuple[tuple[str, ...], float], ...]] = {
    "wider once, from the start": ((WIDER, 0.0),),
    "wider once, halfway": ((WIDER, 0.5),),
    "wider twice, at 0% and 40%": ((WIDER, 0.0), (WIDER, 0.4)),
    "much wider twice, when free": ((MUCH_WIDER, 0.0), (MUCH_WIDER, 0.0)),
    "deeper once, at 20%": ((DEEPER, 0.2),),
}
"""The seeds of every slot, one after another: of several blueprints the first that fits, and the
share of the budget after which it is due. It germinates as soon as the slot is free."""
PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "letter": (("0>2", "2>4"), ()),
    "fashion-residual": (("2.up>2.down", "3.up>3.down"), ("2", "3")),
    "fashion-cnn": (("0>3", "3>7"), ()),
    "python-gpt": (
        ("blocks.0.mlp.0>blocks.0.mlp.2", "blocks.1.mlp.0>blocks.1.mlp.2"),
        ("blocks.0", "blocks.1"),
    ),
    "words-gru": (("head.0>head.2", "head.2>head.4"), ()),
    "dna-conv1d": (("scan.0>scan.3", "scan.3>scan.7"), ()),
}
"""Where each real problem's model gets wider, and where it gets deeper if it can."""
MAX_TRAINING = 1_500
"""Most training samples of a real problem: fewer than elsewhere, so that it doesn't take hours."""
NOT_REAL = "wider once, halfway"
"""The schedule that only hosts of the prior follow, to save time."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A block of hosts, or a model on real data, grown by a schedule in one way."""

    part: str
    """"prior" or "real"."""
    name: str
    """A group of hosts, or a problem."""
    number: int
    """Number of the first host, or the seed."""
    size: int
    schedule: str
    way: str
    tempo: int
    """Epochs of the ramp."""

    @cached_property
    def growth(self) -> GrowthConfig:
        """The settings that the shipped controller learned with, apart from the way."""
        usual = esper.make_task("prior").growth
        assert usual is not None, "the task has settings of growth"
        return replace(usual, commits_at_once=WAYS[self.way])

    def controller(self, slot_config: SlotConfig) -> FixedSchedule:
        """Return the schedule for hosts with these slots."""
        plantings = [
            Planting(
                slot=slot,
                blueprint=fitting[0],
                otherwise=tuple(fitting[1:]),
                fraction=fraction,
                tempo_epochs=self.tempo,
            )
            for names, fraction in SCHEDULES[self.schedule]
            for slot in slot_config.slot_ids
            if (fitting := [name for name in names if slot_config.does_fit(name, slot)])
        ]
        return FixedSchedule(ObservationLayout(slot_config), plantings)

    def run(self, library: Library) -> dict[str, Any]:
        """Train and return plain values: a list of scores, FLOPs and so on, and CPU seconds."""
        return _grow_hosts(self) if self.part == "prior" else _grow_real(self, library)


@lru_cache(maxsize=2)
def _make_envs(kind: str | None, size: int, growth: GrowthConfig) -> GrowthVectorEnv:
    task = replace(esper.make_task("prior", kind=kind, price=0.0), growth=growth)
    return GrowthVectorEnv(task, size, purpose="evaluation", final_split="test", autoreset=False)


def _grow_hosts(training: Training) -> dict[str, Any]:
    envs = _make_envs(GROUPS[training.name], training.size, training.growth)
    germinated: list[list[int]] = [[] for _ in range(training.size)]

    def note(_: Any, result: StepResult) -> None:
        for host in np.flatnonzero(result.was_running & (result.op_done == Op.GERMINATE)):
            germinated[host].append(int(result.epoch[host]))

    start = time.process_time()
    controller = training.controller(envs.slot_config)
    done = esper.run_episodes(envs, controller, seed=training.number, on_step=note)
    return {
        "seconds": time.process_time() - start,
        "host": done.draw_seeds.tolist(),
        "kind": [KINDS[int(draw.facts["kind"])] for draw in envs.growth.draws],
        "score": done.scores.tolist(),
        "flops": done.flops.tolist(),
        "growth": (1.0 + done.seed_parameters / done.host_parameters).tolist(),
        "germinated": germinated,
    }


def _grow_real(training: Training, library: Library) -> dict[str, Any]:
    problem, seed = PROBLEMS[training.name], training.number
    data = library.load(problem.data)
    splits = split(data, seed, max_training=MAX_TRAINING)
    start = time.process_time()
    model = make_model(problem, data, seed, 1)
    esper.add_slots(
        model,
        PLACES[training.name]["deepen" in str(SCHEDULES[training.schedule])],
        splits.train[0][: problem.batch_size],
        growth_config=training.growth,
        seed=seed,
    )
    grown = esper.grow(
        model,
        EpochBatches(splits.train, problem.batch_size, seed),
        EpochBatches(splits.validation, EVALUATION_BATCH),
        epochs=problem.epochs,
        price=0.0,
        controller=training.controller(esper.slots(model).slot_config),
        metric=problem.metric,
        optimizer=lambda parameters: make_optimizer(problem, parameters),
        seed=seed,
        progress=False,
    )
    seconds = time.process_time() - start
    found = evaluate(problem, grown.model, splits.test)
    summary = grown.summary
    return {
        "seconds": seconds,
        "host": [seed],
        "kind": [training.name],
        # A loss counts as the share of that of guessing among all classes.
        "score": [1.0 - found / math.log(data.n_classes) if problem.is_loss else found],
        "flops": [summary.flops],
        "growth": [summary.parameters_after / summary.parameters_before],
        "germinated": [[step.epoch for step in grown.timeline if step.op == "germinate"]],
    }


def plan(arguments: argparse.Namespace) -> list[Training]:
    """Return all trainings; both ways of one follow each other, in alternating order."""
    sizes = {"drawn": arguments.hosts, **RARE_HOSTS}
    prior = [
        ("prior", group, FIRST_HOST + first, min(BLOCKS[group], size - first), schedule)
        for group, size in sizes.items()
        for first in range(0, size, BLOCKS[group])
        for schedule in SCHEDULES
    ]
    real = [
        ("real", problem, seed, 1, schedule)
        for seed in range(arguments.seeds)
        for problem, (_, deeper) in PLACES.items()
        for schedule in SCHEDULES
        if schedule != NOT_REAL and (deeper or "deeper" not in schedule)
    ]
    parts = {"prior": prior, "real": real, None: prior + real}
    return [
        Training(
            part=part,
            name=name,
            number=number,
            size=size,
            schedule=schedule,
            way=way,
            tempo=arguments.tempo,
        )
        for turn, (part, name, number, size, schedule) in enumerate(parts[arguments.only])
        for way in (WAYS if turn % 2 else reversed(WAYS))
    ]


class Results:
    """The file of results, a line for each training."""

    def __init__(self, path: Path, library: Library) -> None:
        self._path, self._library = path, library
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {row["key"]: row for row in map(json.loads, lines)}

    def ensure(self, training: Training) -> dict[str, Any]:
        """Return the results of a training, which is done now if it was not."""
        key = f"{training} {SCHEDULES[training.schedule]} {program_digest()}"
        if key not in self._rows:
            self._rows[key] = {"key": key, **training.run(self._library)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(self._rows[key]) + "\n")
        return self._rows[key]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One host, grown by one schedule in both ways."""

    host: tuple[str, int]
    """Its group or problem, and its number."""
    group: str
    kind: str
    """Its kind of problem."""
    schedule: str
    values: dict[str, dict[str, float]]
    """Score, FLOPs, growth and CPU seconds by way."""
    is_same: bool
    """Whether seeds germinated in the same epochs in both ways."""


def pair_hosts(done: Iterable[tuple[Training, dict[str, Any]]]) -> list[Pair]:
    """Pair the hosts of both ways."""
    by_way: dict[str, dict[tuple[str, int, str], dict[str, Any]]] = {way: {} for way in WAYS}
    for training, row in done:
        columns = {"seconds": [row["seconds"] / training.size] * training.size}
        columns |= {name: row[name] for name in ("kind", "score", "flops", "growth", "germinated")}
        for number, host in enumerate(row["host"]):
            by_way[training.way][training.name, host, training.schedule] = {
                name: column[number] for name, column in columns.items()
            }
    at_once, ramp = by_way.values()
    assert at_once.keys() == ramp.keys(), "both ways have the same hosts"
    return [
        Pair(
            host=(group, host),
            group=group,
            kind=ramp[key]["kind"],
            schedule=schedule,
            values={
                way: {name: rows[key][name] for name in ("score", "flops", "growth", "seconds")}
                for way, rows in by_way.items()
            },
            is_same=at_once[key]["germinated"] == ramp[key]["germinated"],
        )
        for key in ramp
        for group, host, schedule in [key]
    ]


class Summary:
    """The means of pairs: of each host over its schedules, then over hosts."""

    def __init__(self, label: str, pairs: Sequence[Pair], *, is_timed: bool = True) -> None:
        """Summarize pairs; ``is_timed`` if they are all that were trained together."""
        hosts = sorted({pair.host for pair in pairs})
        own = {host: [pair for pair in pairs if pair.host == host] for host in hosts}
        self.label, self.n_hosts, self._is_timed = label, len(hosts), is_timed
        self._pairs = pairs
        self._means = {
            way: {
                name: np.array([np.mean([p.values[way][name] for p in own[h]]) for h in hosts])
                for name in ("score", "flops", "growth")
            }
            for way in WAYS
        }

    @property
    def difference(self) -> Interval:
        """Points at once minus those of the ramp, with the interval over hosts."""
        at_once, ramp = (100.0 * self._means[way]["score"] for way in WAYS)
        return mean_interval(at_once - ramp)

    def cells(self) -> list[str]:
        """Return the cells of the row."""
        at_once, ramp = (
            {name: float(values.mean()) for name, values in self._means[way].items()}
            for way in WAYS
        )
        seconds = [sum(pair.values[way]["seconds"] for pair in self._pairs) for way in WAYS]
        found, flops = self.difference, at_once["flops"] / ramp["flops"]
        return [
            self.label,
            f"{self.n_hosts:,}",
            f"{100 * at_once['score']:.2f}, {100 * ramp['score']:.2f}",
            f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]",
            f"{at_once['flops']:.2f}, {ramp['flops']:.2f} ({flops:.2f}x)",
            f"{seconds[0]:,.0f} s, {seconds[1]:,.0f} s ({seconds[0] / seconds[1]:.2f}x)"
            if self._is_timed
            else "",
            f"{at_once['growth']:.2f}, {ramp['growth']:.2f}",
            f"{np.mean([pair.is_same for pair in self._pairs]):.0%}",
        ]


HEADINGS = (
    "",
    "hosts",
    "test score at once, ramp",
    "points at once minus ramp",
    "FLOPs relative to plain training",
    "CPU",
    "parameters relative to the given model",
    "same epochs",
)


def report(done: Sequence[tuple[Training, dict[str, Any]]]) -> None:
    """Print the tables of what was trained."""
    pairs = pair_hosts(done)
    drawn = [pair for pair in pairs if pair.group == "drawn"]
    rows = [
        *_by_schedule("all hosts", drawn),
        Summary("same epochs", [pair for pair in drawn if pair.is_same], is_timed=False),
    ]
    for kind in KINDS:
        rows.append(Summary(kind, [each for each in drawn if each.kind == kind], is_timed=False))
    for group in (each for each in GROUPS if each != "drawn"):
        rows.append(Summary(f"{group}s, apart", [pair for pair in pairs if pair.group == group]))
    _print("Hosts of the prior", rows)
    real = [pair for pair in pairs if pair.group in PLACES]
    problems = [Summary(name, [pair for pair in real if pair.group == name]) for name in PLACES]
    _print("Models on real data", [*_by_schedule("all models and seeds", real), *problems])
    if real:
        over = mean_interval([each.difference.mean for each in problems if each.n_hosts])
        print(f"\nOver problems: {over.mean:+.2f} [{over.low:+.2f}, {over.high:+.2f}] points.")


def _by_schedule(label: str, pairs: Sequence[Pair]) -> list[Summary]:
    own = {name: [pair for pair in pairs if pair.schedule == name] for name in SCHEDULES}
    return [Summary(label, pairs), *(Summary(name, some) for name, some in own.items())]


def _print(title: str, rows: Sequence[Summary]) -> None:
    rows = [row for row in rows if row.n_hosts]
    if not rows:
        return
    print(f"\n## {title}\n")
    print(f"| {' | '.join(HEADINGS)} |\n|---|{'---:|' * (len(HEADINGS) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row.cells())} |")


def main() -> None:
    """Train what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=("prior", "real"), help="one of the two parts")
    parser.add_argument("--hosts", type=int, default=512, help="hosts of the prior")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each real problem")
    parser.add_argument("--tempo", type=int, default=3, choices=(3, 5, 8), help="epochs of a ramp")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the real data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(arguments.results, Library(arguments.data))
    trainings = plan(arguments)
    done: list[tuple[Training, dict[str, Any]]] = []
    for number, training in enumerate(trainings, 1):
        done.append((training, results.ensure(training)))
        print(f"\r{number} of {len(trainings)} trainings", end="", file=sys.stderr)
    print(file=sys.stderr)
    report(done)


if __name__ == "__main__":
    main()
