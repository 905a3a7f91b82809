"""``esper headroom``: measure how much a controller could gain on a task before training one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esper.cli.output import print_columns, print_json, print_wrapped, require_writable
from esper.cli.parsing import Switch, optional, parse, read_table, require_counts, require_task
from esper.cli.progress_line import ProgressLine
from esper.config.held_out_hosts import HEADROOM_HOSTS
from esper.formatting import points
from esper.invocation import program
from esper.training.signals import INTERRUPTED

if TYPE_CHECKING:
    from esper.evidence.headroom import Headroom


@dataclass(frozen=True, kw_only=True)
class HeadroomOptions:
    """Measure how much a controller could gain on a task, before training one.

    Compares the best setting of each host with the best single setting for all hosts.
    """

    task: str = "digits-family"
    """Task of the hosts."""

    hosts: int = 128
    """Number of held-out hosts."""

    tuning_runs: int = 4096
    """Host runs for tuning each family of settings, and for each of two trials of the best ones."""

    price: Annotated[float | None, optional("PRICE")] = None
    """Price of the reference run's FLOPs in score; by default the task's."""

    task_options: Annotated[tuple[str, ...], optional("NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = HEADROOM_HOSTS.first
    """Number of the first host, 200000 to 299999; another number selects other hosts."""

    cache: Annotated[str | None, optional("FOLDER")] = None
    """Folder for finished work, so that the same command can resume after an interruption."""

    workers: Annotated[int | None, optional("N")] = None
    """Worker processes; 0 for none. By default as many as there are cores or groups of 128 hosts,
    if the work is large enough to gain."""

    ray_address: Annotated[str | None, optional("ADDRESS")] = None
    """Ray cluster that works instead: host:port, auto for the one this machine belongs to, or
    local."""

    quiet: Switch = False
    """Print only one line at the end."""

    json: Switch = False
    """Print only a JSON object at the end."""


def run_headroom(args: Sequence[str]) -> int:
    """Measure the headroom and print it."""
    options = parse(HeadroomOptions, args, command="headroom")
    require_counts(hosts=(options.hosts, 2), tuning_runs=(options.tuning_runs, 2))
    require_task(options.task)
    if options.cache is not None:
        require_writable(Path(options.cache))
    try:
        with ProgressLine(quiet=options.quiet or options.json) as progress:
            found = _measure(options, progress)
    except KeyboardInterrupt:
        kept = "finished work is saved, resume with" if options.cache else "start again with"
        again = f"{program()} headroom {shlex.join(args)}"
        print(f"esper: interrupted; {kept}: {again}", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        print_json(found.to_json())
    elif options.quiet:
        print(found.sentence)
    else:
        _show(found)
    return 0


def _measure(options: HeadroomOptions, progress: ProgressLine) -> Headroom:
    task_options = read_table("task_options", options.task_options)
    import torch

    from esper.evidence.headroom import headroom

    torch.set_num_threads(1)  # the hosts are small
    return headroom(
        options.task,
        n_hosts=options.hosts,
        tuning_runs=options.tuning_runs,
        price=options.price,
        task_options=task_options,
        seed=options.seed,
        folder=options.cache,
        on_progress=progress,
        workers=options.workers,
        ray_address=options.ray_address,
    )


def _show(found: Headroom) -> None:
    print_wrapped(found.sentence)
    print(f"\n{found.task} at price {found.price:g}, {found.n_hosts} held-out hosts:\n")
    print_columns(
        [
            ("best single setting", found.setting),
            ("its score", found.best_fixed.text(signed=False)),
            ("best per host", f"{points(found.headroom)}, chosen by a separate training run"),
            (
                "with hindsight",
                f"{points(found.optimistic)}, chosen by the test score: too high",
            ),
            ("settings tried", f"{found.n_candidates}, each at every stopping epoch"),
            ("tuning runs", f"{found.tuning_runs:,}"),
        ]
    )
