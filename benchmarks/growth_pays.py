"""Compare growing networks with every fixed size at equal training FLOPs, at several budgets.

Run:  make bench-growth   or:  python benchmarks/growth_pays.py

Every finished training run is one line of benchmarks/growth_pays/runs.jsonl, and runs that are
there are not repeated, so an interrupted benchmark continues. At the end, tables and a verdict
are printed, and results.md and loss.png are written to the same folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import torch

from growth_campaign import Campaign, Results, SettingsCampaign, WarmStartCampaign
from growth_problems import PROBLEMS, SMALL_PROBLEMS, missing_data
from growth_report import draw, report
from growth_runs import Run, train

FOLDER = Path(__file__).parent / "growth_pays"


def main() -> None:
    arguments = parse_arguments()
    os.nice(arguments.nice)
    # Ends the worker processes too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as temporary:
        run_all(arguments, arguments.out or Path(temporary if arguments.small else FOLDER))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--only", choices=list(PROBLEMS), help="run one problem")
    part.add_argument("--settings", action="store_true", help="compare settings of growth")
    part.add_argument("--warm-start", action="store_true", help="grow trained networks")
    parser.add_argument("--small", action="store_true", help="tiny, to check that it runs")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--nice", type=int, default=10, help="niceness of these processes")
    parser.add_argument("--report", action="store_true", help="only summarize what was run")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs is {arguments.jobs}; it must be at least 1.")
    return arguments


def run_all(arguments: argparse.Namespace, folder: Path) -> None:
    """Run what is missing and report what there is."""
    results = Results(folder / "runs.jsonl")
    campaigns = choose_campaigns(arguments, results)
    if not arguments.report:
        for problem in {campaign.problem.name: campaign.problem for campaign in campaigns}.values():
            results.drop_other_data(problem.name, problem.load().digest)
        execute(campaigns, results, arguments.jobs)
    shown = campaigns if arguments.small else every_campaign(results)
    text = report(shown)
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text("# Does growth pay?\n\n" + text)
    draw(shown, folder / "loss.png")


def every_campaign(results: Results) -> list[Campaign]:
    """Return all parts of the benchmark."""
    text = PROBLEMS["text"]
    parts = (SettingsCampaign(text, results), WarmStartCampaign(text, results))
    return [*(Campaign(problem, results) for problem in PROBLEMS.values()), *parts]


def choose_campaigns(arguments: argparse.Namespace, results: Results) -> list[Campaign]:
    """Return the parts of the benchmark that were asked for and whose data are there."""
    if arguments.settings:
        return [SettingsCampaign(PROBLEMS["text"], results)]
    if arguments.warm_start:
        return [WarmStartCampaign(PROBLEMS["text"], results)]
    campaigns: list[Campaign] = []
    problems = SMALL_PROBLEMS if arguments.small else PROBLEMS
    for name, problem in zip(PROBLEMS, problems.values(), strict=True):
        if arguments.only not in (None, name):
            continue
        if advice := missing_data(problem):
            print(f"skipped {problem.name}: {advice}")
            continue
        print(f"{problem.name}: {problem.load().description}", flush=True)
        campaigns.append(Campaign(problem, results, n_seeds=2 if arguments.small else 5))
    return campaigns


def execute(campaigns: Sequence[Campaign], results: Results, n_jobs: int) -> None:
    """Do all runs, several at a time; each result may decide which runs follow."""
    context = multiprocessing.get_context("spawn")
    # A pool's processes end with it, however it ends.
    with context.Pool(n_jobs, torch.set_num_threads, (1,)) as pool:
        pending: dict[Run, AsyncResult[dict[str, Any]]] = {}
        while True:
            missing = [run for campaign in campaigns for run in campaign.plan()]
            for run in missing:
                if run not in pending and len(pending) < n_jobs:
                    pending[run] = pool.apply_async(train, (run,))
            if not pending:
                return
            for run in _wait(pending):
                results.add(run, result := pending.pop(run).get())
                print(
                    f"{len(results)}: {run}: {result['validation']} in {result['seconds']:g} s",
                    flush=True,
                )


def _wait(pending: dict[Run, AsyncResult[dict[str, Any]]]) -> list[Run]:
    """Return the runs that are done, as soon as there are any."""
    while True:
        if done := [run for run, result in pending.items() if result.ready()]:
            return done
        time.sleep(0.02)


if __name__ == "__main__":
    main()
