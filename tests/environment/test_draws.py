"""Final scores use unseen samples, and different purposes never share a draw."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.environment.draws import PURPOSES, Purpose, draw_seed, make_host_data, split_in_half
from esper.errors import TaskError
from esper.tasks import Samples, make_task


@given(st.lists(st.integers(0, 3), min_size=4, max_size=60))
def test_halves_are_disjoint_and_balanced_by_class(labels: list[int]) -> None:
    targets = torch.tensor(labels)
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    first, second = split_in_half(Samples(inputs, targets))
    seen = first.inputs.flatten().tolist() + second.inputs.flatten().tolist()
    assert sorted(seen) == list(range(len(labels)))
    for half in (first, second):
        for sample, label in zip(half.inputs.flatten().tolist(), half.targets, strict=True):
            assert labels[int(sample)] == label
    for label in range(4):
        counts = [int((half.targets == label).sum()) for half in (first, second)]
        assert abs(counts[0] - counts[1]) <= 1


@given(st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=60), st.booleans())
def test_halves_of_numbers_are_disjoint_and_alike(values: list[float], is_column: bool) -> None:
    targets = torch.tensor(values)
    samples = Samples(targets[:, None], targets[:, None] if is_column else targets)
    halves = [half.targets.flatten().sort().values for half in split_in_half(samples)]
    assert sorted(torch.cat(halves).tolist()) == sorted(targets.tolist())
    # Between two successive numbers of one half there is one of the other.
    first, second = halves[0][: len(halves[1])], halves[1]
    assert bool((first <= second).all())
    assert bool((second[:-1] <= halves[0][1 : len(second)]).all())


def test_halves_of_several_numbers_keep_each_sample_together() -> None:
    targets = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    halves = split_in_half(Samples(targets.clone(), targets))
    assert [len(half) for half in halves] == [5, 4]
    for half in halves:
        assert torch.equal(half.inputs, half.targets)
    seen = {tuple(row) for half in halves for row in half.targets.tolist()}
    assert seen == {tuple(row) for row in targets.tolist()}


def test_the_test_split_is_used_only_on_request() -> None:
    draw = make_task("spirals").sample(3)
    by_default = make_host_data(draw, "validation")
    for_test = make_host_data(draw, "test")
    assert for_test.final_inputs is draw.data.test.inputs
    assert torch.equal(by_default.validation_inputs, for_test.validation_inputs)
    assert by_default.final_inputs is not None
    rows = {tuple(row) for row in by_default.final_inputs.tolist()}
    assert rows.isdisjoint(tuple(row) for row in by_default.validation_inputs.tolist())
    assert rows <= {tuple(row) for row in draw.data.validation.inputs.tolist()}


def test_a_validation_split_too_small_to_halve_is_rejected() -> None:
    with pytest.raises(TaskError, match="validation split has 3 samples"):
        split_in_half(Samples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)))


def test_draw_seeds_are_repeatable_distinct_and_disjoint_by_purpose() -> None:
    numbers: dict[str, set[int]] = {}
    for purpose in PURPOSES:
        own: Purpose = purpose  # type: ignore[assignment]
        drawn = [draw_seed(own, seed, episode) for seed in range(40) for episode in range(40)]
        assert drawn == [draw_seed(own, seed, e) for seed in range(40) for e in range(40)]
        assert len(set(drawn)) == 1600
        assert all(0 <= number < 2**63 for number in drawn)
        assert {number % 4 for number in drawn} == {PURPOSES.index(purpose)}
        numbers[purpose] = set(drawn)
    assert not numbers["training"] & numbers["evaluation"]


def test_large_seeds_do_not_collide_with_later_episodes() -> None:
    assert draw_seed("training", 5, 1) != draw_seed("training", 2**32 + 5, 0)
    assert draw_seed("training", 5, 2**32) != draw_seed("training", 5, 0)
