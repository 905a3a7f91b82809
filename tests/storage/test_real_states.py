"""Agents and environments continue from a checkpoint bit for bit."""

from pathlib import Path

import numpy as np

from esper.environment import GrowthVectorEnv
from esper.storage.checkpoint_folder import CheckpointFolder
from tests.simic.helpers import fill, make_agent
from tests.storage.states import exact, passed_on


def test_an_agent_and_its_environments_continue_from_a_checkpoint(tmp_path: Path) -> None:
    agent, other = make_agent(), make_agent(seed=1)
    envs, twins = (GrowthVectorEnv("spirals", 2) for _ in range(2))
    agent.update(fill(agent))
    envs.reset(seed=3)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(8)]
    for action in actions[:4]:
        envs.step(action)
    state = {"agent": agent.state_dict(), "envs": envs.state_dict()}

    folder = CheckpointFolder(tmp_path)
    folder.save(state, step=4)
    parts = folder.latest().state
    other.load_state_dict(parts["agent"])
    twins.load_state_dict(parts["envs"])

    for learner in (agent, other):
        learner.update(fill(learner, seed=5))
    for action in actions[4:]:
        for one, two in zip(envs.step(action)[:4], twins.step(action)[:4], strict=True):
            np.testing.assert_array_equal(one, two)
    assert exact(passed_on(other.state_dict())) == exact(passed_on(agent.state_dict()))
    assert exact(twins.state_dict()["tensors"]) == exact(envs.state_dict()["tensors"])
