"""``esper doctor``: check the installation."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Literal

from esper.cli.arguments import Metavar, parse
from esper.cli.output import existing_folder, print_columns, print_json
from esper.errors import EsperError, MissingDataError
from esper.installation import find_clash
from esper.storage.run_folder import runs_folder
from esper.version import __version__

PACKAGES = ("torch", "numpy", "gymnasium", "safetensors", "rich")
DISTRIBUTION = "esper-lite"
MIN_FREE_BYTES = 200 * 2**20
"""Enough for the checkpoints and telemetry of a run."""


Verdict = Literal["good", "note", "wrong"]
"""Whether a check passed; a note is something optional that is missing."""
_MARKS = {"good": "ok", "note": "note", "wrong": "WRONG"}


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    about: str
    """What was checked."""
    found: str
    """What was found, with advice unless it is good."""
    verdict: Verdict = "good"


def check_everything(runs_dir: str) -> list[Check]:
    """Run all checks, for runs stored in a folder."""
    checks = [*check_packages()]
    if all(check.verdict == "good" for check in checks):
        checks += [check_torch(), *check_kernels(), *check_tasks()]
    checks += [
        check_folder("runs folder", Path(runs_dir)),
        check_folder("temporary folder", Path(tempfile.gettempdir())),
        check_disk(Path(runs_dir)),
    ]
    return [*checks, *check_extras()]


def check_packages() -> Iterator[Check]:
    """Check that the required packages can be imported."""
    clash = find_clash()
    yield Check("esper", __version__) if clash is None else Check("esper", clash, "wrong")
    yield Check("python", f"{platform.python_version()} ({sys.executable})")
    for name in PACKAGES:
        try:
            importlib.import_module(name)
            yield Check(name, version(name))
        except Exception as error:  # a broken package can raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield Check(name, f"cannot be imported ({reason}); reinstall it", "wrong")


def check_torch() -> Check:
    """Report the devices, cores and threads available to PyTorch."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = "cpu"
    if torch.cuda.is_available():
        device += f", cuda ({torch.cuda.get_device_name()})"
    return Check(
        "device", f"{device}; {usable} of {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )


_COSTS = {
    "kernel draw": "a policy takes twice as long to choose the actions of 64 hosts",
    "kernel vector_hosts": "MLPs and small CNNs train at a thirtieth of the speed",
}
"""What it costs that a kernel is missing, as ``benchmarks/README.md`` shows."""


def check_kernels() -> Iterator[Check]:
    """Check which C kernels are compiled; each has a fallback in tensor operations."""
    root = Path(__file__).parents[1]
    for source in sorted(root.rglob("_*.c")):
        name = ".".join(("esper", *source.relative_to(root).with_suffix("").parts))
        about = f"kernel {source.stem.lstrip('_')}"
        try:
            importlib.import_module(name)
            yield Check(about, "compiled")
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not compiled" if missing else f"cannot be loaded ({error})"
            yield Check(
                about,
                f"{reason}; the same results, but {_COSTS[about]}. Reinstall with a C compiler.",
                "note",
            )


def check_tasks() -> Iterator[Check]:
    """Check that each task finds its data; data sets that don't ship with Esper are optional."""
    from esper.tasks import make_task, task_names

    for name in task_names():
        try:
            task = make_task(name)
            task.sample(0)
            yield Check(f"task {name}", "data found")
        except MissingDataError as error:
            yield Check(f"task {name}", f"data not found: {error}", "note")
        except EsperError as error:
            yield Check(f"task {name}", str(error), "wrong")


def check_folder(about: str, folder: Path) -> Check:
    """Check that a folder, or the parent it would be created in, is writable."""
    place = existing_folder(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"esper")
            file.flush()
    except OSError as error:
        return Check(about, f"{place} is not writable ({error.strerror})", "wrong")
    return Check(about, f"{folder.absolute()} is writable")


def check_disk(folder: Path) -> Check:
    """Check the free disk space in the runs folder."""
    free = shutil.disk_usage(existing_folder(folder)).free
    if free < MIN_FREE_BYTES:
        found = f"{free / 2**20:.0f} MiB free; free at least {MIN_FREE_BYTES / 2**20:.0f} MiB"
        return Check("disk", found, "wrong")
    return Check("disk", f"{free / 2**30:.1f} GiB free")


def check_extras() -> Iterator[Check]:
    """Check which optional extras are installed."""
    extras: dict[str, list[str]] = {}
    for line in requires(DISTRIBUTION) or []:
        matched = re.match(r"""([\w.-]+).*;.*extra == ["'](\w+)["']""", line)
        if matched:
            extras.setdefault(matched[2], []).append(matched[1])
    for extra, packages in extras.items():
        try:
            found = ", ".join(f"{name} {version(name)}" for name in packages)
            yield Check(f"extra {extra}", found)
        except PackageNotFoundError:
            advice = f'pip install "{DISTRIBUTION}[{extra}]"'
            yield Check(f"extra {extra}", f"not installed; {advice}", "note")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Check the installation: packages, compiled kernels, data, folders.

    Exits with 0 if training can work and with 1 otherwise.
    """

    runs_dir: Annotated[str | None, Metavar("FOLDER")] = None
    """Folder of the runs; by default $ESPER_RUNS, or else runs."""

    json: bool = False
    """Print JSON."""


def run_doctor(args: Sequence[str]) -> int:
    """Print all checks; return 1 if something is wrong."""
    options = parse(DoctorOptions, args, command="doctor")
    checks = check_everything(options.runs_dir or str(runs_folder()))
    wrong = [check for check in checks if check.verdict == "wrong"]
    if options.json:
        print_json({"can_train": not wrong, "checks": [asdict(check) for check in checks]})
    else:
        print_columns([(_MARKS[check.verdict], check.about, check.found) for check in checks])
        names = ", ".join(check.about for check in wrong)
        print(f"Not ready to train: fix {names}." if wrong else "Ready to train.")
    return 1 if wrong else 0
