"""Observations are shifted and scaled by the statistics of all that were taken in."""

from __future__ import annotations

import numpy as np
import torch

from esper.config.learning import NetworkConfig
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.normalizers import ObservationNormalizer


def draw(n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shift = torch.tensor([5.0, -100.0, 0.25, 7.0])
    scale = torch.tensor([0.01, 30.0, 0.1, 0.0])
    return torch.randn(n, 4, generator=generator) * scale + shift


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    normalizer = ObservationNormalizer(4)
    parts = [draw(n, seed) for seed, n in enumerate((3, 50, 7, 200))]
    for part in parts:
        normalizer.learn(part)
    whole = np.concatenate([part.numpy() for part in parts]).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, whole.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.variance, whole.var(0), rtol=1e-4, atol=1e-10)
    assert int(normalizer.count) == len(whole)


def test_columns_come_out_standard_categories_as_they_are_and_constants_as_zero() -> None:
    normalizer = ObservationNormalizer(4, categories=[2])
    observations = draw(5_000, 0)
    normalizer.learn(observations)
    out = normalizer(observations)
    torch.testing.assert_close(out[:, :2].mean(0), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(out[:, :2].std(0), torch.ones(2), atol=1e-3, rtol=0)
    assert torch.equal(out[:, 2], observations[:, 2])  # a category
    assert not out[:, 3].any()  # what never varied
    assert not normalizer(observations + 1.0)[:, 3].any()
    assert float(normalizer(torch.full((1, 4), 1e9))[0, 0]) == 10.0


def test_a_policy_acts_the_same_on_scaled_observations_once_it_knows_the_scale() -> None:
    spec = ActionSpec.independent([2, 3])
    config = NetworkConfig(feature_size=8, lstm_size=8, normalize_observations=True)
    plain, scaled = RecurrentPolicy(spec, 4, config), RecurrentPolicy(spec, 4, config)
    observations = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    plain.learn_observations(observations)
    scaled.learn_observations(observations * 50 + 3)
    state = torch.zeros(64, plain.state_size)
    torch.testing.assert_close(
        plain.value(observations, state),
        scaled.value(observations * 50 + 3, state),
        atol=1e-4,
        rtol=1e-4,
    )
    assert any(name.endswith(".mean") for name in plain.state_dict())
