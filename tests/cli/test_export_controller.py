"""An exported controller grows the same hosts as the run it comes from."""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.results.findings import weigh
from esper.storage.checkpoint_folder import CheckpointWarning
from esper.tamiyo import load_saved
from esper.training.run import load_run
from tests.cli.test_run_commands import refused


def test_an_exported_controller_grows_the_same_host_as_its_run(
    finished_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    assert main(["export-controller", str(finished_run), "--out", "kept"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "kept",
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
    assert len(card.splitlines()) <= 45
    summary = load_run(finished_run).summary
    assert summary is not None
    for one in weigh(summary):
        ends = (one.returns.mean, one.returns.low, one.returns.high)
        mean, low, high = (round(100 * end, 1) + 0.0 for end in ends)
        assert f"{mean:+.1f} [{low:.1f}, {high:.1f}] points" in card


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


@pytest.mark.parametrize("is_complete", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_controller_lost_with_its_checkpoints_is_not_called_missing(
    is_complete: bool, copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = sorted((copied_run / "checkpoints").iterdir())
    for checkpoint in others:
        (checkpoint / "state.json").write_text("{}")
    summary = copied_run / "summary.json"
    if not is_complete:
        summary.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        line = refused(["export-controller", str(copied_run), "--out", "kept"], capsys)
    for checkpoint in others:
        assert checkpoint.name in line
    assert f"{first.name} is from before the first evaluation" in line
    assert (f"delete {summary}" in line) == is_complete
    command = line.partition("from there: esper ")[2]
    assert shlex.split(command) == ["resume", str(copied_run)]
    summary.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        assert main([*shlex.split(command), "--quiet"]) == 0
    assert main(["export-controller", str(copied_run), "--out", "kept"]) == 0


def test_an_unknown_run_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'nowhere'" in refused(["export-controller", "nowhere"], capsys)
