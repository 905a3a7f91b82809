"""GrowthVectorEnv follows Gymnasium's contract and can be saved and resumed at any step."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from safetensors.torch import load_file, save_file

from esper.config import PPOConfig
from esper.config.growth import MLPHostConfig, RewardConfig
from esper.environment import GrowthEnv, GrowthVectorEnv
from esper.environment.rewards import REWARD_TERMS
from esper.errors import ConfigError, ResetNeededError, UnsupportedEnvironmentError
from esper.growth.hosts import HostMaker
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.legality import SlotMaskState, may_apply
from esper.lifecycle.stages import Stage
from esper.simic import PPO, Callback
from esper.simic.agent import PPOAgent
from esper.simic.policy import RecurrentPolicy
from esper.simic.rollout import VectorCollector
from esper.tasks import RELATIVE_ERROR, Samples, Task, TaskData, make_task
from tests.environment.worlds import (
    TINY,
    choose,
    life_of_a_seed,
    make_envs,
    random_actions,
    wait,
)

FORMS = ["torch", "auto"]


@pytest.mark.parametrize("form", FORMS)
def test_the_score_of_a_regression_is_r_squared(form: str) -> None:
    inputs = torch.randn(96, 2, generator=torch.Generator().manual_seed(0))
    targets = inputs.prod(1)
    samples = Samples(inputs, (targets - targets.mean()) / targets.std(correction=0))
    task = Task(
        name="product",
        make_host=HostMaker(MLPHostConfig(n_features=2, n_classes=1, width=8, hidden=4)),
        data=TaskData(
            train=samples, validation=copy.deepcopy(samples), test=copy.deepcopy(samples)
        ),
        metric=RELATIVE_ERROR,
    )
    envs = GrowthVectorEnv(task, 2, form=form)
    observations, _ = envs.reset(seed=0)
    for _ in range(3):
        observations, *_ = envs.step(wait(2))
        assert observations in envs.observation_space
    population, scores = envs.growth.hosts, envs.growth.hosts.score([0, 1], "train").scores
    for host, score in enumerate(scores):
        errors = population.model(host).eval()(inputs).squeeze(1) - samples.targets
        explained = 1.0 - errors.square().mean() / samples.targets.var(correction=0)
        assert score == pytest.approx(explained.item(), abs=1e-5)


def test_make_vec_gives_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gymnasium.make_vec("Esper/Growth-v0", num_envs=3, task="spirals", **TINY)
    assert isinstance(envs.unwrapped, GrowthVectorEnv)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observations, info = envs.reset(seed=0)
    assert observations in envs.observation_space
    space = envs.single_action_space
    actions = np.stack([space.sample(mask=mask) for mask in info["action_mask"]])
    assert actions in envs.action_space
    observations, rewards, *_ = envs.step(actions)
    assert observations in envs.observation_space
    assert rewards.shape == (3,)


def play(envs: Any, n_steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Return the results of random actions."""
    generator = np.random.default_rng(seed)
    trace = []
    for _ in range(n_steps):
        actions = random_actions(envs, generator, with_finish=True)
        observations, rewards, terminated, truncated, info = envs.step(actions)
        trace.append((observations.copy(), rewards, terminated, truncated, info["op"], actions))
    return trace


