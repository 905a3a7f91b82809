"""Makes the evidence on real data: plain training, a search over widths, and growth.

Run:  python benchmarks/evidence/real/download.py
      python benchmarks/evidence/real/run.py --seeds 3 --controller shipped
      python benchmarks/evidence/real/run.py --table      what there is so far, without training

Every training run adds a line to runs.jsonl in the folder of results; what is done is not done
again, so an interrupted run goes on. Fixed widths do not depend on the controller and are trained
once. The report and its figure are written at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from arms import WIDTHS, Outcome, grow_model, identify_controller, identify_setup, train_width
from download import DATA
from problems import PROBLEMS, Problem
from report import make_report, make_table
from sets import Library

RESULTS = Path(__file__).parents[1] / "results" / "real"
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


def grown_arm(controller: str) -> str:
    """Return the name of the arm that a controller grows."""
    return f"grown by {identify_controller(controller)}"


def run_all(runs: Runs, work: list[tuple[Problem, int]], library: Library, options: Any) -> None:
    """Train what is missing."""
    for problem, seed in work:
        data = library.load(problem.data)
        setup = identify_setup(problem, data)

        def train(multiple: int, at: Any = (problem, data, seed, setup)) -> None:
            each, samples, number, digest = at
            key = (each.name, digest, number, f"x{multiple}")
            runs.ensure(key, lambda: train_width(each, samples, number, multiple))

        for multiple in WIDTHS:
            train(multiple)
        if options.static_only:
            continue
        key = (problem.name, setup, seed, grown_arm(options.controller))
        row = runs.ensure(
            key, lambda at=(problem, data, seed): grow_model(*at, controller=options.controller)
        )
        if "error" not in row:
            train(row["details"]["scratch"])


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
    parser.add_argument("--controller", default="shipped", help="as in esper.grow")
    parser.add_argument("--only", action="append", choices=sorted(PROBLEMS), metavar="NAME")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER")
    parser.add_argument("--static-only", action="store_true", help="train fixed widths only")
    parser.add_argument("--table", action="store_true", help="print the table; train nothing")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be at least 1")
    torch.set_num_threads(1)
    problems = [PROBLEMS[name] for name in options.only or PROBLEMS]
    runs, library = Runs(options.results), Library(options.data)
    if not options.table:
        run_all(runs, list(plan(problems, options.seeds)), library, options)
    setups = {each.name: identify_setup(each, library.load(each.data)) for each in problems}
    rows, arm = runs.rows(setups), grown_arm(options.controller)
    if options.table:
        print(make_table(rows, problems, arm))
    elif not options.static_only:
        print(make_report(rows, problems, arm, options.results))


if __name__ == "__main__":
    sys.exit(main())
