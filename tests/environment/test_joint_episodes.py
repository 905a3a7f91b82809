"""Hosts of several designs behave together as they do separately."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.environment import GrowthEnv, GrowthVectorEnv, run_episodes
from esper.errors import ActionSpecError, ConfigError, TaskError
from esper.growth.hosts import make_host
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo import NoGrowth
from esper.tamiyo.controllers.simple import RandomController
from esper.tasks import Task, make_task
from tests.joint_tasks import make_joint_task

N_OWN, N_VARIANT = 3, 2
N = N_OWN + N_VARIANT


def joint_envs(task: Task | None = None, **options: object) -> GrowthVectorEnv:
    return GrowthVectorEnv(task or make_joint_task(), N, **options)  # pyright: ignore[reportArgumentType]


def parts_apart() -> tuple[GrowthVectorEnv, GrowthVectorEnv]:
    task = make_joint_task()
    assert task.share_out(N) == [N_OWN, N_VARIANT]
    own, other = task.designs
    return GrowthVectorEnv(own, N_OWN), GrowthVectorEnv(other, N_VARIANT)


def lively(n_hosts: int, seed: int = 0) -> RandomController:
    weights = {Op.WAIT: 0.3, Op.FINISH: 0.05, Op.PRUNE: 1.0}
    controller = RandomController(op_weights=weights)
    controller.start(n_hosts, seed=seed)
    return controller


def test_a_joint_step_equals_the_steps_of_its_parts() -> None:
    envs, (own, other) = joint_envs(), parts_apart()
    seen, _ = envs.reset(seed=4)
    apart = own.reset(seed=4)[0], other.reset(seed=4 + N_OWN)[0]
    controller, ops, n_ended = lively(N), set[int](), 0
    for _ in range(13):
        np.testing.assert_array_equal(seen, np.concatenate(apart))
        for name in envs.masks:
            both = torch.cat([own.masks[name], other.masks[name]])
            assert torch.equal(envs.masks[name], both)
        actions = controller.act(seen, envs.masks, np.zeros(N, np.bool_))
        actions[0, HEAD_NAMES.index("slot")] ^= 1  # perhaps illegal
        seen, *rest, info = envs.step(actions)
        first = own.step(actions[:N_OWN])
        second = other.step(actions[N_OWN:])
        apart = first[0], second[0]
        for joined, one, two in zip(rest, first[1:4], second[1:4], strict=True):
            np.testing.assert_array_equal(joined, np.concatenate([one, two]))
        for name in ("op", "refusal", "illegal_action", "score", "flops", "intervention"):
            both = np.concatenate([first[4][name], second[4][name]])
            np.testing.assert_array_equal(info[name], both)
        for term, values in info["reward_terms"].items():
            both = [one["reward_terms"][term] for one in (first[4], second[4])]
            np.testing.assert_array_equal(values, np.concatenate(both))
        ops |= set(info["op"].tolist())
        ended = np.concatenate([first[2], second[2]])
        for env in np.flatnonzero(ended).tolist():
            place, one = (env, first) if env < N_OWN else (env - N_OWN, second)
            np.testing.assert_array_equal(info["final_obs"][env], one[4]["final_obs"][place])
            for name in ("final_score", "seed_parameters", "draw_seed", "n_epochs"):
                value = info["final_info"][name][env]
                assert value == one[4]["final_info"][name][place], name
        n_ended += int(ended.sum())
    assert n_ended >= 2 * N
    assert len(ops) >= 5


def test_masks_offer_the_blueprints_that_fit_each_design() -> None:
    envs = joint_envs()
    envs.reset(seed=0)
    offered = envs.masks["blueprint"].numpy()
    conv, dense = (envs.slot_config.blueprint_index(n) for n in ("conv_small", "mlp_small"))
    assert offered[:, conv].tolist() == [False] * N_OWN + [True] * N_VARIANT
    assert offered[:, dense].tolist() == [True] * N_OWN + [False] * N_VARIANT
    flat, heads = envs.action_masks(), envs.reset(seed=0)[1]["action_mask"]
    for env in range(N):
        np.testing.assert_array_equal(np.concatenate(heads[env]), flat[env])


def test_a_loaded_state_continues_bit_for_bit() -> None:
    envs, twin = joint_envs(), joint_envs()
    envs.reset(seed=1)
    twin.reset(seed=8)
    controller = lively(N)
    starts = np.zeros(N, np.bool_)
    seen = envs.growth.observe()
    for step in range(13):
        if step in (4, 9):
            twin.load_state_dict(copy.deepcopy(envs.state_dict()))
        actions = controller.act(seen, envs.masks, starts)
        seen, *rest, _ = envs.step(actions)
        if step >= 4:
            other, *others, _ = twin.step(actions)
            np.testing.assert_array_equal(seen, other)
            for one, two in zip(rest, others, strict=True):
                np.testing.assert_array_equal(one, two)
            assert torch.equal(envs.masks.choices, twin.masks.choices)


def test_a_state_with_other_variants_is_rejected() -> None:
    task = make_joint_task()
    envs, variant = joint_envs(task), task.variants[0][0]
    other = replace(variant, training=replace(task.training, learning_rate=0.5))
    for variants in ((), ((other, 0.4),), ((variant, 0.2),)):
        with pytest.raises(ConfigError, match="variants"):
            joint_envs(replace(task, variants=variants)).load_state_dict(envs.state_dict())


def test_an_invalid_choice_is_rejected_before_anything_changes() -> None:
    envs = joint_envs()
    envs.reset(seed=0)
    actions = np.zeros((N, len(HEAD_NAMES)), np.int64)
    actions[N - 1, 0] = 99
    with pytest.raises(ActionSpecError, match=f"environment {N - 1} has choice 99"):
        envs.step(actions)
    assert envs.growth.records.epoch.tolist() == [0] * N


def test_a_variant_with_another_number_of_slots_is_rejected() -> None:
    variant = make_joint_task().variants[0][0]
    deeper = replace(variant.make_host.config, n_blocks=3)  # pyright: ignore[reportFunctionMemberAccess]
    cnns = replace(variant, make_host=lambda seed: make_host(deeper, seed=seed))
    with pytest.raises(TaskError, match=r"variant 'digits' .* has 5 slots"):
        joint_envs(replace(make_task("digits"), variants=((cnns, 0.4),)))


def test_variants_are_rejected_where_one_design_is_needed() -> None:
    task = make_joint_task()
    with pytest.raises(TaskError, match=r"num_envs is 1 .*'digits' has 2"):
        GrowthEnv(task)
    envs = joint_envs(task, autoreset=False)
    with pytest.raises(TaskError, match="a controller's trial"):
        run_episodes(envs, NoGrowth(), seed=0)


def test_stopping_and_scoring_number_hosts_across_designs() -> None:
    envs = joint_envs(autoreset=False)
    envs.reset(seed=0)
    growth = envs.growth
    growth.stop(N_OWN)
    assert np.flatnonzero(growth.records.is_over).tolist() == [N_OWN]
    assert np.flatnonzero(growth.population.is_finished).tolist() == [N_OWN]
    envs.step(np.zeros((N, len(HEAD_NAMES)), np.int64))
    assert growth.records.epoch.tolist() == [1] * N_OWN + [0] + [1] * (N_VARIANT - 1)
    both = growth.hosts.evaluate([N - 1, 0], "final").scores
    assert both.tolist() == [growth.hosts.evaluate([h], "final").scores[0] for h in (N - 1, 0)]
