"""Compare simple controllers on the same hosts: no growth, schedules, random growth, a heuristic.

Each controller steers the same hosts, drawn from a distribution of tasks, for one episode. The
table shows the mean score of the final hosts on held-out samples, what training them cost, and the
mean difference from no growth, paired by host.

Run:  python examples/compare_controllers.py
      python examples/compare_controllers.py --task spirals --hosts 32
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import esper
from esper.errors import EsperError
from esper.tamiyo import Controller, NoGrowth, grow_once, make_controller


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # hosts this small train faster on one thread
    try:
        envs = esper.GrowthVectorEnv(
            arguments.task, arguments.hosts, autoreset=False, purpose="tuning"
        )
        controllers = make_controllers(envs)
        results = {
            name: esper.run_episodes(envs, controller, seed=arguments.seed)
            for name, controller in controllers.items()
        }
    except EsperError as error:
        print(f"compare_controllers: {error}", file=sys.stderr)
        sys.exit(2)
    console = Console() if Console().is_terminal else Console(width=110)
    console.print(make_table(arguments.task, results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="digits-family", help="task name, or my_module:make_task")
    parser.add_argument("--hosts", type=int, default=64, help="number of hosts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the hosts")
    return parser.parse_args()


def make_controllers(envs: esper.GrowthVectorEnv) -> dict[str, Controller]:
    """Return the controllers by name, the baseline first."""
    half = max(1, envs.task.budget.n_epochs // 2)
    controllers: dict[str, Controller] = {
        "no-growth": NoGrowth(),
        f"stop after {half}": NoGrowth(finish_after=half),
        "grow once": grow_once(envs.layout),
    }
    for name in ("random", "heuristic"):
        controllers[name] = make_controller(name, envs.layout)
    return controllers


def make_table(task: str, results: dict[str, esper.EpisodeResults]) -> Table:
    """Return a table with one row per controller."""
    baseline = next(iter(results.values()))
    table = Table(title=f"{task}, {len(baseline.returns)} hosts")
    for name in ("controller", "score", "FLOPs", "parameters", "return", "return - no growth's"):
        table.add_column(name, justify="left" if name == "controller" else "right")
    for name, result in results.items():
        difference = result.returns - baseline.returns
        # Twice the standard error of the mean of paired differences.
        error = 2 * difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0
        parameters = result.host_parameters + result.seed_parameters
        table.add_row(
            name,
            f"{result.scores.mean():.3f}",
            f"{result.flops.mean():.2f}",
            f"{parameters.mean():,.0f}",
            f"{result.returns.mean():.3f}",
            "" if result is baseline else f"{difference.mean():+.3f} ± {error:.3f}",
        )
    return table


if __name__ == "__main__":
    main()
