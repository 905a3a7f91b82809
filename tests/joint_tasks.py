"""Tasks with a variant of another host design."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from esper.growth.placement import add_slots
from esper.tasks import Task, make_task

NAME = "tests.joint_tasks:make_joint_task"
NAMED = "tests.joint_tasks:make_named_task"
SHARE = 0.4


def make_joint_task(n_epochs: int = 6, batches_per_epoch: int = 1) -> Task:
    """Return MLPs on the digits, with CNNs as a variant."""
    mlps, cnns = (
        make_task("digits", host=host, n_epochs=n_epochs, batches_per_epoch=batches_per_epoch)
        for host in ("mlp", "cnn")
    )
    return replace(mlps, variants=((cnns, SHARE),))


def make_named_task(n_epochs: int = 6, batches_per_epoch: int = 1) -> Task:
    """Return MLPs on the digits, with a variant whose slots have other names."""
    mlps, _ = make_joint_task(n_epochs, batches_per_epoch).designs

    def make_named_host(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
        return add_slots(model, at=list("0123"), sample_input=torch.zeros(2, 64))

    return replace(mlps, variants=((replace(mlps, make_host=make_named_host), SHARE),))
