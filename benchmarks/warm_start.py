"""Compare what can be done with more training FLOPs for a model that is trained already.

Run:  make bench-warm-start   or:  python benchmarks/warm_start.py

Continue, widen, deepen, both, or begin again with a larger one. A second part teaches a model of
prose to write code, and measures what it forgets. Letters and Fashion-MNIST are read from packages
that `evidence/real/download.py` unpacks. Every finished training run is one line of
benchmarks/warm_start/runs.jsonl, and runs that are there are not repeated, so an interrupted
benchmark continues. results.md in the same folder has the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import torch

from warm_start_report import report
from warm_start_runs import (
    ALL_PROBLEMS,
    FORGETTING,
    PROBLEMS,
    PROSE,
    SIZES,
    TUNING_SEED,
    Job,
    run_job,
)

FOLDER = Path(__file__).parent / "warm_start"
N_SEEDS, N_FORGETTING = 5, 3
"""Seeds that are reported, and those of the part on forgetting."""
TUNED_AT = 0.5
"""The extra FLOPs at which settings are chosen; for larger models also that more than 1."""
FORGETTING_EXTRA = 0.5
ARMS = ("continue", "widen", "deepen", "both")
BASES = ("decayed", "constant")
SHARES = (1.0, 0.3, 0.1)
"""Learning rates of a trained model, relative to the one that it was trained with."""
LORA_SHARES = (3.0, 1.0, 0.3)

Row = dict[str, Any]


class Campaign:
    """All runs: those on one seed that settings are chosen by, and those that are reported."""

    def __init__(self, path: Path, *, is_small: bool, only: str | None, is_report: bool) -> None:
        self.names = [name for name in PROBLEMS if only in (None, name)]
        self.n_seeds, self.n_forgetting = (2, 1) if is_small else (N_SEEDS, N_FORGETTING)
        self.has_forgetting = only in (None, PROSE)
        self._is_small, self._is_report, self._path = is_small, is_report, path
        self._found: dict[str, list[Row]] = {}
        text = path.read_text() if path.exists() else ""
        self._is_cut = not text.endswith("\n") and text != ""
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            self._found[_key(row["job"])] = row["results"]

    def run_all(self) -> None:
        """Run what is missing, what is most wanted first."""
        for base in BASES:
            for name, seed in product(reversed(self.names), range(self.n_seeds)):
                if base in PROBLEMS[name].bases:
                    self.arms(name, base, seed)
        for seed in range(self.n_forgetting if self.has_forgetting else 0):
            self.forgetting(seed)

    def arms(self, name: str, base: str, seed: int) -> dict[str, list[Row]]:
        """Return the results of the given model and of each arm, by budget."""
        found = {"given": [self._base(name, self.base_rate(name), seed)[BASES.index(base)]]}
        rates, extras = self.rates(name, base), PROBLEMS[name].extra
        for arm in ARMS:
            found[arm] = self._warm(name, seed, arm, base, rates[arm], extras)
        for which, shift in (("extra", 0.0), ("total", 1.0)):
            size, rate = self.larger(name, shift)
            budgets = [extra + shift for extra in extras]
            # One run serves both if it can.
            if self.larger(name, 0.0) == self.larger(name, 1.0):
                all_budgets = sorted({*extras, *(extra + 1.0 for extra in extras)})
            else:
                all_budgets = budgets
            rows = self._scratch(name, seed, size, rate, tuple(all_budgets))
            found[f"larger, {which} FLOPs"] = [row for row in rows if row["budget"] in budgets]
        return found

    def base_rate(self, name: str) -> float:
        """Return the learning rate of the given model."""
        problem = ALL_PROBLEMS[name]
        return min(
            problem.rates,
            key=lambda rate: problem.badness(self._base(name, rate, TUNING_SEED)[0]),
        )

    def rates(self, name: str, base: str) -> dict[str, float]:
        """Return the learning rate of each arm that begins with a trained model."""
        rates = [self.base_rate(name) * share for share in SHARES]

        def badness(arm: str, rate: float) -> float:
            (row,) = self._warm(name, TUNING_SEED, arm, base, rate, (TUNED_AT,))
            return PROBLEMS[name].badness(row)

        return {arm: min(rates, key=lambda rate: badness(arm, rate)) for arm in ARMS}

    def larger(self, name: str, shift: float) -> tuple[str, float]:
        """Return the best size of a larger model from scratch, and then its best rate."""
        first = self.base_rate(name)

        def badness(trial: tuple[str, float]) -> float:
            rows = self._scratch(name, TUNING_SEED, *trial, (TUNED_AT, 1.0 + TUNED_AT))
            return PROBLEMS[name].badness(rows[int(shift > 0.0)])

        size, _ = min(((size, first) for size in SIZES), key=badness)
        return min(((size, rate) for rate in (first, 0.5 * first)), key=badness)

    def forgetting(self, seed: int) -> dict[tuple[str, float], Row]:
        """Return the results of each way of learning a second text, at each learning rate."""
        found: dict[tuple[str, float], Row] = {}
        for arm in FORGETTING:
            for share in LORA_SHARES if arm == "LoRA" else SHARES:
                rate = self.base_rate(PROSE) * share
                (found[arm, share],) = self._warm(
                    PROSE, seed, arm, "decayed", rate, (FORGETTING_EXTRA,)
                )
        return found

    def _base(self, name: str, rate: float, seed: int) -> list[Row]:
        return self._run(Job(problem=name, seed=seed, arm="base", rate=rate, budgets=(1.0,)))

    def _warm(
        self, name: str, seed: int, arm: str, base: str, rate: float, budgets: tuple[float, ...]
    ) -> list[Row]:
        given = {"base": base, "base_rate": self.base_rate(name)}
        return self._run(Job(problem=name, seed=seed, arm=arm, rate=rate, budgets=budgets, **given))

    def _scratch(
        self, name: str, seed: int, size: str, rate: float, budgets: tuple[float, ...]
    ) -> list[Row]:
        job = Job(problem=name, seed=seed, arm="scratch", rate=rate, budgets=budgets, size=size)
        return self._run(job)

    def _run(self, job: Job) -> list[Row]:
        """Return the results of a job, which is done if it has none.

        Raises:
            LookupError: If it has none, and only a report is wanted.
        """
        job = replace(job, is_small=self._is_small)
        fields = asdict(job)
        if _key(fields) not in self._found:
            if self._is_report:
                raise LookupError(str(job))
            results = run_job(job)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                line = json.dumps({"job": fields, "results": results})
                file.write("\n" * self._is_cut + line + "\n")
                file.flush()
                os.fsync(file.fileno())
            self._is_cut = False
            self._found[_key(fields)] = json.loads(json.dumps(results))
            seconds = sum(each["seconds"] for each in results)
            print(f"{len(self._found)}: {job}: {seconds:.0f} s", flush=True)
        return self._found[_key(fields)]


def _key(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write its tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[*PROBLEMS, PROSE], help="run one part")
    parser.add_argument("--small", action="store_true", help="tiny, to check that it runs")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--nice", type=int, default=10, help="niceness of this process")
    parser.add_argument("--report", action="store_true", help="only summarize what was run")
    given = parser.parse_args(arguments)
    os.nice(given.nice)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.out or Path(temporary if given.small else FOLDER)
        options: dict[str, Any] = {"is_small": given.small, "only": given.only}
        campaign = Campaign(folder / "runs.jsonl", is_report=given.report, **options)
        if not given.report:
            campaign.run_all()
        text = report(campaign)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
