"""Evaluations use the same hosts each time, choose the best policy and may end the run."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.episodes import GrowthEpisodes
from esper.lifecycle.factored_actions import Op
from esper.simic.agent import PPOAgent, UpdateReport
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.tamiyo import LearnedController, NoGrowth
from esper.telemetry.records import EpisodeRecord, EvaluationRecord, NoticeRecord
from esper.training import trials
from esper.training.host_runs import HostRuns
from esper.training.runs import train
from esper.training.setup import make_policy, make_run_task
from esper.training.signals import StopRequest
from esper.training.trials import Trials, make_named
from tests.training.stopped_run import make_trainer
from tests.training.tiny import Seen, liveliness, tiny_config

N_BASELINES = 2
"""Runs before the first round: no growth and the fixed schedule."""


def config_of(**changes: Any) -> Any:
    small = {"budget__n_epochs": 4, "n_steps": 4, "envs": 2, "checkpoints__save_freq": 100}
    return tiny_config(**{**small, **changes})


def set_returns(monkeypatch: pytest.MonkeyPatch, returns: list[float]) -> list[HostRuns]:
    """Give evaluations after the baselines these mean returns; return all results."""
    found: list[HostRuns] = []
    run = Trials.run

    def changed(*args: Any, **kwargs: Any) -> HostRuns:
        runs = run(*args, **kwargs)
        found.append(runs)
        if 0 < len(found) - N_BASELINES <= len(returns):
            runs.returns[:] = returns[len(found) - N_BASELINES - 1]
        return runs

    monkeypatch.setattr(Trials, "run", changed)
    return found


def test_evaluations_share_their_hosts_with_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = set_returns(monkeypatch, [0.0, 1.0])
    seen, config = Seen(), config_of(rounds=2)
    trainer, _, _ = make_trainer(config, seen)
    trainer.run()
    evaluated = [set(runs.draw_seed.tolist()) for runs in found]
    assert len(evaluated) == N_BASELINES + 2
    assert all(hosts == evaluated[0] for hosts in evaluated)
    trained = {record.draw_seed for record in seen.records if isinstance(record, EpisodeRecord)}
    finals = Trials(config, trainer.task, StopRequest(), is_final=True)
    final = finals.run(partial(make_named, "no-growth"))
    assert len(trained) == 4
    assert len(evaluated[0]) == config.evaluation.n_eval_episodes
    assert len(set(final.draw_seed.tolist())) == config.evaluation.n_final_episodes
    assert not evaluated[0] & trained
    assert not evaluated[0] & set(final.draw_seed.tolist())
    assert not trained & set(final.draw_seed.tolist())


def test_final_trials_in_groups_equal_one_trial_of_all_hosts() -> None:
    config = config_of(evaluation__n_final_episodes=5)
    task, shares = make_run_task(config), list[float]()
    finals = Trials(config, task, StopRequest(), is_final=True)
    found = finals.run(partial(make_named, "no-growth"), shares.append)
    envs = GrowthVectorEnv(
        task, 5, reward=config.rewards, purpose="evaluation", final_split="test", autoreset=False
    )
    whole = run_episodes(envs, NoGrowth(), seed=0)
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)
    np.testing.assert_array_equal(found.draw_seed, whole.draw_seeds)
    np.testing.assert_allclose(found.returns, whole.returns, atol=1e-5)
    assert found.actions.shape == (5, 5, 8)
    assert (found.actions[:, :4] >= 0).all()
    assert (found.actions[:, 4] == -1).all()


def test_the_no_growth_score_is_that_of_held_out_hosts() -> None:
    config = config_of(rounds=1)
    seen = Seen()
    trainer, _, _ = make_trainer(config, seen)
    trainer.run()
    n_hosts = config.evaluation.n_eval_episodes
    envs = GrowthVectorEnv(
        trainer.task, n_hosts, reward=config.rewards, purpose="tuning", autoreset=False
    )
    alone = run_episodes(envs, NoGrowth(), seed=trials.TRIAL_SEED)
    first = next(record for record in seen.records if isinstance(record, EvaluationRecord))
    assert first.arm == "no-growth"
    assert trainer.parts.progress.no_growth_score == first.score_mean == alone.scores.mean()


def test_the_best_policy_is_the_one_of_the_best_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    set_returns(monkeypatch, [0.0, 2.0, 2.0, 1.0])
    policies: list[dict[str, torch.Tensor]] = []
    scales: list[tuple[float, float]] = []

    def look(record: Any) -> None:
        if isinstance(record, EvaluationRecord) and record.arm == "learned":
            weights = trainer.parts.policy.state_dict()
            policies.append({name: tensor.clone() for name, tensor in weights.items()})
            normalizer = trainer.parts.agent.normalizer
            scales.append((float(normalizer.mean), float(normalizer.std)))

    seen = Seen(look)
    trainer, _, _ = make_trainer(config_of(rounds=4), seen)
    trainer.run()
    parts = trainer.parts
    assert parts.progress.best_round == 2
    assert parts.progress.best_return == 2.0
    assert parts.progress.evaluations_since_best == 2
    for name, tensor in parts.best_policy.items():
        assert torch.equal(tensor, policies[1][name]), name
    assert not torch.equal(parts.best_policy["outputs.bias"], policies[3]["outputs.bias"])
    assert tuple(parts.best_returns.values()) == scales[1] != scales[3]
    assert parts.save()["best_policy"]["returns"] == parts.best_returns
    is_best = [r.is_best for r in seen.records if isinstance(r, EvaluationRecord)]
    assert is_best == [False, False, True, True, False, False]


def outcome(results: HostRuns) -> tuple[float, ...]:
    """Return the values that a record has of results, without the returns that tests change."""
    return (*results.op_counts.mean(0).tolist(), results.flops.mean(), results.score.mean())


def recorded(record: EvaluationRecord) -> tuple[float, ...]:
    return (*json.loads(record.ops).values(), record.flops_mean, record.score_mean)


def wait_after_update(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make the policy only wait after a given update."""
    update, reports = PPOAgent.update, list[UpdateReport]()

    def changed(agent: PPOAgent, buffer: Any) -> UpdateReport:
        reports.append(update(agent, buffer))
        if len(reports) == number:
            with torch.no_grad():
                agent.policy.outputs.bias[-1 - len(Op) : -1][Op.WAIT] = 50.0
        return reports[-1]

    monkeypatch.setattr(PPOAgent, "update", changed)


