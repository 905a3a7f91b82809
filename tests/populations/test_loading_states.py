"""A state of another design is rejected by name and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.config.growth import PopulationConfig
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.populations import HostState, Population
from tests.populations.worlds import (
    FORMS,
    MLP,
    Builder,
    Make,
    make_specs,
)

CONFIG = PopulationConfig(batch_size=8)


def grown(form: Make, hidden: int = MLP.hidden) -> Population:
    population = form(Builder(replace(MLP, hidden=hidden)), make_specs(MLP, (16, 24)), CONFIG)
    for host in range(2):
        population.apply(
            host, GrowthAction(op=Op.GERMINATE, slot="blocks.0", blueprint="mlp_small")
        )
        population.apply(host, GrowthAction(op=Op.ADVANCE, slot="blocks.0"))
    population.train_epoch()
    return population


def assert_untouched(population: Population, before: dict[str, Any], stages: np.ndarray) -> None:
    now = population.state_dict()
    assert now["facts"] == before["facts"]
    assert now["tensors"].keys() == before["tensors"].keys()
    for name, tensor in now["tensors"].items():
        assert torch.equal(tensor, before["tensors"][name]), name
    np.testing.assert_array_equal(population.slot_arrays().stage, stages)


@pytest.mark.parametrize("hidden", [1, 6])
@pytest.mark.parametrize("form", FORMS)
def test_a_state_of_another_width_is_rejected_and_changes_nothing(form: Make, hidden: int) -> None:
    population, other = grown(form), grown(form, hidden)
    before, stages = population.state_dict(), population.slot_arrays().stage.copy()
    message = rf"host 1.*blocks\.0\..* .*\[{hidden}, 5\].*\[4, 5\]"
    with pytest.raises(ConfigError, match=message):
        population.set_state(1, other.get_state(1))
    assert_untouched(population, before, stages)
    mixed = population.state_dict()
    for name, tensor in other.state_dict()["tensors"].items():
        if name.startswith("1/"):
            mixed["tensors"][name] = tensor
    mixed["facts"][0]["is_finished"] = True
    with pytest.raises(ConfigError, match="host 1"):
        population.load_state_dict(mixed)
    assert_untouched(population, before, stages)


def _drop_weight(state: HostState) -> None:
    del state.tensors["model/head.weight"]


def _drop_seed(state: HostState) -> None:
    for name in [name for name in state.tensors if ".seed." in name]:
        del state.tensors[name]


def _add_weight(state: HostState) -> None:
    state.tensors["model/tail.weight"] = torch.zeros(1)


def _widen_moment(state: HostState) -> None:
    state.tensors["optimizer/exp_avg/head.weight"] = torch.zeros(3, 1)


def _drop_fact(state: HostState) -> None:
    del state.facts["losses"]


def _shorten_losses(state: HostState) -> None:
    state.facts["losses"] = state.facts["losses"][:3]


def _rename_slot(state: HostState) -> None:
    state.facts["lives"]["blocks.9"] = state.facts["lives"].pop("blocks.1")


CHANGES: list[tuple[Callable[[HostState], None], str]] = [
    (_drop_weight, r"host has a tensor head\.weight, but the state"),
    (_drop_seed, r"host has a tensor blocks\.0\.seed\."),
    (_add_weight, r"state has a tensor tail\.weight"),
    (_widen_moment, r"exp_avg \[3, 1\] of head\.weight"),
    (_drop_fact, "host 0 .*losses"),
    (_shorten_losses, "host 0 has 3 loss statistics"),
    (_rename_slot, r"slots .*blocks\.0, blocks\.9.*blocks\.0, blocks\.1"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
@pytest.mark.parametrize("form", FORMS)
def test_missing_and_extra_parts_of_a_state_are_rejected_by_name(
    form: Make, change: Callable[[HostState], None], message: str
) -> None:
    population = grown(form)
    state = deepcopy(population.get_state(0))
    population.train_epoch()
    before, stages = population.state_dict(), population.slot_arrays().stage.copy()
    change(state)
    with pytest.raises(ConfigError, match=message):
        population.set_state(0, state)
    assert_untouched(population, before, stages)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_cannot_be_loaded_into_an_unknown_host(form: Make) -> None:
    population = grown(form)
    for host in (-1, 2):
        with pytest.raises(ConfigError, match=f"there is no host {host}"):
            population.set_state(host, population.get_state(0))
