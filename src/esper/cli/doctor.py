"""What ``esper doctor`` looks at; each look gives what was found and whether it is good."""

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
from enum import Enum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from esper.cli.output import existing_folder, print_columns, print_json
from esper.cli.parsing import parse
from esper.errors import EsperError, MissingDataError
from esper.storage.run_folder import runs_folder
from esper.version import __version__

PACKAGES = ("torch", "numpy", "gymnasium", "safetensors", "rich", "tyro")
DISTRIBUTION = "esper-lite"
LEAST_FREE_BYTES = 200 * 2**20
"""What a run's checkpoints and records need, with some to spare."""

_OTHER_EXTRAS = ("dev", "bench")


class Verdict(Enum):
    """What a finding means for training."""

    GOOD = "good"
    NOTE = "note"
    """Something optional is missing."""
    WRONG = "wrong"
    """Training cannot work."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    about: str
    """The thing."""
    found: str
    """What was found, and what to do if it is not good."""
    verdict: Verdict = Verdict.GOOD


def check_everything(runs_dir: str) -> list[Check]:
    """Return all findings, for runs that would be put into a folder."""
    checks = [*check_packages()]
    if all(check.verdict == Verdict.GOOD for check in checks):
        checks += [check_torch(), *check_kernels(), *check_tasks()]
    checks += [
        check_folder("runs folder", Path(runs_dir)),
        check_folder("temporary folder", Path(tempfile.gettempdir())),
        check_disk(Path(runs_dir)),
    ]
    return [*checks, *check_extras()]


def check_packages() -> Iterator[Check]:
    """Look whether the packages that Esper needs can be imported, and their versions."""
    yield Check("esper", __version__)
    yield Check("python", f"{platform.python_version()} ({sys.executable})")
    for name in PACKAGES:
        try:
            importlib.import_module(name)
            yield Check(name, version(name))
        except Exception as error:  # A broken package can raise anything while it is imported.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield Check(name, f"cannot be imported ({reason}); reinstall it", Verdict.WRONG)


def check_torch() -> Check:
    """Look at the threads and devices that torch would use."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = "cpu"
    if torch.cuda.is_available():
        device += f", cuda ({torch.cuda.get_device_name()})"
    return Check(
        "device", f"{device}; {usable} of {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )


def check_kernels() -> Iterator[Check]:
    """Look which of the kernels in C were built; each has a form in tensor operations."""
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
                about, f"{reason}; slower, same numbers. Reinstall with a C compiler.", Verdict.NOTE
            )


def check_tasks() -> Iterator[Check]:
    """Look whether each task finds its data; those that do not come with Esper are optional."""
    from esper.tasks import make_task, task_names

    for name in task_names():
        try:
            task = make_task(name)
            task.sample(0)
            yield Check(f"task {name}", "data found")
        except MissingDataError as error:
            yield Check(f"task {name}", f"data not found: {error}", Verdict.NOTE)
        except EsperError as error:
            yield Check(f"task {name}", str(error), Verdict.WRONG)


def check_folder(about: str, folder: Path) -> Check:
    """Look whether files can be written to a folder, or to the one that it would be made in."""
    place = existing_folder(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"esper")
            file.flush()
    except OSError as error:
        return Check(about, f"{place} cannot be written to ({error.strerror})", Verdict.WRONG)
    return Check(about, f"{folder.absolute()} can be written to")


def check_disk(folder: Path) -> Check:
    """Look how much room there is where runs would be."""
    free = shutil.disk_usage(existing_folder(folder)).free
    if free < LEAST_FREE_BYTES:
        found = f"{free / 2**20:.0f} MiB free; make room for {LEAST_FREE_BYTES / 2**20:.0f} MiB"
        return Check("disk", found, Verdict.WRONG)
    return Check("disk", f"{free / 2**30:.1f} GiB free")


def check_extras() -> Iterator[Check]:
    """Look which extras are installed."""
    for extra, packages in extras().items():
        missing = [name for name in packages if not _is_installed(name)]
        if missing:
            advice = f'pip install "{DISTRIBUTION}[{extra}]"'
            yield Check(f"extra {extra}", f"not installed; {advice}", Verdict.NOTE)
        else:
            found = ", ".join(f"{name} {version(name)}" for name in packages)
            yield Check(f"extra {extra}", found)


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra that a user may want."""
    found: dict[str, list[str]] = {}
    for line in requires(DISTRIBUTION) or []:
        matched = re.match(r"""([\w.-]+).*;.*extra == ["'](\w+)["']""", line)
        if matched and matched[2] not in _OTHER_EXTRAS:
            found.setdefault(matched[2], []).append(matched[1])
    return found


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


_MARKS = {Verdict.GOOD: "ok", Verdict.NOTE: "note", Verdict.WRONG: "WRONG"}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Look whether everything is in place: packages, compiled kernels, data, folders.

    The exit code is 0 if training can work, and 1 if something is wrong.
    """

    runs_dir: str | None = None
    """The folder that runs would be put into; by default runs, or what ESPER_RUNS says."""

    json: bool = False
    """Print JSON."""


def run_doctor(words: Sequence[str]) -> int:
    """Print what was found; return 1 if something is wrong."""
    options = parse(DoctorOptions, words, command="doctor")
    checks = check_everything(options.runs_dir or str(runs_folder()))
    wrong = [check for check in checks if check.verdict == Verdict.WRONG]
    if options.json:
        found = [asdict(check) | {"verdict": check.verdict.value} for check in checks]
        print_json({"can_train": not wrong, "checks": found})
    else:
        print_columns([(_MARKS[check.verdict], check.about, check.found) for check in checks])
        print(_conclusion(wrong))
    return 1 if wrong else 0


def _conclusion(wrong: list[Check]) -> str:
    if not wrong:
        return "Training can work."
    return f"Training cannot work: see {', '.join(check.about for check in wrong)} above."
