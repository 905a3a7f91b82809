"""Compare what Esper's PPO learns with Stable-Baselines3 and sb3-contrib, on thirteen tasks.

Run:  make bench-learning   or, where the peers are installed:  python benchmarks/learning.py

Every library trains for the same number of environment steps, at its own defaults and at matched
settings, with several seeds. Each run is written to benchmarks/results/learning/ as soon as it is
complete, and runs that are there are not repeated. At the end a table is printed, and
benchmarks/learning.json and benchmarks/learning.png are written. A peer that was not run here keeps
its rows in learning.json, marked as kept: its results do not change with Esper.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from esper.statistics import Interval, mean_interval
from learning_environments import TASKS
from learning_peers import NAMES, evaluate, libraries_for, random_policy, settings_for, train

HERE = Path(__file__).parent
RUNS = HERE / "results" / "learning"
SUMMARY, FIGURE = HERE / "learning.json", HERE / "learning.png"
N_SEEDS, N_EPISODES, N_POINTS = 5, 100, 24
QUICK_STEPS, QUICK_EPISODES = 2048, 4
PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib")


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    library: str
    setting: str
    seed: int
    is_quick: bool = False

    @property
    def path(self) -> Path:
        """The file of its result."""
        folder = RUNS / "quick" if self.is_quick else RUNS
        parts = (self.task, self.library, self.setting, f"seed{self.seed}")
        return folder / ("-".join(parts).replace(" ", "_") + ".json")


def main() -> None:
    arguments = parse_arguments()
    tasks = [arguments.only] if arguments.only else list(TASKS)
    seeds = 1 if arguments.quick else arguments.seeds
    # Seeds outermost: an interrupted comparison has the same seeds of everything.
    variants = [(task, *variant) for task in tasks for variant in _variants(task)]
    runs = [Run(*variant, seed, arguments.quick) for seed in range(seeds) for variant in variants]
    # The slowest peer takes half of the time; all else comes before it.
    runs.sort(key=lambda run: (run.library, run.setting) == ("recurrent", "defaults"))
    for run in runs:
        if run.library == arguments.redo:
            run.path.unlink(missing_ok=True)
    console = Console() if Console().is_terminal else Console(width=150)
    if not arguments.report:
        os.nice(arguments.nice)
        execute([run for run in runs if not run.path.exists()], arguments.jobs, console)
    rows = summarize(runs)
    print_table(console, rows)
    if arguments.quick or arguments.only:
        return
    write_summary(rows, seeds)
    draw(rows)
    console.print(f"written to {SUMMARY.name} and {FIGURE.name}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=list(TASKS), help="run one task")
    parser.add_argument("--seeds", type=int, default=N_SEEDS, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--nice", type=int, default=10, help="niceness of these processes")
    parser.add_argument("--quick", action="store_true", help="tiny, to check that it runs")
    parser.add_argument("--redo", choices=list(NAMES), help="repeat all runs of one library")
    parser.add_argument("--report", action="store_true", help="only summarize what was run")
    return parser.parse_args()


def _variants(task: str) -> list[tuple[str, str]]:
    """Return the libraries of a task, each with each of its settings."""
    found = [
        (library, setting)
        for library in libraries_for(TASKS[task])
        for setting in settings_for(TASKS[task], library)
    ]
    return [*found, ("random", "")]


def execute(runs: list[Run], n_jobs: int, console: Console) -> None:
    """Run what is missing, several at a time."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        n_jobs, context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        pending = {pool.submit(run_one, run): run for run in runs}
        for number, future in enumerate(as_completed(pending), start=1):
            run, result = pending[future], future.result()
            console.print(
                f"{number}/{len(runs)}  {run.task}, {NAMES[run.library]} {run.setting}, seed "
                f"{run.seed}: {result['mean']:.4g} in {result['seconds']:.0f} s"
            )


