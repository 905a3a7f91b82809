"""A saved controller is restored exactly, for any number of slots, or rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from esper.config.growth import GrowthConfig
from esper.errors import ControllerError, OtherVersionError, StorageError
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.storage.saved_folder import FORMAT
from esper.tamiyo import (
    Controller,
    LearnedController,
    load_saved,
    load_shipped,
    save_controller,
)
from esper.tamiyo.controllers import saved as saved_files
from esper.tamiyo.controllers.learned import expects_gain
from esper.tamiyo.controllers.saved import facts_of
from esper.tamiyo.policy.observations import ObservationLayout
from tests.storage.forging import forge, forge_json
from tests.tamiyo.fresh_controllers import fresh_controller
from tests.tamiyo.random_states import draw_states


def decisions(controller: Controller, slots: SlotConfig, *, seed: int = 0) -> np.ndarray:
    """Return a controller's actions for 16 hosts over 6 random observations."""
    rng, layout = np.random.default_rng(seed), ObservationLayout(slots)
    controller.start(16, seed=seed)
    rows = []
    for step in range(6):
        seen = rng.uniform(-1, 1, (16, layout.size)).astype(np.float32)
        layout.slot(seen, "blueprint")[...] = 0.0
        masks = draw_states(rng, 16, slots.max_slots).masks(slots)
        rows.append(controller.act(seen, masks, np.full(16, step == 0)))
    return np.stack(rows)


@pytest.mark.parametrize("n_slots", [1, 3, 12])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_loaded_controller_acts_like_the_saved_one(
    n_slots: int, deterministic: bool, tmp_path: Path
) -> None:
    growth = GrowthConfig(min_training_epochs=2) if deterministic else None
    saved = fresh_controller(deterministic=deterministic, n_epochs=9, growth=growth)
    save_controller(saved, tmp_path / "kept")
    loaded = load_saved(tmp_path / "kept")
    slots = SlotConfig(tuple(f"blocks.{i}" for i in range(n_slots)))
    own = LearnedController(saved.make_policy(slots), deterministic=deterministic)
    assert np.array_equal(decisions(loaded.make(slots), slots), decisions(own, slots))
    for name in ("name", "policy", "blueprints", "deterministic", "budget", "growth", "origin"):
        assert getattr(loaded, name) == getattr(saved, name)


def test_deterministic_actions_can_be_chosen_when_it_is_made() -> None:
    slots, saved = SlotConfig(("a", "b")), fresh_controller()
    greedy = decisions(saved.make(slots, deterministic=True), slots)
    assert np.array_equal(greedy, decisions(replace(saved, deterministic=True).make(slots), slots))
    assert not np.array_equal(greedy, decisions(saved.make(slots), slots))


def test_the_files_can_be_read_without_esper(tmp_path: Path) -> None:
    saved = fresh_controller()
    save_controller(saved, tmp_path, card="# What it is\n")
    weights = safetensors.torch.load_file(tmp_path / "controller.safetensors")
    assert weights.keys() == saved.weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.weights.items())
    assert (tmp_path / "CARD.md").read_text() == "# What it is\n"
    assert json.loads((tmp_path / "controller.json").read_text())["origin"] == saved.origin
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "CARD.md",
        "controller.json",
        "controller.safetensors",
        "manifest.json",
    ]


