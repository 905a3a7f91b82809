"""Runs treatments and learned controllers on blocks of the prior's tasks; each block is a file.

Shapes: N = tasks of a block, T = stopping shares, H = heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from esper.arrays import Floats, Integers
from esper.config.growth import RewardConfig
from esper.config.held_out_hosts import EVALUATION_HOSTS
from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.draws import Purpose
from esper.environment.episodes import StepResult
from esper.evidence.search_space import Candidate, heuristic_candidates
from esper.lifecycle.slot_config import SlotConfig
from esper.storage.files import write_atomic
from esper.tamiyo import (
    Controller,
    FixedSchedule,
    NoGrowth,
    Planting,
    RandomController,
    Replay,
    SavedController,
    load_saved,
)
from esper.tamiyo.controllers.progressive import progressive
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import make_task
from esper.tasks.prior.family import KINDS
from esper.training.trials import shuffle_for

BLOCK = 64
"""Tasks of a block."""
STOPS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Shares of the budget at which a treatment can be stopped."""
FIRST = {"tuning": 0, "evaluation": EVALUATION_HOSTS.first}
"""Number of the first task of each purpose."""
PLAIN = "no growth"
"""The schedule that trains plainly."""
FINISHING = ("heuristic", "random")
"""Families whose treatments finish hosts by themselves, which is legal only at a price above 0."""
PAID = 0.1
"""The price that stands for all above 0 where a treatment ignores it."""
RANDOM = "random legal growth"
ABLATIONS = ("shuffled", "wrong task")
MODULES = ("mlp_large", "conv_heavy", "lora_large")
WIDER = ("widen_large",)
DEEPER = ("deepen", "widen_large")
REWARD = RewardConfig(reward="dense", shaping=0.0, governor_penalty=0.0)

Make = Callable[[ObservationLayout], Controller]


@dataclass(frozen=True)
class Schedule:
    """A fixed schedule: the same seeds in every slot of every host."""

    blueprints: tuple[tuple[str, ...], ...]
    """The seeds of a slot, one after another; of each, the first that fits."""
    fraction: float = 0.0
    """Share of the budget before the first germinates."""

    def __call__(self, layout: ObservationLayout) -> Controller:
        """Return the controller."""
        plantings = [
            Planting(slot=slot, blueprint=name, otherwise=tuple(others), fraction=self.fraction)
            for name, *others in self.blueprints
            for slot in layout.slot_config.slot_ids
        ]
        return FixedSchedule(layout, plantings) if plantings else NoGrowth()


@dataclass(frozen=True)
class Progressive:
    """Growth once in every slot, deeper where that is possible."""

    fractions: tuple[float, ...]

    def __call__(self, layout: ObservationLayout) -> Controller:
        """Return the controller."""
        return progressive(layout, fractions=self.fractions)


def _fixed() -> dict[str, Make]:
    """Return the fixed schedules by their description."""
    found: dict[str, Make] = {PLAIN: Schedule(())}
    for name, times, fraction in (
        ("widen_large", 1, 0.0),
        ("widen_large", 1, 0.25),
        ("widen_large", 2, 0.0),
        ("widen_large", 4, 0.0),
        ("widen_huge", 1, 0.0),
        ("widen_huge", 1, 0.25),
        ("widen_huge", 2, 0.0),
    ):
        words = f"{name} {times}x from {fraction:.0%} of the budget"
        found[words] = Schedule(((name,),) * times, fraction)
    return found | {
        "widen_small 1x from 0%": Schedule((("widen_small",),)),
        "modules 1x from 0%": Schedule((MODULES,)),
        "deepen or widen_large 1x from 0%": Schedule((DEEPER,)),
        "deepen or widen_large 3x from 0%": Schedule((DEEPER,) * 3),
        "widen_large, deepen or widen_large, modules from 0%": Schedule((WIDER, DEEPER, MODULES)),
    }


