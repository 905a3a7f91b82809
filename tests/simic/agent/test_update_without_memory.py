"""The update of a policy without memory has the loss and gradient of the definition.

The reference is one step, one head at a time, in double precision.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.simic.helpers import pad_masks
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from esper.config.learning import NetworkConfig
from esper.simic import ActionSpec, PPOAgent, PPOConfig, TamiyoRolloutBuffer
from esper.simic.agent.losses import normalize_advantages
from esper.simic.agent.update_report import UpdateReport
from esper.simic.policy.actor_critic import ActorCriticPolicy
from esper.simic.policy.networks import EncoderTowers
from esper.simic.policy.observations import ObservationSpec

N_ENVS, N_STEPS = 4, 12
OBSERVATIONS = ObservationSpec.of(5)
FACTORED = ActionSpec(
    names=("door", "force", "op"),
    sizes=(4, 2, 3),
    op_head="op",
    relevance=((False, False, True), (True, False, True), (True, True, True)),
)
MIXED = ActionSpec(
    names=("op", "door", "amount", "angle"),
    sizes=(2, 3),
    op_head="op",
    relevance=((True, True, False, True), (True, False, True, True)),
    dims=(2, 1),
)
SPECS = {
    "one head": ActionSpec.independent([4]),
    "factored": FACTORED,
    "continuous": ActionSpec.independent([], dims=[3]),
    "mixed": MIXED,
}


class Plain(nn.Module):
    """A network of a user's own."""

    output_size = 6

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 6)

    def forward(self, observations: Tensor) -> Tensor:
        return torch.tanh(self.layer(observations))


def make_agent(
    spec: ActionSpec, network: nn.Module | None = None, *, squash: bool = False, **settings: Any
) -> PPOAgent:
    generator = torch.Generator().manual_seed(0)
    made = network or EncoderTowers(OBSERVATIONS, NetworkConfig(hidden_sizes=(8, 6)))
    policy = ActorCriticPolicy(
        spec, OBSERVATIONS, made, squash=squash, log_std_init=-0.3, generator=generator
    )
    # Far from uniform, so that every choice shows in the numbers.
    for layer in (policy.policy_layer.weight, policy.value_layer.weight):
        nn.init.normal_(layer, generator=generator)
    config = PPOConfig(n_minibatches=1, n_epochs=1, max_grad_norm=1e9, **settings)
    return PPOAgent(spec, policy, config)


def fill(agent: PPOAgent, share_forced: float) -> TamiyoRolloutBuffer:
    """Fill a buffer; at a share of the steps only one choice of each discrete head is legal."""
    generator = torch.Generator().manual_seed(1)
    buffer = agent.make_buffer(N_ENVS, N_STEPS)
    sizes, spec = agent.spec.sizes, agent.spec
    for _ in range(N_STEPS):
        heads = []
        is_forced = torch.rand(N_ENVS, 1, generator=generator) < share_forced
        for size in sizes:
            legal = torch.rand(N_ENVS, size, generator=generator) < 0.7
            only = torch.randint(size, (N_ENVS, 1), generator=generator)
            legal &= ~is_forced
            heads.append(legal.scatter(1, only, True))
        observations = torch.randn(N_ENVS, 5, generator=generator)
        masks = pad_masks(spec, heads) if sizes else None
        decision = agent.act(observations, masks, agent.initial_state(N_ENVS))
        buffer.add(
            observations,
            decision,
            rewards=torch.randn(N_ENVS, generator=generator),
            dones=torch.rand(N_ENVS, generator=generator) < 0.2,
            truncated=np.zeros(N_ENVS, bool),
        )
    buffer.finish(torch.randn(N_ENVS, generator=generator))
    return buffer


def move(agent: PPOAgent) -> None:
    """Change the policy as a few gradient steps do, so that some ratios are clipped."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def squashed_entropy(mean: Tensor, std: Tensor) -> Tensor:
    """Integrate over the density of tanh(u), on a fine grid."""
    u = mean + std * torch.linspace(-10.0, 10.0, 4001, dtype=torch.float64)
    log_p = Normal(mean, std).log_prob(u)
    slope = 2.0 * (np.log(2.0) - u - nn.functional.softplus(-2.0 * u))
    return torch.trapezoid(log_p.exp() * (slope - log_p), u)


def entropies_and_log_probs(
    policy: ActorCriticPolicy, buffer: TamiyoRolloutBuffer, e: int, t: int, *, squash: bool
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the entropy and log-probability of each head at one step, and the value."""
    spec = policy.spec
    features = policy.network(buffer.observations[e, t : t + 1].double())
    for_policy, for_value = features if isinstance(features, tuple) else (features, features)
    outputs, value = policy.policy_layer(for_policy)[0], policy.value_layer(for_value)[0, 0]
    entropies, log_probs, first = [], [], 0
    for h, size in enumerate(spec.sizes):
        legal = buffer.masks[e, t, h, :size]
        logits = outputs[first : first + size].masked_fill(~legal, -1e9)
        distribution = Categorical(logits=logits)
        entropies.append(distribution.entropy())
        log_probs.append(distribution.log_prob(buffer.actions[e, t, h]))
        first += size
    start = 0
    for dim in spec.dims:
        numbers = buffer.numbers[e, t, start : start + dim].double()
        mean, log_std = outputs[first : first + dim], policy.heads.log_std[start : start + dim]  # type: ignore
        normal = Normal(mean, log_std.exp())
        entropy = normal.entropy()
        if squash:
            pairs = zip(mean, log_std.exp(), strict=True)
            entropy = torch.stack([squashed_entropy(m, s) for m, s in pairs])
        entropies.append(entropy.sum())
        log_probs.append(normal.log_prob(numbers).sum())
        first, start = first + dim, start + dim
    return entropies, log_probs, value


