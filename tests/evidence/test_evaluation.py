"""Evaluations use the same held-out hosts, continue after an interruption and check arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.config.growth import Budget, GrowthConfig
from esper.config.held_out_hosts import EVALUATION_HOSTS, HEADROOM_HOSTS, MAX_TRIAL_HOSTS
from esper.config.run import EvaluationConfig
from esper.dashboard.figures import save_evidence
from esper.environment import GrowthVectorEnv, run_episodes
from esper.errors import ConfigError, RunError, TaskError
from esper.evidence.arms import ARMS, choose_arms
from esper.evidence.compare import compare
from esper.evidence.evaluation import EvaluationProgress, evaluate, host_numbers
from esper.evidence.setting import find_learned, find_prices, find_setting
from esper.invocation import settings_of_method
from esper.results.evidence import Evidence
from esper.results.files import evidence_text, read_evidence_file
from esper.results.tables import facts
from esper.storage.run_folder import RunFolder
from esper.tamiyo import SavedController, make_controller
from esper.tasks import make_task
from esper.training.lookup import controller_of
from esper.training.run import Run
from esper.training.runs import RunInterrupted, train
from esper.training.setup import make_run_task
from esper.training.signals import StopRequest
from esper.training.trials import TRIAL_SEED
from tests.tamiyo.fresh_controllers import fresh_controller
from tests.training.tiny import Seen, liveliness, tiny_config

SOME = ("no-growth", "random", "fixed-size", "scratch-same-epochs", "shuffled")
N_HOSTS = 6


def evaluate_some(run: Run, folder: Path | None = None, **changes: object) -> list[Evidence]:
    given = {"n_hosts": N_HOSTS, "tuning_runs": 8, "arms": SOME, "folder": folder, **changes}
    return evaluate(run, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found(done_run: Run) -> list[Evidence]:
    return evaluate_some(done_run, prices=(0.2, 0.5))


def held_out_envs(run: Run) -> GrowthVectorEnv:
    return GrowthVectorEnv(
        make_run_task(run.config),
        N_HOSTS,
        purpose="evaluation",
        final_split="test",
        autoreset=False,
    )


def test_arms_are_what_controllers_do_on_held_out_hosts(
    done_run: Run, found: list[Evidence]
) -> None:
    envs, evidence = held_out_envs(done_run), found[0]
    controllers = {
        "no-growth": make_controller("no-growth", envs.layout),
        "learned": controller_of(done_run).make(envs.slot_config),
    }
    for name, controller in controllers.items():
        results = run_episodes(envs, controller, seed=EVALUATION_HOSTS.first)
        arm = evidence.arm(name)
        np.testing.assert_allclose(arm.score[0], results.scores, atol=1e-6)
        np.testing.assert_allclose(arm.flops[0], results.flops, atol=1e-6)
        np.testing.assert_array_equal(arm.n_epochs[0], results.n_epochs)
        sizes = results.host_parameters + results.seed_parameters
        np.testing.assert_array_equal(arm.parameters[0], sizes)
        assert arm.grown_share == pytest.approx((results.seed_parameters > 0).mean(), abs=1e-6)


def test_only_arms_that_see_the_price_differ_between_prices(
    done_run: Run, found: list[Evidence]
) -> None:
    assert [entry.price for entry in found] == [0.2, 0.5]
    first, second = found
    assert [arm.name for arm in first.arms] == ["learned", *SOME]
    np.testing.assert_array_equal(first.arm("no-growth").score, second.arm("no-growth").score)
    assert first.arm("fixed-size").tuning_runs <= 8
    assert first.arm("fixed-size").n_epochs.max() >= second.arm("fixed-size").n_epochs.max()
    assert first.arm("learned").tuning_runs == done_run.n_episodes > 0
    assert first.purpose == "evaluation"
    assert first.learned_price == done_run.config.budget.flop_price
    assert first.split == "test"
    assert first.arm("learned").test_reads == first.arm("fixed-size").test_reads == 1
    assert first.arm("scratch-same-epochs").test_reads in (1, 2)


def test_matched_arms_match_the_learned_arm(
    found: list[Evidence],
) -> None:
    learned = found[0].own
    np.testing.assert_array_equal(found[0].arm("random").n_epochs, learned.n_epochs)
    scratch = found[0].arm("scratch-same-epochs")
    np.testing.assert_array_equal(scratch.n_epochs, learned.n_epochs)
    np.testing.assert_array_equal(scratch.parameters, learned.parameters)
    assert scratch.grown_share == 0.0
    assert learned.grown_share > 0.0


def test_an_interrupted_evaluation_continues_to_the_same_results(
    done_run: Run, found: list[Evidence], tmp_path: Path
) -> None:
    works: list[str] = []

    def interrupt(progress: EvaluationProgress) -> None:
        works.append(progress.work)
        if progress.work.startswith("scratch"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_some(done_run, tmp_path, on_progress=interrupt)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept
    seen: list[str] = []
    again = evaluate_some(done_run, tmp_path, on_progress=lambda one: seen.append(one.work))
    assert kept < {path.name for path in tmp_path.iterdir()}
    assert "no growth" in works
    assert "no growth" not in seen
    for arm, other in zip(again[0].arms, found[0].arms, strict=True):
        assert arm.setting == other.setting
        np.testing.assert_array_equal(arm.score, other.score)
        np.testing.assert_array_equal(arm.flops, other.flops)


def another_run(saved: SavedController) -> SavedController:
    """Return a controller as if from another seed."""
    halved = {name: tensor / 2 for name, tensor in saved.weights.items()}
    origin = {**saved.origin, "seed": 77, "command": "esper train --seed 77"}
    return replace(saved, name="another", weights=halved, origin=origin)


def test_several_runs_are_rows_equal_to_separate_evaluations(done_run: Run) -> None:
    saved = controller_of(done_run)
    other, arms = another_run(saved), ("random", "wrong-task")
    (evidence,) = evaluate_some([saved, other], arms=arms)  # type: ignore[arg-type]
    (alone,) = evaluate_some(other, arms=arms)  # type: ignore[arg-type]
    for name in ("learned", *arms):
        arm = evidence.arm(name)
        assert arm.score.shape == (2, N_HOSTS)
        np.testing.assert_array_equal(arm.score[1], alone.arm(name).score[0])
    assert evidence.runs == (done_run.name, "another")


def test_one_training_run_is_not_counted_twice(done_run: Run) -> None:
    saved = controller_of(done_run)
    other = another_run(saved)
    assert find_learned([saved, other]) == [saved, other]
    with pytest.raises(RunError, match="done and copy"):
        find_learned([done_run, replace(saved, name="copy", origin={})])
    later_checkpoint = replace(other, name="later", origin=saved.origin)
    with pytest.raises(RunError, match="done and later"):
        find_learned([saved, later_checkpoint])
    with pytest.raises(RunError, match="named done"):
        find_learned([saved, replace(other, name=saved.name)])


def test_the_seed_selects_the_hosts(done_run: Run) -> None:
    first = EVALUATION_HOSTS.first
    usual, others = (
        evaluate_some(done_run, arms=("no-growth",), seed=seed)[0] for seed in (None, first + 3)
    )
    wait, moved = usual.arm("no-growth"), others.arm("no-growth")
    np.testing.assert_allclose(wait.score[0, 3:], moved.score[0, :3])
    assert not np.array_equal(wait.score, moved.score)
    assert (usual.seed, others.seed) == (first, first + 3)


def test_different_uses_never_share_hosts(done_run: Run) -> None:
    evaluation, room = host_numbers({}, 512), host_numbers({}, 128, HEADROOM_HOSTS)
    assert evaluation[0] >= TRIAL_SEED + MAX_TRIAL_HOSTS
    assert evaluation[-1] < room[0]
    assert EVALUATION_HOSTS.end <= HEADROOM_HOSTS.first
    for seed, n_hosts in ((0, 6), (99_999, 6), (199_999, 6)):
        with pytest.raises(ConfigError, match="100000 to 199999"):
            evaluate(done_run, n_hosts=n_hosts, seed=seed)
        with pytest.raises(ConfigError, match="100000 to 199999"):
            compare([done_run, "no-growth"], n_hosts=n_hosts, seed=seed)
        with pytest.raises(ConfigError, match="200000 to 299999"):
            host_numbers({"seed": seed}, n_hosts, HEADROOM_HOSTS)
    with pytest.raises(ConfigError, match="n_final_episodes"):
        EvaluationConfig(n_final_episodes=MAX_TRIAL_HOSTS + 1)


def test_nothing_is_cached_for_a_task_object(tmp_path: Path) -> None:
    named = find_setting([], "spirals", {"batches_per_epoch": 1})
    given = find_setting([], make_task("spirals", batches_per_epoch=1), None)
    for setting, n_files in ((given, 0), (named, 1)):
        setting.cache(tmp_path / "kept").get({"host": 1}, lambda: {"values": [1]})
        assert len(list(tmp_path.rglob("*.npz"))) == n_files


def test_a_controller_is_evaluated_on_another_task_without_retraining(done_run: Run) -> None:
    options = {"n_epochs": 3, "batches_per_epoch": 1}
    (evidence,) = evaluate_some(
        done_run, task="digits", task_options=options, arms=("no-growth", "progressive")
    )
    assert evidence.task == "digits"
    assert evidence.task_options == options
    assert evidence.arm("no-growth").n_epochs.max() == 3
    assert {arm.name for arm in evidence.arms} == {"learned", "no-growth", "progressive"}


def test_results_are_saved_and_read_back(found: list[Evidence], tmp_path: Path) -> None:
    paths = save_evidence(found, tmp_path / "evaluation")
    text = paths[0].read_text("utf-8")
    assert json.loads(text)["evidence_version"] == 4
    read = read_evidence_file(paths[0])
    np.testing.assert_array_equal(read[1].own.score, found[1].own.score)
    assert "the learned controller" in paths[1].read_text("utf-8").lower()
    assert paths[2].stat().st_size > 10_000


def test_controllers_are_compared_with_the_first(done_run: Run) -> None:
    evidence = compare([done_run, "heuristic", "no-growth"], n_hosts=N_HOSTS)
    assert evidence.learned == done_run.name
    assert [arm.kind for arm in evidence.arms] == ["learned", "simple", "simple"]
    envs = held_out_envs(done_run)
    results = run_episodes(
        envs, make_controller("heuristic", envs.layout), seed=EVALUATION_HOSTS.first
    )
    np.testing.assert_allclose(evidence.arm("heuristic").score[0], results.scores, atol=1e-6)


def test_the_shipped_controller_is_compared_on_the_task_of_the_run(done_run: Run) -> None:
    saved = controller_of(done_run)
    elsewhere = replace(
        saved,
        name="universal",
        is_shipped=True,
        origin={"task": "prior"},
        budget=Budget(n_epochs=5, flop_price=0.7),
        growth=GrowthConfig(embargo_epochs=9),
    )
    for pair in ([saved, elsewhere], [elsewhere, saved]):
        evidence = compare(pair, n_hosts=2)
        assert (evidence.task, evidence.price) == ("spirals", saved.budget.flop_price)
        assert f"for {saved.budget.n_epochs} epochs" in evidence.reference
    assert "growth.embargo_epochs 2, not 9" in evidence.arm(saved.name).setting
    # The same policy under the same rules does the same.
    alike = compare([saved, replace(elsewhere, growth=saved.growth)], n_hosts=2)
    np.testing.assert_array_equal(alike.arms[0].score, alike.arms[1].score)
    with pytest.raises(TaskError, match=r"'prior' draws .*--task"):
        compare([replace(elsewhere, is_shipped=False), "no-growth"], n_hosts=2)
    alone = compare([elsewhere, "no-growth"], n_hosts=2, task_options={"n_epochs": 2})
    assert alone.task == "digits-family"
    named = compare([saved, elsewhere], n_hosts=2, task="spirals")
    assert (named.reference, named.price) == (alike.reference, alike.price)


def test_runs_with_other_budgets_need_a_task_which_brings_its_own(done_run: Run) -> None:
    saved = controller_of(done_run)
    longer = replace(saved, name="longer", budget=replace(saved.budget, n_epochs=9))
    with pytest.raises(RunError, match=r"done has budget\.n_epochs \d+ and longer has 9.*--task"):
        compare([saved, longer], n_hosts=2)
    options = {"batches_per_epoch": 1}
    evidence = compare([saved, longer], n_hosts=2, task="spirals", task_options=options)
    assert f"for {make_task('spirals').budget.n_epochs} epochs" in evidence.reference


def test_invalid_arguments_are_rejected(done_run: Run) -> None:
    with pytest.raises(ConfigError, match=r"'fixedsize'.* Did you mean 'fixed-size'"):
        choose_arms(["fixedsize"])
    assert choose_arms(["no-growth"]) == ("learned", "no-growth")
    assert choose_arms(None) == tuple(ARMS)
    with pytest.raises(RunError, match="heuristic"):
        find_learned(["heuristic"])
    with pytest.raises(RunError, match="no run"):
        find_learned([])
    with pytest.raises(ConfigError, match="n_hosts is 1"):
        evaluate(done_run, n_hosts=1)
    with pytest.raises(ConfigError, match=r"price is -1"):
        find_prices([-1.0], 0.2)
    with pytest.raises(ConfigError, match="got 1"):
        compare([done_run])


def test_controllers_of_different_tasks_rules_or_modes_are_rejected(done_run: Run) -> None:
    saved = controller_of(done_run)
    moved = replace(saved, name="moved", origin={**saved.origin, "task": "digits"})
    with pytest.raises(RunError, match="done has task spirals and moved has digits"):
        find_setting([saved, moved], None, None)
    named = find_setting([saved, saved], "spirals", {"batches_per_epoch": 1})
    assert named.task.budget == saved.budget
    assert named.task_options == {"batches_per_epoch": 1}
    other = find_setting([saved, moved], "text", None)
    assert other.task.budget.n_epochs != saved.budget.n_epochs
    ruled = replace(saved, name="ruled", growth=GrowthConfig(embargo_epochs=9))
    with pytest.raises(RunError, match=r"done has growth\.embargo_epochs 2 and ruled has 9"):
        find_setting([saved, ruled], "digits", None)
    with pytest.raises(RunError, match="'done' does not record"):
        find_setting([replace(saved, origin={})], None, None)
    with pytest.raises(RunError, match="greedily"):
        find_learned([saved, replace(saved, deterministic=True)])


@pytest.fixture(scope="module")
def unfinished_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run that was stopped in its third round."""
    tmp_path = tmp_path_factory.mktemp("unfinished")
    stop = StopRequest()
    watcher = Seen(lambda record: stop.ask("enough") if getattr(record, "round", 0) > 1 else None)
    with liveliness(), pytest.raises(RunInterrupted):
        train(tiny_config(seed=5), run_dir=tmp_path / "died", watchers=[watcher], stop=stop)
    return Run(RunFolder(tmp_path / "died"))