def run_one(run: Run) -> dict[str, Any]:
    """Train and evaluate, write the result and return it."""
    task = TASKS[run.task]
    steps = QUICK_STEPS if run.is_quick else task.steps
    start = time.process_time()
    episodes: list[tuple[int, float]] = []
    if run.library == "random":
        policy = random_policy(task, run.seed)
    else:
        policy, episodes = train(task, run.library, run.setting, run.seed, steps)
    seconds = time.process_time() - start
    n_episodes = QUICK_EPISODES if run.is_quick else N_EPISODES
    returns = evaluate(task, run.library, policy, n_episodes)
    result = {
        "task": run.task,
        "library": run.library,
        "setting": run.setting,
        "seed": run.seed,
        "steps": steps,
        "seconds": round(seconds, 1),
        "mean": float(np.mean(returns)),
        "returns": returns,
        "curve": _curve(episodes, steps),
    }
    run.path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = run.path.with_suffix(".part")
    unfinished.write_text(json.dumps(result) + "\n")
    unfinished.replace(run.path)
    return result


def _curve(episodes: list[tuple[int, float]], steps: int) -> list[float | None]:
    """Return the mean return of the episodes that ended in each of ``N_POINTS`` equal parts."""
    parts: list[list[float]] = [[] for _ in range(N_POINTS)]
    for step, total in episodes:
        parts[min(N_POINTS - 1, (step - 1) * N_POINTS // steps)].append(total)
    return [float(np.mean(part)) if part else None for part in parts]


@dataclass(frozen=True)
class Row:
    """One library at one setting on one task, over all seeds."""

    task: str
    library: str
    setting: str
    final: Interval
    """Mean return of the trained policies."""
    seconds: float
    """CPU time of training, the mean over seeds."""
    by_seed: list[float]
    curve: list[Interval | None]
    is_kept: bool = False
    """Whether it is of an earlier summary."""

    @property
    def label(self) -> str:
        """The library and, unless it is the defaults, the setting."""
        name = NAMES[self.library]
        return name if self.setting in ("", "defaults") else f"{name}, {self.setting}"


def summarize(runs: list[Run]) -> list[Row]:
    """Return a row for each variant that has results."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if run.path.exists():
            result = json.loads(run.path.read_text())
            found.setdefault((run.task, run.library, run.setting), []).append(result)
    rows = [
        Row(
            task,
            library,
            setting,
            mean_interval([result["mean"] for result in results]),
            float(np.mean([result["seconds"] for result in results])),
            [result["mean"] for result in results],
            _mean_curve([result["curve"] for result in results]),
        )
        for (task, library, setting), results in found.items()
    ]
    order = list(TASKS)
    return sorted([*rows, *_kept(rows)], key=lambda row: order.index(row.task))


def _kept(rows: list[Row]) -> list[Row]:
    """Return the rows of peers that the last summary has and these have not."""
    if not SUMMARY.exists():
        return []
    libraries = {name: library for library, name in NAMES.items()}
    known = {(row.task, row.library, row.setting) for row in rows}
    kept = list[Row]()
    for one in json.loads(SUMMARY.read_text())["rows"]:
        variant = (one["task"], libraries[one["library"]], one["setting"])
        if variant[1] == "esper" or variant in known:
            continue
        n = len(one["by_seed"])
        final = Interval(one["mean"], one["low"], one["high"], n)
        curve = [None if mean is None else Interval(mean, mean, mean, n) for mean in one["curve"]]
        kept.append(Row(*variant, final, one["cpu_seconds"], one["by_seed"], curve, is_kept=True))
    return kept


def _mean_curve(curves: list[list[float | None]]) -> list[Interval | None]:
    """Return the interval over seeds at each point that every seed has."""
    points = list(zip(*curves, strict=True))
    return [None if None in point else mean_interval(point) for point in points]


def best_peer(rows: list[Row], task: str) -> Row | None:
    """Return the row of another library with the highest mean on a task."""
    others = [row for row in rows if row.task == task and row.library not in ("esper", "random")]
    return max(others, key=lambda row: row.final.mean) if others else None


def verdict(row: Row, rows: list[Row]) -> str:
    """Return where Esper's mean lies relative to the interval of the best peer.

    Less than 1% of the way from random to best does not count, and one seed has no interval.
    """
    peer = best_peer(rows, row.task)
    if row.library != "esper" or peer is None or peer.final.n == 1:
        return ""
    random = next(r.final.mean for r in rows if (r.task, r.library) == (row.task, "random"))
    margin = 0.01 * abs(TASKS[row.task].best - random)
    if row.final.mean < peer.final.low - margin:
        return "below"
    return "above" if row.final.mean > peer.final.high + margin else "inside"


def print_table(console: Console, rows: list[Row]) -> None:
    """Print final returns with intervals."""
    table = Table()
    for name in ("task", "library, setting", "return [95% interval]", "best", "CPU s", "vs peer"):
        table.add_column(name, justify="left" if name in ("task", "library, setting") else "right")
    last = None
    for row in rows:
        final = row.final
        table.add_row(
            row.task if row.task != last else "",
            row.label,
            f"{final.mean:.3g} [{final.low:.3g}, {final.high:.3g}]",
            f"{TASKS[row.task].best:g}",
            f"{row.seconds:.0f}",
            verdict(row, rows),
        )
        last = row.task
    console.print(table)


def write_summary(rows: list[Row], seeds: int) -> None:
    """Write all rows and the package versions as JSON."""
    document = {
        "seeds": seeds,
        "episodes": N_EPISODES,
        "packages": {name: version(name) for name in PACKAGES},
        "rows": [
            {
                "task": row.task,
                "library": NAMES[row.library],
                "setting": row.setting,
                "steps": TASKS[row.task].steps,
                "best": TASKS[row.task].best,
                "mean": _short(row.final.mean),
                "low": _short(row.final.low),
                "high": _short(row.final.high),
                "by_seed": [_short(mean) for mean in row.by_seed],
                "cpu_seconds": round(row.seconds, 1),
                "compared_with_best_peer": verdict(row, rows) or None,
                "kept": row.is_kept,
                "curve": [None if point is None else _short(point.mean) for point in row.curve],
            }
            for row in rows
        ],
    }
    text = json.dumps(document, indent=1)
    SUMMARY.write_text(text + "\n")


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def draw(rows: list[Row]) -> None:
    """Draw the mean training return by environment step, with intervals over seeds."""
    import matplotlib.pyplot as plt

    colors = {"esper": "C3", "sb3": "C0", "maskable": "C2", "recurrent": "C1"}
    styles = {"defaults": "-", "matched": "--", "joint clip": ":"}
    figure, axes = plt.subplots(3, 5, figsize=(15, 8.4), layout="constrained")
    for axis in axes.flat[len(TASKS) :]:
        axis.set_visible(False)
    for axis, (name, task) in zip(axes.flat, TASKS.items(), strict=False):
        axis.set_title(f"{name} (best {task.best:g})", fontsize=9)
        axis.tick_params(labelsize=7)
        for row in rows:
            if row.task != name:
                continue
            if row.library == "random":
                axis.axhline(row.final.mean, color="0.7", linewidth=0.8)
                continue
            steps = (np.arange(N_POINTS) + 0.5) * task.steps / N_POINTS / 1000
            kept = [(x, point) for x, point in zip(steps, row.curve, strict=True) if point]
            x, points = [one[0] for one in kept], [one[1] for one in kept]
            color, style = colors[row.library], styles[row.setting]
            mean = [point.mean for point in points]
            axis.plot(x, mean, style, color=color, linewidth=1.2, label=row.label)
            if row.setting == "defaults":
                low, high = [p.low for p in points], [p.high for p in points]
                axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        axis.legend(fontsize=6, frameon=False)
    figure.supxlabel("thousands of environment steps", fontsize=9)
    figure.supylabel("return of training episodes", fontsize=9)
    figure.savefig(FIGURE, dpi=75)


if __name__ == "__main__":
    main()
