"""The fixed schedule of a run stops at the best epoch for the hosts of its trial."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import SlotConfig
from esper.telemetry.records import EvaluationRecord, NoticeRecord
from esper.training import trials
from esper.training.host_runs import HostRuns
from esper.training.host_trainer import HostTrainer
from esper.training.runs import train
from esper.training.setup import make_run_task
from esper.training.signals import Stopped, StopRequest
from esper.training.trials import (
    TRIAL_SEED,
    Trials,
    best_stop,
    make_fixed,
    plan_growth,
)
from tests.training.stopped_run import make_trainer
from tests.training.tiny import Seen, tiny_config

COSTLY = {"budget__flop_price": 0.3, "budget__parameter_rent": 0.1}
"""Prices at which stopping early pays."""
LONG = {**COSTLY, "budget__n_epochs": 12, "task_options": {"batches_per_epoch": 6}}
"""Episodes in which the schedule commits its seeds."""
N_HOSTS = 4


def trial_envs(config: RunConfig, n_hosts: int = N_HOSTS) -> GrowthVectorEnv:
    task = make_run_task(config)
    return GrowthVectorEnv(task, n_hosts, reward=config.rewards, purpose="tuning", autoreset=False)


def returns_by_stop(config: RunConfig, seed: int) -> HostRuns:
    trainer = HostTrainer(
        make_run_task(config),
        purpose="tuning",
        final_split="validation",
        rewards=config.rewards,
    )
    make = partial(make_fixed, config.budget.n_epochs)
    return trainer.run(range(seed, seed + N_HOSTS), make, every_epoch=("final",))


def best_by_trying(envs: GrowthVectorEnv, seed: int) -> tuple[int, list[float]]:
    """Return the best stopping epoch and the mean return of each, found by running each."""
    n_epochs = envs.task.budget.n_epochs
    means = [
        float(run_episodes(envs, make_fixed(stop, envs.growth), seed=seed).returns.mean())
        for stop in range(n_epochs + 1)
    ]
    return int(np.argmax(means)), means


@pytest.mark.parametrize("reward", ["dense", pytest.param("sparse", marks=pytest.mark.slow)])
def test_one_training_gives_the_return_of_stopping_after_each_epoch(reward: str) -> None:
    config = tiny_config(**LONG, rewards__reward=reward)
    envs, runs = trial_envs(config), returns_by_stop(config, 5)
    best, means = best_by_trying(envs, 5)
    np.testing.assert_allclose(runs.returns_by_epoch.mean(0), means, atol=1e-9)
    assert runs.may_finish.all()
    assert best_stop(runs) == best
    assert 0 < best < envs.task.budget.n_epochs
    grown = run_episodes(envs, make_fixed(12, envs.growth), seed=5)
    assert (grown.op_counts[:, Op.GERMINATE] == len(envs.slot_config.slot_ids)).all()


def test_every_usable_slot_grows_a_medium_widening_or_else_what_is_preferred() -> None:
    config = SlotConfig(
        slot_ids=("a", "b", "c", "d", "e"),
        blueprints=("noop", "mlp_small", "widen_large", "widen_medium"),
        enabled=frozenset("abcd"),
        fits={
            "a": ("noop", "mlp_small", "widen_large", "widen_medium"),
            "b": ("noop", "mlp_small", "widen_large"),
            "c": ("noop", "mlp_small"),
            "d": ("noop",),
            "e": ("widen_medium",),
        },
    )
    plan = plan_growth(config)
    assert [(one.slot, one.blueprint) for one in plan] == [
        ("a", "widen_medium"),
        ("b", "widen_large"),
        ("c", "mlp_small"),
    ]
    assert {one.epoch for one in plan} == {0}


def test_hosts_that_can_neither_grow_nor_stop_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs = trial_envs(tiny_config(budget__n_epochs=5))
    forbidding = replace(envs.slot_config, allow_finish=False)
    monkeypatch.setattr(envs.growth, "slot_config", forbidding)
    monkeypatch.setattr(envs.growth.hosts, "shown_slots", forbidding)
    monkeypatch.setattr(trials, "plan_growth", lambda _: ())
    n_epochs = envs.task.budget.n_epochs
    results = run_episodes(envs, make_fixed(2, envs.growth), seed=5)
    assert (results.op_counts[:, Op.WAIT] == n_epochs).all()


def test_hosts_that_may_not_stop_train_on_when_the_others_stop() -> None:
    runs = returns_by_stop(tiny_config(budget__n_epochs=2), 0)
    returns = np.array([[3.0, 0.0, 1.0], [0.0, 4.0, 1.0]])
    for may_finish, best in (([True, True], 1), ([True, False], 0), ([False, False], 2)):
        one = replace(runs, returns_by_epoch=returns, may_finish=np.array(may_finish))
        assert best_stop(one) == best


def test_the_schedule_runs_before_the_first_round_and_is_recorded_with_each_evaluation() -> None:
    seen, config = Seen(), tiny_config(rounds=2, evaluation__n_eval_episodes=N_HOSTS, **LONG)
    trainer, _, _ = make_trainer(config, seen)
    trainer.run()
    records = [record for record in seen.records if isinstance(record, EvaluationRecord)]
    assert [(r.arm, r.round) for r in records] == [
        *[("no-growth", 0), ("fixed", 0)],
        *[("learned", 1), ("learned", 2)],
    ]
    progress = trainer.parts.progress
    best, means = best_by_trying(trial_envs(config), TRIAL_SEED)
    assert progress.fixed_stop == best
    assert progress.fixed_return == records[1].ep_rew_mean
    assert progress.fixed_return == pytest.approx(means[best], abs=1e-9)
    assert [r.fixed_reward for r in records] == [None, None, *[progress.fixed_return] * 2]


def test_the_first_evaluation_that_beats_the_schedule_is_recorded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[HostRuns] = []
    run = Trials.run

    def changed(*args: Any, **kwargs: Any) -> HostRuns:
        found.append(run(*args, **kwargs))
        if len(found) > 2:  # no growth, the schedule
            fixed = found[1].returns.mean()
            found[-1].returns[:] = fixed + (0.0, -0.5, 0.25, -0.5, 0.75)[len(found) - 3]
        return found[-1]

    monkeypatch.setattr(Trials, "run", changed)
    seen = Seen()
    trainer, _, _ = make_trainer(tiny_config(rounds=5, n_steps=3, budget__n_epochs=3), seen)
    trainer.run()
    notices = [record for record in seen.records if isinstance(record, NoticeRecord)]
    assert [(notice.kind, notice.round) for notice in notices] == [("fixed schedule", 3)]
    fixed = float(found[1].returns.mean())
    assert f"({fixed + 0.25:.3f} over {fixed:.3f})" in notices[0].message
    assert trainer.parts.progress.passed_round == 3


def test_the_schedule_chosen_at_the_start_is_compared_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, seen = tiny_config(rounds=1, n_steps=2, budget__n_epochs=4, **COSTLY), Seen()
    monkeypatch.setattr(Trials, "find_stop", lambda *_: 3)
    run = train(config, run_dir=tmp_path / "run", watchers=[seen])
    final = next(
        record
        for record in seen.records
        if isinstance(record, EvaluationRecord)
        and (record.arm, record.purpose) == ("fixed", "final")
    )
    trials = Trials(config, make_run_task(config), StopRequest(), is_final=True)
    hand = trials.run(partial(make_fixed, 3))
    assert final.ep_rew_mean == hand.returns.mean()
    assert final.n_epochs_mean == 3
    assert run.summary is not None
    assert [arm.name for arm in run.summary.arms][3] == "fixed"
    # The first sentences are about the best baseline, whichever that is, and those worse.
    about = [sentence for sentence in run.summary.sentences[3:] if "the fixed schedule" in sentence]
    assert about[0].startswith("vs the fixed schedule at price ")
    first = next(r for r in seen.records if isinstance(r, EvaluationRecord) and r.arm == "fixed")
    passed = any(
        isinstance(record, NoticeRecord) and record.kind == "fixed schedule"
        for record in seen.records
    )
    assert f"({first.ep_rew_mean:.3f})" in about[1]
    assert ("did not pass" not in about[1]) == about[1].endswith("after round 1.") == passed


@pytest.mark.parametrize("method", ["find_stop", "run"])
def test_a_stop_takes_effect_between_two_steps_of_the_schedule(method: str) -> None:
    config, stop, shares = tiny_config(**COSTLY), StopRequest(), list[float]()

    def show(share: float) -> None:
        shares.append(share)
        if len(shares) == 4:
            stop.ask("enough")

    tried = Trials(config, make_run_task(config), stop)
    what = [partial(make_fixed, 10)] if method == "run" else []
    with pytest.raises(Stopped):
        getattr(tried, method)(*what, show)
    assert shares == pytest.approx([0.0, 0.1, 0.2, 0.3])
