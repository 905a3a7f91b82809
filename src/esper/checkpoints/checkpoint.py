"""One checkpoint: a folder that is either whole, to the bit, or refused."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.checkpoints.contents import FACTS_FILE, TENSORS_FILE, decode
from esper.checkpoints.manifest import MANIFEST_FILE, MAX_BYTES, read_manifest
from esper.checkpoints.state import State
from esper.errors import CheckpointError

FILES = (TENSORS_FILE, FACTS_FILE, MANIFEST_FILE)

_NAME = re.compile(r"step-([0-9]{9,})")


class CheckpointWarning(UserWarning):
    """A checkpoint was passed over, cannot be removed, or was made under other conditions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """A checkpoint that was read and is whole."""

    state: State
    """What was saved."""

    step: int
    """The step at which it was saved."""

    path: Path
    """Its folder."""

    manifest: dict[str, Any]
    """What is known of its files, and of the process that wrote them."""

    skipped: tuple[Path, ...] = ()
    """Folders of damaged checkpoints that would have been taken in its place."""


def name_of(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Return the step of which a folder's name says it is the checkpoint, or None."""
    match = _NAME.fullmatch(name)
    step = int(match[1]) if match else 0
    return step if match and name_of(step) == name else None


def load_checkpoint(path: str | os.PathLike[str]) -> Loaded:
    """Return the checkpoint of one folder, ``step-`` and a number.

    Raises:
        CheckpointError: If it is missing or a single bit of it is not as it was written.
    """
    folder = Path(path)
    step = step_of(folder.name)
    if step is None:
        raise CheckpointError(f"{folder} is not named like a checkpoint, such as {name_of(120)}.")
    return load_step(folder, step)


def load_step(folder: Path, step: int) -> Loaded:
    """Return the checkpoint of a step from a folder of whatever name."""
    manifest = inspect(folder, step)
    try:
        files = {name: _read(folder / name) for name in (TENSORS_FILE, FACTS_FILE)}
        for name, content in files.items():
            if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
                raise CheckpointError(f"{name} does not match its sha256.")
        state = decode(files)
    except (CheckpointError, OSError) as error:
        raise _damaged(folder, error) from error
    return Loaded(state=state, step=step, path=folder, manifest=manifest)


def inspect(folder: Path, step: int) -> dict[str, Any]:
    """Return the manifest of a step's checkpoint, after a look at which files there are.

    Names, kinds and sizes are looked at, and every bit of the manifest; not the other files.
    """
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint {folder}.")
    try:
        _require_names(folder)
        manifest = read_manifest(_read(folder / MANIFEST_FILE, MAX_BYTES))
        if manifest["step"] != step:
            raise CheckpointError(f"it is the checkpoint of step {manifest['step']}.")
        for name in (TENSORS_FILE, FACTS_FILE):
            size, expected = (folder / name).stat().st_size, manifest["files"][name]["size"]
            if size != expected:
                raise CheckpointError(f"{name} has {size} bytes in place of {expected}.")
    except (CheckpointError, OSError) as error:
        raise _damaged(folder, error) from error
    return manifest


def _require_names(folder: Path) -> None:
    names = set(os.listdir(folder))
    for name in FILES:
        if name not in names:
            raise CheckpointError(f"{name} is missing.")
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise CheckpointError(f"{name} is not a file.")
    if names != set(FILES):
        raise CheckpointError(f"{sorted(names - set(FILES))} do not belong there.")


def _read(path: Path, most: int | None = None) -> bytes:
    if most is not None and path.stat().st_size > most:
        raise CheckpointError(f"{path.name} has more than {most} bytes.")
    return path.read_bytes()


def _damaged(folder: Path, error: Exception) -> CheckpointError:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return CheckpointError(f"checkpoint {folder} is damaged: {reason.rstrip('.')}.")
