"""Finding where a learned controller is stored: in a folder of its own, or in a run."""

from __future__ import annotations

import os
from pathlib import Path

from esper.config.catalogue import CONTROLLERS, LEARNED, SHIPPED
from esper.config.schema import shown
from esper.errors import ControllerError, RunError, did_you_mean
from esper.storage.run_folder import LONGEST_NAME, RunFolder, list_folders
from esper.storage.saved_folder import FolderKind

WEIGHTS_FILE, FACTS_FILE = "controller.safetensors", "controller.json"
CONTROLLER = FolderKind("controller", (WEIGHTS_FILE, FACTS_FILE), ControllerError)
"""The folder of a saved controller."""


def holds_controller(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a saved controller."""
    return CONTROLLER.is_in(Path(folder))


def locate_controller(controller: str | os.PathLike[str]) -> Path | RunFolder | None:
    """Return the folder of a saved controller or of a run; None for a controller of Esper's.

    Raises:
        RunError: If no controller or run has this name.
    """
    names = (SHIPPED, LEARNED, *CONTROLLERS)
    if controller in names:
        return None
    if holds_controller(controller):
        return Path(controller)
    try:
        return RunFolder.find(controller)
    except RunError as error:
        known = (*names, *(found.name for found in list_folders()))
        hint = did_you_mean(Path(controller).name[:LONGEST_NAME], known)
        raise RunError(
            f"there is no controller {shown(str(controller))}; it must be one of "
            f"{', '.join(names)}, the folder of a saved controller, or a run.{hint}"
        ) from error
