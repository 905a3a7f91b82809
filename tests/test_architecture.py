"""The architecture page is true: its tree is the one on disk, and the functions it names exist."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

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


def named_objects() -> list[str]:
    """Return the dotted names of the page that start with a package, without duplicates."""
    packages = {path.split("/")[0] for path in listed_paths() if not path.endswith(".py")}
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", PAGE)
    return sorted({name for name in names if name.split(".")[0] in packages})


def resolve(name: str) -> object:
    """Return the module, class or function of a dotted name inside ``esper``."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["esper", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


def test_the_page_names_the_functions_of_all_three_paths() -> None:
    assert len(named_objects()) > 30


@pytest.mark.parametrize("name", named_objects())
def test_every_function_that_the_page_names_exists(name: str) -> None:
    assert callable(resolve(name)), name
