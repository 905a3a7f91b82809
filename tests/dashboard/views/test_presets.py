"""Settings are compared with the preset that they differ from least."""

from __future__ import annotations

import pytest

from esper.config.toml import load_preset, override, preset_names, write_toml
from esper.dashboard.views.presets import nearest_preset


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_differs_from_itself_in_nothing(name: str) -> None:
    found = nearest_preset(write_toml(load_preset(name)))
    assert found == {"name": name, "differs": {}, "command": f"esper train --preset {name}"}


def test_changed_settings_are_listed_with_the_value_of_the_preset() -> None:
    preset = load_preset("spirals")
    changed = override(preset, {"seed": 5, "ppo.learning_rate": 0.25})
    found = nearest_preset(write_toml(changed))
    assert found == {
        "name": "spirals",
        "differs": {"seed": str(preset.seed), "ppo.learning_rate": str(preset.ppo.learning_rate)},
        "command": "esper train --preset spirals --seed 5 --ppo.learning-rate 0.25",
    }


def test_a_setting_that_the_preset_does_not_have_is_listed() -> None:
    changed = override(load_preset("spirals"), {"task_options": {"n_classes": 4}})
    found = nearest_preset(write_toml(changed))
    assert found["name"] == "spirals"
    assert found["differs"] == {"task_options.n_classes": None}


def test_a_preset_of_the_same_task_is_preferred() -> None:
    changed = override(load_preset("universal"), {"task": "spirals"})
    assert nearest_preset(write_toml(changed))["name"] == "spirals"


def test_an_answer_is_not_shared() -> None:
    text = write_toml(override(load_preset("spirals"), {"seed": 5}))
    nearest_preset(text)["differs"].clear()
    assert "seed" in nearest_preset(text)["differs"]
