"""The checkpoints of a run: saved atomically, and loaded from the newest intact one.

Each is a saved folder named after its step, ``step-000000123``. A process that is killed may leave
one without a manifest, which holds nothing; the next save removes it. Only one process may save
checkpoints in a folder at a time; any number may read.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from esper.config.checks import NonNegativeInt, PositiveInt, check
from esper.errors import CheckpointError, EsperError, OtherVersionError
from esper.storage.files import (
    MALFORMED,
    Pieces,
    make_folder,
    parse_json,
    plain_reason,
    storage_errors,
)
from esper.storage.saved_folder import MANIFEST_FILE, FolderKind, require_free
from esper.storage.state import TENSORS_FILE, TREE_FILE, State, decode, encode
from esper.version import __version__

ABOUT_FILE = "checkpoint.json"
CHECKPOINT = FolderKind("checkpoint", (TENSORS_FILE, TREE_FILE, ABOUT_FILE), CheckpointError)

_NAME = re.compile(r"step-([0-9]{9,})")


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped or not removed, or was made with other versions or threads."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """A checkpoint that was read and verified."""

    state: dict[Any, Any]
    """The saved state."""

    step: int
    """The step at which it was saved."""

    path: Path
    """Its folder."""

    about: dict[str, Any]
    """When and how it was saved: step, created and made_with."""

    skipped: tuple[Path, ...] = ()
    """Folders of newer checkpoints that were skipped because they are damaged."""


Problems = dict[Path, CheckpointError | OtherVersionError]
"""Why checkpoints cannot be used, by folder."""


class CheckpointFolder:
    """The checkpoints of one run, each in a folder named after its step.

    Args:
        path: The folder; the first save creates it.
        keep_last: Number of newest checkpoints to keep.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_last: int = 3) -> None:
        check("keep_last", keep_last, PositiveInt)
        self.path = Path(path)
        self.keep_last = keep_last

    def names(self) -> list[str]:
        """Return the names of all checkpoints, damaged ones included, ordered by step."""
        return [_name_of(step) for step in sorted(self._find())]

    def require_free(self) -> None:
        """Reject a folder that holds other files and no checkpoint, before one is saved there.

        Raises:
            CheckpointError: Naming the folder.
        """
        require_free(self.path, "checkpoints", lambda: bool(self._folders()), CheckpointError)

    def save(self, state: State, *, step: int) -> Path:
        """Write a checkpoint and return its folder; it then survives a power loss.

        A checkpoint of the same step is replaced. Checkpoints of later steps, left over from an
        abandoned continuation, are removed, as are those that are too old to keep.

        Raises:
            ConfigError: If the step is not an integer of at least 0.
            CheckpointError: If the state holds a value that cannot be saved; nothing is written.
            StorageError: If writing fails; earlier checkpoints are unchanged.
        """
        check("step", step, NonNegativeInt)
        files: dict[str, bytes | Pieces] = {**encode(state)}
        about = {
            "step": int(step),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "made_with": _environment(),
        }
        files[ABOUT_FILE] = json.dumps(about, indent=1).encode("ascii")
        path = self.path / _name_of(step)
        with storage_errors(path):
            make_folder(self.path)
            self._remove_unfinished()
            if path.is_symlink():
                path.unlink()  # rather than write to another place
            CHECKPOINT.write(path, files)
        self._remove_old(step)
        return path

    def latest(self, *, resumes: bool = True) -> Loaded:
        """Return the newest intact checkpoint.

        Emits a :class:`CheckpointWarning` for each newer checkpoint that is damaged, and if the
        versions, the number of threads or the machine have changed, which can change results.

        Args:
            resumes: Whether to continue from it; otherwise such changes do not matter.

        Raises:
            CheckpointError: If no checkpoint is intact.
            OtherVersionError: If all were made by another version of Esper.
        """
        loaded, problems = _load_first(sorted(self._find().items(), reverse=True))
        if loaded is None and problems:
            others = [one for one in problems.values() if isinstance(one, OtherVersionError)]
            if len(others) == len(problems):
                raise OtherVersionError(str(others[0]))
        _warn_of(problems)
        if loaded is not None:
            if resumes:
                warn_of_differences(loaded)
            return loaded
        if problems:
            names = ", ".join(path.name for path in problems)
            raise CheckpointError(
                f"{self.path} has only damaged checkpoints: {names}; restore a copy of one."
            )
        raise CheckpointError(f"{self.path} holds no checkpoints.")

    def _find(self) -> dict[int, Path]:
        """Return the folder of each step's checkpoint."""
        return {step: path for step, path in self._folders() if _is_complete(path)}

    def _folders(self) -> list[tuple[int, Path]]:
        """Return the folders that are named like a checkpoint, with their steps."""
        try:
            names = [entry.name for entry in os.scandir(self.path) if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}.") from error
        steps = ((step_of(name), self.path / name) for name in names)
        return [(step, path) for step, path in steps if step is not None]

    def _remove_unfinished(self) -> None:
        """Remove what killed processes left behind, as far as possible."""
        for _, path in self._folders():
            if not _is_complete(path) and not path.is_symlink():
                with suppress(OSError):
                    CHECKPOINT.remove(path)

    def _remove_old(self, step: int) -> None:
        """Remove checkpoints that are not among the newest intact ones."""
        found, intact = self._find(), list[int]()
        for other, path in sorted(found.items()):
            with suppress(CheckpointError, OtherVersionError):
                _read_about(path, other)
                intact.append(other)
        intact = [other for other in intact if other <= step]
        oldest = intact[-self.keep_last :][0] if intact else step
        for other, path in found.items():
            if not oldest <= other <= step and not path.is_symlink():
                try:
                    CHECKPOINT.remove(path)
                except OSError as error:
                    problem = f"{path} cannot be removed: {error.strerror}."
                    warnings.warn(problem, CheckpointWarning, stacklevel=3)


