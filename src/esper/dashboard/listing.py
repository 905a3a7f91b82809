"""The runs that the dashboard shows, by the names under which the page may ask for them."""

from __future__ import annotations

import os
from pathlib import Path

from esper.runs.folder import RunFolder

READ_FILES = (
    "config.toml",
    "telemetry.sqlite",
    "telemetry.sqlite-wal",
    "summary.json",
    "evaluation.json",
)
"""What is read of a run's folder."""


class RunListing:
    """The runs in a folder, or the one run that the folder is.

    A name is looked up among those there are and never becomes part of a path, and a link that
    leads out of the folder is not followed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._real = Path(os.path.realpath(self.root))

    def folders(self) -> dict[str, RunFolder]:
        """Return the folders of runs by name, the oldest first; one that vanishes is left out."""
        if RunFolder(self.root).holds_run:
            return {_shown(self._real.name): RunFolder(self.root)}
        found: list[tuple[float, str, RunFolder]] = []
        try:
            names = os.listdir(self.root)
        except OSError:
            return {}
        for name in names:
            folder = RunFolder(self.root / name)
            try:
                if folder.holds_run and self._is_inside(folder.path):
                    age = folder.config_file.stat().st_mtime
                    found.append((age, _shown(name), folder))
            except OSError:
                continue
        return {name: folder for _, name, folder in sorted(found, key=lambda one: one[:2])}

    def find(self, name: str) -> RunFolder | None:
        """Return the folder of a run; None if there is no such run."""
        return self.folders().get(name)

    def _is_inside(self, path: Path) -> bool:
        """Return whether a run's folder, and all that is read of it, is within the folder."""
        if not self._leads_inside(path):
            return False
        return all(
            self._leads_inside(path / name) for name in READ_FILES if os.path.islink(path / name)
        )

    def _leads_inside(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)


def _shown(name: str) -> str:
    """Return a folder's name as text; bytes that are none are written as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
