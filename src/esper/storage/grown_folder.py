"""The folder of a grown model: an exported program, its weights, and how it grew."""

from __future__ import annotations

from pathlib import Path

from esper.errors import SavedModelError
from esper.storage.files import parse_json, read_file
from esper.storage.saved_folder import require_free

PROGRAM_FILE, WEIGHTS_FILE, GROWTH_FILE = "model.pt2", "model.safetensors", "growth.json"


def require_grown_folder(path: Path) -> None:
    """Reject a folder with anything but an earlier grown model.

    Raises:
        SavedModelError: If it holds other files.
    """
    require_free(path, "grown model", lambda: _holds_grown(path), SavedModelError)


def _holds_grown(path: Path) -> bool:
    """Return whether a folder holds a grown model, or what a killed process left of it."""
    try:
        growth = parse_json(read_file(path / GROWTH_FILE))
    except (OSError, ValueError):
        return False
    return isinstance(growth, dict) and (not growth or "timeline" in growth)
