"""Rates follow their schedules over training, down to 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from esper.errors import ConfigError
from esper.simic import PPO, Schedule, cosine, linear
from tests.simic.small_envs import Picks


def train(**settings: Any) -> tuple[PPO, list[dict[str, float]]]:
    """Train for four updates and return the metrics of each."""
    seen: list[dict[str, float]] = []
    model = PPO(Picks, n_envs=2, n_steps=16, n_epochs=1, **settings)
    model.learn(128, callbacks=lambda model: seen.append(dict(model.metrics)))
    return model, seen


def test_a_linear_schedule_ends_at_zero() -> None:
    # Updates happen with 3/4, 2/4, 1/4 and nothing left of training, as in Stable-Baselines3.
    model, seen = train(
        learning_rate=linear(0.4), clip_range=linear(0.2), ent_coef=linear(0.8, 0.4)
    )
    rates = [metrics["train/learning_rate"] for metrics in seen]
    assert rates == pytest.approx([0.3, 0.2, 0.1, 0.0])
    clips = [metrics["train/clip_range"] for metrics in seen]
    assert clips == pytest.approx([0.15, 0.1, 0.05, 0.0])
    entropies = [metrics["train/ent_coef"] for metrics in seen]
    assert entropies == pytest.approx([0.7, 0.6, 0.5, 0.4])
    assert model.agent.optimizer.param_groups[0]["lr"] == 0.0


def test_any_function_of_what_is_left_is_a_schedule() -> None:
    left: list[float] = []

    def rate(remaining: float) -> float:
        left.append(remaining)
        return remaining**2

    _, seen = train(learning_rate=rate)
    rates = [metrics["train/learning_rate"] for metrics in seen]
    assert rates == pytest.approx([0.75**2, 0.5**2, 0.25**2, 0.0])
    assert left[0] == 1.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (linear(1.0), lambda p: 1.0 - p),
        (linear(0.2, 0.6), lambda p: 0.2 + 0.4 * p),
        (cosine(2.0, 1.0), lambda p: 1.0 + 0.5 * (1.0 + math.cos(math.pi * p))),
        (Schedule(0.3, shape="constant"), lambda p: 0.3),
    ],
)
def test_schedules_have_their_shapes(
    schedule: Schedule, expected: Callable[[float], float]
) -> None:
    for progress in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert schedule(1.0 - progress) == pytest.approx(expected(progress))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": -1.0}, "start is -1"),
        ({"start": 1.0, "end": float("nan")}, "end is nan"),
        ({"start": 1.0, "shape": "linaer"}, "shape is 'linaer'"),
    ],
)
def test_schedules_that_cannot_be_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(**settings)


def test_a_second_call_of_learn_follows_the_schedule_again() -> None:
    model, _ = train(learning_rate=linear(0.4))
    seen: list[float] = []
    model.learn(64, callbacks=lambda model: seen.append(model.config.learning_rate))
    assert seen == pytest.approx([0.2, 0.0])


def test_a_learning_rate_of_zero_changes_no_weight() -> None:
    model = PPO(Picks, n_envs=2, n_steps=16, learning_rate=0.0, normalize_returns=False)
    before = {name: t.clone() for name, t in model.agent.policy.state_dict().items()}
    model.learn(64)
    after = model.agent.policy.state_dict()
    assert all(bool((before[name] == after[name]).all()) for name in before)
