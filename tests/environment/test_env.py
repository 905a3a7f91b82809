"""GrowthEnv follows Gymnasium's contract and the rules of growth."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from esper.environment import GrowthEnv
from esper.environment.rewards import REWARD_TERMS
from esper.errors import (
    ActionSpecError,
    ConfigError,
    DtypeError,
    ResetNeededError,
    ShapeError,
    TaskError,
)
from esper.growth.host_slots import slots
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from tests.environment.worlds import TINY, choose, life_of_a_seed, make_env, module_slot


@pytest.mark.parametrize("task", ["spirals", "digits", "digits-family", "text"])
def test_gymnasiums_checker_accepts_it_without_warnings(task: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("Esper/Growth-v0", task=task, **TINY)
        assert isinstance(env.unwrapped, GrowthEnv)
        check_env(env.unwrapped)
        assert env.spec is not None
        assert env.spec.id == "Esper/Growth-v0"


@pytest.mark.parametrize(
    "code",
    [
        "import gymnasium, esper; gymnasium.spec('Esper/Growth-v0')",
        pytest.param(
            "import gymnasium; gymnasium.make('esper.environment:Esper/Growth-v0')",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_gymnasium_finds_the_registered_environment(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_importing_esper_imports_neither_gymnasium_nor_torch() -> None:
    code = "import esper, sys; print('torch' in sys.modules, 'gymnasium' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_masks_have_the_forms_that_gymnasium_and_sb3_contrib_expect() -> None:
    env = make_env()
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    for _ in range(12):
        masks = info["action_mask"]
        assert [mask.dtype for mask in masks] == [np.dtype(np.int8)] * 8
        np.testing.assert_array_equal(np.concatenate(masks), env.action_masks())
        action = env.action_space.sample(mask=masks)
        for choice, mask in zip(action, masks, strict=True):
            assert mask[choice] == 1
        action[-1] = Op.WAIT if action[-1] == Op.FINISH else action[-1]
        _, _, ended, _, info = env.step(action)
    assert ended


def test_masks_are_the_union_over_ops() -> None:
    # While a seed trains in one slot, no op is legal for the other.
    env = make_env()
    env.reset(seed=0)
    config = env.vector.slot_config
    for action in life_of_a_seed(config)[:2]:
        env.step(action)
    by_op = env.masks.slot_by_op[0]
    union = by_op[[op for op in Op if op not in (Op.WAIT, Op.FINISH)]].any(0)
    np.testing.assert_array_equal(env.action_masks()[: config.max_slots], union.numpy())
    np.testing.assert_array_equal(env.masks["op"][0].numpy(), by_op.any(1).numpy())


def test_an_illegal_combination_counts_as_wait_and_is_flagged() -> None:
    env, twin = make_env(), make_env()
    env.reset(seed=5)
    twin.reset(seed=5)
    grow = life_of_a_seed(env.vector.slot_config)[0]
    for action in (choose(Op.FOSSILIZE, 1), choose(Op.GERMINATE, 0, 2), grow, choose(Op.PRUNE, 1)):
        is_legal = bool((action == grow).all())
        observation, reward, _, _, info = env.step(action)
        expected = twin.step(action if is_legal else choose(Op.WAIT))
        assert info["illegal_action"] is not is_legal
        assert expected[4]["illegal_action"] is False
        np.testing.assert_array_equal(observation, expected[0])
        assert reward == expected[1]
        assert info["op"] == (Op.GERMINATE if is_legal else Op.WAIT)


def test_a_seed_that_must_not_start_is_a_flagged_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env()
    env.reset(seed=1)
    grow, go, *_ = life_of_a_seed(env.vector.slot_config)
    *_, info = env.step(grow)
    assert info["was_refused"] is False
    with monkeypatch.context() as patch:
        patch.setattr(SeedSlot, "find_start_problem", lambda *_: "not finite")
        observation, *_, info = env.step(go)
    assert info["was_refused"] is True
    assert info["illegal_action"] is False
    assert info["op"] == Op.WAIT
    assert env.layout.host(observation[None], "was_refused")[0] == 1.0
    for _ in range(2):
        *_, info = env.step(go)
    assert info["illegal_action"] is False
    *_, info = env.step(go)  # alpha is still on its way
    assert info["illegal_action"] is True


def test_an_episode_terminates_after_its_epochs() -> None:
    env = make_env(n_epochs=3)
    env.reset(seed=0)
    ends = [env.step(choose(Op.WAIT))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (True, False)]
    with pytest.raises(ResetNeededError, match="episode is over"):
        env.step(choose(Op.WAIT))
    env.reset()
    env.step(choose(Op.WAIT))


def test_finish_terminates_before_another_epoch() -> None:
    env = make_env()
    env.reset(seed=0)
    *_, before = env.step(choose(Op.WAIT))
    _, _, terminated, truncated, info = env.step(choose(Op.FINISH))
    assert (terminated, truncated) == (True, False)
    assert info["n_epochs"] == 1
    assert info["flops"] == before["flops"]
    assert info["reward_terms"]["flops_cost"] == info["reward_terms"]["rent"] == 0.0


def test_a_limit_from_outside_truncates() -> None:
    env = make_env(max_episode_steps=2)
    env.reset(seed=0)
    assert env.step(choose(Op.WAIT))[2:4] == (False, False)
    assert env.step(choose(Op.WAIT))[2:4] == (False, True)
    with pytest.raises(ResetNeededError):
        env.step(choose(Op.WAIT))
    quick = make_env(episode_seconds=1e-9)
    quick.reset(seed=0)
    _, _, terminated, truncated, info = quick.step(choose(Op.WAIT))
    assert (terminated, truncated) == (False, True)
    assert np.isnan(info["final_score"])
    both = make_env(max_episode_steps=1, n_epochs=1)
    both.reset(seed=0)
    assert both.step(choose(Op.WAIT))[2:4] == (True, False)


def test_gymnasiums_time_limit_truncates_too() -> None:
    env = gymnasium.make("Esper/Growth-v0", task="spirals", max_episode_steps=2, **TINY)
    env.reset(seed=0)
    assert env.step(choose(Op.WAIT))[2:4] == (False, False)
    assert env.step(choose(Op.WAIT))[2:4] == (False, True)


def test_rewards_sum_to_the_final_score_minus_the_costs() -> None:
    env = make_env()
    env.reset(seed=2)
    actions = [*life_of_a_seed(env.vector.slot_config), *[choose(Op.WAIT)] * 5]
    total, terms = 0.0, dict.fromkeys(REWARD_TERMS, 0.0)
    for action in actions:
        _, reward, terminated, _, info = env.step(action)
        assert reward == pytest.approx(sum(info["reward_terms"].values()), abs=1e-15)
        total += reward
        for name in REWARD_TERMS:
            terms[name] += info["reward_terms"][name]
    assert terminated
    budget = env.vector.task.budget
    rent = -terms["rent"]
    assert terms["shaping"] == pytest.approx(0.0, abs=1e-12)
    assert rent > 0
    assert -terms["flops_cost"] == pytest.approx(budget.flop_price * info["flops"], abs=1e-12)
    expected = info["final_score"] - budget.flop_price * info["flops"] - rent
    assert total == pytest.approx(expected, abs=1e-12)


def test_the_sparse_reward_has_the_same_return() -> None:
    returns = []
    for reward in ("dense", "sparse"):
        env = make_env(reward=reward)
        env.reset(seed=2)
        paid = [env.step(a)[1] for a in life_of_a_seed(env.vector.slot_config)]
        paid.append(env.step(choose(Op.FINISH))[1])
        returns.append(sum(paid))
        if reward == "sparse":
            assert paid[:-1] == [0.0] * 7
    assert returns[0] == pytest.approx(returns[1], abs=1e-12)


def test_waiting_to_the_end_costs_one_reference_run() -> None:
    env = make_env()
    env.reset(seed=0)
    costs = 0.0
    for _ in range(12):
        *_, info = env.step(choose(Op.WAIT))
        costs -= info["reward_terms"]["flops_cost"] + info["reward_terms"]["rent"]
    assert info["flops"] == pytest.approx(1.0, abs=1e-12)
    assert costs == pytest.approx(env.vector.task.budget.flop_price, abs=1e-12)


def test_the_contribution_of_a_held_seed_is_measured() -> None:
    env = make_env(n_epochs=8)
    env.reset(seed=3)
    for action in life_of_a_seed(env.vector.slot_config, commits=False):
        observation, *_ = env.step(action)
    measured = env.layout.slot(observation[None], "is_measured")[0]
    assert np.flatnonzero(measured).tolist() == [module_slot(env.vector.slot_config)]
    population = env.vector.growth.hosts
    data = population.specs[0].data
    model = population.model(0).eval()
    with torch.no_grad():
        on = (model(data.validation_inputs).argmax(1) == data.validation_targets).double().mean()
        with slots(model)["blocks.0"].switched_off():
            off = (model(data.validation_inputs).argmax(1) == data.validation_targets).double()
    worth = env.vector.growth.records.slots.contribution[0, module_slot(env.vector.slot_config)]
    assert worth == pytest.approx((on - off.mean()).item(), abs=1e-12)


def test_observations_describe_the_task() -> None:
    env = make_env("digits-family")
    observation, _ = env.reset(seed=4)
    facts = env.vector.growth.draws[0].facts
    n_parameters = env.vector.growth.records.n_parameters[0]

    def read(name: str) -> float:
        return float(env.layout.host(observation[None], name)[0])

    def by_log(value: float, low: float, high: float) -> float:
        return float(2 * np.log(value / low) / np.log(high / low) - 1)

    density = by_log(facts["n_samples"] / n_parameters, 1e-3, 1e3)
    assert read("data_per_parameter") == pytest.approx(density, abs=1e-6)
    n_batches = env.vector.growth.hosts.orders[0].n_batches
    assert read("batches_per_epoch") == pytest.approx(by_log(n_batches, 1, 1e3), abs=1e-6)
    n_epochs = env.vector.growth.task.budget.n_epochs
    assert read("task_epochs") == pytest.approx(by_log(n_epochs, 1, 1e3), abs=1e-6)
    assert read("epochs_left") == pytest.approx(by_log(n_epochs, 1, 100), abs=1e-6)
    width = int(facts["width"])
    assert n_parameters == 65 * 16 + 2 * (17 * width + 16 * (width + 1)) + 17 * 10


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(TaskError, match="Did you mean 'spirals'"):
        GrowthEnv("spiral")
    with pytest.raises(ConfigError, match=r"form is 'compile'.*Did you mean 'compiled'"):
        make_env(form="compile")
    with pytest.raises(ConfigError, match="purpose is 'play'"):
        make_env(purpose="play")
    with pytest.raises(ConfigError, match="final_split is 'train'"):
        make_env(final_split="train")
    with pytest.raises(TaskError, match="task is an int"):
        GrowthEnv(3)  # type: ignore[arg-type]
    env = make_env()
    with pytest.raises(TaskError, match="options n_epochs"):
        GrowthEnv(env.vector.task, n_epochs=3)
    with pytest.raises(ResetNeededError, match=r"step\(\)"):
        env.step(choose(Op.WAIT))
    env.reset(seed=0)
    with pytest.raises(ShapeError, match=r"actions have shape \(1, 3\)"):
        env.step(np.zeros(3, np.int64))
    for head, choice in ((0, 9), (0, -1), (7, 7)):
        action = choose(Op.WAIT)
        action[head] = choice
        with pytest.raises(ActionSpecError, match=rf"choice {choice} of head '{HEAD_NAMES[head]}'"):
            env.step(action)
    with pytest.raises(DtypeError, match="dtype float64"):
        env.step(np.zeros(8))
    with pytest.raises(ConfigError, match="seed is -1"):
        env.vector.reset(seed=-1)
