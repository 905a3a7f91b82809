"""Observations describe the slots of each individual host."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from esper.environment import GrowthVectorEnv
from esper.environment.records import EpisodeRecords
from esper.lifecycle.slot_arrays import SlotArrays


def scaled(sizes: list[int], largest: float) -> list[float]:
    return [2 * np.log(max(size, 1)) / np.log(largest) - 1 for size in sizes]


def layers_of(block: nn.Module) -> list[nn.Module]:
    return [module for module in block.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]


def bias_size(layer: nn.Module) -> int:
    return 0 if layer.bias is None else layer.bias.numel()


def count_parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def expect_sizes(envs: GrowthVectorEnv, observations: np.ndarray) -> set[int]:
    """Compare observed slot sizes with each host's layers; return the hidden sizes found."""
    met: set[int] = set()
    for host in range(envs.num_envs):
        model = envs.growth.population.model(host)
        blocks = [model.get_submodule(slot) for slot in envs.slot_config.slot_ids]
        hidden = [layers_of(block)[0].weight.shape[0] for block in blocks]
        assert envs.growth.records.slots.first_hidden[host].tolist() == hidden
        # Twice the hidden units are the whole block again, but for its last bias.
        whole = count_parameters(model)
        added = [
            (count_parameters(block) - bias_size(layers_of(block)[-1])) / whole for block in blocks
        ]
        layout = envs.layout
        assert layout.slot(observations, "step_size")[host] == pytest.approx(
            [share / (1 + share) for share in added], abs=1e-6
        )
        assert (layout.slot(observations, "growth")[host] == 0.0).all()
        assert (layout.slot(observations, "has_hidden")[host] == 1.0).all()
        met |= set(hidden)
    return met


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_slot_sizes_are_those_of_the_host_not_of_the_design(form: str) -> None:
    envs = GrowthVectorEnv("digits-family", 6, form=form, n_epochs=2, batches_per_epoch=1)
    observations, _ = envs.reset(seed=0)
    met = expect_sizes(envs, observations)
    assert len(met) > 1
    wait = np.zeros((6, 8), np.int64)
    for _ in range(2):  # the second ends all episodes, and others begin
        observations, *_ = envs.step(wait)
        assert expect_sizes(envs, observations)
    n_slots = envs.slot_config.max_slots
    assert envs.layout.slot(observations, "on_vector").tolist() == [[1.0] * n_slots] * 6
    assert envs.layout.host(observations, "task_slots") == pytest.approx(scaled([n_slots] * 6, 64))


def test_feature_maps_and_sequences_are_told_apart() -> None:
    images = GrowthVectorEnv("digits", 1, host="cnn", n_epochs=2, batches_per_epoch=1)
    observations, _ = images.reset(seed=0)
    expect_sizes(images, observations)
    assert (images.layout.slot(observations, "on_feature_map") == 1.0).all()
    text = GrowthVectorEnv("text", 1, n_epochs=2, batches_per_epoch=1)
    observations, _ = text.reset(seed=0)
    assert (text.layout.slot(observations, "on_sequence") == 1.0).all()
    assert (text.layout.slot(observations, "on_vector") == 0.0).all()
    hidden = dict(
        zip(
            text.slot_config.slot_ids,
            text.growth.records.slots.first_hidden[0].tolist(),
            strict=True,
        )
    )
    block = text.growth.population.model(0).get_submodule("blocks.0.mlp")
    assert hidden["blocks.0.mlp"] == layers_of(block)[0].weight.shape[0]


def test_slot_sizes_are_part_of_the_state() -> None:
    records = EpisodeRecords.blank(SlotArrays.blank(2, 3))
    for name in ("kind", "first_hidden", "unit_parameters"):
        assert records.state_dict()[f"slots/{name}"].shape == (2, 3)