def test_a_run_that_is_not_done_is_refused(done_run: Run, unfinished_run: Run) -> None:
    runs = [done_run, unfinished_run]
    with pytest.raises(RunError, match=r"unfinished: died, 1 of 3 rounds\. Resume"):
        evaluate(runs, n_hosts=N_HOSTS, arms=["no-growth"])
    for contestants in (runs, [unfinished_run, "no-growth"], ["no-growth", unfinished_run]):
        with pytest.raises(RunError, match="unfinished: died, 1 of 3 rounds"):
            compare(contestants, n_hosts=N_HOSTS)


def test_every_sentence_names_an_unfinished_run_that_is_included(
    done_run: Run, unfinished_run: Run
) -> None:
    (evidence,) = evaluate(
        [done_run, unfinished_run],
        n_hosts=N_HOSTS,
        arms=["no-growth", "progressive"],
        unfinished=True,
    )
    for sentence in evidence.sentences:
        assert "(unfinished: died, 1 of 3 rounds)" in sentence
    assert len(evidence.sentences) >= 4
    text = evidence_text([evidence])
    assert text.count("(unfinished: died, 1 of 3 rounds)") >= 4


def test_a_run_that_another_torch_resumed_is_refused(
    done_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "torch_versions", ["2.0.0", "2.1.0"])
    words = "changed: done, resumed with PyTorch 2.1.0 after 2.0.0"
    with pytest.raises(RunError, match=words):
        compare([done_run, "no-growth"], n_hosts=2)
    evidence = compare([done_run, "no-growth"], n_hosts=2, unfinished=True)
    assert all(words in sentence for sentence in evidence.sentences)


