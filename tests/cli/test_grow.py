"""``esper grow`` grows a host with any controller and saves a model that loads without Esper."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from esper.cli.grow import GrowOptions, _show_next_steps, remark
from esper.cli.main import main
from esper.tamiyo import load_shipped, save_controller
from esper.tamiyo.controllers import saved as saved_files
from tests.cli.test_run_commands import refused
from tests.storage.forging import forge_json
from tests.tamiyo.fresh_controllers import fresh_controller


def test_a_host_is_grown_and_its_model_can_be_loaded(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["grow", "--controller", str(finished_run), "--seed", "3", "--out", "my host"]
    assert main([*words, "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"growing a host with controller {finished_run}"
    story = json.loads((tmp_path / "my host/growth.json").read_text())
    rows = [line for line in lines if line.startswith("after epoch ")]
    for row, step in zip(rows, story["timeline"], strict=True):
        assert row.startswith(f"after epoch {step['epoch']} of {step['epochs']}  ")
        assert f"  score {step['score']:.4g}  {step['op']}" in row
    score = next(line for line in lines if line.startswith("Test accuracy  "))
    assert float(score.split()[2]) == pytest.approx(story["score"], abs=1e-4)
    assert "with no growth (" in score
    assert any(line.startswith("my host/model.pt2") for line in lines)
    again = shlex.split(lines[lines.index("Next:") + 1])
    assert again[1:6] == ["grow", "--controller", str(finished_run), "--seed", "4"]
    model = torch.export.load(tmp_path / "my host/model.pt2").module()
    assert len(model(torch.randn(7, 2))) == 7


def test_seeds_that_the_saved_model_does_not_have_are_marked() -> None:
    def step(epoch: int, op: str, slot: str = "a", blueprint: str = "") -> Any:
        return SimpleNamespace(epoch=epoch, op=op, slot=slot, blueprint=blueprint)

    summary: Any = SimpleNamespace(
        best_epoch=4, seeds=(("a", "norm"), ("b", "mlp")), germinated_after=(0, 2)
    )
    assert not remark(step(1, "germinate", "a", "norm"), summary)
    assert remark(step(2, "germinate", "a", "norm"), summary)
    assert not remark(step(3, "germinate", "b", "mlp"), summary)
    assert not remark(step(4, "fossilize"), summary)
    assert remark(step(5, "fossilize"), summary)
    summary.germinated_after = ()
    assert not remark(step(2, "germinate", "a", "norm"), summary)


def test_json_has_the_content_of_the_saved_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    words = ["grow", "--task", "spirals", "--controller", "no-growth", "--json"]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    story = json.loads((tmp_path / "grown/growth.json").read_text())
    assert facts == story | {"folder": "grown"}
    assert {step["op"] for step in facts["timeline"]} == {"wait"}
    assert facts["seed_parameters"] == 0


def test_the_default_task_is_the_one_the_controller_was_trained_on(
    finished_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    words = ["grow", "--controller", str(finished_run), "--json"]
    found = []
    for more in (["--task", "digits"], [], ["--task", "spirals"]):
        assert main([*words, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    sizes = [facts["host_parameters"] for facts in found]
    assert sizes[0] != sizes[1] == sizes[2]
    assert len(found[1]["timeline"]) <= 6 + 1  # the budget it was trained with


def test_the_shipped_controller_is_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", tmp_path / "shipped")
    assert "shipped" in refused(["grow"], capsys)
    save_controller(fresh_controller(n_epochs=4), tmp_path / "shipped")
    assert main(["grow"]) == 0
    label = load_shipped().label
    assert label.startswith("learned (fresh, ")
    assert capsys.readouterr().out.startswith(f"growing a host with controller {label}\n")


def test_a_controller_with_other_observations_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_controller(replace(fresh_controller(), esper="0.1.3"), tmp_path / "kept")
    facts = json.loads((path / "controller.json").read_text())
    facts["host_features"] = facts["host_features"][1:]
    forge_json(path, "controller.json", facts)
    for words in (
        ["grow", "--controller", "kept"],
        ["evaluate", "kept"],
        ["compare", "kept", "no-growth"],
    ):
        message = refused(words, capsys)
        assert "Esper 0.1.3" in message
        assert "esper train" in message
        assert "shipped" in message


def test_usage_errors_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["grow", "--controller", "huristic"], capsys)
    assert "'huristic'" in message
    assert "Did you mean 'heuristic'?" in message
    message = refused(["grow", "--task", "spirls", "--controller", "no-growth"], capsys)
    assert "'spirls'" in message
    assert "--seed is -1" in refused(["grow", "--seed", "-1"], capsys)
    (tmp_path / "file").write_text("")
    message = refused(["grow", "--out", "file/grown"], capsys, code=1)
    assert "file/grown" in message


def test_a_host_grows_to_a_depth_within_the_given_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["grow", "--task", "spirals", "--controller", "progressive"]
    options += ["--epochs", "8", "--fractions", "0.2", "--out", "deep"]
    assert main([*options, "--target", "depth=4", "--json"]) == 0
    story = json.loads(capsys.readouterr().out)
    assert [step["op"] for step in story["timeline"]].count("germinate") == 2
    assert [step["epoch"] for step in story["timeline"]] == list(range(1, 9))
    for target, message in (
        ("depth=1", "depth 1 is smaller than the model, which has 2"),
        ("depth=40", "38 new seeds"),
        ("width=4", "--target is 'width=4'"),
        ("depth", "--target is 'depth'"),
    ):
        assert main([*options, "--target", target]) == 2
        assert message in capsys.readouterr().err
    assert main(["grow", "--target", "depth=4"]) == 2
    assert "--target is given; it needs --controller progressive" in capsys.readouterr().err
    assert "--fractions is 2.0" in refused([*options[:-4], "--fractions", "2"], capsys)


def test_the_next_command_grows_another_host_in_the_same_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = GrowOptions(
        controller="progressive", target="depth=4", fractions=(0.2, 0.5), allow_code=True, seed=3
    )
    _show_next_steps(options)
    words = next(line for line in capsys.readouterr().out.splitlines() if "--verbose" in line)
    given = "--controller progressive --target depth=4 --fractions 0.2 0.5 --allow-code --seed 4"
    assert f"grow {given} --verbose" in words


@pytest.mark.parametrize(
    "words", [["--task", "nope"], ["--target", "depth=x", "--controller", "progressive"]]
)
def test_wrong_words_are_rejected_before_anything_is_announced(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grow", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words[1] in shown.err
    assert shown.err.count("\n") == 1


def test_the_shipped_controller_grows_what_helps_unless_there_is_a_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    free, dear = {}, {}
    for found, words in ((free, []), (dear, ["--price", "0.3"])):
        assert main(["grow", "--task", "spirals", "--json", *words]) == 0
        found.update(json.loads(capsys.readouterr().out))
    assert len(free["timeline"]) > len(dear["timeline"])
    assert free["seed_parameters"] > dear["seed_parameters"]


def test_a_price_below_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grow", "--price", "-1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("limit", "word", "is_trained"),
    [(60.0, "auto", True), (0.0, "auto", False), (0.0, "yes", True), (60.0, "no", False)],
)
def test_no_growth_is_trained_too_where_it_takes_seconds(
    limit: float,
    word: str,
    is_trained: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    monkeypatch.setattr("esper.growing.grown.AUTO_SECONDS", limit)
    words = ["grow", "--task", "spirals", "--controller", "random", "--baseline", word]
    assert main([*words, "--epochs", "6"]) == 0
    assert ("with no growth (" in capsys.readouterr().out) == is_trained
