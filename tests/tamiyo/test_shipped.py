"""The controller that ships with Esper loads, is small, and grows an unknown model."""

import re
from pathlib import Path

import torch

import esper
from esper.tamiyo import load_shipped
from esper.tamiyo.controllers.saved import SHIPPED_FOLDER, load_saved
from tests.growing.own_models import MLP, digits

MEGABYTE = 2**20


def test_it_loads_and_is_small() -> None:
    shipped = load_shipped()
    files = {path.name: path.stat().st_size for path in SHIPPED_FOLDER.iterdir()}
    named = {"controller.safetensors", "controller.json", "manifest.json", "CARD.md"}
    assert named <= files.keys() <= named | {"results.png"}
    assert files.get("results.png", 0) < 100_000
    assert sum(files.values()) < 5 * MEGABYTE
    kinds = {tensor.dtype for tensor in shipped.weights.values()}
    assert kinds == {torch.float32, torch.int64}  # weights, and how much was counted


def test_its_card_is_short_and_names_the_training_command() -> None:
    card = (SHIPPED_FOLDER / "CARD.md").read_text()
    assert load_saved(SHIPPED_FOLDER).origin["command"] in card
    assert len(card.splitlines()) <= 45
    for name in re.findall(r"\]\(([^)]*)\)", card):
        assert (SHIPPED_FOLDER / name).is_file()


def test_it_grows_an_unknown_model(tmp_path: Path) -> None:
    grown = esper.grow(MLP(3), *digits(), learning_rate=3e-3, controller="learned")
    assert grown.summary.after >= grown.summary.before
    assert grown.summary.budget_epochs == load_shipped().budget.n_epochs