def reference(agent: PPOAgent, buffer: TamiyoRolloutBuffer, *, squash: bool) -> dict[str, Any]:
    """Return the loss, its terms and its gradient from the definition."""
    config, spec = agent.config, agent.spec
    policy: Any = copy.deepcopy(agent.policy).double()  # type: ignore[attr-defined]
    low, high = 1.0 - config.clip_range, 1.0 + config.clip_range
    steps = [(e, t) for e in range(N_ENVS) for t in range(N_STEPS)]
    raw = torch.stack([buffer.advantages[step] for step in steps]).double()
    advantages = dict(zip(steps, normalize_advantages(raw), strict=True))
    gains, entropies, errors, kl, clipped = [], [], [], [], []
    for e, t in steps:
        by_head, log_probs, value = entropies_and_log_probs(policy, buffer, e, t, squash=squash)
        op = int(buffer.actions[e, t, spec.op_index]) if spec.sizes else 0
        ops = buffer.masks[e, t, spec.op_index].nonzero().flatten().tolist() if spec.sizes else [0]
        relevant = [h for h in range(spec.n_heads) if spec.relevance[op][h]]
        available = [h for h in range(spec.n_heads) if any(spec.relevance[o][h] for o in ops)]
        mean, std = agent.normalizer.mean, agent.normalizer.std
        target, old = (buffer.returns[e, t] - mean) / std, (buffer.values[e, t] - mean) / std
        error = (value - target) ** 2
        if config.clip_range_vf is not None:
            near = old + (value - old).clamp(-config.clip_range_vf, config.clip_range_vf)
            error = torch.maximum(error, (near - target) ** 2)
        errors.append(error)
        # A step with one legal action teaches a policy nothing, and counts in none of its means.
        n_legal = [int(buffer.masks[e, t, h].sum()) if h < spec.n_discrete else 2 for h in relevant]
        if max(n_legal) == 1:
            continue
        log_ratios = torch.stack([log_probs[h] - buffer.log_probs[e, t, h] for h in relevant])
        ratios = log_ratios.exp() if config.clip == "per-head" else log_ratios.sum().exp().view(1)
        gain = torch.minimum(ratios * advantages[e, t], ratios.clamp(low, high) * advantages[e, t])
        gains.append(gain.sum())
        entropies.append(torch.stack([by_head[h] for h in available]).sum())
        found = log_ratios.detach()
        kl += (found.exp() - 1.0 - found).tolist()
        clipped += [not low <= ratio <= high for ratio in found.exp().tolist()]
    policy_loss, value_loss = -torch.stack(gains).mean(), torch.stack(errors).mean()
    entropy = torch.stack(entropies).mean()
    loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    gradient = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    return {
        "policy_loss": float(policy_loss.detach()),
        "value_loss": float(value_loss.detach()),
        "entropy": float(entropy.detach()),
        "approx_kl": float(np.mean(kl)),
        "clip_fraction": float(np.mean(clipped)),
        "gradient": gradient,
        "n_free": len(gains),
    }


def update_and_compare(
    agent: PPOAgent, share_forced: float, *, squash: bool = False
) -> UpdateReport:
    buffer = fill(agent, share_forced)
    move(agent)
    agent.optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    report = agent.update(buffer)
    expected = reference(agent, buffer, squash=squash)
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"):
        assert getattr(report, name) == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    assert report.n_free_steps == expected["n_free"]
    named = agent.policy.named_parameters()  # type: ignore[attr-defined]
    for (name, parameter), wanted in zip(named, expected["gradient"], strict=True):
        wanted = torch.zeros_like(parameter) if wanted is None else wanted.float()
        # The entropy of a squashed number is a sum of a few terms there, and an integral here.
        atol = 2e-4 if squash else 2e-5
        torch.testing.assert_close(parameter.grad, wanted, atol=atol, rtol=1e-3, msg=name)
    return report


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("clip", ["per-head", "joint"])
@pytest.mark.parametrize("is_own", [False, True], ids=["towers", "own network"])
def test_loss_and_gradient_are_those_of_the_definition(name: str, clip: str, is_own: bool) -> None:
    network = Plain() if is_own else None
    agent = make_agent(SPECS[name], network, clip=clip, ent_coef=0.1, clip_range=0.1)
    report = update_and_compare(agent, share_forced=0.0)
    assert 0.0 < report.clip_fraction < 1.0


@pytest.mark.parametrize("settings", [{"ent_coef": 0.0}, {"clip_range_vf": 0.1}, {"vf_coef": 0.0}])
@pytest.mark.parametrize("name", ["one head", "mixed"])
def test_every_weight_of_the_loss_counts(name: str, settings: dict[str, Any]) -> None:
    update_and_compare(make_agent(SPECS[name], **settings), share_forced=0.0)


@pytest.mark.parametrize("name", ["continuous", "mixed"])
def test_the_entropy_of_squashed_numbers_is_differentiated(name: str) -> None:
    agent = make_agent(SPECS[name], squash=True, ent_coef=0.3)
    update_and_compare(agent, share_forced=0.0, squash=True)


@pytest.mark.parametrize("clip", ["per-head", "joint"])
@pytest.mark.parametrize("name", ["one head", "factored"])
def test_every_mean_of_the_policy_is_over_the_free_steps(name: str, clip: str) -> None:
    agent = make_agent(SPECS[name], clip=clip, ent_coef=0.1)
    report = update_and_compare(agent, share_forced=0.8)
    assert report.n_steps == 48
    assert 0 < report.n_free_steps < 20
