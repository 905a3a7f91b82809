"""The buffer keeps every step where it belongs and says what is missing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.simic.helpers import SPEC, fill, make_agent

from esper.errors import ConfigError, DtypeError, RolloutError, ShapeError
from esper.simic.agent import Decision, TamiyoRolloutBuffer


def decision(n_envs: int, value: float = 0.0) -> Decision:
    return Decision(
        actions=torch.zeros(n_envs, 3, dtype=torch.int64),
        log_probs=torch.zeros(n_envs, 3),
        values=torch.full((n_envs,), value),
        legal=torch.ones(n_envs, 3, 4, dtype=torch.bool),
        state=torch.zeros(n_envs, 2),
        next_state=torch.zeros(n_envs, 2),
    )


def make_buffer(n_envs: int = 2, n_steps: int = 4) -> TamiyoRolloutBuffer:
    return TamiyoRolloutBuffer(n_envs, n_steps, SPEC, observation_size=1, state_size=2)


def add(buffer: TamiyoRolloutBuffer, value: float = 0.0, **changes: object) -> None:
    n = buffer.n_envs
    step: dict[str, object] = {"rewards": np.ones(n), "dones": np.zeros(n, bool)}
    step["truncated"] = np.zeros(n, bool)
    buffer.add(torch.zeros(n, 1), decision(n, value), **{**step, **changes})  # type: ignore[arg-type]


def test_the_worked_example_of_the_design() -> None:
    # rewards 1,1,1,1, values 0.5,2,1,3, truncated at step 1 with bootstrap 4, terminal at step 3.
    buffer = make_buffer(n_envs=1)
    for t, value in enumerate((0.5, 2.0, 1.0, 3.0)):
        add(
            buffer,
            value,
            dones=np.array([t in (1, 3)]),
            truncated=np.array([t == 1]),
            bootstrap_values=torch.tensor([4.0 if t == 1 else float("nan")]),
        )
    buffer.compute_advantages_and_returns(gamma=0.5, gae_lambda=0.5)
    torch.testing.assert_close(buffer.advantages, torch.tensor([[1.75, 1.0, 1.0, -2.0]]))
    torch.testing.assert_close(buffer.returns, torch.tensor([[2.25, 3.0, 2.0, 1.0]]))


def reference(buffer: TamiyoRolloutBuffer, gamma: float, lam: float) -> torch.Tensor:
    """The definition of the design, environment by environment and step by step."""
    advantages = torch.zeros(buffer.rewards.shape, dtype=torch.float64)
    for env, length in enumerate(buffer.lengths):
        following = 0.0
        for t in reversed(range(length)):
            done, cut = bool(buffer.dones[env, t]), bool(buffer.truncated[env, t])
            if done and not cut:
                next_value = 0.0
            elif cut or t == length - 1:
                next_value = float(buffer.bootstrap_values[env, t])
            else:
                next_value = float(buffer.values[env, t + 1])
            delta = (
                float(buffer.rewards[env, t]) + gamma * next_value - float(buffer.values[env, t])
            )
            following = delta + gamma * lam * (0.0 if done or cut else following)
            advantages[env, t] = following
    return advantages


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.sampled_from([0.0, 0.2, 1.0]))
def test_unequal_lengths_follow_the_definition(lengths: list[int], ends: float) -> None:
    counts = np.array(lengths)
    if not counts.any():
        counts[0] = 1
    buffer = fill(make_agent(), len(counts), 9, ends=ends, lengths=counts)
    assert buffer.lengths.tolist() == counts.tolist()
    buffer.compute_advantages_and_returns(0.9, 0.8)
    expected = reference(buffer, 0.9, 0.8)
    torch.testing.assert_close(buffer.advantages.double(), expected, atol=1e-5, rtol=1e-5)
    stored = torch.arange(buffer.values.shape[1]) < torch.from_numpy(counts).unsqueeze(1)
    returns = torch.where(stored, expected + buffer.values, 0.0)
    torch.testing.assert_close(buffer.returns.double(), returns, atol=1e-5, rtol=1e-5)


def test_a_step_of_all_environments_is_contiguous() -> None:
    buffer = fill(make_agent())
    for name in ("observations", "values", "rewards", "actions", "masks", "hidden_states"):
        view = getattr(buffer, name)
        assert view.shape[:2] == (4, 11)
        assert view[:, 3].is_contiguous(), name


def test_overflow_is_refused_and_nothing_is_lost() -> None:
    buffer = make_buffer(n_steps=2)
    add(buffer)
    add(buffer)
    assert buffer.is_full
    with pytest.raises(RolloutError, match=r"step 2 .* 2 environments"):
        add(buffer)
    assert buffer.lengths.tolist() == [2, 2]


def test_an_environment_that_was_left_out_cannot_come_back() -> None:
    buffer = make_buffer()
    add(buffer)
    add(buffer, active=[True, False])
    with pytest.raises(RolloutError, match=r"environment 1 .* step 2"):
        add(buffer)
    with pytest.raises(RolloutError, match="step 2"):
        add(buffer, active=[False, False])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_named(bad: float) -> None:
    buffer = make_buffer()
    add(buffer)
    with pytest.raises(RolloutError, match=f"environment 1 at step 1 is {bad}"):
        add(buffer, rewards=np.array([1.0, bad]))
    add(buffer, rewards=np.array([1.0, bad]), active=[True, False])


def test_missing_bootstrap_values_are_named() -> None:
    buffer = make_buffer()
    with pytest.raises(RolloutError, match="environment 1 was truncated at step 0"):
        add(buffer, dones=np.array([False, True]), truncated=np.array([False, True]))
    add(buffer)
    add(buffer, dones=np.array([True, False]))
    with pytest.raises(RolloutError, match=r"environment 1 .* at step 1"):
        buffer.compute_advantages_and_returns(0.9, 0.9)
    buffer.finish(torch.tensor([float("nan"), 2.0]))
    buffer.compute_advantages_and_returns(0.9, 0.9)
    assert bool(torch.isfinite(buffer.advantages).all())


def test_an_empty_or_unfinished_buffer_says_what_to_do() -> None:
    buffer = make_buffer()
    with pytest.raises(RolloutError, match="empty"):
        buffer.compute_advantages_and_returns(0.9, 0.9)
    with pytest.raises(RolloutError, match="compute_advantages_and_returns"):
        _ = buffer.advantages


def test_shapes_and_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match="n_envs is 0"):
        make_buffer(n_envs=0)
    with pytest.raises(ShapeError, match=r"rewards has shape \(3,\)"):
        add(make_buffer(), rewards=np.ones(3))
    buffer, cut = make_buffer(), np.ones(2, bool)
    with pytest.raises(ShapeError, match=r"bootstrap_values has shape \(3,\)"):
        add(buffer, dones=cut, truncated=cut, bootstrap_values=torch.zeros(3))
    never, wrong = np.zeros(2, bool), replace(decision(2), state=torch.zeros(3, 2))
    with pytest.raises(ShapeError, match=r"state has shape \(3, 2\)"):
        buffer.add(torch.zeros(2, 1), wrong, rewards=never, dones=never, truncated=never)
    assert buffer.lengths.tolist() == [0, 0]
    with pytest.raises(ShapeError, match=r"last_values has shape \(1,\)"):
        make_buffer().finish(torch.zeros(1))


def test_a_reset_buffer_is_as_good_as_new() -> None:
    agent = make_agent()
    used = fill(agent, seed=3)
    used.compute_advantages_and_returns(0.9, 0.9)
    used.reset()
    assert used.lengths.sum() == 0
    assert used.values.shape == (4, 0)
    with pytest.raises(RolloutError, match="not computed"):
        _ = used.returns
    used.add(
        torch.zeros(4, 5),
        agent.act(torch.zeros(4, 5), None, agent.initial_state(4)),
        rewards=np.ones(4),
        dones=np.zeros(4, bool),
        truncated=np.zeros(4, bool),
    )
    assert bool(torch.isnan(used.bootstrap_values).all())


def test_a_step_added_later_makes_old_advantages_invalid() -> None:
    buffer = make_buffer()
    add(buffer)
    buffer.finish(torch.zeros(2))
    buffer.compute_advantages_and_returns(0.9, 0.9)
    add(buffer)
    with pytest.raises(RolloutError, match="not computed"):
        _ = buffer.advantages


def test_a_bootstrap_value_counts_only_where_the_step_was_truncated() -> None:
    buffer = make_buffer()
    cut = np.array([True, False])
    add(buffer, dones=cut, truncated=cut, bootstrap_values=torch.tensor([1.0, 777.0]))
    assert torch.isnan(buffer.bootstrap_values[1, 0])
    with pytest.raises(RolloutError, match="environment 1"):
        buffer.compute_advantages_and_returns(1.0, 1.0)
    buffer.finish(torch.tensor([50.0, 5.0]))
    buffer.compute_advantages_and_returns(1.0, 1.0)
    assert buffer.returns.tolist() == [[2.0], [6.0]]


def test_only_tensors_of_the_right_kind_are_stored() -> None:
    buffer, never = make_buffer(), np.zeros(2, bool)
    flags = {"rewards": never, "dones": never, "truncated": never}
    with pytest.raises(DtypeError, match=r"actions has dtype torch\.float32"):
        buffer.add(torch.zeros(2, 1), replace(decision(2), actions=torch.zeros(2, 3)), **flags)
    with pytest.raises(DtypeError, match="observations is an ndarray"):
        buffer.add(np.zeros((2, 1)), decision(2), **flags)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="last_values is an ndarray"):
        buffer.finish(np.zeros(2))  # type: ignore[arg-type]
