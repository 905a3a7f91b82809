"""The package as a whole: its documents name things that exist, and it hides nothing."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import esper
from esper import errors

ROOT = Path(__file__).parents[1]


def test_every_test_and_file_that_the_findings_name_exists() -> None:
    text = (ROOT / "docs" / "findings.md").read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 20
    missing = {name for name in named if f"def {name}(" not in sources}
    assert not missing
    files = set(re.findall(r"`(test_\w+\.py)`", text))
    assert files <= {path.name for path in (ROOT / "tests").rglob("*.py")}
    assert all((ROOT / path).exists() for path in re.findall(r"`(benchmarks/\w+\.py)", text))


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
        "esper.tamiyo",
        "esper.tasks",
        "esper.telemetry",
    ],
)
def test_everything_a_package_exports_is_there(module: str) -> None:
    package = importlib.import_module(module)
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def test_every_error_is_in_the_tree_at_the_top_of_its_module() -> None:
    tree = errors.__doc__ or ""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.EsperError)
    ]
    assert len(classes) > 10
    assert all(cls.__name__ in tree for cls in classes)


def test_contributing_is_short_and_the_version_is_the_one_of_the_changelog() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 100
    assert f"## {esper.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f'version = "{esper.__version__}"' in (ROOT / "pyproject.toml").read_text()


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
