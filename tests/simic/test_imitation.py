"""An agent learns the actions of another, and what they are worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from esper.errors import ActionSpecError, ConfigError
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.simic.agent.minibatches import PreparedRollout
from esper.simic.policy.action_spec import ActionSpec
from tests.simic.helpers import OBSERVATION_SIZE, fill, make_agent


def rule(observations: Tensor, legal: Tensor) -> Tensor:
    """Return the legal choices of each head that a simple function of observations likes best."""
    columns = torch.arange(legal.shape[-1]) % OBSERVATION_SIZE
    liked = torch.stack([observations.roll(head, 1)[:, columns] for head in range(3)], 1)
    return liked.masked_fill(~legal, -torch.inf).argmax(-1)


def fill_by_rule(agent: PPOAgent, *, n_envs: int, n_steps: int, seed: int) -> TamiyoRolloutBuffer:
    """Fill a buffer with actions of the rule; the reward is the first feature."""
    generator = torch.Generator().manual_seed(seed)
    buffer = agent.make_buffer(n_envs, n_steps)
    state, ends = agent.initial_state(n_envs), torch.zeros(n_envs, dtype=torch.bool)
    for _ in range(n_steps):
        observations = torch.randn(n_envs, OBSERVATION_SIZE, generator=generator)
        decision = agent.act(observations, None, state)
        decision = replace(decision, actions=rule(observations, decision.legal))
        state = decision.next_state
        rewards = observations[:, 0]
        buffer.add(observations, decision, rewards=rewards, dones=ends, truncated=ends)
    buffer.finish(torch.zeros(n_envs))
    return buffer


def test_the_gradient_is_that_of_the_written_loss() -> None:
    agent = make_agent(n_minibatches=1, vf_coef=0.7, ent_coef=0.3)
    buffer = fill(agent)
    buffer.compute_advantages_and_returns(agent.config.gamma, agent.config.gae_lambda)
    rollout = PreparedRollout(buffer, agent.policy, agent.normalizer, agent.config)
    ((batch, _),) = rollout.minibatches(torch.Generator())
    log_probs, entropies, values = agent.policy.evaluate(
        batch.observations, batch.resets, batch.state, batch.cells, batch.legal, batch.actions
    )
    relevant, available = batch.relevant.double(), batch.available.double()
    likelihood = (log_probs.double() * relevant).sum() / batch.n_free
    entropy = (entropies.double() * available).sum() / batch.n_free
    error = (values.double() - batch.returns.double()).square().mean()
    loss = -likelihood + 0.7 * error - 0.3 * entropy
    expected = torch.autograd.grad(loss, list(agent.policy.parameters()))
    with torch.no_grad():
        measured = agent._differentiate_imitation(batch)
    torch.testing.assert_close(measured.double(), -likelihood.detach())
    found = [parameter.grad for parameter in agent.policy.parameters()]
    torch.testing.assert_close(found, list(expected), atol=1e-5, rtol=1e-4)


def test_the_agent_does_what_it_was_shown() -> None:
    agent = make_agent(learning_rate=1e-2, ent_coef=0.0, gamma=0.0, normalize_returns=False)
    buffer = fill_by_rule(agent, n_envs=64, n_steps=8, seed=0)
    observations = torch.randn(500, OBSERVATION_SIZE, generator=torch.Generator().manual_seed(9))

    def agreement() -> float:
        decision = agent.act(observations, None, agent.initial_state(500), deterministic=True)
        relevant = agent.spec.relevance_of(decision.actions)
        is_same = decision.actions == rule(observations, decision.legal)
        return float((is_same | ~relevant).all(1).float().mean())

    before = agreement()
    first = agent.imitate(buffer, 1)
    left = agent.imitate(buffer, 40)
    assert before < 0.4
    assert agreement() > 0.85
    assert left < 0.25 * first
    # With gamma 0 the value of a state is the reward of its action: the first feature.
    values = agent.value(observations, agent.initial_state(500))
    assert torch.corrcoef(torch.stack([values, observations[:, 0]]))[0, 1] > 0.9


def test_heads_that_did_not_matter_are_not_learned() -> None:
    agent = make_agent(learning_rate=1e-2, ent_coef=0.0, vf_coef=0.0)
    buffer = fill(agent, ends=0.0)
    buffer.actions[..., 2] = 0  # only the op is read
    buffer.masks[..., 2, :1] = True
    observations, state = torch.randn(50, OBSERVATION_SIZE), agent.initial_state(50)
    weights = agent.policy.outputs.weight.detach().clone()
    agent.imitate(buffer, 60)
    decision = agent.act(observations, None, state, deterministic=True)
    assert (decision.actions[:, 2] == 0).float().mean() > 0.9
    doors = agent.policy.outputs.weight.detach()[:4]
    assert torch.equal(doors, weights[:4])


def test_what_cannot_be_imitated_is_refused() -> None:
    agent = make_agent()
    with pytest.raises(ConfigError, match="n_epochs"):
        agent.imitate(fill(agent), 0)
    other = ActionSpec(names=("op",), sizes=(2,), op_head="op", relevance=((True,), (True,)))
    with pytest.raises(ActionSpecError):
        agent.imitate(fill(make_agent(spec=other)), 1)
