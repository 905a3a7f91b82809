"""Makes every number of the README and of the shipped controller's card that is about controllers.

Run:  make evidence          everything: some hours on two cores
      make evidence EVIDENCE="--only mlp"     one part; --list says which there are

Runs are trained two at a time in runs/evidence/. A part that is done is not done again; one that
was interrupted goes on. Results are copied to benchmarks/evidence/results/, a folder for each part.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

import esper

ROOT = Path(__file__).parents[2]
WORK = ROOT / "runs" / "evidence"
RESULTS = Path(__file__).parent / "results"
SHIPPED = ROOT / "src" / "esper" / "tamiyo" / "controllers" / "shipped"
SEEDS = range(5)
QUICK_SEEDS = range(2)
KEPT = ("evaluation.json", "evaluation.md", "pareto.png")


@dataclass(frozen=True, kw_only=True)
class Part:
    """An evaluation of several runs."""

    name: str
    runs: tuple[str, ...]
    options: str
    """What ``esper evaluate`` is called with besides."""
    summary: str


FULL = tuple(f"seed-{seed}" for seed in SEEDS)
ALONE = tuple(f"alone-{seed}" for seed in SEEDS)
"""Controllers that learned on MLPs alone."""
QUICK = tuple(f"quick-{seed}" for seed in QUICK_SEEDS)
TRAINING = {
    "seed": "--preset digits-family",
    "alone": "--preset digits-family --task-options host=mlp --envs 128",
    "quick": "--preset quick",
}
"""What ``esper train`` is called with, by the kind of run."""
FEW = "--arms learned,wait,fixed,heuristic,static"
MLP, CNN = ("--task digits-family --task-options host=" + host for host in ("mlp", "cnn"))
PARTS = (
    Part(
        name="mlp",
        runs=FULL,
        options=f"{MLP} --hosts 512 --tuning-runs 4096",
        summary="all arms on MLPs of digits-family",
    ),
    Part(
        name="mlp-alone",
        runs=ALONE,
        options=f"{MLP} --hosts 512 --tuning-runs 4096",
        summary="the same for controllers that learned on MLPs alone",
    ),
    Part(
        name="prices",
        runs=FULL,
        options=f"{MLP} --hosts 256 --tuning-runs 2048 --price 0.05 0.1 0.2 {FEW}",
        summary="the same at other prices",
    ),
    Part(
        name="quick",
        runs=QUICK,
        options=f"--hosts 512 --tuning-runs 4096 {FEW}",
        summary="what the quick preset learns in a few minutes",
    ),
    Part(
        name="cnn",
        runs=FULL,
        options=f"{CNN} --hosts 128 --tuning-runs 512 {FEW},scratch_same_epochs,shuffled",
        summary="CNNs of digits-family",
    ),
    Part(
        name="spirals",
        runs=FULL,
        options=f"--task spirals --hosts 256 --tuning-runs 1024 {FEW}",
        summary="transfer without training again",
    ),
    Part(
        name="fashion-mnist",
        runs=FULL,
        options="--task fashion-mnist --task-options image_size=14 host=mlp n_train=1000 "
        f"n_validation=600 --hosts 64 --tuning-runs 128 {FEW}",
        summary="transfer without training again",
    ),
)


def main() -> None:
    """Do the parts that were asked for."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=[*names, "train", "ship"], help="do one part")
    parser.add_argument("--list", action="store_true", help="say which parts there are")
    arguments = parser.parse_args()
    if arguments.list:
        for part in PARTS:
            print(f"{part.name:14} {part.summary}: esper evaluate {part.options}")
        return
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in PARTS if arguments.only in (None, part.name)]
    runs = FULL + ALONE + QUICK if arguments.only == "train" else ()
    needed = dict.fromkeys([*runs, *(run for part in wanted for run in part.runs)])
    in_pairs([partial(train, run) for run in needed])
    in_pairs([partial(evaluate, part) for part in wanted])
    if arguments.only in (None, "ship"):
        ship()


def in_pairs(jobs: Sequence[Callable[[], None]]) -> None:
    """Do jobs, two at a time; the first that fails ends everything."""
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def train(name: str) -> None:
    """Train a run, go on with it, or leave it if it is done."""
    folder, (kind, seed) = WORK / name, name.rsplit("-", 1)
    if (folder / "summary.json").exists():
        return
    if (folder / "config.toml").exists():
        call(f"{name}.txt", ["resume", str(folder)])
        return
    words = ["train", *TRAINING[kind].split(), "--seed", seed, "--run-dir", str(folder)]
    call(f"{name}.txt", words)


def evaluate(part: Part) -> None:
    """Evaluate the runs of a part and keep what was found."""
    out, kept = WORK / part.name, RESULTS / part.name
    runs = [os.path.relpath(WORK / run, ROOT) for run in part.runs]
    words = ["evaluate", *runs, *shlex.split(part.options), "--out", os.path.relpath(out, ROOT)]
    call(f"{part.name}.txt", words)
    kept.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (out / name).exists():
            shutil.copyfile(out / name, kept / name)


def ship() -> None:
    """Export the run that did best in its own trials, and write its card from the results."""
    best = max(FULL, key=best_trial)
    words = ["export-controller", str(WORK / best), "--out", str(SHIPPED), "--force"]
    call("ship.txt", [*words, "--name", "digits-family", "--greedy"])
    files = [str(RESULTS / part.name / KEPT[0]) for part in PARTS if part.runs == FULL]
    words = [sys.executable, str(ROOT / "tools/write_model_card.py"), str(SHIPPED), *files]
    subprocess.run(words, check=True, cwd=ROOT)
    print(f"{best} is in {os.path.relpath(SHIPPED, ROOT)}")


def best_trial(name: str) -> float:
    """Return the best result of a run's trials, on hosts that are for choosing."""
    return max(esper.load_run(WORK / name).metrics()["eval/mean_reward"].values)


def call(log: str, words: Sequence[str]) -> None:
    """Run a command of Esper; what it prints goes to a file, and how long it took is shown."""
    start, path = monotonic(), WORK / log
    print(f"esper {shlex.join(words)}", flush=True)
    with path.open("a") as file:
        done = subprocess.run(
            [sys.executable, "-m", "esper", *words], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}; see {os.path.relpath(path, ROOT)}")
    print(f"  done in {(monotonic() - start) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
