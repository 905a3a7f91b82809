"""The package as a whole: what it exports, its errors, its version, what importing it costs."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import esper
from esper import errors
from esper.installation import check_platform, find_clash

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
    assert f"version: {esper.__version__}" in (ROOT / "CITATION.cff").read_text()


def metadata(**variables: str) -> str:
    """Return the metadata that setup.py makes in an environment with some variables."""
    script = (
        "import setuptools, sys\n"
        "setuptools.setup = lambda **all: print(all['project_urls'], all['long_description'])\n"
        "exec(compile(open('setup.py').read(), 'setup.py', 'exec'), {'__file__': 'setup.py'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_on_a_package_index_all_links_of_the_readme_are_absolute() -> None:
    text = metadata(ESPER_REPOSITORY_URL="https://forge.example/team/esper")
    links = re.findall(r"""\]\(([^)\s]+)|<(?:img|a)\s[^>]*?(?:src|href)=["']([^"']+)""", text)
    assert len(links) > 10
    for link in (first or second for first, second in links):
        assert re.match("https?://|#", link), link
        path = re.match(r"https://forge\.example/team/esper/(?:blob|raw)/v[\d.]+/([^#]+)", link)
        assert path is None or (ROOT / path[1]).exists(), link
    assert f"https://forge.example/team/esper/blob/v{esper.__version__}/CHANGELOG.md" in text


def test_a_wrong_wish_for_kernels_is_rejected() -> None:
    assert "ESPER_REQUIRE_KERNELS is 'yes'" in metadata(ESPER_REQUIRE_KERNELS="yes")


@pytest.mark.skipif(
    os.environ.get("ESPER_REQUIRE_KERNELS") != "1", reason="kernels are optional outside CI"
)
def test_every_kernel_is_compiled() -> None:
    sources = sorted((ROOT / "src").rglob("_*.c"))
    assert sources
    for source in sources:
        importlib.import_module(".".join(source.relative_to(ROOT / "src").with_suffix("").parts))


def test_only_user_extras_are_published_and_none_is_pinned_exactly() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    assert not {"dev", "bench", "docs"} & set(extras)
    assert not [each for packages in extras.values() for each in packages if "==" in each]
    assert "dev" in settings["dependency-groups"]


def test_windows_is_rejected_with_a_way_out() -> None:
    with pytest.raises(ImportError, match="WSL 2"):
        check_platform("win32")


@pytest.mark.parametrize("ours_is_last", [True, False])
def test_another_package_of_the_same_name_is_reported(tmp_path: Path, ours_is_last: bool) -> None:
    shutil.copytree(
        ROOT / "src" / "esper", tmp_path / "esper", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "esper_lite-9.dist-info").mkdir()
    assert find_clash(tmp_path) is None
    (tmp_path / "esper-3.9.dist-info").mkdir()
    if not ours_is_last:
        (tmp_path / "esper" / "__init__.py").write_text("class World: ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "esper", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stderr.count("unrelated package esper 3.9") == 1
    assert done.stdout == f"esper {esper.__version__}\n"


def test_import_esper_offers_exactly_its_public_names_without_importing_torch() -> None:
    script = (
        "import sys, esper\n"
        "assert 'torch' not in sys.modules\n"
        "assert callable(esper.add_slots)\n"
        "assert 'torch' in sys.modules\n"
        "try:\n    esper.nope\nexcept AttributeError as error:\n    print(error)\n"
        "import esper.simic, esper.dashboard\n"
        "assert dir(esper) == sorted(esper.__all__)\n"
        "assert dir(esper.simic) == sorted(esper.simic.__all__)\n"
        "names = set(esper.__all__)\n"
        "before = set(globals())\n"
        "from esper import *\n"
        "assert set(globals()) - before - {'before'} == names\n"
        "assert grow is esper.grow\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "module 'esper' has no attribute 'nope'\n"
