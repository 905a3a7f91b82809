"""Grown hosts are those of the comparison, and can be used where there is no Esper."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from esper.environment.draws import draw_seed
from esper.errors import RunError, StorageError
from esper.growing.grow import TimelineStep, grow_best_host, grow_host, save_grown
from esper.storage.run_folder import RunFolder
from esper.tamiyo import WaitController
from esper.tasks import make_task
from esper.training.run import Run
from tests.training.tiny import tiny_config

USE = """
import sys, torch
model = torch.export.load(sys.argv[1] + "/model.pt2").module()
inputs = torch.load(sys.argv[1] + "/inputs.pt")
torch.save([model(x) for x in inputs], sys.argv[1] + "/outputs.pt")
assert not any(name.split(".")[0] == "esper" for name in sys.modules)
"""


def test_the_best_host_grown_again_scores_as_it_did(done_run: Run) -> None:
    assert done_run.summary is not None
    best = done_run.summary.best_host
    assert best is not None
    grown = grow_best_host(done_run)
    assert grown.score == pytest.approx(best.score, abs=1e-3)
    assert grown.ep_rew == pytest.approx(best.ep_rew, abs=1e-3)
    assert len(grown.timeline) == len(best.actions)


def test_the_module_is_plain_and_the_score_is_that_of_the_module() -> None:
    told: list[TimelineStep] = []
    grown = grow_host("spirals", "random", seed=2, on_step=told.append, n_epochs=14)
    assert told == list(grown.timeline)
    assert [step.epoch for step in told[:3]] == [1, 2, 3]
    assert {step.op for step in told} >= {"germinate", "advance", "fossilize"}
    assert not any(type(m).__module__.startswith("esper") for m in grown.model.modules())
    n_parameters = sum(p.numel() for p in grown.model.parameters())
    assert n_parameters == grown.host_parameters + grown.seed_parameters
    assert grown.seed_parameters > 0
    test = make_task("spirals").sample(draw_seed("evaluation", 2, 0)).data.test
    guesses = grown.model.eval()(test.inputs).argmax(1)
    assert grown.score == pytest.approx(float((guesses == test.targets).double().mean()))


def test_a_host_left_alone_is_the_host() -> None:
    grown = grow_host("spirals", WaitController(), seed=3, n_epochs=2)
    assert grown.seed_parameters == 0
    assert [step.op for step in grown.timeline] == ["wait", "wait"]
    assert [step.stages for step in grown.timeline] == [{}, {}]


def test_a_saved_host_runs_without_esper_for_any_number_of_samples(
    tmp_path: Path,
) -> None:
    grown = grow_host("spirals", "random", seed=2, n_epochs=14)
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
    story = json.loads((folder / "growth.json").read_text())
    assert story["score"] == grown.score
    assert len(story["timeline"]) == len(grown.timeline)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    before = {name: tensor.clone() for name, tensor in grown.model.state_dict().items()}
    with torch.no_grad():
        for parameter in grown.model.parameters():
            parameter.zero_()
    grown.model.load_state_dict(weights)
    assert all(torch.equal(before[n], t) for n, t in grown.model.state_dict().items())


def test_a_run_is_a_controller_by_its_path_and_others_by_their_names(done_run: Run) -> None:
    by_path = grow_host("spirals", done_run.path, seed=5, n_epochs=3)
    by_run = grow_host("spirals", done_run, seed=5, n_epochs=3)
    assert by_path.timeline == by_run.timeline
    with pytest.raises(RunError, match="A controller is the folder of a run or of a saved"):
        grow_host("spirals", "heuristics", n_epochs=2)


def test_the_best_host_of_a_run_that_is_not_done_is_not_known(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "begun", tiny_config())
    with pytest.raises(RunError, match=r"is not done \(empty\)"):
        grow_best_host(Run(folder))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    grown = grow_host("spirals", "wait", n_epochs=1)
    with pytest.raises(StorageError, match="choose another folder"):
        save_grown(grown, tmp_path / "file" / "grown")
