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
from pathlib import Path
from typing import Any

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import torch

from warm_start_problems import PROBLEMS, PROSE
from warm_start_report import report
from warm_start_runs import FORGETTING, TUNING_SEED, Job, run_job

FOLDER = Path(__file__).parent / "warm_start"
N_SEEDS = 5
EXTRA = (0.25, 0.5, 1.0, 2.0)
"""More FLOPs for the given model, relative to those it was trained with."""
TUNED_AT = 1.0
"""The extra FLOPs at which learning rates are chosen."""
FORGETTING_EXTRA, FORGETTING_RATE = 0.5, 5e-3
ARMS = ("continue", "widen", "deepen", "both")
BASES = ("decayed", "constant")
SIZES = ("wide", "deep", "both")
SHARES = (1.0, 0.3, 0.1)
"""Learning rates of a trained model, relative to the one that it was trained with."""
LORA_SHARES = (3.0, 1.0, 0.3)


class Campaign:
    """All runs: those on one seed that settings are chosen by, and those that are reported."""

    def __init__(self, path: Path, *, is_small: bool, only: str | None, is_report: bool) -> None:
        self.names = [name for name in PROBLEMS if only in (None, name)]
        self.n_seeds = 2 if is_small else N_SEEDS
        self.has_forgetting = only in (None, PROSE.name)
        self._is_small, self._is_report, self._path = is_small, is_report, path
        self._found: dict[str, list[dict[str, Any]]] = {}
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
        for name in self.names:
            for base in BASES:
                self.rates(name, base)
        for seed in range(self.n_seeds):
            for name in self.names:
                self.given(name, "decayed", seed)
                self.grown(name, "decayed", seed)
                self.scratch(name, seed)
            if self.has_forgetting:
                self.forgetting(seed)
        for seed in range(self.n_seeds):
            for name in self.names:
                self.grown(name, "constant", seed)

    def base_rate(self, name: str) -> float:
        """Return the learning rate of the given model."""
        return min(
            ((self._base(name, rate, TUNING_SEED)[0]["validation"], rate))
            for rate in PROBLEMS[name].rates
        )[1]

    def rates(self, name: str, base: str) -> dict[str, float]:
        """Return the learning rate of each arm that begins with a trained model."""
        rate, found = self.base_rate(name), dict[str, float]()
        for arm in ARMS:
            losses = {
                share: self._warm(name, TUNING_SEED, arm, base, rate * share, (TUNED_AT,))
                for share in SHARES
            }
            found[arm] = rate * min(losses, key=lambda share: losses[share][0]["validation"])
        return found

    def grown(self, name: str, base: str, seed: int) -> dict[str, list[dict[str, Any]]]:
        """Return the results of each arm that begins with a trained model."""
        rates = self.rates(name, base)
        return {arm: self._warm(name, seed, arm, base, rates[arm], EXTRA) for arm in ARMS}

    def given(self, name: str, base: str, seed: int) -> dict[str, Any]:
        """Return the results of the trained model as it is."""
        return self._base(name, self.base_rate(name), seed)[BASES.index(base)]

    def larger(self, name: str, budget: float) -> tuple[str, float]:
        """Return the size and rate of a larger model from scratch, chosen at a tuned budget."""
        trials = {
            (size, rate): self._scratch(name, TUNING_SEED, size, rate, (TUNED_AT, 1.0 + TUNED_AT))
            for size in SIZES
            for rate in (self.base_rate(name), 0.5 * self.base_rate(name))
        }
        index = int(budget > TUNED_AT)
        return min(trials, key=lambda trial: trials[trial][index]["validation"])

    def scratch(self, name: str, seed: int) -> dict[str, list[dict[str, Any]]]:
        """Return the results of larger models with the extra and with the total FLOPs."""
        total = tuple(1.0 + extra for extra in EXTRA)
        choices = self.larger(name, TUNED_AT), self.larger(name, 1.0 + TUNED_AT)
        if choices[0] == choices[1]:  # one run serves both
            budgets = tuple(sorted({*EXTRA, *total}))
            rows = self._scratch(name, seed, *choices[0], budgets)
            both = [[r for r in rows if r["budget"] in wanted] for wanted in (EXTRA, total)]
        else:
            both = [
                self._scratch(name, seed, *choice, budgets)
                for choice, budgets in zip(choices, (EXTRA, total), strict=True)
            ]
        return {"larger, extra FLOPs": both[0], "larger, total FLOPs": both[1]}

    def forgetting(self, seed: int) -> dict[tuple[str, float], dict[str, Any]]:
        """Return the results of each way of learning a second text, at each learning rate."""
        rate = FORGETTING_RATE
        found: dict[tuple[str, float], dict[str, Any]] = {}
        for arm in FORGETTING:
            for share in LORA_SHARES if arm == "LoRA" else SHARES:
                (found[arm, share],) = self._warm(
                    PROSE.name, seed, arm, "decayed", rate * share, (FORGETTING_EXTRA,), rate
                )
        return found

    def _base(self, name: str, rate: float, seed: int) -> list[dict[str, Any]]:
        return self._run(Job(problem=name, seed=seed, arm="base", rate=rate, budgets=(1.0,)))

    def _warm(
        self,
        name: str,
        seed: int,
        arm: str,
        base: str,
        rate: float,
        budgets: tuple[float, ...],
        base_rate: float | None = None,
    ) -> list[dict[str, Any]]:
        base_rate = base_rate or self.base_rate(name)
        return self._run(
            Job(
                problem=name,
                seed=seed,
                arm=arm,
                rate=rate,
                budgets=budgets,
                base=base,
                base_rate=base_rate,
            )
        )

    def _scratch(
        self, name: str, seed: int, size: str, rate: float, budgets: tuple[float, ...]
    ) -> list[dict[str, Any]]:
        return self._run(
            Job(problem=name, seed=seed, arm="scratch", rate=rate, budgets=budgets, size=size)
        )

    def _run(self, job: Job) -> list[dict[str, Any]]:
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
    parser.add_argument("--only", choices=[*PROBLEMS, PROSE.name], help="run one part")
    parser.add_argument("--small", action="store_true", help="tiny, to check that it runs")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--nice", type=int, default=10, help="niceness of this process")
    parser.add_argument("--report", action="store_true", help="only summarize what was run")
    given = parser.parse_args(arguments)
    os.nice(given.nice)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.out or Path(temporary if given.small else FOLDER)
        campaign = Campaign(
            folder / "runs.jsonl", is_small=given.small, only=given.only, is_report=given.report
        )
        if not given.report:
            campaign.run_all()
        text = report(campaign)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
