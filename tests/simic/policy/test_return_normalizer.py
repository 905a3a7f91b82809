"""Running statistics of returns match numpy, and changing them leaves values where they were."""

import numpy as np
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


def test_saved_statistics_are_taken_over() -> None:
    first, second = ReturnNormalizer(), ReturnNormalizer()
    first.update(torch.randn(30) * 5)
    second.load_state_dict(first.state_dict())
    batch = torch.randn(30)
    first.update(batch)
    second.update(batch)
    assert first.mean == second.mean
    assert first.std == second.std
