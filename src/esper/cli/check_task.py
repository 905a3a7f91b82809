"""``esper check-task``: whether the hosts of a task are trained compiled, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time
from typing import Annotated

from esper.cli.arguments import Positional, parse, require_task
from esper.cli.output import print_columns, print_wrapped
from esper.config.checks import PositiveInt
from esper.config.run import OptionValue
from esper.formatting import listed


@dataclass(frozen=True, kw_only=True)
class CheckTaskOptions:
    """Check a task: which engine trains its hosts, why, and how fast."""

    task: Annotated[str, Positional("TASK")]
    """A registered name, or module:function of your own."""

    task_options: dict[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    """Options of the task."""

    hosts: PositiveInt = 16
    """Hosts to train."""

    epochs: PositiveInt = 4
    """Epochs to train them, with no growth."""


def run_check_task(args: Sequence[str]) -> int:
    """Train a few hosts with no growth, and print which engine did and how fast."""
    options = parse(CheckTaskOptions, args, command="check-task")
    require_task(options.task)
    import numpy as np
    import torch

    from esper.environment import GrowthVectorEnv
    from esper.lifecycle.factored_actions import HEAD_NAMES
    from esper.populations.vector_programs import compiled_layers
    from esper.tasks.registry import create_task

    torch.set_num_threads(1)
    envs = GrowthVectorEnv(create_task(options.task, options.task_options), options.hosts)
    envs.reset(seed=0)
    waits = np.zeros((options.hosts, len(HEAD_NAMES)), np.int64)
    start = process_time()
    for _ in range(options.epochs):
        envs.step(waits)
    spent = max(process_time() - start, 1e-9)
    forms = envs.growth.hosts.forms()
    print(repr(envs.task))
    print_columns([(f"  {count} of {options.hosts} hosts", form) for form, count in forms.items()])
    speed = options.hosts * options.epochs / spent
    print(f"  {speed:,.0f} host-epochs per second of CPU time, with no growth")
    if set(forms) != {"compiled"}:
        print()
        print_wrapped(
            "Compiled hosts train many times as fast. They are built by nn.Sequential, or are the "
            f"MLPs and CNNs of esper.make_host, from {listed(compiled_layers())} on the CPU in one "
            "dtype, without activations in place, frozen parameters and hooks; convolutions keep "
            "the size of their input. PyTorch trains all others."
        )
    return 0
