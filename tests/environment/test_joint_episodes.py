"""Hosts of several tasks side by side do what they do apart."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.environment import GrowthEnv, GrowthVectorEnv, run_episodes
from esper.environment.episodes import GrowthEpisodes
from esper.environment.joint_episodes import JointEpisodes
from esper.errors import ActionSpecError, ConfigError, TaskError, UnsupportedEnvironmentError
from esper.growth.hosts import make_host
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo import WaitController
from esper.tamiyo.controllers.simple import RandomController
from esper.tasks import Task, make_task
from tests.joint_tasks import make_joint_task

N_OWN, N_BESIDE = 3, 2
N = N_OWN + N_BESIDE


def joint_envs(task: Task | None = None, **options: object) -> GrowthVectorEnv:
    return GrowthVectorEnv(task or make_joint_task(), N, **options)  # pyright: ignore[reportArgumentType]


def parts_apart() -> tuple[GrowthVectorEnv, GrowthVectorEnv]:
    (own, n_own), (other, n_other) = make_joint_task().spread(N)
    assert (n_own, n_other) == (N_OWN, N_BESIDE)
    return GrowthVectorEnv(own, n_own), GrowthVectorEnv(other, n_other)


def lively(n_hosts: int, seed: int = 0) -> RandomController:
    weights = {Op.WAIT: 0.3, Op.FINISH: 0.05, Op.PRUNE: 1.0}
    controller = RandomController(op_weights=weights)
    controller.start(n_hosts, seed=seed)
    return controller


def test_a_joint_step_is_the_steps_of_the_parts() -> None:
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


def test_masks_offer_hosts_what_fits_their_design() -> None:
    envs = joint_envs()
    envs.reset(seed=0)
    offered = envs.masks["blueprint"].numpy()
    conv, dense = (envs.slot_config.blueprint_index(n) for n in ("conv_small", "mlp_small"))
    assert offered[:, conv].tolist() == [False] * N_OWN + [True] * N_BESIDE
    assert offered[:, dense].tolist() == [True] * N_OWN + [False] * N_BESIDE
    flat, heads = envs.action_masks(), envs.reset(seed=0)[1]["action_mask"]
    for env in range(N):
        np.testing.assert_array_equal(np.concatenate(heads[env]), flat[env])


def test_records_are_one_table_that_the_parts_write_into() -> None:
    envs = joint_envs()
    envs.reset(seed=0)
    growth = envs.growth
    assert isinstance(growth, JointEpisodes)
    envs.step(np.zeros((N, len(HEAD_NAMES)), np.int64))
    assert growth.records.epoch.tolist() == [1] * N
    assert np.shares_memory(growth.records.scores, growth.parts[1].records.scores)
    assert growth.draws[N_OWN:] == growth.parts[1].draws
    growth.stop(N_OWN)
    assert growth.parts[1].records.is_over.tolist() == [True, False]
    assert growth.records.is_over.sum() == 1


def test_a_saved_state_goes_on_bit_for_bit() -> None:
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


def test_a_state_of_other_companions_is_refused() -> None:
    task = make_joint_task()
    envs = joint_envs(task)
    other = replace(task.beside[0][0], training=replace(task.training, learning_rate=0.5))
    for changed in (
        replace(task, beside=()),
        replace(task, beside=((other, 0.4),)),
        replace(task, beside=((task.beside[0][0], 0.2),)),
    ):
        with pytest.raises(ConfigError, match="the state has beside"):
            joint_envs(changed).load_state_dict(envs.state_dict())


def test_a_choice_that_there_is_not_is_named_by_its_environment_before_anything_is_done() -> None:
    envs = joint_envs()
    envs.reset(seed=0)
    actions = np.zeros((N, len(HEAD_NAMES)), np.int64)
    actions[N - 1, 0] = 99
    with pytest.raises(ActionSpecError, match=f"environment {N - 1} has choice 99"):
        envs.step(actions)
    assert envs.growth.records.epoch.tolist() == [0] * N


def test_hosts_with_other_numbers_of_slots_cannot_be_beside_each_other() -> None:
    config = make_joint_task().beside[0][0].make_host.config  # pyright: ignore[reportFunctionMemberAccess]
    deeper = replace(config, n_blocks=3)
    cnns = replace(make_joint_task().beside[0][0], make_host=lambda s: make_host(deeper, seed=s))
    task = replace(make_task("digits"), beside=((cnns, 0.4),))
    with pytest.raises(TaskError, match="has 3 slots; it must have 2, as many as the hosts beside"):
        joint_envs(task)


def test_where_one_task_is_needed_others_beside_it_are_refused() -> None:
    task = make_joint_task()
    with pytest.raises(TaskError, match=r"num_envs is 1 and task 'digits' .* at least 2"):
        GrowthEnv(task)
    with pytest.raises(TaskError, match="a population takes one task at a time"):
        GrowthEpisodes(task, [1, 2])
    envs = joint_envs(task, autoreset=False)
    with pytest.raises(TaskError, match="a controller's trial takes one task at a time"):
        run_episodes(envs, WaitController(), seed=0)
    with pytest.raises(UnsupportedEnvironmentError, match="hosts of 2 tasks side by side"):
        _ = envs.growth.population
