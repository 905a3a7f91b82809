"""A host's data are validated, and each host has its own batch order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.config.growth import PopulationConfig
from esper.errors import ShapeError
from esper.populations import HostData, HostSpec
from esper.populations.host_data import BatchOrder
from tests.populations.worlds import (
    MLP,
    Builder,
    compiled,
    make_data,
)


@given(
    n_samples=st.integers(2, 50),
    batch_size=st.integers(2, 20),
    n_batches=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 5),
)
def test_every_shuffle_contains_each_sample_at_most_once(
    n_samples: int, batch_size: int, n_batches: int | None, seed: int
) -> None:
    order = BatchOrder(seed, n_samples, batch_size, n_batches)
    batches = order.draw_epoch()
    by_shuffle = n_samples // min(batch_size, n_samples)
    assert batches.shape == (n_batches or by_shuffle, min(batch_size, n_samples))
    for start in range(0, len(batches), by_shuffle):
        shuffle = batches[start : start + by_shuffle].ravel()
        assert len(set(shuffle.tolist())) == len(shuffle)
        assert shuffle.min() >= 0
        assert shuffle.max() < n_samples


def test_a_batch_order_continues_from_its_state() -> None:
    order = BatchOrder(4, 20, 8, 5)
    order.draw_epoch()
    twin = BatchOrder(4, 20, 8, 5)
    twin.set_state(order.get_state())
    np.testing.assert_array_equal(order.draw_epoch(), twin.draw_epoch())


def test_epochs_can_have_the_same_length_for_different_sample_counts() -> None:
    specs = [HostSpec(seed=n, data=make_data(MLP, n, n)) for n in (9, 40)]
    population = compiled(Builder(MLP), specs, PopulationConfig(batch_size=8, batches_per_epoch=3))
    report = population.train_epoch()
    assert report.flops[0] == report.flops[1] == 3 * 8 * population.costs_of(0).host_training


def test_the_final_split_is_evaluated_separately() -> None:
    data, other = make_data(MLP, 16, 0), make_data(MLP, 30, 1)
    with_final = HostData(
        data.train_inputs,
        data.train_targets,
        data.validation_inputs,
        data.validation_targets,
        other.train_inputs,
        other.train_targets,
    )
    population = compiled(Builder(MLP), [HostSpec(seed=0, data=with_final)])
    model = population.model(0).eval()
    losses = torch.nn.functional.cross_entropy(model(other.train_inputs), other.train_targets)
    np.testing.assert_allclose(population.evaluate("final").losses, [losses.item()], rtol=1e-5)
    bare = compiled(Builder(MLP), [HostSpec(seed=0, data=data)])
    with pytest.raises(ShapeError, match=r"no final split.*final_inputs"):
        bare.evaluate("final")


def test_a_final_split_needs_inputs_and_targets() -> None:
    data = make_data(MLP, 16, 0)
    parts = (data.train_inputs, data.train_targets, data.validation_inputs, data.validation_targets)
    with pytest.raises(ShapeError, match="no final split"):
        HostData(*parts, final_inputs=data.train_inputs)
    with pytest.raises(ShapeError, match="final split has 16 inputs and 3 targets"):
        HostData(*parts, data.train_inputs, data.train_targets[:3])
