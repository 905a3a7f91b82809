"""The command ``esper headroom``: what there is to win on a task before anyone trains for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.cli.evaluate import ProgressLine
from esper.cli.output import print_columns, print_json, print_wrapped, require_writable
from esper.cli.parsing import parse, read_table, require_counts
from esper.config.held_out_hosts import HEADROOM_HOSTS
from esper.invocation import program
from esper.training.signals import INTERRUPTED

if TYPE_CHECKING:
    from esper.evidence.headroom import Headroom


@dataclass(frozen=True, kw_only=True)
class HeadroomOptions:
    """Measure how much better each host's own best setting is than the best one for all hosts.

    That is what a controller that adapts to its host could win. It needs no controller.
    """

    task: str = "digits-family"
    """What hosts learn."""

    hosts: int = 128
    """Held-out hosts."""

    tuning_runs: int = 4096
    """Host runs for each family of settings, and again for trying the best on every host, twice."""

    price: float | None = None
    """Score that the reference run's FLOPs cost; by default the task's."""

    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = HEADROOM_HOSTS.first
    """The number of the first host, of 200,000 to 299,999; with another one, other hosts."""

    cache: str | None = None
    """A folder for what is done, so that the same command goes on where it was interrupted."""

    quiet: bool = False
    """Print nothing but one line at the end."""

    json: bool = False
    """Print a JSON object in the end, and nothing before."""


def run_headroom(words: Sequence[str]) -> int:
    """Measure, and print what was found."""
    options = parse(HeadroomOptions, words, command="headroom")
    require_counts(hosts=(options.hosts, 2), tuning_runs=(options.tuning_runs, 2))
    if options.cache is not None:
        require_writable(Path(options.cache))
    progress = ProgressLine(quiet=options.quiet or options.json)
    try:
        found = _measure(options, progress)
    except KeyboardInterrupt:
        progress.clear()
        kept = "what is done is kept, go on with" if options.cache else "begin again with"
        again = f"{program()} headroom {shlex.join(words)}"
        print(f"esper: interrupted; {kept}: {again}", file=sys.stderr)
        return INTERRUPTED
    progress.clear()
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
    )


def _show(found: Headroom) -> None:
    from esper.formatting import points

    print(f"{found.task} at price {found.price:g}, {found.n_hosts} held-out hosts\n")
    print_columns(
        [
            ("best setting for all", found.setting),
            ("its score", found.best_fixed.text(signed=False)),
            ("each host its own", f"{points(found.headroom)} more, chosen by another training"),
            ("with hindsight", f"{points(found.optimistic)} more, chosen by the test itself: luck"),
            ("settings tried", f"{found.n_candidates}, each at every stopping epoch"),
            ("tuning runs", f"{found.tuning_runs:,}"),
        ]
    )
    print()
    print_wrapped(found.sentence)