def assert_same_trace(first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("task", "form"),
    [
        ("spirals", "torch"),
        ("digits-family", "auto"),
        pytest.param("spirals", "auto", marks=pytest.mark.slow),
        pytest.param("digits-family", "torch", marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_gives_the_same_trajectory_to_the_bit(task: str, form: str) -> None:
    traces = []
    for _ in range(2):
        envs = make_envs(task=task, form=form)
        envs.reset(seed=7)
        traces.append(play(envs, 14))
    assert_same_trace(*traces)
    envs.reset(seed=7)
    assert_same_trace(play(envs, 14), traces[0])
    envs.reset(seed=8)
    assert not np.array_equal(play(envs, 1)[0][0], traces[0][0][0])


def test_it_equals_single_environments_side_by_side() -> None:
    short = {**TINY, "n_epochs": 6}
    envs = make_envs(3, **short)
    singles = SyncVectorEnv(
        [lambda: GrowthEnv("spirals", **short)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    first, second = envs.reset(seed=4), singles.reset(seed=4)
    np.testing.assert_array_equal(first[0], second[0])
    generator = np.random.default_rng(1)
    n_ends = 0
    for _ in range(14):
        actions = random_actions(envs, generator, with_finish=True)
        ours, theirs = envs.step(actions), singles.step(actions)
        for a, b in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        for env in range(3):
            for a, b in zip(
                ours[4]["action_mask"][env], theirs[4]["action_mask"][env], strict=True
            ):
                np.testing.assert_array_equal(a, b)
        done = ours[2] | ours[3]
        n_ends += done.sum()
        assert done.any() == ("final_obs" in theirs[4]) == ("final_obs" in ours[4])
        for env in np.flatnonzero(done):
            np.testing.assert_array_equal(ours[4]["final_obs"][env], theirs[4]["final_obs"][env])
    assert n_ends >= 6


def test_both_forms_of_populations_give_the_same_trajectory() -> None:
    traces = []
    for form in FORMS:
        envs = make_envs(4, "digits-family", form=form, n_epochs=6)
        envs.reset(seed=11)
        traces.append(play(envs, 14))
    for a, b in zip(*traces, strict=True):
        for name, x, y in zip(("obs", "reward"), a[:2], b[:2], strict=True):
            # Slopes are ten times the difference of logarithms, which rounding may change most.
            np.testing.assert_allclose(x, y, atol=0.2, err_msg=name)
            assert np.abs(x - y).mean() < 1e-3
        for x, y in zip(a[2:], b[2:], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("form", [pytest.param("torch", marks=pytest.mark.slow), "auto"])
def test_a_loaded_state_continues_bit_for_bit_from_any_step(form: str, tmp_path: Path) -> None:
    # With the default growth rules, under which every stage lasts at least an epoch.
    task = replace(make_task("digits-family", n_epochs=9, batches_per_epoch=1), growth=None)
    envs, twin = (GrowthVectorEnv(task, 2, form=form) for _ in range(2))
    envs.reset(seed=3)
    twin.reset(seed=99)
    script = life_of_a_seed(envs.slot_config)
    stages: set[int] = set()
    for step in range(14):
        stages |= set(envs.growth.hosts.slot_arrays().stage.flatten().tolist())
        state = envs.state_dict()
        save_file(state["tensors"], tmp_path / "tensors.safetensors")
        facts = json.loads(json.dumps(state["facts"]))
        twin.load_state_dict(
            {"tensors": load_file(tmp_path / "tensors.safetensors"), "facts": facts}
        )
        row = script[step] if step < len(script) else choose(Op.WAIT)
        actions = np.stack([row, choose(Op.WAIT) if step != 4 else choose(Op.FINISH)])
        assert_same_trace([envs.step(actions)[:4]], [twin.step(actions)[:4]])
        assert_same_trace([envs.step(wait(2))[:4]], [twin.step(wait(2))[:4]])
        envs.load_state_dict(state)
        envs.step(actions)
    assert {Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING} <= stages
    assert {Stage.HOLDING, Stage.FOSSILIZED} <= stages


def test_a_state_of_another_environment_is_rejected() -> None:
    envs = make_envs(2)
    envs.reset(seed=0)
    state = envs.state_dict()
    with pytest.raises(ConfigError, match="num_envs 2"):
        make_envs(3).load_state_dict(state)
    with pytest.raises(ConfigError, match="task 'spirals'"):
        make_envs(2, "digits").load_state_dict(state)
    with pytest.raises(ConfigError, match="the state has budget"):
        make_envs(2, n_epochs=5).load_state_dict(state)


def test_the_test_split_is_only_for_evaluations() -> None:
    with pytest.raises(ConfigError, match="final_split is 'test'"):
        make_envs(2, final_split="test")
    envs = make_envs(2, final_split="test", purpose="evaluation")
    envs.reset(seed=0)
    *_, info = envs.step(np.stack([choose(Op.FINISH)] * 2))
    assert np.isfinite(info["final_info"]["final_score"]).all()


def test_each_episode_resets_in_the_step_that_ends_it() -> None:
    envs = make_envs(3, n_epochs=4)
    first, _ = envs.reset(seed=0)
    population = envs.growth.hosts
    old = population.specs[1]
    actions = np.stack([choose(Op.WAIT), choose(Op.FINISH), choose(Op.WAIT)])
    observations, _, terminated, truncated, info = envs.step(actions)
    assert terminated.tolist() == [False, True, False]
    assert not truncated.any()
    assert population.specs[1] is not old
    progress = envs.layout.host(observations, "progress")
    assert progress.tolist() == [0.25, 0.0, 0.25]
    assert envs.layout.host(info["final_obs"][1][None], "did_finish")[0] == 1.0
    assert info["final_obs"][0] is None
    assert info["_final_info"].tolist() == [False, True, False]
    assert not np.array_equal(observations[1], first[1])


def test_a_finished_host_is_not_trained_further() -> None:
    envs = make_envs(3, autoreset=False)
    envs.reset(seed=0)
    population = envs.growth.hosts
    trained: list[np.ndarray] = []
    train = population.train_epoch

    def watch() -> Any:
        report = train()
        trained.append(report.flops > 0)
        return report

    population.train_epoch = watch  # type: ignore[method-assign]
    actions = np.stack([choose(Op.WAIT), choose(Op.FINISH), choose(Op.WAIT)])
    envs.step(actions)
    _, rewards, terminated, _, info = envs.step(wait(3))
    assert trained[0].tolist() == trained[1].tolist() == [True, False, True]
    assert rewards[1] == 0.0
    assert not terminated[1]
    assert info["flops"][1] == 0.0
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    envs.step(wait(3))
    assert trained[2].tolist() == [True, True, True]
    assert envs.growth.records.epoch.tolist() == [3, 1, 3]


def test_the_collector_bootstraps_truncated_episodes() -> None:
    envs = make_envs(2, max_episode_steps=3)
    policy = RecurrentPolicy(envs_spec(envs), envs.layout.size)
    agent = PPOAgent(envs_spec(envs), policy, PPOConfig(gamma=1.0))
    collector = VectorCollector(envs, agent, seed=0)
    buffer = agent.make_buffer(2, 12)
    episodes = collector.collect(buffer)
    assert max(episodes.lengths) <= 3
    report = agent.update(buffer)
    assert np.isfinite(report.approx_kl)


def envs_spec(envs: GrowthVectorEnv) -> Any:
    from esper.lifecycle.factored_actions import growth_action_spec

    return growth_action_spec(envs.slot_config)


def test_espers_policy_never_samples_an_illegal_action() -> None:
    envs = make_envs(8, n_epochs=16)
    policy = RecurrentPolicy(envs_spec(envs), envs.layout.size)
    agent = PPOAgent(envs_spec(envs), policy, PPOConfig(gamma=1.0))
    collector = VectorCollector(envs, agent, seed=0)
    flags: list[bool] = []
    step = envs.step

    def watch(actions: np.ndarray) -> Any:
        result = step(actions)
        flags.extend(result[4]["illegal_action"].tolist())
        return result

    envs.step = watch  # type: ignore[method-assign]
    buffer = agent.make_buffer(8, 50)
    collector.collect(buffer)
    assert len(flags) == 400
    assert not any(flags)


def test_masks_agree_with_the_legality_rules() -> None:
    envs = make_envs(4)
    envs.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(25):
        envs.step(random_actions(envs, generator))
        by_op = envs.masks.slot_by_op
        for env in range(4):
            states = envs.growth.hosts.lives(env).mask_states
            for op in Op:
                for index, slot in enumerate(envs.slot_config.slot_ids):
                    assert by_op[env, op, index] == may_apply(op, slot, states, envs.slot_config)


def test_observing_makes_no_object_for_each_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_envs(4)
    envs.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(5):
        envs.step(random_actions(envs, generator))

    def refuse(self: SlotMaskState) -> None:
        raise AssertionError("an object was made for a slot")

    monkeypatch.setattr(SlotMaskState, "__post_init__", refuse)
    envs.growth.masks()
    envs.growth.observe()
    envs.step(wait(4))


def test_returns_are_final_scores_minus_costs_for_all_hosts() -> None:
    config = RewardConfig(shaping=0.3)
    envs = make_envs(4, reward=config)
    envs.reset(seed=1)
    generator = np.random.default_rng(2)
    returns, terms = np.zeros(4), {name: np.zeros(4) for name in REWARD_TERMS}
    n_ends = 0
    price = envs.task.budget.flop_price
    for _ in range(40):
        _, rewards, terminated, _, info = envs.step(
            random_actions(envs, generator, with_finish=True)
        )
        returns += rewards
        for name in REWARD_TERMS:
            terms[name] += info["reward_terms"][name]
        for env in np.flatnonzero(terminated):
            final = info["final_info"]
            expected = final["final_score"][env] - price * final["flops"][env] + final["rent"][env]
            expected += final["penalty"][env]
            assert returns[env] == pytest.approx(expected, abs=1e-12)
            assert terms["shaping"][env] == pytest.approx(0.0, abs=1e-12)
            n_ends += 1
            returns[env] = 0.0
            for name in REWARD_TERMS:
                terms[name][env] = 0.0
    assert n_ends >= 8


@pytest.mark.parametrize("wrap", [DictInfoToList, RecordEpisodeStatistics])
def test_gymnasiums_vector_wrappers_accept_the_info(wrap: Callable[..., Any]) -> None:
    envs = wrap(make_envs(2, n_epochs=3))
    envs.reset(seed=0)
    for _ in range(4):
        *_, info = envs.step(wait(2))
    if wrap is DictInfoToList:
        assert len(info[0]["action_mask"]) == 8
        assert set(info[0]["reward_terms"]) == set(REWARD_TERMS)


def test_hosts_share_fixed_data() -> None:
    envs = make_envs(3, "digits")
    envs.reset(seed=0)
    first, second, third = (spec.data for spec in envs.growth.hosts.specs)
    assert first is second is third
    weights = [envs.growth.hosts.model(env).state_dict()["stem.weight"] for env in range(2)]
    assert not torch.equal(*weights)


def test_evaluation_and_training_never_share_a_draw() -> None:
    draws = {}
    for purpose in ("training", "evaluation"):
        envs = make_envs(4, "digits-family", purpose=purpose)
        envs.reset(seed=0)
        draws[purpose] = envs.growth.records.draw_seed.copy()
    assert not set(draws["training"]) & set(draws["evaluation"])


def test_an_agent_whose_gamma_differs_from_the_shapings_is_rejected() -> None:
    envs = make_envs(2)
    policy = RecurrentPolicy(envs_spec(envs), envs.layout.size)
    with pytest.raises(UnsupportedEnvironmentError, match=r"PPOConfig\(gamma=1.0\)"):
        VectorCollector(envs, PPOAgent(envs_spec(envs), policy))
    plain = make_envs(2, reward=RewardConfig(shaping=0.0))
    VectorCollector(plain, PPOAgent(envs_spec(envs), policy), seed=0)


def test_invalid_reset_arguments_are_rejected() -> None:
    envs = make_envs(2)
    with pytest.raises(ConfigError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    for seed in (1.5, "33", True, -1, 2**63, [1.9, 2.9], [0, None, 1]):
        with pytest.raises(ConfigError, match="seed"):
            envs.reset(seed=seed)  # type: ignore[arg-type]
    envs.reset(seed=np.int64(4))
    with pytest.raises(ConfigError, match=r"'reset_msk'.*Did you mean 'reset_mask'"):
        envs.reset(options={"reset_msk": None})
    with pytest.raises(ConfigError, match="options is a list"):
        envs.reset(options=[1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"reset_mask.*shape \(1,\)"):
        envs.reset(options={"reset_mask": np.array([True])})
    with pytest.raises(ConfigError, match="1 seeds"):
        envs.reset(seed=[3])


def test_a_value_that_is_no_state_is_rejected() -> None:
    envs = make_envs(2)
    for state in ({}, None, {"facts": {}, "tensors": {}}):
        with pytest.raises(ConfigError, match="not the state"):
            envs.load_state_dict(state)  # type: ignore[arg-type]


def test_a_state_from_before_the_first_reset_still_needs_a_reset() -> None:
    envs, twin = make_envs(2), make_envs(2)
    twin.reset(seed=0)
    twin.load_state_dict(envs.state_dict())
    with pytest.raises(ResetNeededError):
        twin.step(wait(2))


def test_a_state_with_other_data_is_rejected(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.txt"
        path.write_text((f"{name} and the other went down the road. " * 60)[:2400])
        made.append(make_envs(2, "text", path=str(path), context=8))
    made[0].reset(seed=0)
    with pytest.raises(ConfigError, match="the state has data"):
        made[1].load_state_dict(made[0].state_dict())


def test_elapsed_time_is_part_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("esper.environment.vector_env.monotonic", lambda: now[0])
    envs, twin = (make_envs(2, episode_seconds=10.0) for _ in range(2))
    envs.reset(seed=0)
    now[0] = 106.0
    assert not envs.step(wait(2))[3].any()
    state = envs.state_dict()
    now[0] = 500.0
    twin.load_state_dict(state)
    assert not twin.step(wait(2))[3].any()
    now[0] = 504.0
    assert twin.step(wait(2))[3].all()


def test_info_gives_the_reason_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeedSlot, "find_start_problem", lambda *_: "not finite")
    envs = make_envs(2)
    envs.reset(seed=0)
    grow, go, *_ = life_of_a_seed(envs.slot_config)
    for row in (grow, go):
        *_, info = envs.step(np.stack([row, choose(Op.WAIT)]))
    assert info["refusal"][0] == "not finite"
    assert info["refusal"][1] == info["intervention"][1] == ""


def test_a_diverged_host_gets_a_bounded_reward() -> None:
    task = make_task("text", n_epochs=3, batches_per_epoch=1)
    ruined = replace(task, training=replace(task.training, optimizer="sgd", learning_rate=1e4))
    envs = GrowthVectorEnv(ruined, 2)
    envs.reset(seed=0)
    for _ in range(3):
        observations, rewards, *_ = envs.step(wait(2))
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        assert np.abs(rewards).max() < 3.0


def test_ppo_draws_no_illegal_combination_of_heads() -> None:
    model = PPO(lambda: GrowthEnv("spirals"), "lstm", n_envs=2, n_steps=24, n_epochs=1)
    illegal: list[bool] = []

    class Watch(Callback):
        def on_step(self, model: PPO) -> None:
            assert model.last_step is not None
            infos = [info.get("final_info", info) for info in model.last_step.info]
            illegal.extend(bool(info["illegal_action"]) for info in infos)

    model.learn(48, callbacks=Watch())
    assert len(illegal) == 48
    assert not any(illegal)
    assert model.agent.spec.op_head == "op"
