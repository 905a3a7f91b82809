"""A task with another one beside it, whose hosts are of another design."""

from __future__ import annotations

from dataclasses import replace

from esper.tasks import Task, make_task

NAME = "tests.joint_tasks:make_joint_task"
SHARE = 0.4


def make_joint_task(n_epochs: int = 6, batches_per_epoch: int = 1) -> Task:
    """MLPs on the digits, with CNNs beside them."""
    mlps, cnns = (
        make_task("digits", host=host, n_epochs=n_epochs, batches_per_epoch=batches_per_epoch)
        for host in ("mlp", "cnn")
    )
    return replace(mlps, beside=((cnns, SHARE),))
