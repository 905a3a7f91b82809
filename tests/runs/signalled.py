"""A process that trains a tiny run: run as a script by tests that signal it or fill its disk.

    signalled.py FOLDER [LIMIT]

With a limit no file may become larger than so many bytes. Says on stdout when it has taken steps.
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
from esper.runs.training import RunInterrupted, resume, train
from tests.runs.tiny import Seen, liveliness, run_digests, tiny_config


def tell(record: Any) -> None:
    if record.table == "steps" and record.env == 0:
        print(f"step {record.step}", flush=True)


def main(folder: Path, limit: int | None) -> int:
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with liveliness():
            train(tiny_config(), run_dir=folder, watchers=[Seen(tell)])
    except RunInterrupted:
        return 130
    except StorageError as error:
        print(f"StorageError: {error}", flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with liveliness():
            resume(folder)
        print(run_digests(folder)["telemetry"], flush=True)
        return 3
    return 0


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
