"""Every host gets its own samples from the pool, whichever hosts were replaced."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.populations.sample_pool import MAX_WASTE, Pair, SamplePool

sizes = st.integers(2, 40)


def make_pair(size: int, seed: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator), torch.arange(size) + 1000 * seed


def assert_holds(pool: SamplePool, pairs: list[Pair]) -> None:
    for host, (inputs, targets) in enumerate(pairs):
        assert pool.sizes[host] == len(inputs)
        numbers = torch.arange(len(inputs))[None] + int(pool.offsets[host])
        found = pool.take(numbers)
        assert torch.equal(found[0][0], inputs)
        assert torch.equal(found[1][0], targets)


@given(
    first=st.lists(sizes, min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 3), sizes, st.booleans()), max_size=12),
)
def test_every_host_has_its_samples_after_any_replacements(first, changes) -> None:
    pairs = [make_pair(size, seed) for seed, size in enumerate(first)]
    given_to_pool = [(inputs.clone(), targets.clone()) for inputs, targets in pairs]
    pool = SamplePool(given_to_pool)
    originals = [*given_to_pool]
    for number, (host, size, shares) in enumerate(changes):
        host %= len(pairs)
        pair = given_to_pool[0] if shares else make_pair(size, 100 + number)
        assert pool.replace(host, pair)
        given_to_pool[host] = pair
        assert_holds(pool, given_to_pool)
        assert len(pool.inputs) <= MAX_WASTE * pool.sizes.sum() + 64
    for (inputs, targets), own in zip(originals, pairs, strict=True):
        assert torch.equal(inputs, own[0])  # what the hosts gave is never written to
        assert torch.equal(targets, own[1])


def test_shared_tensors_are_stored_once() -> None:
    pair, other = make_pair(10, 0), make_pair(6, 1)
    pool = SamplePool([pair, pair, pair])
    assert pool.inputs is pair[0]
    assert pool.replace(1, other)
    assert pool.offsets.tolist() == [0, 10, 0]
    assert pool.replace(1, pair)
    assert pool.offsets.tolist() == [0, 0, 0]
    labelled_otherwise = (pair[0], pair[1] + 1)
    mixed = SamplePool([pair, labelled_otherwise])
    assert mixed.offsets.tolist() == [0, 10]
    assert_holds(mixed, [pair, labelled_otherwise])


def test_free_regions_are_reused_if_samples_fit() -> None:
    pool = SamplePool([make_pair(10, 0), make_pair(10, 1)])
    memory = pool.inputs.data_ptr()
    assert pool.replace(1, make_pair(7, 2))
    assert pool.replace(1, make_pair(10, 3))
    assert pool.inputs.data_ptr() == memory
    assert pool.replace(1, make_pair(11, 4))
    assert np.array_equal(pool.offsets, [0, 20])


def test_samples_of_another_shape_or_dtype_are_rejected() -> None:
    pair = make_pair(4, 0)
    pool = SamplePool([pair, make_pair(4, 1)])
    assert not pool.replace(1, (torch.zeros(4, 2), pair[1]))
    assert not pool.replace(1, (pair[0].double(), pair[1]))
    assert pool.sizes.tolist() == [4, 4]
