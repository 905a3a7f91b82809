"""Presets are complete files, and the page on configuration says what the code does."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from esper.config.run import RunConfig
from esper.config.schema import configuration_tables, settings_of
from esper.config.toml import load_preset, preset_names, preset_summary, preset_text, write_toml
from esper.errors import ConfigError
from esper.tasks import make_task

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/configuration.md"


def test_these_are_the_presets() -> None:
    assert preset_names() == ("digits", "digits-family", "quick", "spirals", "text")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_a_complete_file_below_what_it_is_for(name: str) -> None:
    head, _, settings = preset_text(name).partition("\n\n")
    assert all(line.startswith("# ") and len(line) <= 100 for line in head.splitlines())
    assert settings == write_toml(load_preset(name)), "run tools/write_configuration.py"
    assert preset_summary(name) == head.splitlines()[0].removeprefix("# ")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_a_task_that_there_is(name: str) -> None:
    config = load_preset(name)
    assert make_task(config.task, **config.task_options).name == config.task


def test_a_preset_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'quik'; .* Did you mean 'quick'\?"):
        load_preset("quik")


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert text.endswith(configuration_tables()), "run tools/write_configuration.py"
    named = re.findall(r"^\| `([\w-]+)` \|", text.partition("## Presets")[2], flags=re.MULTILINE)
    assert set(named[: len(preset_names())]) == set(preset_names())
    rows = re.findall(r"^\| `(\w+)` \| .* \| .* \| .+ \|$", text.partition("At the top")[2], re.M)
    assert rows == _field_names(RunConfig())


def _field_names(config: object) -> list[str]:
    plain = [field.name for field in fields(config) if not is_dataclass(_value(config, field))]
    return plain + [
        name
        for field in fields(config)
        if is_dataclass(_value(config, field))
        for name in _field_names(_value(config, field))
    ]


def _value(config: object, field: object) -> object:
    return getattr(config, field.name)  # type: ignore[attr-defined]


def test_every_setting_is_explained() -> None:
    assert all(setting.doc.endswith(".") for setting in settings_of())


def test_the_tool_that_writes_presets_and_page_has_nothing_to_write() -> None:
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools/write_configuration.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.page() == PAGE.read_text()
    assert all(tool.preset_file(name) == preset_text(name) for name in preset_names())


def test_the_python_of_the_page_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), {})


def test_configurations_are_read_without_torch_and_numpy() -> None:
    script = (
        "import sys\nfrom esper.config.toml import load_preset\nload_preset('quick')\n"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
