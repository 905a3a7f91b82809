"""Downloads the packages that hold the real data sets, and unpacks them into a folder.

Run:  python benchmarks/evidence/real/download.py --to benchmarks/evidence/data

It needs apt-get, dpkg-deb and pip. Nothing is installed, and nothing of it ships with Esper;
SOURCES.md says where each set comes from and under which licence. Packages that are there already
are not downloaded again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
"""Where the packages are unpacked to, a folder for each; git ignores it."""
DEBIAN = (
    "r-cran-mlbench",
    "r-cran-kernlab",
    "dataset-fashion-mnist",
    "wamerican",
    "wfrench",
    "witalian",
    "wngerman",
    "wspanish",
)
PYTHON = ("scikit-learn", "plotnine")


def main() -> None:
    """Download and unpack what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--to", type=Path, default=DATA, help="the folder (default: %(default)s)")
    folder: Path = parser.parse_args().to
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed; the sets are in packages of Debian.")
    for name in (*DEBIAN, *PYTHON):
        if not (folder / name).exists():
            fetch(name, folder)
        print(f"{name} is in {folder / name}")


def fetch(name: str, folder: Path) -> None:
    """Download a package and unpack it into a folder of its name, or leave nothing."""
    work = folder / f"{name}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if name in PYTHON:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        call([*pip, "--only-binary=:all:", name], work)
        for wheel in list(work.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(work)
            wheel.unlink()
    else:
        call(["apt-get", "download", name], work)
        for package in list(work.glob("*.deb")):
            call(["dpkg-deb", "--extract", package.name, "."], work)
            package.unlink()
    work.rename(folder / name)


def call(words: Sequence[str], folder: Path) -> None:
    """Run a command in a folder; end with its last line if it fails."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"{' '.join(words)} failed: {reason}")


if __name__ == "__main__":
    main()