def test_runs_with_other_settings_are_no_seeds_of_one_method(done_run: Run) -> None:
    saved = controller_of(done_run)

    def trained_with(name: str, **settings: Any) -> SavedController:
        origin = {**saved.origin, "settings": settings_of_method(tiny_config(**settings))}
        return replace(saved, name=name, origin=origin)

    other = trained_with("other", seed=5, ppo__learning_rate=1e-4)
    with pytest.raises(RunError, match=r"done has ppo\.learning_rate 0\.003 and other has 0\.0001"):
        find_setting([saved, other], None, None)
    find_setting([saved, trained_with("same", seed=5, threads=1)], None, None)


def test_a_controller_of_all_prices_learned_at_none() -> None:
    assert controller_of_all_prices().learned_price is None
    (evidence,) = evaluate(
        controller_of_all_prices(), task="spirals", n_hosts=2, arms=["no-growth"]
    )
    assert "learned at" not in " ".join(evidence.sentences)


def controller_of_all_prices() -> SavedController:
    return replace(fresh_controller(), origin={"draws_price": True})


def test_intervals_say_that_they_leave_out_the_variance_of_a_shared_test_set() -> None:
    for task, count in (("digits", 297), ("digits-family", 297), ("spirals", None)):
        evidence = compare(
            ["no-growth", "random"], task=task, n_hosts=2, task_options={"n_epochs": 1}
        )
        told = " ".join(facts(evidence))
        assert ("leave out the variance of drawing another" in told) == (count is not None)
        assert evidence.test_pool == count


