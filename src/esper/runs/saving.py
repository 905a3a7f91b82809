"""Keeping a grown host where it can be used without Esper.

model.pt2          the network itself: torch.export.load(file).module() runs it
model.safetensors  its weights by name
growth.json        how it got there: its score, its cost and every step of its life
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from esper.errors import StorageError
from esper.runs.growing import GrownHost
from esper.whole_files import write_whole

PROGRAM_FILE = "model.pt2"
WEIGHTS_FILE = "model.safetensors"
STORY_FILE = "growth.json"


def save_grown(grown: GrownHost, folder: str | os.PathLike[str]) -> Path:
    """Save a grown host, ready to be used for any number of samples at once; return the folder.

    Raises:
        StorageError: If it cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        _save_program(grown, place / PROGRAM_FILE)
        weights = {name: t.detach().contiguous() for name, t in grown.model.state_dict().items()}
        safetensors.torch.save_file(weights, place / WEIGHTS_FILE)
        write_whole(place / STORY_FILE, json.dumps(_story(grown), indent=1) + "\n")
    except OSError as error:
        raise StorageError(
            f"{place} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return place


def _save_program(grown: GrownHost, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    model = grown.model.eval()
    with warnings.catch_warnings():  # what PyTorch says of its own parts is not for users of ours
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model, (grown.sample,), dynamic_shapes=({0: batch},), strict=False
        )
        torch.export.save(program, path)


def _story(grown: GrownHost) -> dict[str, Any]:
    return {
        "score": grown.score,
        "return": grown.ep_rew,
        "flops": grown.flops,
        "host_parameters": grown.host_parameters,
        "seed_parameters": grown.seed_parameters,
        "timeline": [asdict(step) for step in grown.timeline],
    }