def _change(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        facts = json.loads((folder / "controller.json").read_text())
        for name, value in changes.items():
            facts[name] = value(facts[name]) if callable(value) else value
        forge_json(folder, "controller.json", facts)

    return change


def _flip(folder: Path) -> None:
    path = folder / "controller.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


FACTS = facts_of(fresh_controller())
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no facts": (
        lambda folder: (folder / "controller.json").unlink(),
        "controller.json: No such file",
    ),
    "no weights": (
        lambda folder: (folder / "controller.safetensors").unlink(),
        "controller.safetensors: No such file",
    ),
    "no manifest": (
        lambda folder: (folder / "manifest.json").unlink(),
        "no manifest.json; .*another version",
    ),
    "no JSON": (lambda folder: forge(folder, "controller.json", b"{"), "not valid JSON"),
    "a list": (lambda folder: forge(folder, "controller.json", b"[]"), "is damaged"),
    "no tensors": (lambda folder: forge(folder, "controller.safetensors", b"1"), "is damaged"),
    "another byte": (_flip, "sha256"),
    "older observations": (_change(observations=1), "'fresh' .* another .*version 1, not 2"),
    "other observations": (_change(observations=9), "'fresh' .* another .*version 9, not 2"),
    "a feature more": (
        _change(slot_features=lambda names: [*names, "colour"]),
        "slot features of .*controller.json",
    ),
    "another choice": (
        _change(heads=lambda heads: heads | {"tempo": [3, 5, 9]}),
        "heads of .*controller.json",
    ),
    "other sizes": (
        _change(policy=lambda sizes: sizes | {"lstm_size": 9}),
        "19 blueprints",
    ),
    "a size that takes hours to make": (
        _change(policy=lambda sizes: sizes | {"lstm_size": 10_000}),
        "lstm_size is 10000, .*larger than",
    ),
    "a size beyond memory": (
        _change(policy=lambda sizes: sizes | {"slot_size": 10**15}),
        "slot_size is 1000000000000000, .*larger than",
    ),
    "a blueprint less": (
        _change(blueprints=lambda names: names[1:]),
        "18 blueprints",
    ),
    "a blueprint twice": (
        _change(blueprints=lambda names: [*names[1:], names[1]]),
        "controller.json, blueprints contains 'norm' twice",
    ),
    "an unknown size": (
        _change(policy=lambda sizes: sizes | {"depth": 2}),
        "settings: depth",
    ),
    "no budget": (_change(budget={}), "settings: flop_price, n_epochs"),
    "a negative size": (
        _change(policy=lambda sizes: sizes | {"lstm_size": -1}),
        "lstm_size is -1",
    ),
    "a list for a section": (_change(policy=[1]), r"controller.json, policy is \[1\]"),
    "a number as a string": (
        _change(policy=lambda sizes: sizes | {"lstm_size": "8"}),
        "policy.lstm_size is '8'; it must be a whole number",
    ),
    "a nested list": (
        _change(budget=lambda budget: budget | {"flop_price": [[0.5]]}),
        r"budget.flop_price is \[\[0.5\]\]; it must be a finite number",
    ),
    "a string for a switch": (
        _change(growth=asdict(GrowthConfig()) | {"advances_alone": "no"}),
        "growth.advances_alone is 'no'; it must be true or false",
    ),
    "a number as a blueprint": (_change(blueprints=["norm", 3]), r"blueprints\[1\] is 3"),
    "a string as a seed": (_change(origin={"seed": "3"}), "origin.seed is '3'"),
    "a nested option": (
        _change(origin={"task_options": {"a": {"b": 1}}}),
        r"origin.task_options.a is \{'b': 1\}",
    ),
    "no name": (_change(name=3), "name is 3; it must be a string"),
    "a word as a scale": (_change(origin={"return_std": "x"}), "origin.return_std is 'x'"),
    "a number as a version": (_change(esper=0.2), "esper is 0.2; it must be a string"),
    "no origin": (_change(origin=[]), r"origin is \[\]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_incompatible_controller_is_rejected(damage: str, tmp_path: Path) -> None:
    spoil, message = DAMAGE[damage]
    save_controller(fresh_controller(), tmp_path)
    spoil(tmp_path)
    with pytest.raises(ControllerError, match=message) as caught:
        load_saved(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    saved = fresh_controller()
    weights = dict(saved.weights)
    weights["outputs.bias"] = torch.full_like(weights["outputs.bias"], float("nan"))
    with pytest.raises(ControllerError, match="'fresh' are not all finite"):
        save_controller(replace(saved, weights=weights), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="kept cannot be written"):
        save_controller(fresh_controller(), tmp_path / "file" / "kept")


def test_a_missing_shipped_controller_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", tmp_path / "shipped")
    with pytest.raises(ControllerError, match=r"no controller in .*shipped"):
        load_shipped()
    save_controller(fresh_controller(), tmp_path / "shipped")
    assert load_shipped().name == "fresh"


def test_the_shipped_controller_is_shown_with_its_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", tmp_path)
    save_controller(replace(fresh_controller(), name="universal", esper="0.2.7"), tmp_path)
    shipped = load_shipped()
    assert shipped.label == "learned (universal, 0.2)"
    assert shipped.make(SlotConfig(("a",))).name == shipped.label
    assert load_saved(tmp_path).label == "universal"
    again = load_saved(save_controller(shipped, tmp_path / "copy"))
    assert (again.name, again.esper, again.label) == ("universal", "0.2.7", "universal")


def test_hosts_without_known_blueprints_are_rejected() -> None:
    saved = fresh_controller(blueprints=("widen_large", "conv_light"))
    slots = SlotConfig(("a",), blueprints=BUILTIN_BLUEPRINTS, fits={"a": ["norm", "noop"]})
    with pytest.raises(ControllerError, match="widen_large, conv_light"):
        saved.make(slots)


@pytest.mark.parametrize("wrong", [None, 3, "a", [], [[]], {}, {"a": 1}])
@pytest.mark.parametrize("name", ["policy", "budget", "blueprints", "deterministic", "rewards"])
def test_facts_of_the_wrong_type_are_rejected(name: str, wrong: object, tmp_path: Path) -> None:
    save_controller(fresh_controller(), tmp_path)
    _change(**{name: wrong})(tmp_path)
    with pytest.raises(ControllerError, match=name) as caught:
        load_saved(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["missing", "misspelt"])
@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_missing_fact_is_named(name: str, change: str, tmp_path: Path) -> None:
    path = save_controller(fresh_controller(), tmp_path)
    facts = json.loads((path / "controller.json").read_text())
    value = facts.pop(name)
    if change == "misspelt":
        facts["x" + name[1:]] = value
    forge_json(path, "controller.json", facts)
    with pytest.raises(ControllerError, match=f"is damaged: it has no '{name}'"):
        load_saved(tmp_path)


def test_the_form_of_its_rewards_is_kept(tmp_path: Path) -> None:
    loaded = load_saved(save_controller(replace(fresh_controller(), rewards="paired"), tmp_path))
    assert loaded.rewards == "paired"
    for blueprints in (loaded.blueprints, loaded.blueprints[::-1]):  # the second are translated
        assert expects_gain(loaded.make(SlotConfig(("a",), blueprints=blueprints)))


def test_a_controller_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    path = save_controller(fresh_controller(), tmp_path) / "manifest.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(OtherVersionError, match=r"another version of Esper .*99"):
        load_saved(tmp_path)


def test_a_controller_is_replaced_by_another(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        save_controller(replace(fresh_controller(), name=name), tmp_path, card=name)
        assert load_saved(tmp_path).name == name
    assert len(list(tmp_path.iterdir())) == 4
