"""Steps per second of the growth environment by number of hosts, and the time of each part."""

from __future__ import annotations

import statistics
from dataclasses import replace
from time import perf_counter

import numpy as np

from esper.environment import GrowthVectorEnv
from esper.tamiyo import Controller, make_controller
from esper.tasks import Task
from rows import Ratio, Row
from timing import Effort, Spread, Timings, time_side_by_side

GROUP = "environment"
TASK = "digits-family"
N_ENVS = (1, 4, 16, 64)
TARGETS = {16: 5.0, 64: 7.0}
"""Target speedup over one environment, by number of environments."""
MAX_OVERHEAD = 0.10
"""Target for the share of a step of 16 environments spent on neither training nor evaluation."""
CONTROLLERS = ("random", "heuristic", "no-growth")
N_STEPS = 16
"""Steps per call: the length of an episode."""
ROUNDS = 8
HOST_WORK = ("training", "evaluation", "counterfactuals")
PARTS = (*HOST_WORK, "masks", "observations", "everything else")


class EpisodeDriver:
    """Environments and a controller; every call runs the next ``N_STEPS`` steps."""

    def __init__(self, name: str, n_envs: int, task: Task | str = TASK) -> None:
        self.envs = GrowthVectorEnv(task, n_envs)
        self.controller: Controller = make_controller(name, self.envs.layout)
        self.controller.start(n_envs)
        self.observations, _ = self.envs.reset(seed=0)
        self.starts = np.ones(n_envs, np.bool_)
        self.shares: list[dict[str, float]] = []
        # The first use of a blueprint counts and stacks it; that is not measured.
        for _ in range(3):
            self()
        self.shares.clear()

    def __call__(self) -> None:
        """Take ``N_STEPS`` steps and record the share of each part."""
        seconds = self.envs.seconds
        seconds.clear()
        start, deciding = perf_counter(), 0.0
        for _ in range(N_STEPS):
            before = perf_counter()
            actions = self.controller.act(self.observations, self.envs.masks, self.starts)
            deciding += perf_counter() - before
            self.observations, _, terminated, truncated, _ = self.envs.step(actions)
            self.starts = terminated | truncated
        # The controller's time is not the environment's, although the timed call includes it.
        total = perf_counter() - start - deciding
        named = {part: seconds.get(part, 0.0) / total for part in PARTS[:-1]}
        self.shares.append({**named, "everything else": 1.0 - sum(named.values())})


def run(effort: Effort) -> list[Row]:
    """Measure every controller and number of environments."""
    short = replace(effort, rounds=min(ROUNDS, effort.rounds))
    return [row for name in CONTROLLERS for row in _run_controller(name, short)]


def _run_controller(name: str, effort: Effort) -> list[Row]:
    drives = {str(n): EpisodeDriver(name, n) for n in N_ENVS}
    timings = time_side_by_side(drives, effort)
    rows = [_speed_row(name, n, timings) for n in N_ENVS[1:]]
    for n in N_ENVS:
        rows += _share_rows(name, n, drives[str(n)].shares, timings.seconds(str(n)))
    return rows


def _speed_row(name: str, n_envs: int, timings: Timings) -> Row:
    ratio = timings.ratio("1", str(n_envs))
    return Row(
        group=GROUP,
        what=f"{TASK}, {name}: steps of {n_envs} environments",
        other="one environment",
        kind=Ratio.SPEEDUP,
        ours_seconds=timings.seconds(str(n_envs)) / n_envs,
        other_seconds=timings.seconds("1"),
        ratio=Spread(*(n_envs * value for value in (ratio.median, ratio.low, ratio.high))),
        per_call=N_STEPS,
        samples=min(timings.n_samples("1"), timings.n_samples(str(n_envs))),
        limit=TARGETS.get(n_envs),
    )


def _share_rows(
    name: str, n_envs: int, shares: list[dict[str, float]], seconds: float
) -> list[Row]:
    """Return a row for each part of a step, and one for everything but work on hosts."""
    found = {part: [share[part] for share in shares] for part in PARTS}
    found["not training or evaluating"] = [
        1.0 - sum(share[part] for part in HOST_WORK) for share in shares
    ]
    return [
        Row(
            group=GROUP,
            what=f"{TASK}, {name}, {n_envs} environments: {part}",
            other="the whole step",
            kind=Ratio.COST,
            ours_seconds=statistics.median(values) * seconds / N_STEPS,
            other_seconds=seconds / N_STEPS,
            ratio=_spread(values),
            samples=len(values),
            limit=MAX_OVERHEAD if part not in PARTS and n_envs == 16 else None,
            is_detail=part in PARTS and n_envs != 16,
        )
        for part, values in found.items()
    ]


def _spread(values: list[float]) -> Spread:
    low, median, high = (float(np.quantile(values, q)) for q in (0.25, 0.5, 0.75))
    return Spread(median, low, high)
