"""Detects installations in which Esper cannot work: on Windows, or beside another ``esper``."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGES_FOLDER = Path(__file__).parents[1]
"""The folder that Esper is installed in."""


def check_platform(platform: str = sys.platform) -> None:
    """Reject Windows, which lacks the file locks and resource limits that Esper relies on.

    Raises:
        ImportError: On Windows.
    """
    if platform == "win32":
        raise ImportError(
            "Esper does not run on Windows, which lacks the file locks it needs; use it in WSL 2 "
            "(Windows Subsystem for Linux)."
        )


def find_clash(folder: Path = PACKAGES_FOLDER) -> str | None:
    """Return a line about an unrelated package that shares ``esper/__init__.py`` with Esper.

    The package index has a game library named ``esper``. Whichever of the two is installed last
    overwrites the other's files, and uninstalling one breaks the other.
    """
    for entry in folder.glob("esper-[0-9]*-info"):  # .dist-info or .egg-info
        name = " ".join(entry.stem.split("-")[:2])
        return (
            f"the unrelated package {name} is installed too and overwrites files of Esper; run: "
            "pip uninstall --yes esper && pip install --force-reinstall --no-deps esper-lite"
        )
    return None
