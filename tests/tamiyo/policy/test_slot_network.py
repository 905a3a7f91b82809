"""One policy serves hosts with any number and order of slots."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.config import PolicyConfig
from esper.errors import ConfigError, DtypeError, ShapeError
from esper.tamiyo.policy.observations import SLOT_FEATURES
from esper.tamiyo.policy.slot_network import BlueprintEmbedding, SlotPolicy
from tests.tamiyo.policy.slot_worlds import (
    BLUEPRINT,
    BLUEPRINTS,
    N_HOST,
    N_SLOT,
    SIZES,
    draw_observations,
    make_policy,
    make_slots,
    permute_slots,
)

STATE = 2 * SIZES.lstm_size


@settings(deadline=None)
@given(
    order=st.integers(1, 12).flatmap(lambda n: st.permutations(range(n))), seed=st.integers(0, 9)
)
def test_permuting_slots_permutes_their_logits(order: list[int], seed: int) -> None:
    n_slots = len(order)
    policy = make_policy(n_slots, seed).double()
    observations = draw_observations(n_slots, 6, seed=seed).double()
    state = torch.randn(6, STATE, generator=torch.Generator().manual_seed(seed)).double()
    logits, values, after = policy._step(observations, state)
    moved, moved_values, moved_after = policy._step(permute_slots(observations, order), state)
    torch.testing.assert_close(moved[:, :n_slots], logits[:, order])
    torch.testing.assert_close(moved[:, n_slots:], logits[:, n_slots:])
    torch.testing.assert_close((moved_values, moved_after), (values, after))


def test_weights_do_not_depend_on_the_number_of_slots() -> None:
    config = dataclasses.replace(SIZES, normalize_observations=True)
    shapes = {name: t.shape for name, t in make_policy(2, 0, config).state_dict().items()}
    weights = make_policy(2, 5, config).state_dict()
    for n_slots in range(1, 13):
        policy = make_policy(n_slots, 1, config)
        assert {name: t.shape for name, t in policy.state_dict().items()} == shapes
        policy.load_state_dict(weights)
        decision = policy.act(
            draw_observations(n_slots, 3), None, torch.zeros(3, STATE), torch.Generator()
        )
        log_probs, values = decision.log_probs, decision.values
        assert log_probs.shape == (3, 8)
        assert values.shape == (3,)


@pytest.mark.parametrize("n_slots", [2, 5, 12])
def test_copies_of_one_slot_share_its_probability(n_slots: int) -> None:
    single, several = make_policy(1).double(), make_policy(n_slots).double()
    alone = draw_observations(1, 4).double()
    copies = torch.cat([alone[:, :N_HOST], alone[:, N_HOST:].repeat(1, n_slots)], dim=1)
    state = torch.randn(4, STATE, generator=torch.Generator().manual_seed(0)).double()
    logits, values, _ = single._step(alone, state)
    others, other_values, _ = several._step(copies, state)
    torch.testing.assert_close(others[:, :n_slots], logits[:, :1].expand(4, n_slots))
    torch.testing.assert_close(others[:, n_slots:], logits[:, 1:])
    torch.testing.assert_close(other_values, values)


def step_by_definition(
    policy: SlotPolicy, seen: np.ndarray, state: np.ndarray, n_slots: int
) -> tuple[list[float], float, list[float]]:
    """Return logits, value and next state of one observation, in plain Python."""
    w = {name: tensor.double().numpy() for name, tensor in policy.state_dict().items()}
    known = []
    for slot in range(n_slots):
        columns = seen[N_HOST + slot * N_SLOT : N_HOST + (slot + 1) * N_SLOT]
        blueprint = round(columns[BLUEPRINT] * len(BLUEPRINTS))
        inputs = [x for column, x in enumerate(columns) if column != BLUEPRINT]
        inputs += w[f"embed.tables.{len(BLUEPRINTS)}.weight"][blueprint].tolist()
        sums = [float(np.dot(row, inputs)) for row in w["encode.weight"]]
        known.append([max(0.0, a + b) for a, b in zip(sums, w["encode.bias"], strict=True)])
    columns = list(zip(*known, strict=True))
    pooled = [*seen[:N_HOST], *(sum(c) / n_slots for c in columns), *(max(c) for c in columns)]
    features = np.maximum(w["features.weight"] @ pooled + w["features.bias"], 0.0)

    size = SIZES.lstm_size
    gates = w["lstm.weight_ih_l0"] @ features + w["lstm.bias_ih_l0"]
    gates += w["lstm.weight_hh_l0"] @ state[:size] + w["lstm.bias_hh_l0"]
    take, keep, new, give = gates.reshape(4, size)
    cell = [
        state[size + m] / (1 + math.exp(-keep[m])) + math.tanh(new[m]) / (1 + math.exp(-take[m]))
        for m in range(size)
    ]
    hidden = [math.tanh(cell[m]) / (1 + math.exp(-give[m])) for m in range(size)]
    outputs = w["outputs.weight"] @ hidden + w["outputs.bias"]
    query = outputs[: SIZES.slot_size]
    slots = [sum(a * b for a, b in zip(query, one, strict=True)) for one in known]
    return [*slots, *outputs[SIZES.slot_size : -1]], outputs[-1], [*hidden, *cell]


@pytest.mark.parametrize("n_slots", [1, 2, 7])
def test_a_step_equals_its_definition(n_slots: int) -> None:
    policy = make_policy(n_slots).double()
    observations = draw_observations(n_slots, 5).double()
    state = torch.randn(5, STATE, generator=torch.Generator().manual_seed(2)).double()
    logits, values, after = policy._step(observations, state)
    for host in range(5):
        expected = step_by_definition(
            policy, observations[host].numpy(), state[host].numpy(), n_slots
        )
        assert logits[host].tolist() == pytest.approx(expected[0], abs=1e-12)
        assert values[host].item() == pytest.approx(expected[1], abs=1e-12)
        assert after[host].tolist() == pytest.approx(expected[2], abs=1e-12)


def test_rescaling_the_value_is_exact_and_changes_nothing_else() -> None:
    policy, observations = make_policy(2).double(), draw_observations(2, 5).double()
    state = torch.randn(5, STATE).double()
    logits, before, _ = policy._step(observations, state)
    policy.rescale_value(2.5, -0.75)
    torch.testing.assert_close(policy.value(observations, state), 2.5 * before - 0.75)
    assert torch.equal(policy._step(observations, state)[0], logits)


def test_initial_actions_are_nearly_uniform() -> None:
    policy = SlotPolicy(make_slots(6), generator=torch.Generator().manual_seed(0))
    log_probs = policy.act(
        draw_observations(6, 64), None, torch.zeros(64, policy.state_size), torch.Generator()
    ).log_probs
    uniform = -torch.tensor(policy.spec.sizes).log().expand(64, 8)
    torch.testing.assert_close(log_probs, uniform, atol=0.1, rtol=0)


def test_the_same_generator_gives_the_same_weights() -> None:
    first, second, other = (make_policy(3, seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first.encode.weight, other.encode.weight)


def test_slots_share_feature_statistics() -> None:
    config = dataclasses.replace(SIZES, normalize_observations=True)
    policy = make_policy(4, 0, config)
    parts = [draw_observations(4, n, seed=n) * 3 + 5 for n in (20, 70)]
    for part in parts:
        policy.learn_observations(part)
    host, slots = torch.cat(parts).double().split([N_HOST, 4 * N_SLOT], dim=1)
    slots = slots.reshape(-1, N_SLOT)
    state = policy.state_dict()
    for name, values in (("host", host), ("slot", slots)):
        expected = values.mean(0).float(), values.var(0, unbiased=False).float()
        got = state[f"normalize_{name}.mean"], state[f"normalize_{name}.variance"]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert int(state[f"normalize_{name}.count"]) == len(values)


def test_normalization_cancels_the_scale_of_observations() -> None:
    config = dataclasses.replace(SIZES, normalize_observations=True)
    plain, scaled = make_policy(3, 0, config), make_policy(3, 0, config)
    observations = draw_observations(3, 64)
    columns = np.arange(observations.shape[1])
    is_plain = torch.from_numpy((columns < N_HOST) | ((columns - N_HOST) % N_SLOT != BLUEPRINT))
    moved = torch.where(is_plain, observations * 50 + 3, observations)
    plain.learn_observations(observations)
    scaled.learn_observations(moved)
    state = torch.zeros(64, STATE)
    torch.testing.assert_close(
        plain._step(observations, state), scaled._step(moved, state), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("is_normal", [False, True])
def test_blueprints_in_a_slot_are_distinguished(is_normal: bool) -> None:
    config = dataclasses.replace(SIZES, normalize_observations=is_normal)
    policy, observations = make_policy(2, 0, config), draw_observations(2, 1).repeat(4, 1)
    policy.learn_observations(draw_observations(2, 100))
    observations[:, N_HOST + N_SLOT + BLUEPRINT] = torch.arange(4) / 3
    logits, values, _ = policy._step(observations, torch.zeros(4, STATE))
    assert len(set(values.tolist())) == 4
    assert len(set(logits[:, 1].tolist())) == 4


def test_the_bias_of_a_head_changes_only_its_logits() -> None:
    policy, observations = make_policy(2), draw_observations(2, 3)
    before, *_ = policy._step(observations, torch.zeros(3, STATE))
    policy.logit_bias("op")[2] += 7.0
    after, *_ = policy._step(observations, torch.zeros(3, STATE))
    moved = torch.zeros_like(before)
    moved[:, -5] = 7.0  # ops are the last seven
    torch.testing.assert_close(after - before, moved)
    with pytest.raises(ConfigError, match="'slot' has no bias"):
        policy.logit_bias("slot")


def test_invalid_arguments_are_rejected() -> None:
    policy, state = make_policy(2), torch.zeros(3, STATE)
    size = N_HOST + 2 * N_SLOT
    with pytest.raises(ShapeError, match=rf"observations has shape .*{size}"):
        policy.act(draw_observations(3, 3), None, state, None)
    with pytest.raises(DtypeError, match=r"observations has dtype torch\.float64"):
        policy.value(draw_observations(2, 3).double(), state)
    with pytest.raises(ConfigError, match="slot_size is 0"):
        PolicyConfig(slot_size=0)


def test_non_finite_outputs_are_detected() -> None:
    policy, observations = make_policy(2), draw_observations(2, 3)
    assert policy.is_finite(observations, torch.zeros(3, STATE))
    policy.encode.weight.data[0, 0] = torch.nan
    assert not policy.is_finite(observations, torch.zeros(3, STATE))


def insert_absent(observations: torch.Tensor, at: list[int]) -> torch.Tensor:
    """Return observations ``[N, D]`` with absent slots, whose features are 0, in some places."""
    host, slots = observations[:, :N_HOST], observations[:, N_HOST:]
    n_slots = slots.shape[1] // N_SLOT + len(at)
    wide = torch.zeros(len(host), n_slots, N_SLOT, dtype=observations.dtype)
    present = [slot for slot in range(n_slots) if slot not in at]
    wide[:, present] = slots.unflatten(1, (-1, N_SLOT))
    return torch.cat([host, wide.flatten(1)], dim=1)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("absent", [[3], [3, 4, 5], [0, 2]])
def test_absent_slots_change_nothing(absent: list[int], normalize: bool) -> None:
    config = dataclasses.replace(SIZES, normalize_observations=normalize)
    narrow = make_policy(3, config=config).double()
    wide = make_policy(3 + len(absent), 1, config).double()
    wide.load_state_dict(narrow.state_dict())
    observations = draw_observations(3, 6).double()
    padded = insert_absent(observations, absent)
    narrow.learn_observations(observations)
    wide.learn_observations(padded)
    state = torch.randn(6, STATE, generator=torch.Generator().manual_seed(0)).double()
    logits, values, after = narrow._step(observations, state)
    others, other_values, other_after = wide._step(padded, state)
    present = [slot for slot in range(3 + len(absent)) if slot not in absent]
    torch.testing.assert_close(others[:, present], logits[:, :3])
    torch.testing.assert_close(others[:, 3 + len(absent) :], logits[:, 3:])
    torch.testing.assert_close((other_values, other_after), (values, after))


@pytest.mark.parametrize("n", [1, 3, 17, 1000])
def test_every_blueprint_survives_single_precision(n: int) -> None:
    embed = BlueprintEmbedding(n, 1)
    numbers = torch.arange(n + 1, dtype=torch.float32)
    embed.table.weight.data.copy_(numbers.unsqueeze(1))
    slots = torch.zeros(n + 1, len(SLOT_FEATURES))
    shares = torch.arange(n + 1, dtype=torch.float64).div(n).float()
    slots[:, list(SLOT_FEATURES).index("blueprint")] = shares
    assert torch.equal(embed(slots)[:, -1], numbers)