@lru_cache(maxsize=1)
def families() -> dict[str, dict[str, Make]]:
    """Return the treatments that ignore the price, by family and description."""
    task = make_task("prior")
    slot_config = SlotConfig(tuple(f"slot.{number}" for number in range(task.max_slots)))
    drawn = [each.heuristic for each in heuristic_candidates(slot_config, 6)]
    huge = [replace(each, blueprints=("widen_huge", *each.blueprints)) for each in drawn if each]
    heuristics = enumerate(Candidate(heuristic=each) for each in (*drawn, *huge))
    return {
        "fixed": _fixed(),
        "heuristic": {f"heuristic {n}": candidate.make for n, candidate in heuristics},
        "progressive": {
            f"progressive from {fraction:.0%}": Progressive((fraction,))
            for fraction in (0.1, 0.25, 0.4)
        },
        "random": {RANDOM: lambda layout: RandomController()},
    }


def run_price(family: str, price: float) -> float:
    """Return the price at which a treatment is run, to be re-priced to another."""
    return PAID if family in FINISHING and price > 0.0 else 0.0


def allowed_stops(price: float) -> slice:
    """Return the stopping shares that are allowed: at price 0 every host trains to the end."""
    return slice(None) if price > 0.0 else slice(-1, None)


@dataclass(frozen=True)
class Job:
    """A block of tasks to run a treatment on, or a learned controller and its ablations."""

    purpose: Purpose
    first: int
    """Number of the first task."""
    n_tasks: int
    family: str
    """The family of a treatment, or "learned"."""
    name: str
    """The treatment, or the folder of a learned controller."""
    price: float = 0.0
    """What a controller is shown; above 0, hosts may be finished."""
    is_ablated: bool = False
    """Whether the ablations of a learned controller run as well."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms whose results the job makes."""
        return (self.family, *ABLATIONS) if self.is_ablated else (self.family,)

    def path(self, folder: Path, arm: str) -> Path:
        """Return the file of an arm's results."""
        # A controller's folder is named after its weights.
        is_learned = self.family == "learned"
        what = Path(self.name).name if is_learned else _describe(self.family, self.name)
        key = hashlib.sha256(what.encode()).hexdigest()[:10]
        label = arm.replace(" ", "-")
        name = f"{self.purpose}-{label}-{key}-{self.price:g}-{self.first}-{self.n_tasks}.json"
        return folder / name

    def is_done(self, folder: Path) -> bool:
        """Return whether all files are there."""
        return all(self.path(folder, arm).exists() for arm in self.arms)


def _describe(family: str, name: str) -> str:
    """Return everything that determines a treatment."""
    make = families()[family][name]
    settings = "" if family == "random" else getattr(make, "__self__", make)
    return f"{name} {settings} {STOPS}"


def make_jobs(
    purpose: Purpose,
    n_tasks: int,
    family: str,
    name: str,
    price: float = 0.0,
    *,
    n_ablated: int = 0,
) -> list[Job]:
    """Return the jobs of a treatment or controller on so many tasks.

    A controller's ablations run on the blocks that have the first ``n_ablated`` of them.
    """
    first = FIRST[purpose]
    return [
        Job(
            purpose,
            first + start,
            min(BLOCK, n_tasks - start),
            family,
            name,
            price,
            is_ablated=start < n_ablated,
        )
        for start in range(0, n_tasks, BLOCK)
    ]


def run_job(job: Job, folder: Path) -> str:
    """Run a job and write its files; return what it was."""
    torch.set_num_threads(1)
    envs = _make_envs(job.purpose, job.price, job.n_tasks)
    if job.family == "learned":
        results = _run_learned(envs, job, _load(job.name))
    else:
        make = families()[job.family][job.name]
        results = {job.family: _run(envs, make(envs.layout), job.first)}
    folder.mkdir(parents=True, exist_ok=True)
    for arm, result in results.items():
        row = {"arm": arm, "name": Path(job.name).name, "price": job.price, **result}
        write_atomic(job.path(folder, arm), json.dumps(row) + "\n")
    return f"{job.purpose} {job.first}: {Path(job.name).name} at price {job.price:g}"


