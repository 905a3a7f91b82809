"""Finding where a learned controller is stored: in a folder of its own, or in a run."""

from __future__ import annotations

import os
from pathlib import Path

from esper.config.catalogue import CONTROLLERS, SHIPPED
from esper.errors import RunError, did_you_mean
from esper.storage.run_folder import RunFolder

FACTS_FILE = "controller.json"
"""The file that makes a folder that of a saved controller."""


def holds_controller(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a saved controller."""
    return os.path.isfile(Path(folder) / FACTS_FILE)


def locate_controller(controller: str | os.PathLike[str]) -> Path | RunFolder | None:
    """Return the folder of a saved controller or of a run; None for a controller of Esper's.

    Raises:
        RunError: If no controller or run has this name.
    """
    names = (SHIPPED, *CONTROLLERS)
    if controller in names:
        return None
    if holds_controller(controller):
        return Path(controller)
    try:
        return RunFolder.find(controller)
    except RunError as error:
        raise RunError(
            f"{error}; or pass the folder of a run or of a saved controller, or one of "
            f"{', '.join(names)}.{did_you_mean(controller, names)}"
        ) from error