def test_a_run_of_a_task_object_is_evaluated_on_it_with_its_own_budget(tmp_path: Path) -> None:
    task = make_task("spirals", n_epochs=3, batches_per_epoch=1)
    run = train(tiny_config(rounds=1), task=task, run_dir=tmp_path / "own")
    n_epochs = run.config.budget.n_epochs
    assert n_epochs != task.budget.n_epochs
    for call in (lambda: evaluate(run, n_hosts=2), lambda: compare([run, "no-growth"], n_hosts=2)):
        with pytest.raises(TaskError, match=r"'own' learned on task object spirals.*task="):
            call()
    evidence = compare([run, "no-growth"], task=task, n_hosts=2)
    assert evidence.arm("no-growth").n_epochs.tolist() == [[n_epochs, n_epochs]]


def test_observations_are_shuffled_by_group(done_run: Run) -> None:
    (evidence,) = evaluate(done_run, n_hosts=N_HOSTS, arms=["shuffled:slots", "shuffled"])
    assert [arm.name for arm in evidence.others] == ["shuffled:slots", "shuffled"]
    assert {arm.kind for arm in evidence.others} == {"ablation"}
    assert "itself with shuffled observations (slots)" in str(evidence)
    with pytest.raises(ConfigError, match="'shuffeld'"):
        choose_arms(["shuffeld"])
    with pytest.raises(ConfigError, match="'slotz'"):
        choose_arms(["shuffled:slotz"])
