"""Advantages follow their definition and never leak between episodes."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.errors import ConfigError, DtypeError, EsperError, ShapeError
from esper.simic.agent.advantages import estimate_advantages


def sequential_reference(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """The loop over environments and steps that the whole thing replaces."""
    n_envs, n_steps = rewards.shape
    advantages = torch.zeros_like(rewards)
    for env in range(n_envs):
        last = rewards.new_zeros(())
        for t in reversed(range(n_steps)):
            if terminated[env, t] or truncated[env, t]:
                last = rewards.new_zeros(())
            follows = rewards.new_zeros(()) if terminated[env, t] else next_values[env, t]
            delta = rewards[env, t] + gamma * follows - values[env, t]
            last = delta + gamma * gae_lambda * last
            advantages[env, t] = last
    return advantages


def brute_force(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Sum the discounted errors of each episode from its definition, in float64, step by step."""
    rewards, values, next_values = rewards.double(), values.double(), next_values.double()
    result = torch.zeros_like(rewards)
    for env in range(rewards.shape[0]):
        ends = [t for t in range(rewards.shape[1]) if terminated[env, t] or truncated[env, t]]
        for t in range(rewards.shape[1]):
            end = min((e for e in ends if e >= t), default=rewards.shape[1] - 1)
            for k in range(t, end + 1):
                follows = 0.0 if terminated[env, k] else gamma * float(next_values[env, k])
                error = float(rewards[env, k]) + follows - float(values[env, k])
                result[env, t] += (gamma * gae_lambda) ** (k - t) * error
    return result


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Tensor | float]:
    """Random rollouts: ends anywhere, both kinds at once, one step, NaN after terminals."""
    n_envs, n_steps = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))

    def numbers() -> Tensor:
        return 5.0 * torch.randn(n_envs, n_steps, generator=generator, dtype=torch.float64)

    def flags() -> Tensor:
        return torch.rand(n_envs, n_steps, generator=generator) < density

    rollout = {
        "rewards": numbers(),
        "values": numbers(),
        "next_values": numbers(),
        "terminated": flags(),
        "truncated": flags(),
        "gamma": draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])),
        "gae_lambda": draw(st.sampled_from([0.0, 0.5, 0.95, 1.0])),
    }
    rollout["next_values"][rollout["terminated"]] = torch.nan
    # Environments of unequal length: each ends at its last step, and what lies beyond is NaN.
    lengths = torch.randint(1, n_steps + 1, (n_envs, 1), generator=generator)
    if draw(st.booleans()):
        time = torch.arange(n_steps)
        is_last, is_terminal = time == lengths - 1, torch.rand(n_envs, 1, generator=generator) < 0.5
        rollout["terminated"] |= is_last & is_terminal
        rollout["truncated"] |= is_last & ~is_terminal
        for name in ("rewards", "values", "next_values"):
            rollout[name][time >= lengths] = torch.nan
    return rollout


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "environment-major": lambda x: x.contiguous(),
    "time-major": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x], dim=-1)[..., 1],
    "reversed storage": lambda x: x.flip(0).contiguous().flip(0),
}


@given(rollouts(), st.sampled_from(sorted(LAYOUTS)))
def test_float64_equals_the_brute_force_and_the_sequential_loop(
    rollout: dict[str, Tensor | float], layout: str
) -> None:
    arranged = {
        name: LAYOUTS[layout](value) if isinstance(value, Tensor) else value
        for name, value in rollout.items()
    }
    advantages, returns = estimate_advantages(**arranged)  # type: ignore[arg-type]
    expected = brute_force(**rollout)  # type: ignore[arg-type]
    loop = sequential_reference(**rollout)  # type: ignore[arg-type]
    assert advantages.dtype == torch.float64
    is_stored = ~torch.isnan(rollout["rewards"])  # type: ignore[arg-type]
    assert bool(torch.isfinite(advantages[is_stored]).all())
    for got, wanted in (
        (advantages, expected),
        (advantages, loop),
        (returns, expected + rollout["values"]),
    ):
        torch.testing.assert_close(got[is_stored], wanted[is_stored], atol=1e-9, rtol=1e-9)


