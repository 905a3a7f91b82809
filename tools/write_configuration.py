"""Write what follows from the settings again: the preset files and the page's tables."""

from __future__ import annotations

from pathlib import Path

from esper.config.schema import configuration_tables
from esper.config.toml import load_preset, preset_names, preset_text, write_toml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
START = "<!-- The tables below are written by tools/write_configuration.py. -->\n\n"


def preset_file(name: str) -> str:
    """Return a preset's file as it should be: its first paragraph, then every setting."""
    head, _, _ = preset_text(name).partition("\n\n")
    return f"{head}\n\n{write_toml(load_preset(name))}"


def page() -> str:
    """Return the page on configuration as it should be: its own words, then the tables."""
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(START)
    return words + START + configuration_tables()


def main() -> None:
    """Write all of them."""
    for name in preset_names():
        path = ROOT / "src/esper/config/presets" / f"{name}.toml"
        path.write_text(preset_file(name), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