@pytest.mark.parametrize("deterministic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_final_comparison_uses_the_best_policy_and_the_deterministic_setting(
    deterministic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {"envs": 3, "evaluation__n_eval_episodes": 3, "evaluation__n_final_episodes": 3}
    small = {"rounds": 2, "n_steps": 3, "budget__n_epochs": 3, "checkpoints__save_freq": 100}
    config = config_of(evaluation__deterministic=deterministic, **hosts, **small)
    seen = Seen()
    with monkeypatch.context() as patch, liveliness():
        set_returns(patch, [1.0, 0.0])
        wait_after_update(patch, 2)
        run = train(config, run_dir=tmp_path / "run", watchers=[seen])
    saved = CheckpointFolder(run.path / "checkpoints").latest().state
    best, last = saved["best_policy"]["weights"], saved["agent"]["policy"]
    task, stop = make_run_task(config), StopRequest()

    def run_trial(
        weights: dict[str, torch.Tensor], is_greedy: bool, *, is_final: bool
    ) -> tuple[float, ...]:
        def make(growth: GrowthEpisodes, _: slice) -> LearnedController:
            policy = make_policy(config, growth.slot_config)
            policy.load_state_dict(weights)
            return LearnedController(policy, deterministic=is_greedy)

        return outcome(Trials(config, task, stop, is_final=is_final).run(make))

    def final(weights: dict[str, torch.Tensor], is_greedy: bool) -> tuple[float, ...]:
        return run_trial(weights, is_greedy, is_final=True)

    records = [r for r in seen.records if isinstance(r, EvaluationRecord) and r.arm == "learned"]
    assert [record.purpose for record in records] == ["tuning", "tuning", "final"]
    assert recorded(records[2]) == pytest.approx(final(best, deterministic))
    assert recorded(records[2]) != pytest.approx(final(last, deterministic))
    assert recorded(records[2]) != pytest.approx(final(best, not deterministic))
    first, other = (
        run_trial(best, takes, is_final=False) for takes in (deterministic, not deterministic)
    )
    assert recorded(records[0]) == pytest.approx(first)
    assert recorded(records[0]) != pytest.approx(other)


def test_a_run_ends_when_patience_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_returns(monkeypatch, [0.0, 1.0, 1.05, 0.5, 9.0])
    seen = Seen()
    config = config_of(rounds=9, evaluation__patience=2, evaluation__min_improvement=0.1)
    trainer, _, _ = make_trainer(config, seen)
    trainer.run()
    assert trainer.parts.progress.phase == "done"
    assert trainer.parts.progress.round == 4
    notices = [record for record in seen.records if isinstance(record, NoticeRecord)]
    assert [notice.kind for notice in notices] == ["fixed schedule", "early stop"]
    assert "after round 4 of 9" in notices[1].message
    assert "after round 2" in notices[1].message


def test_evaluations_follow_every_few_rounds_and_the_last() -> None:
    seen = Seen()
    trainer, _, _ = make_trainer(config_of(rounds=3, evaluation__eval_freq=2), seen)
    trainer.run()
    rounds = [r.round for r in seen.records if isinstance(r, EvaluationRecord)]
    assert rounds == [0, 0, 2, 3]
