"""Makes the evidence on real data: plain training, a search over widths, and growth.

Run:  python benchmarks/evidence/real/download.py
      python benchmarks/evidence/real/run.py --seeds 3
      python benchmarks/evidence/real/run.py --table      what there is so far, without training

Every training run adds a line to runs.jsonl in the folder of results; what is done is not done
again, so an interrupted run goes on. Fixed widths do not depend on the controller and are trained
once. The report and its figure are written at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from arms import WIDTHS, Outcome, grow_model, identify_controller, identify_setup, train_width
from download import DATA
from problems import PROBLEMS, Problem
from report import make_report
from sets import Library, RealSet

from esper.errors import EsperError

RESULTS = Path(__file__).parents[1] / "results" / "real"
CONTROLLERS = ("race", "learned")
Key = tuple[str, str, int, str]
"""A problem, its setup, a seed and an arm."""


class Runs:
    """The file of results, a line for each training run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "runs.jsonl"
        self._rows: dict[Key, dict[str, Any]] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                row = json.loads(line)
                self._rows[_key(row)] = row

    def rows(self, setups: dict[str, str]) -> list[dict[str, Any]]:
        """Return the results of the problems as they are set up now."""
        return [row for row in self._rows.values() if setups.get(row["problem"]) == row["setup"]]

    def ensure(self, key: Key, train: Callable[[], Outcome]) -> dict[str, Any]:
        """Return a result; train if there is none. A failure is recorded, and tried again later."""
        known = self._rows.get(key)
        if known is not None and "error" not in known:
            return known
        problem, setup, seed, arm = key
        row: dict[str, Any] = {"problem": problem, "setup": setup, "seed": seed, "arm": arm}
        try:
            row |= train().as_row()
        except Exception as error:  # one model that fails must not end hours of others
            row["error"] = f"{type(error).__name__}: {error}"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._rows[key] = row
        shown = row.get("error") or f"test {row['test']:.4f}, {row['seconds']:.1f} s"
        print(f"{problem} seed {seed} {arm}: {shown}", flush=True)
        return row


def _key(row: dict[str, Any]) -> Key:
    return row["problem"], row["setup"], row["seed"], row["arm"]


def run_arms(
    runs: Runs, problem: Problem, data: RealSet, seed: int, controllers: Sequence[str]
) -> None:
    """Train the arms of a problem and a seed that are missing: all widths and controllers."""
    setup = identify_setup(problem, data)
    for width in WIDTHS:
        key = (problem.name, setup, seed, f"x{width}")
        runs.ensure(key, partial(train_width, problem, data, seed, width))
    for controller in controllers:
        key = (problem.name, setup, seed, identify_controller(controller))
        runs.ensure(key, partial(grow_model, problem, data, seed, controller))


def plan(problems: list[Problem], n_seeds: int) -> Iterator[tuple[Problem, int]]:
    """Yield problems and seeds, one seed of all problems before the next."""
    for number in range(n_seeds):
        for problem in problems:
            for repeat in range(problem.repeats):
                yield problem, number * problem.repeats + repeat


def main() -> None:
    """Train what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=3, help="seeds; small sets get a multiple")
    parser.add_argument(
        "--controller", action="append", metavar="NAME", help="as in esper.grow; race and learned"
    )
    parser.add_argument("--only", action="append", choices=sorted(PROBLEMS), metavar="NAME")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="print the table; train nothing")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be at least 1")
    torch.set_num_threads(1)
    controllers = options.controller or CONTROLLERS
    try:
        arms = [identify_controller(controller) for controller in controllers]
    except EsperError as error:
        parser.error(f"--controller is {options.controller!r}: {error}")
    problems = [PROBLEMS[name] for name in options.only or PROBLEMS]
    runs, library = Runs(options.results), Library(options.data)
    if not options.table:
        for problem, seed in plan(problems, options.seeds):
            run_arms(runs, problem, library.load(problem.data), seed, controllers)
    setups = {each.name: identify_setup(each, library.load(each.data)) for each in problems}
    print(make_report(runs.rows(setups), problems, arms, options.results))


if __name__ == "__main__":
    main()
