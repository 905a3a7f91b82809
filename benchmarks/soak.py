"""Memory, open files and telemetry of long runs, round by round, as a figure.

    make soak

Trains on tiny hosts for 500 rounds, with 4 hosts and with 128, and draws `docs/images/soak.png`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROUNDS = 500
FIGURE = Path(__file__).parents[1] / "docs/images/soak.png"


class Usage:
    """Notes what the process uses at the end of each round."""

    def __init__(self, database: Path) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self._database = database

    def write(self, record: Any) -> None:
        """Note the usage if a round ends."""
        if record.table != "rounds":
            return
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(os.listdir("/proc/self/fd"))
        size = sum(
            path.stat().st_size for path in self._database.parent.glob(f"{self._database.name}*")
        )
        self.rows.append((pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files, size / 1e6))

    def close(self) -> None:
        """Do nothing; all is in memory."""


def soak(n_hosts: int, rounds: int) -> list[tuple[float, float, float]]:
    """Return megabytes in memory, open files and megabytes of telemetry after each round."""
    import esper

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        usage = Usage(folder / "telemetry.sqlite")
        esper.train(
            task="spirals",
            task_options={"batches_per_epoch": 2},
            rounds=rounds,
            envs=n_hosts,
            n_steps=4,
            budget={"n_epochs": 8},
            ppo={"n_minibatches": 1},
            evaluation={"eval_freq": 20, "n_eval_episodes": 8, "n_final_episodes": 8},
            checkpoints={"save_freq": 8},
            run_dir=folder,
            watchers=[usage],
        )
    return usage.rows


def describe(rows: np.ndarray) -> str:
    """Say what grows between round 100 and the last one."""
    late = rows[min(100, len(rows) // 2) :]
    slope = np.polyfit(np.arange(len(late)), late[:, 0], 1)[0]
    return (
        f"{late[0, 0]:.0f} MB in memory, then {late[-1, 0]:.0f} MB ({1000 * slope:+.1f} kB a "
        f"round); {late[0, 1]:.0f} open files, then {late[-1, 1]:.0f}; telemetry "
        f"{1000 * (late[-1, 2] - late[0, 2]) / len(late):.1f} kB a round"
    )


def draw(found: dict[int, np.ndarray], path: Path) -> None:
    """Draw what the runs used, one column for each quantity."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
    for axis, column, label in zip(
        axes, range(3), ("memory (MB)", "open files", "telemetry (MB)"), strict=True
    ):
        for n_hosts, rows in found.items():
            line = axis.plot(np.arange(1, len(rows) + 1), rows[:, column], label=f"{n_hosts} hosts")
            line[0].set_alpha(0.7)
        maximum = max(rows[:, column].max() for rows in found.values())
        axis.set(xlabel="round", ylabel=label, ylim=(0, 1.15 * maximum))
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 128])
    parser.add_argument("--out", type=Path, default=FIGURE)
    options = parser.parse_args()
    found: dict[int, np.ndarray] = {}
    for n_hosts in options.hosts:
        # A process of its own, so that nothing of another run is counted.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[n_hosts] = np.array(pool.apply(soak, (n_hosts, options.rounds)))
        print(f"{n_hosts} hosts: {describe(found[n_hosts])}", flush=True)
    draw(found, options.out)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
