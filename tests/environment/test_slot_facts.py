"""Observations describe the slots of each individual host."""

from __future__ import annotations

import numpy as np
import pytest

from esper.environment import GrowthVectorEnv
from esper.environment.records import EpisodeRecords
from esper.growth.host_slots import slots
from esper.lifecycle.slot_arrays import SlotArrays


def scaled(sizes: list[int], largest: float) -> list[float]:
    return [2 * np.log(max(size, 1)) / np.log(largest) - 1 for size in sizes]


def expect_sizes(envs: GrowthVectorEnv, observations: np.ndarray) -> set[int]:
    """Compare observed slot sizes with each host's layers; return the hidden sizes found."""
    met: set[int] = set()
    has_hidden = envs.layout.slot(observations, "has_hidden")
    for host in range(envs.num_envs):
        model = envs.growth.hosts.model(host)
        sizes = envs.growth.records.slots.first_hidden[host].tolist()
        for slot, size, is_seen in zip(slots(model).values(), sizes, has_hidden[host], strict=True):
            if slot.site.what == "units":
                name = slot.site.name.partition(">")[0].replace("*", "0")
                inner = [m for m in model.get_submodule(name).modules() if hasattr(m, "weight")]
                assert size == len(inner[0].weight)
                met.add(size)
            else:
                assert size == (len(model.blocks) if slot.site.what == "blocks" else 0)
            assert is_seen == (size > 0)
        assert (envs.layout.slot(observations, "growth")[host] == 0.0).all()
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
    expect_sizes(text, observations)


def test_slot_sizes_are_part_of_the_state() -> None:
    records = EpisodeRecords.blank(SlotArrays.blank(2, 3))
    for name in ("kind", "first_hidden", "unit_parameters"):
        assert records.state_dict()[f"slots/{name}"].shape == (2, 3)
