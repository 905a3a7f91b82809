"""One checkpoint: a folder that is either whole, to the bit, or refused."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from esper.errors import CheckpointError
from esper.storage.state import FACTS_FILE, TENSORS_FILE, Pieces, State, decode
from esper.version import __version__

FORMAT = 2
MANIFEST_FILE = "manifest.json"
MAX_BYTES = 100_000

_DECISIVE = {
    "esper": "esper",
    "torch": "torch",
    "numpy": "numpy",
    "threads": "number of threads",
    "platform": "platform",
    "cpu": "instruction set",
}


def make_manifest(
    state: State, files: dict[str, Pieces], *, step: int, is_best: bool
) -> dict[str, Any]:
    """Return what is to be known of a state's files before they are trusted."""
    return {
        "format": FORMAT,
        "step": step,
        "is_best": is_best,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": {name: _describe(pieces) for name, pieces in files.items()},
        "made_with": surroundings(),
        "devices": sorted({tensor.device.type for tensor in state.tensors.values()}),
    }


def _describe(pieces: Pieces) -> dict[str, Any]:
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return {"size": sum(piece.nbytes for piece in pieces), "sha256": sha256.hexdigest()}


def surroundings() -> dict[str, Any]:
    """Return what numbers can depend on besides the state."""
    return {
        "esper": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def find_differences(manifest: dict[str, Any]) -> list[str]:
    """Return in words how this process differs from the one that saved, where numbers may."""
    then, now = manifest["made_with"], surroundings()
    return [
        f"{word} {then.get(key)!r} then and {now[key]!r} now"
        for key, word in _DECISIVE.items()
        if then.get(key) != now[key]
    ]


def write_manifest(manifest: dict[str, Any]) -> bytes:
    """Return a manifest's only form as a file."""
    body = json.dumps(manifest, indent=1)
    sha256 = hashlib.sha256(body.encode("ascii")).hexdigest()
    return (json.dumps({**manifest, "sha256": sha256}, indent=1) + "\n").encode("ascii")


def read_manifest(content: bytes) -> dict[str, Any]:
    """Return the manifest that a file holds.

    Raises:
        CheckpointError: If a single bit of it is not as it was written, or the format is another.
    """
    try:
        manifest = cast("dict[str, Any]", json.loads(content))
        version = manifest["format"]
        del manifest["sha256"]
        is_whole = write_manifest(manifest) == content
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST_FILE} is damaged: {error!r}") from error
    if not is_whole:
        raise CheckpointError(f"{MANIFEST_FILE} is damaged: it does not match its own sha256.")
    if version != FORMAT:
        raise CheckpointError(
            f"{MANIFEST_FILE} has format {version!r}; this version of esper reads {FORMAT}."
        )
    return manifest


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
