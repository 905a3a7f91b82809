"""Makes the shipped controller and every number that the README and its card say about it.

Run:  make evidence          everything: about three hours on two cores
      make evidence EVIDENCE="--only real"    one part; --list says which there are

Five controllers are trained with the preset universal, two at a time, in runs/evidence/. The one
that did best in its own trials, on tasks of the prior that are for choosing, ships. A part that is
done is not done again; one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

import esper

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "runs" / "evidence"
RESULTS = HERE / "results"
SHIPPED = ROOT / "src" / "esper" / "tamiyo" / "controllers" / "shipped"
NAME = "universal"
RUNS = tuple(f"universal-{seed}" for seed in range(5))
PARTS = {
    "train": "five controllers: esper train --preset universal --seed 0 to 4",
    "ship": "the one with the best trials becomes the shipped controller",
    "prior": "held-out tasks of the prior: tuned rules, what it sees, headroom (prior/run.py)",
    "real": "real data: plain training and a search over widths (real/run.py)",
    "card": "the card of the shipped controller, from all results",
}


def main() -> None:
    """Do the parts that were asked for, in order."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=PARTS, help="do one part")
    parser.add_argument("--list", action="store_true", help="say which parts there are")
    arguments = parser.parse_args()
    if arguments.list:
        for name, summary in PARTS.items():
            print(f"{name:6} {summary}")
        return
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    WORK.mkdir(parents=True, exist_ok=True)
    for name in [arguments.only] if arguments.only else PARTS:
        DO[name]()


def train() -> None:
    """Train the runs that are not done, two at a time; the first that fails ends everything."""
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(partial(train_one, run)) for run in RUNS]:
            future.result()


def train_one(name: str) -> None:
    """Train a run, go on with it, or leave it if it is done."""
    folder, seed = WORK / name, name.rsplit("-", 1)[1]
    if (folder / "summary.json").exists():
        return
    words = ["train", "--preset", "universal", "--seed", seed, "--workers", "0"]
    words += ["--run-dir", str(folder)]
    is_known = (folder / "config.toml").exists()
    call_esper(f"{name}.txt", ["resume", str(folder)] if is_known else words)


def ship() -> None:
    """Export the run that did best in its own trials."""
    best = max(RUNS, key=best_trial)
    words = ["export-controller", str(WORK / best), "--out", str(SHIPPED), "--force"]
    call_esper("ship.txt", [*words, "--name", NAME])
    print(f"{best} is in {os.path.relpath(SHIPPED, ROOT)}")


def best_trial(name: str) -> float:
    """Return the best result of a run's trials, on tasks that are for choosing."""
    return max(esper.load_run(WORK / name).metrics()["eval/mean_reward"].values)


def evaluate_on_prior() -> None:
    """Evaluate all runs on held-out tasks of the prior."""
    runs = [str(WORK / run) for run in RUNS]
    call("prior.txt", [str(HERE / "prior" / "run.py"), "--runs", *runs])


def evaluate_on_real_data() -> None:
    """Grow models on real data with the shipped controller."""
    call("download.txt", [str(HERE / "real" / "download.py")])
    call("real.txt", [str(HERE / "real" / "run.py"), "--seeds", "3"])


def write_card() -> None:
    """Write the card from the claims of all results."""
    files = [str(RESULTS / part / "claims.json") for part in ("real", "prior")]
    call("card.txt", [str(ROOT / "tools" / "write_model_card.py"), str(SHIPPED), *files])


DO: dict[str, Callable[[], None]] = {
    "train": train,
    "ship": ship,
    "prior": evaluate_on_prior,
    "real": evaluate_on_real_data,
    "card": write_card,
}


def call_esper(log: str, words: Sequence[str]) -> None:
    """Run a command of Esper."""
    call(log, ["-m", "esper", *words])


def call(log: str, words: Sequence[str]) -> None:
    """Run Python; what it prints goes to a file, and how long it took is shown."""
    start, path = monotonic(), WORK / log
    shown = [os.path.relpath(word, ROOT) if word.startswith(str(ROOT)) else word for word in words]
    print(f"python {shlex.join(shown)}", flush=True)
    with path.open("a") as file:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}; see {os.path.relpath(path, ROOT)}")
    print(f"  done in {(monotonic() - start) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