@lru_cache(maxsize=1)
def _make_envs(purpose: Purpose, price: float, n_tasks: int) -> GrowthVectorEnv:
    return GrowthVectorEnv(
        make_task("prior", price=price),
        n_tasks,
        reward=REWARD,
        purpose=purpose,
        final_split="test" if purpose == "evaluation" else "validation",
        autoreset=False,
    )


@lru_cache(maxsize=8)
def _load(folder: str) -> SavedController:
    return load_saved(folder)


class _StopReader:
    """Records the results of stopping each host at every share of its budget."""

    def __init__(self, envs: GrowthVectorEnv) -> None:
        self._envs = envs
        shape = envs.num_envs, len(STOPS)
        self.results: dict[str, Floats] = {
            name: np.full(shape, np.nan) for name in ("score", "validation", "flops")
        }

    def read(self, actions: Integers, result: StepResult) -> None:
        """Record the shares that the last step reached."""
        records = self._envs.growth.records
        # Rounded, because 0.35 * 20 is more than 7.
        stops = np.ceil(np.round(np.outer(records.n_epochs, STOPS), 6))
        is_new = np.isnan(self.results["score"])
        is_new &= (records.epoch[:, None] >= stops) | records.is_over[:, None]
        values = (records.final_score, records.settled_score, records.flops_used)
        for found, value in zip(self.results.values(), values, strict=True):
            found[is_new] = np.broadcast_to(value[:, None], found.shape)[is_new]


def _run(
    envs: GrowthVectorEnv,
    controller: Controller,
    seed: int,
    on_step: Callable[[Integers], None] = lambda actions: None,
) -> dict[str, Any]:
    """Run a controller on a block and return plain values, ``[N, T]`` or ``[N]``."""
    reader = _StopReader(envs)

    def read(actions: Integers, result: StepResult) -> None:
        reader.read(actions, result)
        on_step(actions)

    done = run_episodes(envs, controller, seed=seed, on_step=read)
    draws = envs.growth.draws
    return {
        "task": done.draw_seeds.tolist(),
        "kind": [KINDS[int(draw.facts["kind"])] for draw in draws],
        **{name: found.round(5).tolist() for name, found in reader.results.items()},
        "epochs": done.n_epochs.tolist(),
        "budget": [draw.n_epochs for draw in draws],
        "added": (done.seed_parameters / done.host_parameters).round(3).tolist(),
    }


def _run_learned(
    envs: GrowthVectorEnv, job: Job, saved: SavedController
) -> dict[str, dict[str, Any]]:
    """Run a learned controller, and its ablations where they are asked for."""
    steps: list[Integers] = []

    def make() -> Controller:
        return saved.make(envs.slot_config)

    results = {
        "learned": _run(envs, make(), job.first, lambda actions: steps.append(actions.copy()))
    }
    if not job.is_ablated:
        return results
    actions = np.stack(steps, 1)[pair_tasks(envs)]
    shuffled = shuffle_for(make(), ("*",), envs.growth, envs.num_envs)
    results["shuffled"] = _run(envs, shuffled, job.first)
    results["wrong task"] = _run(envs, Replay(actions), job.first)
    return results


def pair_tasks(envs: GrowthVectorEnv) -> Integers:
    """Return for each host the number of another whose actions it gets, ``[N]``.

    The other is as much like it as possible in the kind of host, the number of slots and the
    budget, so that most actions are legal and come at the same time.
    """
    hosts = envs.growth.hosts
    looks = [
        (type(draw.make_host.config).__name__, _count_slots(config), draw.n_epochs)
        for draw, config in zip(hosts.draws, hosts.slot_configs(), strict=True)
    ]
    order = np.array(sorted(range(len(looks)), key=lambda host: looks[host]))
    others = np.empty(len(order), np.int64)
    others[order] = np.roll(order, 1)
    return others


def _count_slots(config: SlotConfig) -> int:
    return sum(config.is_enabled(slot) for slot in config.slot_ids)
