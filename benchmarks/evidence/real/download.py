"""Downloads the packages that hold the real data sets, and unpacks their data into a folder.

Run:  python benchmarks/evidence/real/download.py --to benchmarks/evidence/data

It needs apt-get, dpkg-deb and pip. Nothing is installed, and nothing of it ships with Esper;
SOURCES.md says where each set comes from and under which licence. Packages that are there already
are not downloaded again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
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
KEPT = (
    "*/site-library/*/data/*.rda",
    "*/share/datasets/*",
    "*/share/dict/*",
    "*/share/doc/*/copyright",
    "sklearn/datasets/data/*.csv*",
    "plotnine/data/*.csv",
    "*.dist-info/*LICEN[CS]E*",
    "*.dist-info/*COPYING*",
)
"""Files of the packages that are unpacked: data and licences."""


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
        (package,) = work.glob("*.whl")
        with zipfile.ZipFile(package) as archive:
            archive.extractall(work, filter(is_kept, archive.namelist()))
    else:
        call(["apt-get", "download", name], work)
        (package,) = work.glob("*.deb")
        call(["dpkg-deb", "--fsys-tarfile", package.name], work, output=work / "files.tar")
        with tarfile.open(work / "files.tar") as archive:
            kept = [each for each in archive if each.isfile() and is_kept(each.name)]
            archive.extractall(work, kept, filter="data")
        (work / "files.tar").unlink()
    package.unlink()
    work.rename(folder / name)


def is_kept(path: str) -> bool:
    """Return whether a file of a package is data or a licence."""
    return any(fnmatch(path, pattern) for pattern in KEPT)


def call(words: Sequence[str], folder: Path, output: Path | None = None) -> None:
    """Run a command in a folder; end with its last line if it fails."""
    with open(output or os.devnull, "wb") as file:
        done = subprocess.run(words, cwd=folder, stdout=file, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"{' '.join(words)} failed: {reason}")


if __name__ == "__main__":
    main()
