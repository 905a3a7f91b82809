"""Makes the evidence on the prior's held-out tasks: learned controllers against tuned treatments.

Run:  python benchmarks/evidence/prior/run.py --runs runs/s0 runs/s1 --processes 2
      python benchmarks/evidence/prior/run.py --runs runs/s0 --report     only what there is so far

Treatments are fixed schedules, heuristics and progressive growth. They are chosen for each price on
tasks for tuning, with the share of the budget after which they stop; then all arms run on the same
held-out tasks. A block of tasks is a file in the folder of work: what is done is not done again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from time import monotonic
from typing import Annotated

import torch
from blocks import BLOCK, FIRST, PLAIN, RANDOM, Job, families, make_jobs, run_job, run_price
from report import TUNED, Blocks, choose_treatments, write_report

from esper.config.checks import Bounds, NonNegativeFloat, NonNegativeInt, PositiveInt, check
from esper.config.held_out_hosts import EVALUATION_HOSTS
from esper.errors import EsperError, RunError
from esper.evidence.setting import controller_digest, find_learned
from esper.tamiyo import save_controller
from esper.tasks import make_task

ROOT = Path(__file__).parents[3]
WORK = ROOT / "runs" / "evidence" / "prior"
RESULTS = Path(__file__).parents[1] / "results" / "prior"


def main() -> None:
    """Run what was asked for, and write the report."""
    arguments = parse_arguments()
    try:
        check_arguments(arguments)
        controllers = keep_controllers(arguments)
        if not arguments.report:
            run_jobs(list(tuning_jobs(arguments)), arguments)
            run_jobs(list(evaluation_jobs(arguments, controllers)), arguments)
        write_report(
            Blocks(arguments.work / "blocks"),
            arguments.results,
            controllers=[Path(one).name for one in controllers],
            prices=arguments.prices,
            n_tasks=arguments.tasks,
            n_tuning=arguments.tuning_tasks,
            n_ablated=arguments.ablated_tasks,
            n_headroom=arguments.headroom_tasks,
        )
    except EsperError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", nargs="*", default=[], help="folders of training runs")
    parser.add_argument("--controllers", nargs="*", default=[], help="saved controllers instead")
    parser.add_argument("--tasks", type=int, default=1024, help="held-out tasks")
    parser.add_argument("--tuning-tasks", type=int, default=128, help="tasks that tune treatments")
    parser.add_argument(
        "--ablated-tasks", type=int, default=128, help="held-out tasks of the ablations"
    )
    parser.add_argument(
        "--headroom-tasks", type=int, default=256, help="held-out tasks of all schedules"
    )
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.03, 0.1, 0.3])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the report")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of blocks and controllers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="run nothing, report what is there")
    return parser.parse_args()


def check_arguments(arguments: argparse.Namespace) -> None:
    """Reject numbers that cannot be used."""
    check("tasks", arguments.tasks, Annotated[int, Bounds(2)])
    check("tuning-tasks", arguments.tuning_tasks, Annotated[int, Bounds(2)])
    check("processes", arguments.processes, PositiveInt)
    for name in ("ablated_tasks", "headroom_tasks"):
        check(name.replace("_", "-"), getattr(arguments, name), NonNegativeInt)
        whole_blocks = -(-getattr(arguments, name) // BLOCK) * BLOCK
        setattr(arguments, name, min(whole_blocks, arguments.tasks))
    for price in arguments.prices:
        check("prices", price, NonNegativeFloat)
    EVALUATION_HOSTS.take(FIRST["evaluation"], arguments.tasks)


def keep_controllers(arguments: argparse.Namespace) -> list[str]:
    """Copy the best controller of each run to the folder of work, and return the copies.

    A run that trains on would change its controller between blocks.
    """
    given = [*arguments.runs, *arguments.controllers]
    if not given:
        return []
    folders: list[str] = []
    growth = make_task("prior").growth
    for saved in find_learned(given):
        if saved.growth not in (None, growth):
            raise RunError(
                f"{saved.name} learned with growth rules {saved.growth}; the tasks of prior have "
                f"{growth}. Train it on prior."
            )
        folder = arguments.work / "controllers" / f"{saved.name}-{controller_digest(saved)[:8]}"
        save_controller(saved, folder)
        folders.append(str(folder))
    return folders


def tuning_jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    """Return the jobs that the choice of treatments needs."""
    for family in TUNED:
        for name in families()[family]:
            for price in run_prices(family, arguments.prices):
                yield from make_jobs("tuning", arguments.tuning_tasks, family, name, price)


def evaluation_jobs(arguments: argparse.Namespace, controllers: Sequence[str]) -> Iterator[Job]:
    """Return the jobs on held-out tasks: controllers, then all schedules and the other arms."""
    blocks, n_tasks = Blocks(arguments.work / "blocks"), arguments.tasks
    chosen = choose_treatments(blocks, arguments.prices, arguments.tuning_tasks)
    for price in arguments.prices:
        for folder in controllers:
            yield from make_jobs(
                "evaluation", n_tasks, "learned", folder, price, n_ablated=arguments.ablated_tasks
            )
    wanted = {("fixed", name, 0.0): arguments.headroom_tasks for name in families()["fixed"]}
    for price in arguments.prices:
        wanted |= {("random", RANDOM, run_price("random", price)): n_tasks}
        wanted |= {
            (family, chosen[family, price].name, run_price(family, price)): n_tasks
            for family in TUNED
        }
    wanted["fixed", PLAIN, 0.0] = n_tasks
    for (family, name, price), n_needed in wanted.items():
        yield from make_jobs("evaluation", n_needed, family, name, price)


def run_prices(family: str, prices: Sequence[float]) -> list[float]:
    """Return the prices at which the treatments of a family are run."""
    return list(dict.fromkeys(run_price(family, price) for price in prices))


def run_jobs(jobs: Sequence[Job], arguments: argparse.Namespace) -> None:
    """Run the jobs whose files are missing."""
    folder, start = arguments.work / "blocks", monotonic()
    missing = [job for job in jobs if not job.is_done(folder)]
    done = _run_here(missing, folder)
    if arguments.processes > 1 and len(missing) > 1:
        done = _run_in_processes(missing, folder, arguments.processes)
    for number, words in enumerate(done, 1):
        minutes = (monotonic() - start) / 60
        left = minutes * (len(missing) - number) / number
        print(f"{number}/{len(missing)} {words}; {left:.0f} minutes left", flush=True)


def _run_here(jobs: Sequence[Job], folder: Path) -> Iterator[str]:
    for job in jobs:
        yield run_job(job, folder)


def _run_in_processes(jobs: Sequence[Job], folder: Path, n_processes: int) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
        futures = [pool.submit(run_job, job, folder) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
