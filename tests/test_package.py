"""The package as a whole: what it exports, its errors, its version, what importing it costs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import esper
from esper import errors

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "module",
    [
        "esper.api",
        "esper.config",
        "esper.populations",
        "esper.simic.agent",
        "esper.simic.policy",
        "esper.simic.rollout",
        "esper.environment",
        "esper.integrations",
        "esper.tamiyo",
        "esper.tasks",
        "esper.telemetry",
    ],
)
def test_every_exported_name_exists(module: str) -> None:
    package = importlib.import_module(module)
    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)


def test_the_tree_of_errors_lists_every_error() -> None:
    tree = errors.__doc__ or ""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.EsperError)
    ]
    assert len(classes) > 10
    assert all(cls.__name__ in tree for cls in classes)


def test_every_file_that_states_the_version_agrees() -> None:
    assert f"## {esper.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f'version = "{esper.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {esper.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_import_esper_offers_the_api_without_importing_torch() -> None:
    script = (
        "import sys, esper\n"
        "assert 'torch' not in sys.modules\n"
        "assert callable(esper.add_slots)\n"
        "assert 'torch' in sys.modules\n"
        "assert {'add_slots', 'export'} <= set(dir(esper))\n"
        "try:\n    esper.nope\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "module 'esper' has no attribute 'nope'\n"