@given(rollouts(), st.sampled_from(sorted(LAYOUTS)))
def test_float32_is_within_its_own_rounding_of_the_brute_force(
    rollout: dict[str, Tensor | float], layout: str
) -> None:
    arranged = {
        name: LAYOUTS[layout](value.float() if value.is_floating_point() else value)
        if isinstance(value, Tensor)
        else value
        for name, value in rollout.items()
    }
    advantages, _ = estimate_advantages(**arranged)  # type: ignore[arg-type]
    expected = brute_force(**rollout)  # type: ignore[arg-type]
    assert advantages.dtype == torch.float32
    # Relative to the size of what is summed: errors of opposite sign cancel in the sum itself.
    is_stored = ~torch.isnan(rollout["rewards"])  # type: ignore[arg-type]
    scale = max(float(expected[is_stored].abs().max()), 10.0)
    assert float((advantages.double() - expected)[is_stored].abs().max()) <= 1e-5 * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (17, 33), (300, 7)])
def test_every_shape_and_layout_gives_the_sequential_loop(
    dtype: torch.dtype, layout: str, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(shape[0])
    arrange = LAYOUTS[layout]
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    terminated, truncated = (torch.rand(shape, generator=generator) < 0.2 for _ in range(2))
    got, returns = estimate_advantages(
        *(arrange(x.to(dtype)) for x in numbers),
        terminated=arrange(terminated),
        truncated=arrange(truncated),
        gamma=0.97,
        gae_lambda=0.9,
    )
    expected = sequential_reference(*numbers, terminated, truncated, 0.97, 0.9)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(returns, got + numbers[1].to(dtype))


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_a_large_rollout_is_estimated_like_its_parts(layout: str) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(700, 100, generator=generator) for _ in range(3)]
    flags = [torch.rand(700, 100, generator=generator) < 0.05 for _ in range(2)]

    def estimate(rows: slice) -> Tensor:
        parts = [LAYOUTS[layout](tensor[rows]) for tensor in (*numbers, *flags)]
        ends = {"terminated": parts[3], "truncated": parts[4]}
        return torch.stack(estimate_advantages(*parts[:3], **ends, gamma=0.9, gae_lambda=0.9))

    whole = estimate(slice(None))
    parts = [estimate(slice(0, 300)), estimate(slice(300, None))]
    torch.testing.assert_close(whole, torch.cat(parts, dim=1), atol=1e-6, rtol=1e-6)


