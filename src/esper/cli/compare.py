"""The command ``esper compare``: controllers beside one another on the same held-out hosts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from esper.cli.evaluate import require_counts
from esper.cli.evaluation_views import ProgressLine, comparison_sentences, show_comparison
from esper.cli.output import print_json
from esper.cli.parsing import UsageError, parse
from esper.cli.train import read_table
from esper.config.held_out_hosts import EVALUATION_HOSTS


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare the first of several controllers with each of the others, on the same hosts."""

    controllers: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Two or more: runs, saved controllers, shipped, wait, random, fixed, heuristic; or
    evaluation.json files."""

    hosts: int = 512
    """Held-out hosts."""

    price: float | None = None
    """Score that the reference run's FLOPs cost; by default the task's."""

    task: str | None = None
    """What hosts learn; by default what the learned controllers learned on."""

    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = EVALUATION_HOSTS.first
    """The number of the first host, of 100,000 to 199,999; with another one, other hosts."""

    quiet: bool = False
    """Print nothing but what is shown."""

    json: bool = False
    """Print a JSON object in the end, and nothing before."""


def run(words: Sequence[str]) -> int:
    """Compare, and print what is shown."""
    options = parse(Options, words, command="compare")
    if len(options.controllers) < 2:
        raise UsageError("compare needs two controllers at least; see esper compare --help.")
    require_counts(hosts=(options.hosts, 2))
    task_options = read_table("task_options", options.task_options)
    progress = ProgressLine(quiet=options.quiet or options.json)
    import torch

    from esper.evidence.claims import verdict_json
    from esper.evidence.compare import compare

    torch.set_num_threads(1)  # the hosts are small
    evidence = compare(
        list(options.controllers),
        n_hosts=options.hosts,
        price=options.price,
        task=options.task,
        task_options=task_options,
        seed=options.seed,
        command=f"esper compare {shlex.join(words)}",
        on_progress=progress,
    )
    progress.clear()
    if options.json:
        print_json(verdict_json(evidence))
    elif options.quiet:
        print("\n".join(comparison_sentences(evidence)))
    else:
        show_comparison(evidence)
    return 0
