"""The update is the one of the definition, waits for nothing it need not, and learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.profiler_util import FunctionEvent
from torch.distributions import Categorical

from esper.config import PPOConfig
from esper.errors import (
    ActionSpecError,
    ConfigError,
    DeviceError,
    DtypeError,
    NonFiniteError,
    RolloutError,
    ShapeError,
    TensorError,
)
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.simic.agent.losses import normalize_advantages
from esper.simic.agent.minibatches import Minibatch, PreparedRollout
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.action_spec import ActionSpec
from tests.simic.helpers import OBSERVATION_SIZE, SPEC, fill, make_agent, pad_masks, random_masks

UNEQUAL = np.array([11, 3, 0, 7])


def prepare(agent: PPOAgent, buffer: TamiyoRolloutBuffer) -> PreparedRollout:
    buffer.compute_advantages_and_returns(agent.config.gamma, agent.config.gae_lambda)
    return PreparedRollout(buffer, agent.policy, agent.normalizer, agent.config)


def evaluate(agent: PPOAgent, batch: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
    found = batch.evaluate(agent.policy)
    return found.log_probs, found.entropies, found.values


@pytest.mark.parametrize("sequence_length", [None, 1, 3, 5])
@pytest.mark.parametrize("n_minibatches", [1, 3])
@pytest.mark.parametrize("ends", [0.0, 0.3])
@pytest.mark.parametrize("lengths", [None, UNEQUAL], ids=["equal", "unequal"])
def test_the_first_ratio_is_one(
    sequence_length: int | None, n_minibatches: int, ends: float, lengths: np.ndarray | None
) -> None:
    agent = make_agent(sequence_length=sequence_length, n_minibatches=n_minibatches)
    buffer = fill(agent, ends=ends, lengths=lengths)
    n_steps = 0
    for batch, _ in prepare(agent, buffer).minibatches(torch.Generator()):
        log_probs, _, values = evaluate(agent, batch)
        torch.testing.assert_close(log_probs, batch.old_log_probs, atol=1e-6, rtol=0)
        torch.testing.assert_close(values, batch.old_values, atol=2e-6, rtol=0)
        n_steps += len(log_probs)
    assert n_steps == buffer.lengths.sum()


def reference_losses(
    agent: PPOAgent, buffer: TamiyoRolloutBuffer, old_log_probs: Tensor
) -> dict[str, Tensor]:
    """The loss of all steps from its definition: one step, one head at a time, in float64."""
    config, spec, policy = agent.config, agent.spec, agent.policy
    parameters = {name: p.double() for name, p in policy.named_parameters()}  # type: ignore
    w_ih, w_hh = parameters["lstm.weight_ih_l0"], parameters["lstm.weight_hh_l0"]
    biases = parameters["lstm.bias_ih_l0"] + parameters["lstm.bias_hh_l0"]
    size = policy.lstm_size  # type: ignore[attr-defined]
    steps = [(e, t) for e, n in enumerate(buffer.lengths) for t in range(n)]
    raw = torch.stack([buffer.advantages[e, t] for e, t in steps]).double()
    advantages = dict(zip(steps, normalize_advantages(raw), strict=True))

    # Steps with one legal action teach the policy nothing and count in none of its means.
    surrogate, value_errors, entropies, kl, n_relevant = [], [], [], [], 0
    hidden = cell = torch.zeros(size).double()
    for e, t in steps:
        if t == 0:
            hidden, cell = buffer.hidden_states[e, 0].double().split(size)
        elif buffer.dones[e, t - 1] or buffer.truncated[e, t - 1]:
            hidden = cell = torch.zeros(size).double()
        seen = buffer.observations[e, t].double()
        features = (parameters["features.weight"] @ seen + parameters["features.bias"]).relu()
        i, f, g, o = (w_ih @ features + w_hh @ hidden + biases).split(size)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs = parameters["outputs.weight"] @ hidden + parameters["outputs.bias"]

        op = int(buffer.actions[e, t, spec.op_index])
        legal = buffer.masks[e, t]
        is_free = any(
            bool(legal[h].sum() > 1) for h in range(spec.n_heads) if spec.relevance[op][h]
        )
        step_gain, step_entropy, step_kl = 0.0, 0.0, 0.0
        for h, logits in enumerate(outputs[:-1].split(spec.sizes)):
            masked = logits.masked_fill(~legal[h, : spec.sizes[h]], -1e9)
            distribution = Categorical(logits=masked)
            taken = distribution.log_prob(buffer.actions[e, t, h])
            log_ratio = taken - old_log_probs[e, t, h].double()
            legal_ops = legal[spec.op_index, : len(spec.relevance)].nonzero().flatten().tolist()
            if any(spec.relevance[o][h] for o in legal_ops):
                step_entropy = step_entropy + distribution.entropy()
            if spec.relevance[op][h]:
                ratio, advantage = log_ratio.exp(), advantages[e, t]
                clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
                step_gain = step_gain + torch.min(ratio * advantage, clipped * advantage)
                step_kl = step_kl + (ratio - 1 - log_ratio)
                n_relevant += is_free
        if is_free:
            surrogate.append(step_gain)
            entropies.append(torch.as_tensor(step_entropy))
            kl.append(step_kl)
        target = (buffer.returns[e, t].double() - agent.normalizer.mean) / agent.normalizer.std
        value_errors.append((outputs[-1] - target) ** 2)
    policy_loss = -torch.stack(surrogate).mean()  # type: ignore[arg-type]
    value, entropy = torch.stack(value_errors).mean(), torch.stack(entropies).mean()
    return {
        "loss": policy_loss + config.vf_coef * value - config.ent_coef * entropy,
        "policy_loss": policy_loss,
        "value_loss": value,
        "entropy": entropy,
        "approx_kl": torch.stack(kl).sum() / n_relevant,  # type: ignore[arg-type]
        "joint_kl": torch.stack(kl).mean(),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("lengths", [None, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_loss_and_gradient_are_those_of_the_definition(
    ends: float, lengths: np.ndarray | None
) -> None:
    agent = make_agent(ent_coef=0.1, n_epochs=1, max_grad_norm=1e9)
    buffer = fill(agent, ends=ends, lengths=lengths)
    # As after a few gradient steps: ratios away from 1, some of them clipped.
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    agent.optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    report = agent.update(buffer)
    got = [parameter.grad.clone() for parameter in agent.policy.parameters()]  # type: ignore
    expected = reference_losses(agent, buffer, buffer.log_probs)
    wanted = torch.autograd.grad(expected["loss"], list(agent.policy.parameters()))
    names = [name for name, _ in agent.policy.named_parameters()]  # type: ignore[attr-defined]
    for name, mine, reference in zip(names, got, wanted, strict=True):
        # The reference has no rectifier at exactly zero where the reset feature lives.
        mask = torch.ones_like(mine)
        if name.startswith("features"):
            mask[-1] = 0.0
        if name == "lstm.weight_ih_l0":
            mask[:, -1] = 0.0
        torch.testing.assert_close(mine * mask, reference * mask, atol=2e-5, rtol=1e-4, msg=name)

    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "joint_kl"):
        assert getattr(report, name) == pytest.approx(expected[name].item(), rel=1e-4, abs=1e-5)
    assert report.clip_fraction > 0
    assert set(report.approx_kl_by_head) == set(SPEC.names)


def is_inside_optimizer(event: FunctionEvent | None) -> bool:
    while event is not None:
        if event.name.startswith(("Optimizer.step", "aten::_fused_adam")):
            return True
        event = event.cpu_parent
    return False


def count_waits(agent: PPOAgent, buffer: TamiyoRolloutBuffer) -> Counter[str]:
    """Count operations of one update in which the host waits for a number.

    Adam's own are left out: it reads its step counts, and only where they are on the host anyway.
    """
    counts: Counter[str] = Counter()

    def waiting(name: str) -> Callable[..., object]:
        original = getattr(torch.Tensor, name)

        def method(tensor: Tensor, *arguments: object) -> object:
            counts[name] += 1
            return original(tensor, *arguments)

        return method

    with pytest.MonkeyPatch.context() as patch, torch.profiler.profile() as profiler:
        for name in ("tolist", "cpu", "item", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, waiting(name))
        agent.update(buffer)
    for event in profiler.events() or []:
        is_wait = event.name in ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")
        counts[event.name] += is_wait and not is_inside_optimizer(event)
    return +counts


@pytest.mark.parametrize(("n_heads", "n_minibatches"), [(1, 4), (8, 1), (8, 4)])
def test_the_host_reads_once_per_epoch_whatever_the_heads_and_minibatches(
    n_heads: int, n_minibatches: int
) -> None:
    def waits(n_epochs: int, spec: ActionSpec, n_minibatches: int) -> Counter[str]:
        agent = make_agent(
            spec=spec, n_minibatches=n_minibatches, n_epochs=n_epochs, target_kl=None
        )
        return count_waits(agent, fill(agent, ends=0.3))

    spec = ActionSpec.independent([3] * n_heads)
    once, often = waits(1, spec, n_minibatches), waits(4, spec, n_minibatches)
    assert often - once == Counter({"tolist": 3})
    # What is done before the first epoch or after the last does not depend on the action.
    assert once == waits(1, ActionSpec.independent([3]), 1)


def test_the_counter_of_waits_sees_a_wait() -> None:
    agent = make_agent(n_epochs=2, target_kl=None)
    evaluate_steps = agent.policy.evaluate
    expected = count_waits(agent, fill(agent))

    def waiting(*arguments: Any) -> Any:
        found = evaluate_steps(*arguments)
        found.values.detach().sum().item()
        return found

    agent.policy.evaluate = waiting  # type: ignore[method-assign]
    assert count_waits(agent, fill(agent))["item"] == expected["item"] + 2


def test_a_rollout_in_which_only_the_op_ever_matters_is_learned_from() -> None:
    spec = ActionSpec(
        names=("a", "op", "b"),
        sizes=(3, 2, 4),
        op_head="op",
        relevance=((False, True, False), (False, True, False)),
    )
    agent = make_agent(spec=spec, learning_rate=0.05, target_kl=None)
    report = agent.update(fill(agent))
    assert report.approx_kl == pytest.approx(report.approx_kl_by_head["op"]) != 0.0
    assert report.approx_kl_by_head["a"] == report.approx_kl_by_head["b"] == 0.0
    assert report.entropy_by_head["a"] == 0.0
    assert all(bool(torch.isfinite(p).all()) for p in agent.policy.parameters())
    assert np.isfinite([report.policy_loss, report.gradient_norm, report.value_loss]).all()


def test_an_update_stops_before_the_step_that_would_follow_too_large_a_change() -> None:
    free = make_agent(learning_rate=0.05, target_kl=None, n_epochs=6)
    report = free.update(fill(free))
    assert (report.epochs_run, report.gradient_steps, report.stopped_early) == (6, 6, False)

    bound = make_agent(learning_rate=0.05, target_kl=1e-4, n_epochs=6)
    report = bound.update(fill(bound))
    assert report.stopped_early
    assert report.approx_kl > 1.5e-4
    assert (report.epochs_run, report.gradient_steps) == (2, 1)


def test_ratios_are_live_from_the_first_epoch() -> None:
    # The policy moved since it acted; the very first epoch must see that and stop.
    agent = make_agent(target_kl=1e-3)
    buffer = fill(agent)
    before = [p.clone() for p in agent.policy.parameters()]
    with torch.no_grad():
        agent.policy.outputs.bias += torch.linspace(-1, 1, len(agent.policy.outputs.bias))  # type: ignore
    report = agent.update(buffer)
    assert report.stopped_early
    assert report.epochs_run == 1
    assert report.gradient_steps == 0
    changed = [
        not torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True)
    ]
    assert sum(changed) <= 2


def test_steps_with_one_legal_action_count_in_no_mean_over_steps() -> None:
    agent = make_agent()
    forced = pad_masks(SPEC, [torch.eye(s)[:1].bool().expand(4, s) for s in SPEC.sizes])
    buffer = agent.make_buffer(4, 6)
    state, generator = agent.initial_state(4), torch.Generator().manual_seed(0)
    for t in range(6):
        observations = torch.randn(4, OBSERVATION_SIZE, generator=generator)
        masks = forced if t % 2 else random_masks(SPEC, 4, generator)
        decision = agent.act(observations, masks, state)
        state = decision.next_state
        never = np.zeros(4, bool)
        buffer.add(observations, decision, rewards=np.ones(4), dones=never, truncated=never)
    buffer.finish(torch.zeros(4))
    ((batch, _),) = prepare(agent, buffer).minibatches(torch.Generator())
    # One sequence for each environment: the steps lie as they are stored, time first.
    relevant, available = batch.relevant.view(6, 4, -1), batch.available.view(6, 4, -1)
    assert bool((relevant[1::2] == 0).all())
    assert bool((available[1::2] == 0).all())
    assert float(relevant[::2].amax(-1).sum()) == float(batch.n_free) > 0


def test_a_fully_forced_rollout_moves_no_head() -> None:
    spec = ActionSpec.independent([1, 1])
    agent = make_agent(spec=spec, ent_coef=0.1)
    before = agent.policy.outputs.weight[:-1].clone()  # type: ignore[attr-defined]
    report = agent.update(fill(agent))
    assert report.policy_loss == 0.0
    assert torch.equal(agent.policy.outputs.weight[:-1], before)  # type: ignore[attr-defined]


def test_the_weights_of_resets_never_change() -> None:
    agent = make_agent(learning_rate=0.05, target_kl=None)
    policy = agent.policy
    before = policy.lstm.weight_ih_l0[:, -1].clone()  # type: ignore[attr-defined]
    for seed in range(3):
        agent.update(fill(agent, ends=0.4, seed=seed))
    assert torch.equal(policy.lstm.weight_ih_l0[:, -1], before)  # type: ignore[attr-defined]
    assert bool((policy.features.weight[-1] == 0.0).all())  # type: ignore[attr-defined]


def test_the_same_seed_gives_the_same_agent_and_a_saved_one_goes_on_as_if_nothing_happened() -> (
    None
):
    def run(agent: PPOAgent, rounds: range) -> list[Tensor]:
        for seed in rounds:
            agent.update(fill(agent, seed=seed))
        return [p.detach().clone() for p in agent.policy.parameters()]

    settings = {"learning_rate": 0.01, "n_minibatches": 2, "n_epochs": 3}
    whole = run(make_agent(**settings), range(4))
    assert all(map(torch.equal, whole, run(make_agent(**settings), range(4))))
    first = make_agent(**settings)
    run(first, range(2))
    second = make_agent(seed=9, **settings)
    second.load_state_dict(first.state_dict())
    assert all(map(torch.equal, whole, run(second, range(2, 4))))


def test_it_learns_which_choice_pays_within_the_masks() -> None:
    # The second head pays 1 for choice 2, and 3 for choice 3 which is never legal.
    spec = ActionSpec.independent([2, 4])
    agent = make_agent(spec=spec, learning_rate=0.01, n_minibatches=2, n_epochs=4)
    torch.nn.init.zeros_(agent.policy.outputs.weight)  # type: ignore[attr-defined]
    masks = pad_masks(spec, [torch.ones(16, 2), torch.tensor([[1, 1, 1, 0]]).expand(16, 4)])
    means = []
    for _ in range(40):
        buffer, state = agent.make_buffer(16, 8), agent.initial_state(16)
        for _ in range(8):
            observations = torch.ones(16, OBSERVATION_SIZE)
            decision = agent.act(observations, masks, state)
            state = decision.next_state
            rewards = (decision.actions[:, 1] == 2).float()
            never = np.zeros(16, bool)
            buffer.add(observations, decision, rewards=rewards, dones=never, truncated=never)
        buffer.finish(agent.value(torch.ones(16, OBSERVATION_SIZE), state))
        means.append(float(buffer.rewards.mean()))
        agent.update(buffer)
    assert means[0] < 0.5
    assert np.mean(means[-5:]) > 0.9


def test_values_are_in_units_of_reward_when_acting_and_when_asked() -> None:
    agent = make_agent()
    agent.normalizer.update(torch.tensor([100.0, 140.0]))
    observations, state = torch.randn(3, OBSERVATION_SIZE), agent.initial_state(3)
    raw = agent.policy.value(observations, state).detach()
    expected = raw * 20.0 + 120.0
    torch.testing.assert_close(agent.value(observations, state), expected)
    torch.testing.assert_close(agent.act(observations, None, state).values, expected)


def test_a_gradient_is_clipped_to_its_norm() -> None:
    parameters = []
    for limit in (1e9, 1e-3):
        agent = make_agent(max_grad_norm=limit, target_kl=None, n_epochs=1)
        steps: list[float] = []
        agent.optimizer.step = lambda steps=steps, agent=agent: steps.append(  # type: ignore
            float(torch.cat([p.grad.flatten() for p in agent.policy.parameters()]).norm())  # type: ignore
        )
        report = agent.update(fill(agent))
        parameters.append((steps[0], report.gradient_norm))
    (free, reported), (clipped, same) = parameters
    assert free == pytest.approx(reported, rel=1e-4)
    assert same == pytest.approx(reported, rel=1e-4)
    assert clipped == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("setting", ["normalize_returns", "normalize_advantage"])
def test_normalisation_can_be_turned_off(setting: str) -> None:
    def batch(is_on: bool):  # type: ignore[no-untyped-def]
        agent = make_agent(**{setting: is_on})
        ((minibatch, _),) = prepare(agent, fill(agent)).minibatches(torch.Generator())
        return minibatch.returns if setting == "normalize_returns" else minibatch.advantages

    assert abs(batch(True).std(correction=0).item() - 1.0) < 1e-4
    assert abs(batch(False).std(correction=0).item() - 1.0) > 1e-2


def test_values_are_clipped_around_what_they_were_when_collected() -> None:
    agent = make_agent(clip_range_vf=0.1)
    buffer = fill(agent, ends=0.0)
    ((batch, _),) = prepare(agent, buffer).minibatches(torch.Generator())
    expected = (buffer.flat("values") - agent.normalizer.mean) / agent.normalizer.std
    torch.testing.assert_close(batch.old_values, expected)
    assert not torch.allclose(batch.old_values, batch.returns)


def test_minibatches_are_shuffled_between_epochs() -> None:
    agent = make_agent(n_minibatches=4)
    buffer, shuffler = fill(agent), torch.Generator().manual_seed(0)
    rollout, first_states = prepare(agent, buffer), buffer.hidden_states[:, 0]

    def env_of(batch: Minibatch) -> int:
        (state,) = batch.state
        return (first_states == state).all(dim=1).tolist().index(True)

    orders = [[env_of(batch) for batch, _ in rollout.minibatches(shuffler)] for _ in range(6)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len({tuple(order) for order in orders}) > 2


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_a_reset_holds_however_large_the_observations(scale: float) -> None:
    agent = make_agent()
    buffer, state = agent.make_buffer(2, 6), agent.initial_state(2)
    starts, generator = torch.zeros(2, dtype=torch.bool), torch.Generator().manual_seed(0)
    for t in range(6):
        observations = scale * torch.randn(2, OBSERVATION_SIZE, generator=generator)
        decision = agent.act(observations, None, state, starts)
        starts = torch.tensor([t % 2 == 0, t == 3])
        never = torch.zeros(2, dtype=torch.bool)
        rewards = torch.zeros(2)
        buffer.add(observations, decision, rewards=rewards, dones=starts, truncated=never)
        state = decision.next_state
    buffer.finish(torch.zeros(2))
    ((batch, _),) = prepare(agent, buffer).minibatches(torch.Generator())
    log_probs, _, _ = evaluate(agent, batch)
    assert batch.resets is not None
    torch.testing.assert_close(log_probs, batch.old_log_probs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("n_minibatches", [1, 2])
@pytest.mark.parametrize("poison", ["observation", "value", "reward"])
def test_numbers_that_are_not_finite_are_refused_and_the_policy_is_left_alone(
    poison: str, n_minibatches: int
) -> None:
    agent = make_agent(n_minibatches=n_minibatches)
    buffer = fill(agent)
    before = [p.clone() for p in agent.policy.parameters()]
    if poison == "observation":
        buffer.observations[2, 3, 1] = torch.nan
    elif poison == "value":
        buffer.values[2, 3] = torch.nan
    else:
        buffer.rewards[2, 3] = 3e38
        buffer.values[2, 3] = -3e38
    with pytest.raises((NonFiniteError, RolloutError), match=r"NaN|environment 2 at step"):
        agent.update(buffer)
    assert all(map(torch.equal, before, agent.policy.parameters()))


@pytest.mark.parametrize("choice", [-1, 2, 3, 99])
def test_an_action_that_its_mask_forbids_is_named(choice: int) -> None:
    agent = make_agent()
    buffer = fill(agent, lengths=UNEQUAL)
    buffer.actions[3, 5, 1] = choice
    message = f"environment 3 took choice {choice} of head 'force' at step 5"
    with pytest.raises(RolloutError, match=message):
        agent.update(buffer)


def test_a_loss_that_is_not_finite_takes_no_step() -> None:
    agent = make_agent()
    buffer = fill(agent)
    with torch.no_grad():
        agent.policy.outputs.weight[0, 0] = torch.inf  # type: ignore[attr-defined]
    before = [p.clone() for p in agent.policy.parameters()]
    with pytest.raises(NonFiniteError, match="undone"):
        agent.update(buffer)
    assert all(map(torch.equal, before, agent.policy.parameters()))


def test_a_saved_state_shares_nothing_with_the_agent() -> None:
    agent, other = make_agent(), make_agent(seed=1)
    agent.update(fill(agent))
    saved = agent.state_dict()
    kept = saved["optimizer"]["state"][0]["exp_avg"].clone()
    other.load_state_dict(saved)
    agent.update(fill(agent, seed=5))
    other.update(fill(other, seed=6))
    assert torch.equal(saved["optimizer"]["state"][0]["exp_avg"], kept)


def test_returns_that_never_vary_leave_the_scale_alone() -> None:
    agent = make_agent(gae_lambda=1.0)
    buffer, state = agent.make_buffer(2, 3), agent.initial_state(2)
    never, zeros = torch.zeros(2, dtype=torch.bool), torch.zeros(2)
    for _ in range(3):
        decision = agent.act(torch.randn(2, OBSERVATION_SIZE), None, state)
        buffer.add(
            torch.zeros(2, OBSERVATION_SIZE), decision, rewards=zeros, dones=never, truncated=never
        )
    buffer.finish(zeros)
    report = agent.update(buffer)
    assert report.value_loss < 100.0
    assert float(agent.normalizer.std) == 1.0


def test_mistakes_are_named() -> None:
    agent = make_agent()
    with pytest.raises(ActionSpecError, match=r"\('head_0', 'head_1'\) of sizes \(2, 2\)"):
        PPOAgent(ActionSpec.independent([2, 2]), agent.policy)
    with pytest.raises(RolloutError, match="empty"):
        agent.update(agent.make_buffer(2, 3))
    crowded = make_agent(n_minibatches=5)
    with pytest.raises(ConfigError, match=r"n_minibatches is 5.*4 sequences"):
        crowded.update(fill(crowded))
    other = make_agent(spec=ActionSpec.independent([4, 2, 3]))
    with pytest.raises(ActionSpecError, match="make_buffer"):
        agent.update(fill(other))
    with pytest.raises(ConfigError, match=r"clip_range is -0\.1"):
        PPOConfig(clip_range=-0.1)


SEEN = torch.zeros(3, OBSERVATION_SIZE)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"state": torch.zeros(2, 16)}, ShapeError, r"state has shape \(2, 16\)"),
        ({"observations": SEEN[:0]}, ShapeError, r"observations has shape \(0, "),
        ({"observations": torch.zeros(())}, ShapeError, r"observations has shape \(\)"),
        ({"observations": SEEN.double()}, DtypeError, r"observations has dtype torch\.float64"),
        ({"observations": SEEN.to("meta")}, DeviceError, "observations is on meta"),
        ({"observations": SEEN.numpy()}, TensorError, "observations is an ndarray"),
        ({"episode_starts": torch.zeros(2).bool()}, ShapeError, r"episode_starts .*\(2,\)"),
        ({"episode_starts": torch.zeros(3)}, DtypeError, r"episode_starts .*float32"),
        ({"episode_starts": np.zeros(3, bool)}, DtypeError, "episode_starts is an ndarray"),
    ],
)
def test_tensors_that_an_agent_cannot_act_on_are_named(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    agent = make_agent()
    arguments = {"observations": SEEN, "masks": None, "state": agent.initial_state(3)}
    with pytest.raises(error, match=message):
        agent.act(**{**arguments, **changes})


def test_rates_can_be_changed_between_updates() -> None:
    agent = make_agent()
    agent.set_rates(learning_rate=0.5, ent_coef=0.0, clip_range=0.05)
    assert agent.optimizer.param_groups[0]["lr"] == 0.5
    config = agent.config
    assert (config.learning_rate, config.ent_coef, config.clip_range) == (0.5, 0.0, 0.05)


def test_what_is_saved_holds_the_rates_as_they_were_set() -> None:
    def run(agent: PPOAgent) -> list[Tensor]:
        agent.update(fill(agent, seed=7))
        return [parameter.detach().clone() for parameter in agent.policy.parameters()]

    agent = make_agent()
    agent.update(fill(agent))
    agent.set_rates(learning_rate=0.02, ent_coef=0.3, clip_range=0.05)
    other = make_agent(seed=1)
    other.load_state_dict(agent.state_dict())
    assert other.config == agent.config
    assert all(map(torch.equal, run(agent), run(other)))


@pytest.mark.parametrize("is_set_later", [False, True])
def test_a_learning_rate_of_zero_moves_nothing(is_set_later: bool) -> None:
    agent = make_agent(learning_rate=0.1 if is_set_later else 0.0, normalize_returns=False)
    if is_set_later:
        agent.set_rates(learning_rate=0.0)
    before = [parameter.clone() for parameter in agent.policy.parameters()]
    report = agent.update(fill(agent))
    assert report.gradient_steps > 0
    assert all(map(torch.equal, before, agent.policy.parameters()))
    other = make_agent(seed=1)
    other.load_state_dict(agent.state_dict())
    assert other.config.learning_rate == 0.0


def test_the_seed_decides_the_first_weights() -> None:
    def weights(seed: int) -> Tensor:
        policy = RecurrentPolicy(SPEC, OBSERVATION_SIZE)
        PPOAgent(SPEC, policy, seed=seed)
        return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("way", ["in place", "data", "loaded", "generator", "new data"])
def test_weights_that_a_user_chose_are_kept(way: str) -> None:
    generator = torch.Generator().manual_seed(5) if way == "generator" else None
    policy = RecurrentPolicy(SPEC, OBSERVATION_SIZE, generator=generator)
    if way == "in place":
        torch.nn.init.normal_(policy.outputs.weight)
    elif way == "data":
        policy.outputs.weight.data.normal_()
    elif way == "new data":
        policy.outputs.weight.data = torch.randn_like(policy.outputs.weight)
    elif way == "loaded":
        other = RecurrentPolicy(SPEC, OBSERVATION_SIZE, generator=torch.Generator().manual_seed(6))
        policy.load_state_dict(other.state_dict())
    before = [parameter.clone() for parameter in policy.parameters()]
    PPOAgent(SPEC, policy, seed=3)
    assert all(map(torch.equal, before, policy.parameters()))
