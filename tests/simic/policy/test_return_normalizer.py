"""Running statistics of returns match numpy, and changing them leaves values where they were."""

import numpy as np
import pytest
import torch

from esper.simic.policy.normalizers import ReturnNormalizer


def test_the_first_updates_are_plain_statistics_of_everything_seen() -> None:
    batches = [torch.randn(50) * 3 + 10, torch.randn(50) + 4, torch.randn(50) * 2]
    normalizer = ReturnNormalizer()
    for batch in batches:
        normalizer.update(batch)
    seen = torch.cat(batches).numpy()
    np.testing.assert_allclose(float(normalizer.mean), seen.mean(), rtol=1e-5)
    np.testing.assert_allclose(float(normalizer.std), seen.std(), rtol=1e-5)


def test_old_returns_are_forgotten() -> None:
    normalizer = ReturnNormalizer(rate=0.1)
    for _ in range(10):
        normalizer.update(torch.randn(100) + 100.0)
    for _ in range(150):
        normalizer.update(torch.randn(100))
    assert abs(float(normalizer.mean)) < 0.3
    assert 0.8 < float(normalizer.std) < 1.3


def test_the_scale_and_shift_keep_every_value_in_units_of_reward() -> None:
    normalizer, values = ReturnNormalizer(), torch.randn(20)
    normalizer.update(torch.randn(50) * 4 - 3)
    before = normalizer.denormalize(values)
    scale, shift = normalizer.update(torch.randn(50) * 9 + 2)
    torch.testing.assert_close(normalizer.denormalize(scale * values + shift), before)


def test_normalising_and_back_is_the_identity_and_constant_returns_are_safe() -> None:
    normalizer = ReturnNormalizer()
    normalizer.update(torch.full((8,), 2.5))
    returns = torch.randn(5)
    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(returns)), returns)
    assert bool(torch.isfinite(normalizer.normalize(torch.full((8,), 2.5))).all())


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e6])
def test_returns_of_any_size_become_deviations_at_once(scale: float) -> None:
    normalizer, returns = ReturnNormalizer(), scale * (5.0 + 2.0 * torch.randn(200))
    normalizer.update(returns)
    normal = normalizer.normalize(returns)
    assert float(normal.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(normal.std(correction=0)) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_rounding_is_not_taken_for_a_scale(size: float) -> None:
    # Returns are sums of rewards and values: where all cancel, what is left is their rounding.
    normalizer = ReturnNormalizer()
    normalizer.update(size * torch.randn(200))
    kept = ReturnNormalizer()
    kept.load_state_dict(normalizer.state_dict())
    kept.updates = 0
    kept.update(1e-8 * size * torch.randn(200))
    assert float(kept.std) == float(normalizer.std)


def test_saved_statistics_are_taken_over() -> None:
    first, second = ReturnNormalizer(), ReturnNormalizer()
    first.update(torch.randn(30) * 5)
    second.load_state_dict(first.state_dict())
    batch = torch.randn(30)
    first.update(batch)
    second.update(batch)
    assert first.mean == second.mean
    assert first.std == second.std
