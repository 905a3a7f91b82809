"""One checkpoint: a folder of files with checksums, rejected if a single bit has changed."""

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
from esper.storage.files import parse_json
from esper.storage.state import FACTS_FILE, TENSORS_FILE, Pieces, State, decode
from esper.version import __version__

FORMAT = 2
MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 100_000
FILES = (TENSORS_FILE, FACTS_FILE, MANIFEST_FILE)

_AFFECTS_NUMBERS = {
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
    """Return the manifest of a checkpoint: sizes and hashes of its files, and versions."""
    return {
        "format": FORMAT,
        "step": step,
        "is_best": is_best,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": {name: _describe(pieces) for name, pieces in files.items()},
        "made_with": environment_facts(),
        "devices": sorted({tensor.device.type for tensor in state.tensors.values()}),
    }


def _describe(pieces: Pieces) -> dict[str, Any]:
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return {"size": sum(piece.nbytes for piece in pieces), "sha256": sha256.hexdigest()}


def environment_facts() -> dict[str, Any]:
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


def find_differences(manifest: dict[str, Any]) -> list[str]:
    """Describe each difference from the saving process that can change results."""
    then, now = manifest["made_with"], environment_facts()
    return [
        f"{word} was {then.get(key)!r} and is now {now[key]!r}"
        for key, word in _AFFECTS_NUMBERS.items()
        if then.get(key) != now[key]
    ]


def write_manifest(manifest: dict[str, Any]) -> bytes:
    """Return the content of a manifest file, with its own checksum."""
    body = json.dumps(manifest, indent=1)
    sha256 = hashlib.sha256(body.encode("ascii")).hexdigest()
    return (json.dumps({**manifest, "sha256": sha256}, indent=1) + "\n").encode("ascii")


def read_manifest(content: bytes) -> dict[str, Any]:
    """Return the manifest in the content of a file.

    Raises:
        CheckpointError: If a single bit has changed, or the format version is another one.
    """
    try:
        values = parse_json(content)
    except ValueError as error:
        raise CheckpointError(f"{MANIFEST_FILE} {str(error).removeprefix('it ')}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{MANIFEST_FILE} is not a JSON object.")
    manifest = cast("dict[str, Any]", values)
    for key in ("format", "sha256"):
        if key not in manifest:
            raise CheckpointError(f"{MANIFEST_FILE} has no {key!r}.")
    del manifest["sha256"]
    if write_manifest(manifest) != content:
        raise CheckpointError(f"{MANIFEST_FILE} does not match its own sha256.")
    version = manifest["format"]
    if version != FORMAT:
        raise CheckpointError(
            f"{MANIFEST_FILE} has format {version!r}; this version of esper reads {FORMAT}."
        )
    return manifest


def _require_complete(manifest: dict[str, Any]) -> None:
    """Reject a manifest with a valid checksum that :func:`make_manifest` cannot have made."""
    _require_types(manifest, "", step=int, is_best=bool, files=dict, made_with=dict)
    _require_types(manifest["files"], "files.", **dict.fromkeys((TENSORS_FILE, FACTS_FILE), dict))
    for name in (TENSORS_FILE, FACTS_FILE):
        _require_types(manifest["files"][name], f"files.{name}.", size=int, sha256=str)


def _require_types(values: dict[str, Any], prefix: str, **kinds: type) -> None:
    for name, kind in kinds.items():
        if type(values.get(name)) is not kind:
            found = repr(values[name]) if name in values else "missing"
            raise CheckpointError(
                f"{prefix}{name} in {MANIFEST_FILE} is {found[:60]}; it must be of type "
                f"{kind.__name__}."
            )


_NAME = re.compile(r"step-([0-9]{9,})")


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped, could not be removed, or was made under other conditions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded:
    """A checkpoint that was read and verified."""

    state: State
    """The saved state."""

    step: int
    """The step at which it was saved."""

    path: Path
    """Its folder."""

    manifest: dict[str, Any]
    """Its manifest; see :func:`make_manifest`."""

    skipped: tuple[Path, ...] = ()
    """Folders of newer checkpoints that were skipped because they are damaged."""


def name_of(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's folder name; None for other names."""
    match = _NAME.fullmatch(name)
    step = int(match[1]) if match else 0
    return step if match and name_of(step) == name else None


def load_checkpoint(path: str | os.PathLike[str]) -> Loaded:
    """Return the checkpoint in a folder that is named ``step-`` and a number.

    Raises:
        CheckpointError: If it is missing, or a single bit has changed.
    """
    folder = Path(path)
    step = step_of(folder.name)
    if step is None:
        raise CheckpointError(f"{folder} is not a checkpoint; their names are like {name_of(120)}.")
    return load_step(folder, step)


def load_step(folder: Path, step: int) -> Loaded:
    """Return the checkpoint of a step from a folder of any name."""
    manifest = inspect(folder, step)
    try:
        files = {name: (folder / name).read_bytes() for name in (TENSORS_FILE, FACTS_FILE)}
        for name, content in files.items():
            if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
                raise CheckpointError(f"{name} does not match its sha256.")
        state = decode(files)
    except (CheckpointError, OSError) as error:
        raise _damaged(folder, error) from error
    return Loaded(state=state, step=step, path=folder, manifest=manifest)


def inspect(folder: Path, step: int) -> dict[str, Any]:
    """Return the manifest of a step's checkpoint after a quick check.

    Verifies the manifest and the names, types and sizes of the other files, not their contents.
    """
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder} does not exist.")
    try:
        if folder.is_symlink():
            raise CheckpointError("it is a link.")
        _require_files(folder)
        size = (folder / MANIFEST_FILE).stat().st_size
        if size > MAX_MANIFEST_BYTES:
            raise CheckpointError(
                f"{MANIFEST_FILE} has {size} bytes, more than {MAX_MANIFEST_BYTES}."
            )
        manifest = read_manifest((folder / MANIFEST_FILE).read_bytes())
        _require_complete(manifest)
        if manifest["step"] != step:
            raise CheckpointError(f"it is the checkpoint of step {manifest['step']}.")
        for name in (TENSORS_FILE, FACTS_FILE):
            size, expected = (folder / name).stat().st_size, manifest["files"][name]["size"]
            if size != expected:
                raise CheckpointError(f"{name} has {size} bytes instead of {expected}.")
    except (CheckpointError, OSError) as error:
        raise _damaged(folder, error) from error
    return manifest


def _require_files(folder: Path) -> None:
    names = set(os.listdir(folder))
    for name in FILES:
        if name not in names:
            raise CheckpointError(f"{name} is missing.")
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise CheckpointError(f"{name} is not a file.")
    if names != set(FILES):
        raise CheckpointError(f"it holds other files: {sorted(names - set(FILES))}.")


def _damaged(folder: Path, error: Exception) -> CheckpointError:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return CheckpointError(f"checkpoint {folder} is damaged: {reason.rstrip('.')}.")
