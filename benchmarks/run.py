"""Measure Esper against other libraries and against hardware limits.

Run:  make bench            or, where the peers are installed:  python benchmarks/run.py

Uses one thread unless a row says otherwise. Times are medians over rounds in which all candidates
take turns; ratios are formed within a round. Prints a table and writes all results as JSON to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import torch
from rich.console import Console

from rows import Row
from table import print_rows
from timing import FULL, QUICK, Effort

GROUPS = (
    "advantages",
    "masks",
    "update",
    "act",
    "collecting",
    "populations",
    "slots",
    "environment",
    "telemetry",
    "training",
    "host_epochs",
    "gpt_host",
    "grower",
)
PACKAGES = ("torch", "numpy", "stable-baselines3", "sb3-contrib", "torchrl", "tianshou", "numba")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    # Without a terminal rich assumes 80 columns, too few for a row.
    console = Console() if Console().is_terminal else Console(width=150)
    if arguments.profile:
        from update_profile import print_profile

        print_profile(console)
        return
    effort = QUICK if arguments.quick else FULL
    rows: list[Row] = []
    for group in [arguments.only] if arguments.only else GROUPS:
        with console.status(f"measuring {group}"):
            rows += importlib.import_module(group).run(effort)
    print_rows(console, rows, show_all=arguments.all)
    console.print(f"written to {write_json(rows, effort)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=GROUPS, help="measure one group")
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions, to check that it runs"
    )
    parser.add_argument("--all", action="store_true", help="show every peer, not only the fastest")
    parser.add_argument("--profile", action="store_true", help="profile an update")
    return parser.parse_args()


def write_json(rows: list[Row], effort: Effort) -> Path:
    """Write all rows, the machine and the package versions; return the file."""
    document = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
        },
        "packages": {name: version_of(name) for name in PACKAGES},
        "effort": asdict(effort),
        "rows": [{**asdict(row), "kind": row.kind.value, "is_met": row.is_met} for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
