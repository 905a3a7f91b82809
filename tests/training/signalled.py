"""Trains a tiny run; a script that tests send signals to or fill the disk of.

    signalled.py FOLDER [telemetry|checkpoint LIMIT]

With a limit, no file of that kind may grow beyond so many bytes; once that has stopped the run, it
is resumed without the limit. Prints the number of each step.
"""

from __future__ import annotations

import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from esper.errors import StorageError
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.training.runs import RunInterrupted, resume, train
from tests.training.tiny import Seen, liveliness, run_digests, tiny_config


def print_step(record: Any) -> None:
    if record.table == "steps" and record.env == 0:
        print(f"step {record.step}", flush=True)


def set_limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def limit_saves(size: int) -> None:
    """Set the limit while a checkpoint is saved, when no telemetry is pending."""
    save = CheckpointFolder.save

    def limited(*args: Any, **kwargs: Any) -> Any:
        set_limit(size)
        try:
            return save(*args, **kwargs)
        finally:
            set_limit(resource.RLIM_INFINITY)

    CheckpointFolder.save = limited


def main(folder: Path, what: str, limit: int) -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails instead
    save = CheckpointFolder.save
    if what == "telemetry":
        set_limit(limit)
    if what == "checkpoint":
        limit_saves(limit)
    try:
        with liveliness():
            train(tiny_config(), run_dir=folder, watchers=[Seen(print_step)])
    except RunInterrupted:
        return 130
    except StorageError as error:
        print(f"StorageError: {error}", flush=True)
        set_limit(resource.RLIM_INFINITY)
        CheckpointFolder.save = save
        with liveliness():
            resume(folder)
        print(run_digests(folder)["telemetry"], flush=True)
        return 3
    return 0


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    _, place, what, size = [*sys.argv, "", "0"][:4]
    sys.exit(main(Path(place), what, int(size)))
