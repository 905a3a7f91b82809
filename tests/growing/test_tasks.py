"""A host of a task is grown like any model, and can be saved for use without Esper."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import esper
from esper.environment.draws import draw_seed
from esper.errors import ConfigError, RunError, SavedModelError, StorageError, TaskError
from esper.growing.decisions import Decision
from esper.growing.grow import grow
from esper.growing.grown import save_grown
from esper.growing.task_hosts import grow_best_host
from esper.storage.run_folder import RunFolder
from esper.tamiyo import NoGrowth
from esper.tasks import ACCURACY, make_task
from esper.training.run import Run
from tests.training.tiny import tiny_config

USE = """
import sys, torch
model = torch.export.load(sys.argv[1] + "/model.pt2").module()
inputs = torch.load(sys.argv[1] + "/inputs.pt")
torch.save([model(x) for x in inputs], sys.argv[1] + "/outputs.pt")
assert not any(name.split(".")[0] == "esper" for name in sys.modules)
"""


def test_the_best_host_of_a_run_scores_the_same_again(done_run: Run) -> None:
    assert done_run.summary is not None
    own, best = done_run.summary.own, done_run.summary.best_host
    assert best is not None
    grown = grow_best_host(done_run)
    assert best.number == own.returns[0].argmax()
    assert grown.score == pytest.approx(own.score[0, best.number], abs=1e-3)
    assert grown.episode_return == pytest.approx(own.returns[0, best.number], abs=1e-3)
    assert len(grown.timeline) == len(best.actions)


def test_the_score_is_that_of_the_exported_module_on_the_test_split() -> None:
    steps: list[Decision] = []
    grown = grow("spirals", controller="random", seed=5, on_step=steps.append, n_epochs=14)
    assert steps == list(grown.timeline)
    assert [step.epoch for step in steps[:3]] == [1, 2, 3]
    assert "germinate" in {step.op for step in steps}
    assert not any(type(m).__module__.startswith("esper") for m in grown.model.modules())
    test = make_task("spirals").sample(draw_seed("evaluation", 5, 0)).data.test
    guesses = grown.model.eval()(test.inputs).argmax(1)
    accuracy = float((guesses == test.targets).double().mean())
    assert grown.score == pytest.approx(accuracy)
    summary = grown.summary
    assert (summary.split, summary.metric) == ("test", "accuracy")
    assert summary.after == summary.grown == pytest.approx(accuracy)
    assert summary.parameters_after == sum(p.numel() for p in grown.model.parameters())
    assert summary.seeds
    assert str(summary).startswith(
        f"Test accuracy  {summary.after:.4g}; {summary.before:.4g} before"
    )


def test_a_host_that_is_not_grown_has_no_seeds() -> None:
    grown = grow("spirals", controller=NoGrowth(), seed=3, epochs=2)
    assert grown.to_json()["seed_parameters"] == 0
    assert [step.op for step in grown.timeline] == ["wait", "wait"]
    assert [step.stages for step in grown.timeline] == [{}, {}]


def test_growing_a_host_leaves_the_random_state_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    grow("spirals", controller="no-growth", epochs=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_saved_model_runs_without_esper_for_any_batch_size(tmp_path: Path) -> None:
    grown = grow("spirals", controller="random", seed=2, n_epochs=14)
    folder = save_grown(grown, tmp_path / "grown")
    inputs = [torch.randn(n, *grown.sample.shape[1:]) for n in (1, 4, 33)]
    torch.save(inputs, folder / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USE, folder], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outputs = torch.load(folder / "outputs.pt")
    for given, found in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(found, grown.model(given), atol=1e-6, rtol=1e-5)
    saved = json.loads((folder / "growth.json").read_text())
    assert saved == grown.to_json()
    assert saved["score"] == grown.score
    assert len(saved["timeline"]) == len(grown.timeline)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    before = {name: tensor.clone() for name, tensor in grown.model.state_dict().items()}
    with torch.no_grad():
        for parameter in grown.model.parameters():
            parameter.zero_()
    grown.model.load_state_dict(weights)
    assert all(torch.equal(before[n], t) for n, t in grown.model.state_dict().items())


def test_loading_a_grown_model_as_a_growing_one_says_what_to_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    folder = save_grown(grow("spirals", controller="no-growth", n_epochs=1), tmp_path / "grown")
    call = re.escape(f"torch.export.load({str(folder / 'model.pt2')!r}).module()")
    with pytest.raises(SavedModelError, match=rf"{folder} .*save_grown; .*{call}"):
        esper.load(folder, torch.nn.Identity)


def test_a_controller_is_a_run_its_path_or_a_name(done_run: Run) -> None:
    by_path = grow("spirals", controller=done_run.path, seed=5, n_epochs=3)
    by_run = grow("spirals", controller=done_run, seed=5, n_epochs=3)
    assert by_path.timeline == by_run.timeline
    with pytest.raises(RunError, match="heuristics"):
        grow("spirals", controller="heuristics", n_epochs=2)


@pytest.mark.parametrize(
    "arguments",
    [{"train_data": ([], [])}, {"val_data": ([], [])}, {"at": ["0"]}, {"metric": ACCURACY}],
)
def test_arguments_that_only_a_model_takes_are_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        grow("spirals", **arguments)


def test_options_need_the_name_of_a_task() -> None:
    with pytest.raises(TaskError, match="n_epochs"):
        grow(make_task("spirals"), n_epochs=2)


def test_the_best_host_of_an_unfinished_run_is_not_known(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "begun", tiny_config())
    with pytest.raises(RunError, match=r"'begun' is not done \(empty\)"):
        grow_best_host(Run(folder))


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    grown = grow("spirals", controller="no-growth", n_epochs=1)
    with pytest.raises(StorageError, match="grown cannot be written"):
        save_grown(grown, tmp_path / "file" / "grown")


def test_the_baseline_of_a_host_is_the_same_host_with_no_growth() -> None:
    options: dict[str, Any] = {"seed": 5, "n_epochs": 14}
    grown = grow("spirals", controller="random", baseline=True, **options)
    plain = grow("spirals", controller="no-growth", **options)
    assert grown.summary.baseline == plain.summary.after
    assert grown.summary.is_above_baseline == (grown.summary.after > plain.summary.after)
    alone = grow("spirals", controller="random", **options)
    assert alone.timeline == grown.timeline
    assert alone.summary.baseline is None
