"""Ablations take away choices and observations, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from esper.config.ablation import AblationConfig
from esper.config.run import RunConfig
from esper.config.toml import override, read_toml, write_toml
from esper.environment import GrowthVectorEnv
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, choice_names
from esper.tamiyo import load_saved, save_controller
from esper.tamiyo.controllers.saved import facts_of
from esper.tamiyo.policy.ablation import Ablation
from esper.tamiyo.policy.observations import HOST_FEATURES, SLOT_FEATURES
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.training.lookup import controller_of
from esper.training.runs import train
from esper.training.setup import make_run_task
from tests.storage.forging import forge_json
from tests.training.tiny import tiny_config


def actions_of(envs: GrowthVectorEnv, ablation: AblationConfig) -> np.ndarray:
    """Return the actions of 60 steps of an untrained policy, ``[60 * N, H]``."""
    policy = SlotPolicy(envs.slot_config, ablation=ablation)
    generator = torch.Generator().manual_seed(0)
    observations, info = envs.reset(seed=0)
    state, found = torch.zeros(envs.num_envs, policy.state_size), []
    for _ in range(60):
        masks = envs.growth.masks()
        decision = policy.act(torch.from_numpy(observations), masks, state, generator)
        found.append(decision.actions.numpy())
        observations, _, _, _, info = envs.step(found[-1])
        assert not info["illegal_action"].any()
        state = decision.next_state
    return np.concatenate(found)


@pytest.fixture(scope="module")
def envs() -> GrowthVectorEnv:
    return GrowthVectorEnv("spirals", 4)


def test_choices_that_are_taken_away_are_never_made(envs: GrowthVectorEnv) -> None:
    names = choice_names(envs.slot_config)
    column = {name: number for number, name in enumerate(HEAD_NAMES)}
    fixed = {"style": names["style"][1], "tempo": names["tempo"][2]}
    offered = ("widen_small", "mlp_small")
    taken = actions_of(envs, AblationConfig(heads=fixed, blueprints=offered))
    germinated = taken[taken[:, column["op"]] == Op.GERMINATE]
    assert len(germinated) > 5
    chosen = {names["blueprint"][number] for number in germinated[:, column["blueprint"]]}
    assert chosen <= set(offered)
    assert set(germinated[:, column["style"]]) == {1}
    assert set(germinated[:, column["tempo"]]) == {2}
    assert Op.GERMINATE not in actions_of(envs, AblationConfig(grows=False))[:, column["op"]]
    assert (
        Op.GERMINATE
        not in actions_of(envs, AblationConfig(blueprints=("conv_small",)))[:, column["op"]]
    )  # it fits no slot of these hosts


def test_hidden_observations_change_nothing(envs: GrowthVectorEnv) -> None:
    policy = SlotPolicy(envs.slot_config, ablation=AblationConfig(hidden=("error*", "slots")))
    seen = torch.from_numpy(envs.reset(seed=1)[0].copy())
    state = torch.zeros(len(seen), policy.state_size)

    def memory(observations: torch.Tensor) -> torch.Tensor:
        return policy.act(observations, None, state, None).next_state

    values = memory(seen)
    hidden = [n for n, name in enumerate(HOST_FEATURES) if name.startswith("error")]
    hidden.append(len(HOST_FEATURES) + list(SLOT_FEATURES).index("position"))
    changed = seen.clone()
    changed[:, hidden] += 0.3
    torch.testing.assert_close(memory(changed), values, rtol=0, atol=0)
    changed[:, list(HOST_FEATURES).index("progress")] += 0.3
    assert not torch.equal(memory(changed), values)


def test_shuffled_observations_are_those_of_other_hosts_at_the_same_position() -> None:
    waits = np.zeros((4, len(HEAD_NAMES)), np.int64)
    plain, shuffled, again = (GrowthVectorEnv("spirals", 4) for _ in range(3))
    for envs in (shuffled, again):
        envs.ablate(AblationConfig(shuffled=("error*", "price")))
    names, seen = list(HOST_FEATURES), []
    for envs in (plain, shuffled):
        envs.reset(seed=3)
        seen.append(envs.step(waits)[0])
    changed = np.flatnonzero((seen[0] != seen[1]).any(0))
    assert {names[column] for column in changed} >= {"error"}
    assert all(names[column].startswith("error") for column in changed)
    np.testing.assert_array_equal(np.sort(seen[0], axis=0), np.sort(seen[1], axis=0))
    again.load_state_dict(shuffled.state_dict())
    for _ in range(20):  # episodes end and begin meanwhile
        np.testing.assert_array_equal(shuffled.step(waits)[0], again.step(waits)[0])


@pytest.mark.parametrize(
    ("head", "choice", "index"),
    [("tempo", 3, 0), ("tempo", "8 epochs", 2), ("alpha_target", 1, 2), ("alpha_target", 0.7, 1)],
)
def test_a_fixed_choice_is_named_by_its_number_or_its_text(
    envs: GrowthVectorEnv, head: str, choice: float | str, index: int
) -> None:
    ablation = AblationConfig(heads={head: choice})
    column = HEAD_NAMES.index(head)
    allowed = Ablation(ablation, envs.slot_config).allowed[column]
    assert np.flatnonzero(allowed.numpy()).tolist() == [index]


@pytest.mark.parametrize(
    ("ablation", "words"),
    [
        ({"heads": {"slot": "x"}}, "a name in ablation.heads is 'slot'"),
        ({"heads": {"style": "x"}}, "ablation.heads.style is 'x'"),
        ({"blueprints": ["mlp_smal"]}, "'mlp_small'"),
        ({"hidden": ["eror"]}, "'error'"),
        ({"heads": {"tempo": 4}}, "ablation.heads.tempo is 4"),
    ],
)
def test_unknown_names_are_rejected(
    envs: GrowthVectorEnv, ablation: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        SlotPolicy(envs.slot_config, ablation=AblationConfig(**ablation))


def test_rewards_are_the_weighted_terms(envs: GrowthVectorEnv) -> None:
    envs.ablate(AblationConfig(rewards={"flops_cost": 0.0, "progress": 2.0}))
    envs.reset(seed=0)
    for _ in range(3):
        _, rewards, _, _, info = envs.step(np.zeros((4, len(HEAD_NAMES)), np.int64))
        terms = info["reward_terms"]
        expected = sum(terms.values()) - terms["flops_cost"] + terms["progress"]
        np.testing.assert_allclose(rewards, expected, atol=1e-12)
    envs.ablate(AblationConfig())
    with pytest.raises(ConfigError, match=r"ablation\.shuffled has 'eror'"):
        envs.ablate(AblationConfig(shuffled=("eror",)))
    with pytest.raises(ConfigError, match=r"a name in ablation\.rewards is 'flops'"):
        envs.ablate(AblationConfig(rewards={"flops": 1.0}))


def test_an_ablation_is_recorded_and_stays_with_its_controller(tmp_path: Any) -> None:
    ablation = {"grows": False, "hidden": ["gradient_*"], "rewards": {"rent": 0.0}}
    ablation["growth"] = {"embargo_epochs": 5}
    config = override(tiny_config(rounds=1), {"ablation": ablation})
    assert read_toml(write_toml(config), source="it") == config
    growth = make_run_task(config).growth
    assert growth is not None
    assert growth.embargo_epochs == 5
    run = train(config, run_dir=tmp_path / "run")
    assert run.summary is not None
    assert run.summary.own.grown_share == 0.0
    saved = load_saved(save_controller(controller_of(run), tmp_path / "kept"))
    assert saved.ablation == config.ablation != RunConfig().ablation
    facts = facts_of(saved)
    del facts["ablation"]["shuffled"]  # as in older files
    forge_json(tmp_path / "kept", "controller.json", facts)
    assert load_saved(tmp_path / "kept").ablation == config.ablation
    assert saved.origin["settings"]["ablation.grows"] == "false"
    assert "--ablation.hidden 'gradient_*'" in saved.origin["command"]
