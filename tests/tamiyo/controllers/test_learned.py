"""The learned controller follows its policy and carries its recurrent state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from esper.config import PolicyConfig
from esper.config.learning import NetworkConfig
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy import RecurrentPolicy
from esper.tamiyo import LearnedController, NoGrowth
from esper.tamiyo.controllers.learned import expected_return, expects_gain
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tamiyo.policy.slot_network import SlotPolicy
from tests.tamiyo.random_states import draw_states

SLOTS = SlotConfig(("a", "b"))
LAYOUT = ObservationLayout(SLOTS)


def make_slot_policy() -> SlotPolicy:
    generator = torch.Generator().manual_seed(0)
    sizes = PolicyConfig(feature_size=16, lstm_size=16, slot_size=8)
    policy = SlotPolicy(SLOTS, sizes, generator=generator)
    torch.nn.init.normal_(policy.outputs.weight, std=2.0, generator=generator)
    return policy


def make_policy() -> RecurrentPolicy:
    generator = torch.Generator().manual_seed(0)
    policy = RecurrentPolicy(
        growth_action_spec(SLOTS),
        LAYOUT.size,
        NetworkConfig(feature_size=16, lstm_size=16),
        generator=generator,
    )
    torch.nn.init.normal_(policy.outputs.weight, std=2.0, generator=generator)
    return policy


@pytest.mark.parametrize("make", [make_policy, make_slot_policy])
@pytest.mark.parametrize("deterministic", [False, True])
def test_it_acts_like_its_policy(
    make: Callable[[], RecurrentPolicy | SlotPolicy], deterministic: bool
) -> None:
    policy, rng = make(), np.random.default_rng(0)
    controller = LearnedController(policy, deterministic=deterministic)
    controller.start(6, seed=11)
    generator = None if deterministic else torch.Generator().manual_seed(11)
    state = torch.zeros(6, policy.state_size)
    for _ in range(20):
        observations = rng.uniform(-1, 1, (6, LAYOUT.size)).astype(np.float32)
        masks = draw_states(rng, 6, 2).masks(SLOTS)
        starts = rng.random(6) < 0.3
        rows = controller.act(observations, masks, starts)
        state[torch.from_numpy(starts)] = 0.0
        seen = torch.from_numpy(observations)
        decision = policy.act(seen, masks, state, generator)
        expected, state = decision.actions, decision.next_state
        state = state.detach()
        assert np.array_equal(rows, expected.numpy())


def test_its_state_is_carried_within_episodes_and_reset_between_them() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.uniform(-1, 1, (2, 200, LAYOUT.size)).astype(np.float32)
    masks = draw_states(rng, 200, 2).masks(SLOTS)
    controller = LearnedController(make_policy(), deterministic=True)
    answers = []
    for seen, starts in ((first, False), (second, False), (second, True)):
        answers.append(controller_after(controller, seen, second, masks, starts))
    with_first, with_second, afresh = answers
    assert not np.array_equal(with_first, with_second)
    assert np.array_equal(afresh, controller_after(controller, first, second, masks, True))


def controller_after(
    controller: LearnedController,
    before: np.ndarray,
    now: np.ndarray,
    masks: object,
    is_start: bool,
) -> np.ndarray:
    """Return the controller's actions after earlier observations."""
    controller.start(len(now))
    controller.act(before, masks, np.zeros(len(now), np.bool_))  # type: ignore[arg-type]
    return controller.act(now, masks, np.full(len(now), is_start))  # type: ignore[arg-type]


def test_its_expected_return_is_the_policys_value_in_units_of_reward() -> None:
    policy, rng = make_policy(), np.random.default_rng(2)
    seen = rng.uniform(-1, 1, (3, LAYOUT.size)).astype(np.float32)
    masks = draw_states(rng, 3, 2).masks(SLOTS)
    values = policy.value(torch.from_numpy(seen), torch.zeros(3, policy.state_size)).tolist()
    controller = LearnedController(policy, return_scale=(0.6, 0.2))
    unscaled = LearnedController(policy)
    for one in (controller, unscaled):
        one.start(3)
        assert one.expected_return() is None
        one.act(seen, masks, np.ones(3, np.bool_))
    for host, value in enumerate(values):
        assert controller.expected_return(host) == pytest.approx(0.6 + 0.2 * value, abs=1e-5)
        assert expected_return(controller, host) == controller.expected_return(host)
    assert unscaled.expected_return() is None
    assert expected_return(NoGrowth()) is None


def test_paired_rewards_make_its_returns_a_gain() -> None:
    policy = make_policy()
    assert expects_gain(LearnedController(policy, rewards="paired"))
    for other in (LearnedController(policy), LearnedController(policy, rewards="sparse")):
        assert not expects_gain(other)
    assert not expects_gain(NoGrowth())


def test_it_does_not_change_the_policy() -> None:
    policy = make_policy()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    controller = LearnedController(policy, name="trained for an hour")
    controller.start(2)
    masks = draw_states(np.random.default_rng(0), 2, 2).masks(SLOTS)
    controller.act(np.zeros((2, LAYOUT.size), np.float32), masks, np.ones(2, np.bool_))
    assert controller.name == "trained for an hour"
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_invalid_arguments_are_rejected() -> None:
    for wrong in (None, torch.nn.Linear(1, 1)):
        with pytest.raises(ConfigError, match="policy is"):
            LearnedController(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seed is 'a'"):
        LearnedController(make_policy()).start(1, seed="a")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="deterministic is 1"):
        LearnedController(make_policy(), deterministic=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            SlotConfig(("a", "b", "c")),
            rf"\d+ features .* {LAYOUT.size}",
        ),
        (
            SlotConfig(("a", "b"), blueprints=("norm", "widen_large")),
            r"'blueprint' has 2 choices",
        ),
    ],
)
def test_hosts_that_do_not_fit_the_policy_are_rejected(other: SlotConfig, message: str) -> None:
    controller = LearnedController(make_policy())
    controller.start(1)
    masks = draw_states(np.random.default_rng(0), 1, len(other.slot_ids)).masks(other)
    seen = np.zeros((1, ObservationLayout(other).size), np.float32)
    with pytest.raises(ConfigError, match=message):
        controller.act(seen, masks, np.ones(1, np.bool_))
