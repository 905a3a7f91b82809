"""The page on architecture is true: its tree is the one on disk, and its functions exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "esper"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def listed_paths() -> list[str]:
    """Return the paths of the page's tree, relative to the package, in the page's order."""
    block = re.search(r"^```\nsrc/esper/\n(.*?)^```", PAGE, flags=re.M | re.DOTALL)
    assert block is not None
    paths: list[str] = []
    parents: list[str] = []
    for line in block[1].splitlines():
        entry = re.match(r"( +)(\S+)", line)
        assert entry is not None, line
        depth = len(entry[1]) // 2
        parents[depth - 1 :] = [entry[2].rstrip("/")]
        paths.append("/".join(parents))
    return paths


def existing_paths() -> set[str]:
    """Return every top-level module and every folder, except those inside ``static``."""
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    files = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file())
    kept = (path for path in files if path.parent.name != "__pycache__" and path.suffix != ".so")
    folders = {folder for path in kept for folder in path.parents if folder.name}
    return modules | {
        folder.as_posix() for folder in folders if "static" not in folder.parent.parts
    }


def test_the_tree_is_the_one_on_disk() -> None:
    listed = listed_paths()
    assert len(listed) == len(set(listed))
    assert set(listed) == existing_paths()


def test_the_tree_follows_the_order_of_dependence() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    level = {
        name.strip().removeprefix("esper."): -number
        for number, names in enumerate(layers)
        for name in names.split("|")
    }
    tops = [path.removesuffix(".py") for path in listed_paths() if "/" not in path]
    tops.remove("__main__")
    assert set(tops) == set(level)
    assert [level[name] for name in tops] == sorted(level[name] for name in tops)
