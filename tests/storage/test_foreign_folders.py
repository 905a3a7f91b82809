"""Nothing is saved over files that something else wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
import torch
from torch import nn

import esper
from esper.cli.main import main
from esper.errors import EsperError
from esper.growing import grown
from esper.growing.grown import save_grown
from esper.simic import PPO, Checkpoint, Tracker
from esper.storage.grown_folder import GROWTH_FILE
from tests.growth.helpers import make_host
from tests.tamiyo.fresh_controllers import fresh_controller

DATA = torch.randn(40, 4), torch.randint(2, (40,))


def small_ppo() -> PPO:
    return PPO(gymnasium.make("CartPole-v1"), n_steps=8, n_minibatches=1)


def save_growing(folder: Path) -> object:
    return esper.save(make_host("mlp")[0], folder)


def save_controller(folder: Path) -> object:
    return esper.save_controller(fresh_controller(), folder)


def save_result(folder: Path) -> object:
    return save_grown(cast(Any, None), folder)


@pytest.fixture
def as_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        model = nn.Linear(1, 1)

        def to_json(self) -> dict[str, Any]:
            return {"timeline": []}

    monkeypatch.setattr(grown, "check", lambda *_: Made())
    monkeypatch.setattr(grown, "_save_program", lambda _, path: path.write_text("program"))


def fail_if_trained(*_: object) -> Any:
    raise AssertionError("it trains")


def resume(folder: Path) -> object:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return esper.grow(
        model, DATA, DATA, epochs=1, progress=False, resume=folder, on_step=fail_if_trained
    )


SAVES = [save_growing, save_controller, save_result]
FOLDERS = [*SAVES, resume]


@pytest.mark.usefixtures("as_grown")
@pytest.mark.parametrize("save", FOLDERS)
@pytest.mark.parametrize("name", ["model.safetensors", "model.pt2", "growth.json", ".git"])
def test_a_folder_of_other_files_is_refused_and_left_as_it_is(
    save: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text('{"new_parameters": []}')
    with pytest.raises(EsperError, match=rf"holds no .* but other files, such as '{name}'; choose"):
        save(tmp_path)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        name: '{"new_parameters": []}'
    }


@pytest.mark.usefixtures("as_grown")
def test_each_kind_replaces_its_own_results_and_no_others(tmp_path: Path) -> None:
    for one in SAVES:
        place = tmp_path / one.__name__
        place.mkdir()
        (place / ".model.pt2-abcd_123").write_text("left by a killed process")
        one(place)
        (place / "notes.txt").write_text("mine")
        one(place)
        assert (place / "notes.txt").read_text() == "mine"
        for other in SAVES:
            if other is not one:
                with pytest.raises(EsperError, match="but other files"):
                    other(place)


@pytest.mark.usefixtures("as_grown")
def test_a_grown_model_that_was_not_saved_completely_is_replaced(tmp_path: Path) -> None:
    (tmp_path / GROWTH_FILE).write_text("{}\n")
    save_result(tmp_path)
    assert (tmp_path / "model.pt2").read_text() == "program"


def test_a_trained_policy_is_saved_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("mine")
    callbacks = [Tracker("csv", tmp_path), Checkpoint(tmp_path, 8)]
    model = small_ppo().learn(8, callbacks=callbacks)
    assert PPO.load(model.save(tmp_path)).num_timesteps == 8
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_the_command_line_refuses_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.growing.grow.grow", fail_if_trained)
    (tmp_path / "model.safetensors").write_text("mine")
    assert main(["grow", "--task", "spirals", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"esper: error: {tmp_path} exists and holds no grown model but other files, such as "
        "'model.safetensors'; choose another folder, or an empty one.\n"
    )
    assert (tmp_path / "model.safetensors").read_text() == "mine"
