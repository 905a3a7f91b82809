"""Controllers are found by name, folder and run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.config.toml import write_toml
from esper.environment import GrowthVectorEnv, run_episodes
from esper.errors import CheckpointError, ControllerError, RunError
from esper.growing.grow import grow
from esper.simic.agent.ppo import PPOAgent
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.run_folder import RunFolder
from esper.tamiyo import (
    Heuristic,
    LearnedController,
    NoGrowth,
    load_saved,
    save_controller,
)
from esper.tamiyo.controllers import saved as saved_files
from esper.tamiyo.controllers.learned import expected_return
from esper.tasks import make_task
from esper.training.lookup import controller_of, find_controller, find_saved
from esper.training.run import Run, load_run
from esper.training.setup import make_policy, make_run_task
from esper.version import __version__
from tests.tamiyo.fresh_controllers import fresh_controller
from tests.training.tiny import tiny_config


def test_a_controller_is_found_by_name_by_folder_and_by_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done_run: Run
) -> None:
    envs = GrowthVectorEnv("spirals", 1, autoreset=False)
    folder = save_controller(replace(fresh_controller(), name="kept"), tmp_path / "kept")
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", folder)
    own = NoGrowth()
    assert find_controller(own, envs) is own
    assert find_saved(own) is None
    assert isinstance(find_controller("heuristic", envs), Heuristic)
    for named in ("shipped", folder, str(folder), load_saved(folder)):
        found = find_controller(named, envs)
        assert isinstance(found, LearnedController)
        version = ".".join(__version__.split(".")[:2])
        assert found.name == (f"learned (kept, {version})" if named == "shipped" else "kept")
    for named in (done_run, done_run.path, str(done_run.path)):
        found = find_controller(named, envs)
        assert isinstance(found, LearnedController)
        assert found.name == done_run.name


def test_an_unknown_name_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(RunError, match=r"shipped, learned, no-growth, .*'heuristic'"):
        find_saved("heuristc")


def test_a_saved_and_loaded_controller_acts_the_same(done_run: Run, tmp_path: Path) -> None:
    saved = controller_of(done_run)
    save_controller(saved, tmp_path / "kept")
    envs = GrowthVectorEnv(make_run_task(done_run.config), 6, purpose="tuning", autoreset=False)
    results = [
        run_episodes(envs, find_controller(named, envs), seed=4)
        for named in (done_run, tmp_path / "kept")
    ]
    assert np.array_equal(results[0].returns, results[1].returns)
    assert np.array_equal(results[0].flops, results[1].flops)
    loaded = load_saved(tmp_path / "kept")
    assert loaded.budget == done_run.config.budget
    assert loaded.policy == done_run.config.policy
    assert loaded.rewards == done_run.config.rewards.reward
    assert loaded.origin["task"] == done_run.config.task
    assert loaded.origin["rounds"] == done_run.config.rounds
    assert done_run.summary is not None
    assert loaded.origin["comparison"] == list(done_run.summary.sentences)
    assert loaded.esper == __version__


def test_a_checkpoint_describes_its_controller_without_the_environments(done_run: Run) -> None:
    state = CheckpointFolder(done_run.folder.checkpoints).latest().state
    saved, facts = controller_of(done_run), state["best_policy"]
    assert tuple(facts["blueprints"]) == saved.blueprints
    envs = GrowthVectorEnv(make_run_task(done_run.config), 1)
    assert saved.blueprints == envs.slot_config.blueprints
    assert saved.growth == envs.task.growth


def test_a_runs_controller_expects_what_its_critic_does(
    done_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The critic learns normalized returns; its agent turns them into units of reward."""
    state, config = CheckpointFolder(done_run.folder.checkpoints).latest().state, done_run.config
    best, scale = state["best_policy"], state["agent"]["normalizer"]
    scale |= {name: torch.tensor(best["returns"][f"return_{name}"]) for name in ("mean", "std")}
    envs = GrowthVectorEnv(make_run_task(config), 1, autoreset=False)
    envs.reset(seed=3)
    policy = make_policy(config, envs.slot_config)
    critic = PPOAgent(policy.spec, policy, config.ppo)
    critic.load_weights({"policy": best["weights"], "normalizer": scale})
    observation, masks = envs.growth.observe(), envs.growth.masks()
    wanted = critic.value(torch.from_numpy(observation), critic.initial_state(1)).item()
    controller = controller_of(done_run).make(envs.slot_config)
    controller.start(1)
    assert expected_return(controller) is None
    controller.act(observation, masks, np.ones(1, np.bool_))
    assert expected_return(controller) == pytest.approx(wanted, abs=1e-6)
    discounted = replace(
        config, ppo=replace(config.ppo, gamma=0.9), rewards=replace(config.rewards, gamma=0.9)
    )
    monkeypatch.setattr(done_run, "config", discounted)
    monkeypatch.setattr("esper.training.lookup.require_saved_config", lambda *_: None)
    assert "return_mean" not in controller_of(done_run).origin
    paired = replace(config, rewards=replace(config.rewards, reward="paired"))
    monkeypatch.setattr(done_run, "config", paired)
    assert controller_of(done_run).rewards == "paired"


def test_a_runs_controller_steers_hosts_with_other_slots(done_run: Run) -> None:
    task = make_task("digits", host="cnn", n_epochs=3, batches_per_epoch=1)
    learned_on = make_task("spirals").make_host(0)
    assert grow(task, controller=done_run, seed=1).timeline
    assert type(task.make_host(0)) is not type(learned_on)


def test_a_run_has_no_controller_before_its_first_evaluation(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "begun", tiny_config())
    with pytest.raises(CheckpointError):
        controller_of(Run(folder))
    CheckpointFolder(folder.checkpoints).save(
        {"best_policy": {"weights": {}}, "config": write_toml(tiny_config())},
        step=1,
    )
    with pytest.raises(RunError, match=r"'begun' has no controller.* round 1"):
        controller_of(Run(folder))


def test_settings_that_differ_from_the_checkpoints_are_not_a_controllers(
    done_run: Run, tmp_path: Path
) -> None:
    shutil.copytree(done_run.path, tmp_path / "copy")
    path = tmp_path / "copy" / "config.toml"
    path.write_text(path.read_text().replace("n_epochs = 10", "n_epochs = 11"))
    with pytest.raises(CheckpointError, match=r"budget.n_epochs is 11 .* was 10"):
        controller_of(load_run(tmp_path / "copy"))


def test_a_controller_of_other_observations_is_rejected(done_run: Run, tmp_path: Path) -> None:
    state = CheckpointFolder(done_run.folder.checkpoints).latest().state
    state["best_policy"]["observations"] = 1
    folder = RunFolder.create(tmp_path / "other", done_run.config)
    CheckpointFolder(folder.checkpoints).save(state, step=1)
    with pytest.raises(ControllerError, match=r"another version of Esper .*version 1, not 2"):
        controller_of(Run(folder))
