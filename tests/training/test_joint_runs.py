"""Runs on hosts of two designs: resumed, recorded, compared, grown again."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.cli.main import main
from esper.config.run import RunConfig
from esper.environment import EpisodeResults, GrowthVectorEnv, run_episodes
from esper.growing.task_hosts import grow_best_host
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.results.arms import BASELINES, LEARNED
from esper.storage.run_folder import RunFolder
from esper.tamiyo import make_controller
from esper.telemetry.records import EvaluationRecord, RunRecord, SeedEventRecord, StepRecord
from esper.training.run import Run
from esper.training.runs import RunInterrupted, resume, train
from esper.training.setup import make_run_task
from esper.training.signals import StopRequest
from esper.training.trials import TRIAL_SEED, Trials, make_named, trial_parts
from tests.joint_tasks import NAME, NAMED
from tests.training.stopped_run import make_trainer
from tests.training.tiny import Seen, liveliness, run_digests, tiny_config

pytestmark = pytest.mark.filterwarnings("ignore::esper.config.checks.CodeWarning")

N_OWN = 3
"""Environments, of five, that grow MLPs; the others grow CNNs."""
CONV = {"attention", "bottleneck", "conv_heavy", "conv_light", "conv_small", "depthwise"}
DENSE = {"low_rank", "mlp_large", "mlp_small"}


def joint_config(**changes: Any) -> RunConfig:
    few = {"evaluation__n_eval_episodes": 5, "evaluation__n_final_episodes": 9}
    short = {"rounds": 2, "n_steps": 5, "budget__n_epochs": 7, "envs": 5}
    task = {"task": NAME, "task_options": {"batches_per_epoch": 1}}
    return tiny_config(**task | few | short | changes)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Seen]:
    seen = Seen()
    with liveliness():
        run = train(
            joint_config(), run_dir=tmp_path_factory.mktemp("joint") / "run", watchers=[seen]
        )
    return run, seen


def of(seen: Seen, kind: type) -> list[Any]:
    return [record for record in seen.records if isinstance(record, kind)]


def test_the_layers_of_both_designs_are_recorded(done: tuple[Run, Seen]) -> None:
    (record,) = of(done[1], RunRecord)
    parts = json.loads(record.host)
    firsts = sorted({part["first_env"] for part in parts})
    assert firsts == [0, N_OWN]
    for first, layer in zip(firsts, ("Linear", "Conv2d"), strict=True):
        own = [part for part in parts if part["first_env"] == first]
        assert own[0]["kind"] == layer
        assert {part["slot"] for part in own if part["slot"]} == set(json.loads(record.slots))


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(done: tuple[Run, Seen], tmp_path: Path) -> None:
    stop = StopRequest()

    def stop_at(record: object) -> None:
        if getattr(record, "step", None) == 7:
            stop.ask("enough")

    with liveliness():
        with pytest.raises(RunInterrupted):
            train(joint_config(), run_dir=tmp_path / "run", watchers=[Seen(stop_at)], stop=stop)
        run = resume(tmp_path / "run", allow_code=True)
    assert run_digests(run.path) | {"telemetry": ""} == run_digests(done[0].path) | {
        "telemetry": ""
    }


def test_seeds_are_recorded_with_the_blueprints_of_their_design(
    done: tuple[Run, Seen],
) -> None:
    _, seen = done
    grown = {"own": set[str](), "variant": set[str]()}
    for event in of(seen, SeedEventRecord):
        grown["own" if event.env < N_OWN else "variant"].add(event.blueprint)
    assert grown["own"] & DENSE
    assert not grown["own"] & CONV
    assert grown["variant"] & CONV
    assert not grown["variant"] & DENSE
    steps = of(seen, StepRecord)
    assert len(steps) == 2 * 5 * 5
    assert {step.env for step in steps} == set(range(5))
    assert not any(step.is_illegal for step in steps)


def test_seeds_are_recorded_with_the_slot_names_of_their_design() -> None:
    seen = Seen()
    trainer, _, _ = make_trainer(joint_config(task=NAMED, rounds=1), seen)
    trainer.run()
    names = {"own": set[str](), "variant": set[str]()}
    for event in of(seen, SeedEventRecord):
        names["own" if event.env < N_OWN else "variant"].add(event.slot)
    assert names["own"]
    assert names["own"] <= {"blocks.*.first>second", "blocks.*", "blocks.0", "blocks.1"}
    assert names["variant"]
    assert names["variant"] <= set("0123")


@pytest.mark.slow
def test_the_command_line_trains_on_both_designs_of_digits_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "train --task digits-family --task-options host=both batches_per_epoch=1 --rounds 1 "
        "--envs 4 --n-steps 2 --ppo.n-minibatches 1 --budget.n-epochs 2 "
        "--evaluation.n-eval-episodes 4 --evaluation.n-final-episodes 4 --quiet --run-dir"
    )
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    summary = Run(RunFolder.find(tmp_path / "run")).summary
    assert summary is not None
    assert summary.n_hosts == 4
    assert [arm.name for arm in summary.arms] == [LEARNED, *BASELINES]


def test_the_comparison_covers_the_hosts_of_both_designs(
    done: tuple[Run, Seen],
) -> None:
    run, seen = done
    finals = [record for record in of(seen, EvaluationRecord) if record.purpose == "final"]
    assert [record.arm for record in finals] == [LEARNED, *BASELINES]
    assert {record.n_episodes for record in finals} == {9}
    assert run.summary is not None
    assert run.summary.n_hosts == 9


def by_hand(config: RunConfig, name: str, *, purpose: Any, split: Any, n: int) -> EpisodeResults:
    """Return the results of a controller that is run on each design separately."""
    found, first = list[EpisodeResults](), 0
    whole = make_run_task(config)
    for task, n_hosts in zip(whole.designs, whole.share_out(n, minimum=2), strict=True):
        envs = GrowthVectorEnv(
            task,
            n_hosts,
            reward=config.rewards,
            purpose=purpose,
            final_split=split,
            autoreset=False,
        )
        controller = make_controller(name, envs.layout)
        found.append(run_episodes(envs, controller, seed=TRIAL_SEED + first))
        first += n_hosts
    return EpisodeResults(
        **{name: np.concatenate([getattr(one, name) for one in found]) for name in vars(found[0])}
    )


def test_trials_run_each_design_separately() -> None:
    config, stop = joint_config(envs=9), StopRequest()
    task = make_run_task(config)
    results, actions = Trials(config, task, stop, is_final=True).run(partial(make_named, "fixed"))
    hand = by_hand(config, "fixed", purpose="evaluation", split="test", n=9)
    np.testing.assert_array_equal(results.returns, hand.returns)
    np.testing.assert_array_equal(results.draw_seeds, hand.draw_seeds)
    assert len(set(results.draw_seeds.tolist())) == 9
    assert (results.n_illegal == 0).all()
    assert (results.op_counts[:, Op.GERMINATE] > 0).all()
    assert actions.shape == (9, 8, len(HEAD_NAMES))
    shares: list[float] = []
    tried, _ = Trials(config, task, stop).run(partial(make_named, "no-growth"), shares.append)
    hand = by_hand(config, "no-growth", purpose="tuning", split="validation", n=5)
    np.testing.assert_array_equal(tried.returns, hand.returns)
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)


def test_small_trials_have_two_hosts_of_each_design() -> None:
    parts = trial_parts(make_run_task(joint_config()), 2)
    assert [(part.first, part.n_hosts) for part in parts] == [(0, 2), (2, 2)]


@pytest.mark.parametrize("number", [0, 8])
def test_any_host_of_the_comparison_can_be_grown_again(
    done: tuple[Run, Seen], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = done
    config, stop = run.config, StopRequest()
    trials = Trials(config, make_run_task(config), stop, is_final=True)
    results, actions = trials.run(partial(make_named, "random"))
    taken = actions[number][actions[number, :, 0] >= 0].tolist()
    assert run.summary is not None
    host = {"number": number, "actions": taken}
    summary = run.summary.to_json()
    summary["best_host"] = host
    monkeypatch.setattr(Run, "summary", type(run.summary).from_json(summary))
    grown = grow_best_host(run, allow_code=True)
    found = grown.to_json()
    assert found["score"] == pytest.approx(results.scores[number], abs=5e-3)
    assert found["host_parameters"] == results.host_parameters[number]
    assert found["seed_parameters"] == results.seed_parameters[number]
    assert grown.sample.ndim == (2 if number < 5 else 4)


def test_a_runs_controller_grows_a_host_of_its_task(
    done: tuple[Run, Seen], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = str(done[0].path), str(tmp_path / "grown")
    assert main(["grow", "--controller", folder, "--out", out, "--allow-code"]) == 0
    assert "epoch" in capsys.readouterr().out
