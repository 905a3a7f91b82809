"""The manifest of a checkpoint: what its files must be, and where they were made.

A manifest is written in one form only, and holds the hash of all else that it says. A file that
reads as a manifest but is not in that form was changed, even if only by a blank.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from typing import Any, cast

import numpy as np
import torch

from esper.checkpoints.contents import Pieces
from esper.checkpoints.state import State
from esper.errors import CheckpointError
from esper.version import __version__

FORMAT = 1
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