def load_checkpoint(path: str | os.PathLike[str]) -> Loaded:
    """Return the checkpoint in a folder that is named ``step-`` and a number.

    Raises:
        CheckpointError: If it is missing, or a single bit has changed.
    """
    folder = Path(path)
    step = step_of(folder.name)
    if step is None:
        raise CheckpointError(
            f"{folder} is not a checkpoint; their names are like {_name_of(120)}."
        )
    return _load(folder, step)


@contextmanager
def damage_named(path: Path) -> Generator[None]:
    """Say that a checkpoint is damaged if what is read of it cannot be used."""
    try:
        yield
    except EsperError:
        raise
    except MALFORMED as error:
        is_misfit = isinstance(error, RuntimeError)  # of load_state_dict, in many lines
        reason = "its weights do not fit" if is_misfit else plain_reason(error).rstrip(".")
        raise CheckpointError(f"{path} is damaged: {reason}.") from error


def typed(value: Any, *kinds: type) -> Any:
    """Return a value from a checkpoint, whose type must be one of some.

    Raises:
        TypeError: If it is not, which :func:`damage_named` reports.
    """
    if type(value) not in kinds:
        raise TypeError(f"{value!r} is none of {kinds}")
    return value


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's folder name; None for other names."""
    match = _NAME.fullmatch(name)
    step = int(match[1]) if match else 0
    return step if match and _name_of(step) == name else None


def _name_of(step: int) -> str:
    return f"step-{step:09d}"


def _load(folder: Path, step: int) -> Loaded:
    about, files = _read_about(folder, step), CHECKPOINT.read(folder)
    try:
        state = decode(files)
    except CheckpointError as error:
        raise CHECKPOINT.damaged(folder, error) from error
    return Loaded(state=state, step=step, path=folder, about=about)


def _read_about(folder: Path, step: int) -> dict[str, Any]:
    """Return what a checkpoint says about itself; of its state, only the sizes are verified."""
    if folder.is_symlink():
        raise CHECKPOINT.damaged(folder, ValueError("it is a link"))
    content = CHECKPOINT.read(folder, [ABOUT_FILE])[ABOUT_FILE]
    try:
        about = cast("dict[str, Any]", parse_json(content))
        if about["step"] != step:
            raise ValueError(f"it is the checkpoint of step {about['step']}")
        versions = cast("dict[str, Any]", typed(about["made_with"], dict))
        for value in (about["created"], *versions.values()):
            typed(value, str, int)
    except (KeyError, TypeError, ValueError) as error:
        raise CHECKPOINT.damaged(folder, error) from error
    return about


def _is_complete(path: Path) -> bool:
    """Return whether a checkpoint has a manifest, or may have one that cannot be reached."""
    try:
        os.lstat(path / MANIFEST_FILE)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _load_first(found: list[tuple[int, Path]]) -> tuple[Loaded | None, Problems]:
    """Return the first checkpoint that can be used, and what is wrong with those before it."""
    problems: Problems = {}
    for step, path in found:
        try:
            return replace(_load(path, step), skipped=tuple(problems)), problems
        except (CheckpointError, OtherVersionError) as error:
            problems[path] = error
    return None, problems


def _warn_of(problems: Problems) -> None:
    for problem in problems.values():
        warnings.warn(f"{problem} It is skipped.", CheckpointWarning, stacklevel=3)


def _environment() -> dict[str, Any]:
    """Return the versions and machine properties that results can depend on."""
    return {
        "esper": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def warn_of_differences(loaded: Loaded) -> None:
    """Warn of differences from the saving process that can change results.

    Training that sets a number of threads calls this while it is set, and saves so too.
    """
    then = loaded.about["made_with"]
    differences = [
        f"{key} {then.get(key)}, now {value}"
        for key, value in _environment().items()
        if key != "python" and then.get(key) != value
    ]
    if differences:
        warnings.warn(
            f"{loaded.path} was saved with {'; '.join(differences)}: results may differ slightly.",
            CheckpointWarning,
            stacklevel=3,
        )
