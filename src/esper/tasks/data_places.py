"""Finding a task's files: which folder holds them, and what to say if none does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from esper.errors import MissingDataError

VARIABLE = "ESPER_DATA_DIR"
"""The environment variable that names a folder with one folder of data for each task."""


def data_places(task: str, data_dir: str | Path | None, *installed: str) -> list[Path]:
    """Return where a task's files may be: the user's folder, or else the usual ones.

    A folder that the user names is the only one: a slip in its name must not bring other data.

    Args:
        task: The task's name.
        data_dir: The folder that the user named.
        installed: Folders where packages of the system put the files.
    """
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    shared = os.environ.get(VARIABLE)
    places = [Path(shared).expanduser() / task] if shared else []
    return [*places, *(Path(folder) for folder in installed)]


def find_files(
    task: str,
    places: Sequence[Path],
    layouts: Sequence[Mapping[str, Sequence[str]]],
    *,
    advice: str,
) -> tuple[int, dict[str, Path]]:
    """Return which layout was found first, and the path of each of its files.

    Args:
        task: The task's name, for the message.
        places: Folders, the first that has everything wins.
        layouts: Each gives, for the role of each file, the names that it may have.
        advice: How to get the files.

    Raises:
        MissingDataError: If no folder has all files of a layout.
    """
    nearest, absent = -1, " or ".join(next(iter(layouts[0].values())))
    for place in places:
        for index, layout in enumerate(layouts):
            found, missing = _look(place, layout)
            if not missing:
                return index, found
            if len(found) > nearest:
                nearest, absent = len(found), missing[0]
    looked = f"in {', '.join(str(place) for place in places)}" if places else "in no folder yet"
    raise MissingDataError(
        f"task {task!r} needs the file {absent}, which is missing; looked {looked}. {advice}"
    )


def _look(place: Path, layout: Mapping[str, Sequence[str]]) -> tuple[dict[str, Path], list[str]]:
    found: dict[str, Path] = {}
    missing: list[str] = []
    for role, names in layout.items():
        paths = [place / name for name in names if (place / name).is_file()]
        if paths:
            found[role] = paths[0]
        else:
            missing.append(" or ".join(names))
    return found, missing
