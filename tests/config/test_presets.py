"""Presets are complete files, and the configuration reference matches the code."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from esper.config.run import RunConfig
from esper.config.schema import configuration_tables, settings_of
from esper.config.toml import load_preset, preset_names, preset_text, write_toml
from esper.errors import ConfigError
from esper.tasks import make_task

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/configuration.md"


def test_the_presets_are_listed() -> None:
    assert preset_names() == ("digits", "digits-family", "quick", "spirals", "text", "universal")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_a_summary_and_all_settings(name: str) -> None:
    head, _, settings = preset_text(name).partition("\n\n")
    assert all(line.startswith("# ") and len(line) <= 100 for line in head.splitlines())
    assert settings == write_toml(load_preset(name)), "run tools/write_configuration.py"


@pytest.mark.parametrize("name", preset_names())
def test_the_task_of_a_preset_exists(name: str) -> None:
    config = load_preset(name)
    assert make_task(config.task, **config.task_options).name == config.task


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'quik'.*Did you mean 'quick'\?"):
        load_preset("quik")


def test_the_tables_of_the_reference_match_the_code() -> None:
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


def test_every_setting_has_a_description() -> None:
    assert all(setting.doc.endswith(".") for setting in settings_of())


def test_presets_and_reference_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools/write_configuration.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.page() == PAGE.read_text()
    assert all(tool.preset_file(name) == preset_text(name) for name in preset_names())


def test_the_code_of_the_reference_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), {})


def test_reading_settings_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys\nfrom esper.config.toml import load_preset\nload_preset('quick')\n"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
