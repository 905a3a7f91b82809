"""The API reference is complete, and the examples in it run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import esper
import esper.api
from esper.growth.blueprints import registry as blueprints
from esper.tamiyo import save_controller
from esper.tasks import registry as tasks
from esper.training.lookup import controller_of
from esper.training.run import Run

PAGES = Path(__file__).parents[1] / "docs" / "reference" / "api"
PACKAGES = (
    "config",
    "environment",
    "integrations",
    "populations",
    "simic",
    "simic.agent",
    "simic.policy",
    "simic.rollout",
    "tamiyo",
    "tasks",
    "telemetry",
)
WITHOUT_EXAMPLE = {"Arm", "Evidence", "RunInterrupted", "save_evidence"}
"""What only long evaluations return, and an exception."""


def described() -> list[str]:
    """Return the names that the pages describe, in order."""
    return [
        name
        for page in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.M)
    ]


def test_the_reference_describes_every_public_name_once() -> None:
    names = described()
    assert len(names) == len(set(names))
    assert {f"esper.{name}" for name in esper.api.__all__} <= set(names)
    objects = [_find(name) for name in names]
    for package in PACKAGES:
        module = importlib.import_module(f"esper.{package}")
        for name in module.__all__:
            assert any(getattr(module, name) is each for each in objects), f"{package}.{name}"


def _find(name: str) -> object:
    package, _, last = name.rpartition(".")
    return getattr(importlib.import_module(package), last)


@pytest.mark.parametrize("name", esper.api.__all__)
def test_every_name_of_esper_has_a_docstring_and_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(esper, name))
    assert text
    assert (">>> " in text) == (name not in WITHOUT_EXAMPLE)


@pytest.fixture
def folder_with_a_run(done_run: Run, empty_folder: Path) -> None:
    """Work in a folder with a run and a controller."""
    shutil.copytree(done_run.path, empty_folder / "runs" / "my-run")
    save_controller(controller_of(done_run), empty_folder / "controllers" / "mine")


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and forget what the example registers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(blueprints, "_REGISTRY", dict(blueprints._REGISTRY))
    monkeypatch.setattr(tasks, "_REGISTRY", dict(tasks._REGISTRY))
    return tmp_path


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("name", sorted(set(esper.api.__all__) - WITHOUT_EXAMPLE))
def test_an_example_gives_what_it_says(
    name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspect.getdoc(getattr(esper, name)) or ""
    if "my-run" in text or "mine" in text:
        request.getfixturevalue("folder_with_a_run")
    scope = {"esper": esper, "torch": torch, "nn": nn}
    example = doctest.DocTestParser().get_doctest(text, scope, name, None, None)
    with torch.random.fork_rng():
        results = doctest.DocTestRunner(verbose=False).run(example)
    assert results.attempted > 0 or "+SKIP" in text
    assert results.failed == 0, capsys.readouterr().out