def test_two_episodes_worked_by_hand() -> None:
    # Steps 0-1 are one episode, truncated; steps 2-3 the next, terminated.
    advantages, returns = estimate_advantages(
        rewards=torch.tensor([[1.0, 1.0, 1.0, 1.0]]),
        values=torch.tensor([[0.5, 2.0, 1.0, 3.0]]),
        next_values=torch.tensor([[2.0, 4.0, 3.0, float("nan")]]),
        terminated=torch.tensor([[False, False, False, True]]),
        truncated=torch.tensor([[False, True, False, False]]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # deltas 1.5, 1.0, 1.5, -2.0; each step adds a quarter of its successor's advantage.
    torch.testing.assert_close(advantages, torch.tensor([[1.75, 1.0, 1.0, -2.0]]))
    torch.testing.assert_close(returns, torch.tensor([[2.25, 3.0, 2.0, 1.0]]))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_nan_beyond_an_end_never_spreads(kind: str, layout: str) -> None:
    shape, end = (20, 30), 11
    ends = torch.zeros(shape, dtype=torch.bool)
    ends[:, end] = True
    never = torch.zeros_like(ends)
    numbers = [torch.randn(shape) for _ in range(3)]
    for tensor in numbers:
        tensor[:, end + 1 :] = torch.nan
    arrange = LAYOUTS[layout]
    advantages, returns = estimate_advantages(
        *map(arrange, numbers),
        terminated=arrange(ends if kind == "terminated" else never),
        truncated=arrange(ends if kind == "truncated" else never),
        gamma=1.0,
        gae_lambda=1.0,
    )
    for result in (advantages, returns):
        assert bool(torch.isfinite(result[:, : end + 1]).all())
        assert bool(torch.isnan(result[:, end + 1 :]).all())


def test_lambda_zero_is_the_error_of_one_step_and_lambda_one_the_whole_return() -> None:
    generator = torch.Generator().manual_seed(2)
    rewards, values = (torch.randn(3, 6, generator=generator).double() for _ in range(2))
    next_values = torch.cat([values[:, 1:], torch.randn(3, 1, generator=generator)], dim=1)
    never = torch.zeros(3, 6, dtype=torch.bool)
    ends = {"terminated": never, "truncated": never, "gamma": 0.9}
    one_step, _ = estimate_advantages(rewards, values, next_values, **ends, gae_lambda=0.0)
    torch.testing.assert_close(one_step, rewards + 0.9 * next_values - values)
    _, returns = estimate_advantages(rewards, values, next_values, **ends, gae_lambda=1.0)
    discounts = 0.9 ** torch.arange(6, dtype=torch.float64)
    whole = (rewards * discounts).sum(dim=1) + 0.9**6 * next_values[:, -1]
    torch.testing.assert_close(returns[:, 0], whole)


def test_no_gradient_flows_into_the_result() -> None:
    numbers = [torch.randn(4, 5, requires_grad=True) for _ in range(3)]
    never = torch.zeros(4, 5, dtype=torch.bool)
    results = estimate_advantages(
        *numbers, terminated=never, truncated=never, gamma=0.9, gae_lambda=0.9
    )
    assert not any(result.requires_grad for result in results)


def test_more_terminals_allocate_no_more_tensors() -> None:
    def allocations(density: float) -> int:
        flags = torch.rand(16, 50, generator=torch.Generator().manual_seed(0)) < density
        numbers = [torch.zeros(16, 50) for _ in range(3)]
        with torch.profiler.profile(profile_memory=True) as profiler:
            estimate_advantages(
                *numbers, terminated=flags, truncated=~flags, gamma=0.9, gae_lambda=0.9
            )
        events = profiler.events()
        assert events is not None
        return sum(event.name in ("aten::empty", "aten::empty_strided") for event in events)

    counts = {allocations(density) for density in (0.0, 0.1, 1.0)}
    assert len(counts) == 1


def valid_arguments() -> dict[str, object]:
    return {
        **{name: torch.zeros(2, 3) for name in ("rewards", "values", "next_values")},
        **{name: torch.zeros(2, 3).bool() for name in ("terminated", "truncated")},
        "gamma": 0.9,
        "gae_lambda": 0.9,
    }


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("values", torch.zeros(2, 4), ShapeError, r"values has shape \(2, 4\).*\[2, 3\]"),
        ("rewards", torch.zeros(3), ShapeError, r"rewards has shape \(3,\)"),
        ("rewards", torch.zeros(0, 3), ShapeError, r"rewards has shape \(0, 3\)"),
        ("rewards", torch.zeros(2, 3).half(), DtypeError, r"rewards has dtype torch\.float16"),
        ("next_values", torch.zeros(2, 3).double(), DtypeError, "next_values has dtype"),
        ("truncated", torch.zeros(2, 3), DtypeError, r"truncated has dtype torch\.float32"),
        ("gamma", 1.1, ConfigError, r"gamma is 1\.1"),
        ("gamma", float("nan"), ConfigError, "gamma is nan"),
        ("gae_lambda", -0.1, ConfigError, r"gae_lambda is -0\.1"),
        (
            "terminated",
            torch.zeros(2, 3, device="meta").bool(),
            EsperError,
            "terminated is on meta",
        ),
    ],
)
def test_bad_arguments_are_named(
    name: str, value: object, error: type[EsperError], message: str
) -> None:
    estimate_advantages(**valid_arguments())  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        estimate_advantages(**{**valid_arguments(), name: value})  # type: ignore[arg-type]
