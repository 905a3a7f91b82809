"""An exported controller grows the same hosts as the run it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.tamiyo import load_saved
from tests.cli.test_run_commands import refused


def test_an_exported_controller_grows_the_same_host_as_its_run(
    finished_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("esper.growing.grow._save_program", lambda *_: None)
    assert main(["export-controller", str(finished_run), "--out", "kept"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "kept/controller.safetensors",
        "kept/controller.json",
        "kept/CARD.md",
    ]
    grown = []
    for controller in (str(finished_run), "kept"):
        assert main(["grow", "--controller", controller, "--seed", "3", "--json"]) == 0
        grown.append(json.loads(capsys.readouterr().out))
    assert grown[0] == grown[1]
    card = (tmp_path / "kept/CARD.md").read_text()
    assert card.startswith(f"# Controller {finished_run.name}\n")
    assert "esper train --preset" in card


def test_an_export_can_be_named_made_greedy_and_replaced(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export-controller", str(finished_run), "--out", "kept"]
    assert main([*words, "--name", "first", "--greedy"]) == 0
    loaded = load_saved("kept")
    assert (loaded.name, loaded.deterministic) == ("first", True)
    assert "kept already holds a controller" in refused(words, capsys)
    assert main([*words, "--force"]) == 0
    assert (load_saved("kept").name, load_saved("kept").deterministic) == (finished_run.name, False)


def test_an_unknown_run_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'nowhere'" in refused(["export-controller", "nowhere"], capsys)
