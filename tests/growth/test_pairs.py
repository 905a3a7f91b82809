"""Units can be added between layers, found by running the model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.errors import SlotError
from esper.growth.pairs import PairFinder
from tests.growth.helpers import hooks_of, same_bits, same_state, state_of
from tests.growth.pair_models import CASES, GROWABLE, VECTORS, build, flat_mlp


@pytest.mark.parametrize("name", CASES)
def test_the_pairs_of_the_usual_models_are_found(name: str) -> None:
    model, x = build(name).train(), CASES[name].sample(0)
    before = state_of(model)
    assert tuple(PairFinder(model, x).find_all()) == CASES[name].pairs
    assert same_state(state_of(model), before)
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("name", "pair"), [(name, pair) for name, case in CASES.items() for pair in case.refused]
)
def test_what_is_no_pair_is_refused_with_its_reason(name: str, pair: str) -> None:
    model = build(name)
    with pytest.raises(SlotError, match=CASES[name].refused[pair]) as caught:
        esper.add_slots(model, [pair], CASES[name].sample(0))
    assert repr(pair) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any("esper" in type(module).__module__ for module in model.modules())


@pytest.mark.parametrize(
    ("at", "pattern"),
    [
        (["0>"], "'0>'.*'producer>consumer'"),
        ([">2"], "'>2'"),
        (["0>2>4"], "'0>2>4'"),
        (["0>2+"], r"'0>2\+'"),
        (["0>9"], "no submodule '9'.*'0>9'"),
        (["zero>2"], "no submodule 'zero'"),
        (["0>4"], "'0>4' is not a pair.* '2'; write '0>2'"),
        (["0>2+4"], r"'0>2\+4' is not a pair.* '2'; write '0>2'"),
        (["1>2"], "'1>2'.* ReLU"),
        (["0>2", "0>2"], "'0>2' twice"),
        (["0>2", "0"], "'0>2' and '0'"),
        (["1", "0>2"], "'1' and '0>2'"),
        (["2", "0>2"], "'2' and '0>2'"),
    ],
)
def test_bad_names_are_one_clear_line(at: list[str], pattern: str) -> None:
    with pytest.raises(SlotError, match=pattern) as caught:
        esper.add_slots(flat_mlp(), at, VECTORS(0))
    assert "\n" not in str(caught.value)


def test_a_misspelt_layer_gets_a_suggestion() -> None:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(5, 4))
    model.add_module("second", nn.Linear(4, 3))
    with pytest.raises(SlotError, match=r"'frst'.*Did you mean 'first'"):
        esper.add_slots(model, ["frst>second"], VECTORS(0))


class Grouped(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 2)
        )


def test_layers_with_groups_are_refused() -> None:
    with pytest.raises(SlotError, match=r"'1'.* 2 groups"):
        esper.add_slots(Grouped(), ["1>3"], torch.randn(2, 1, 8, 8))
    with pytest.raises(SlotError, match=r"'1' \(Conv2d\)"):
        esper.add_slots(Grouped(), ["0>1"], torch.randn(2, 1, 8, 8))


class GroupNormed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 2))


def test_norms_across_units_are_refused() -> None:
    with pytest.raises(SlotError, match=r"'1' \(GroupNorm\), which normalizes across units"):
        esper.add_slots(GroupNormed(), ["0>3"], torch.randn(2, 1, 8, 8))


class Reshaped(nn.Module):
    """Reads the output of a linear layer as channels of four positions each."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.conv = nn.Linear(5, 12), nn.Conv1d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.full(x).view(-1, 3, 4))


def test_a_consumer_that_reads_several_units_as_one_is_refused() -> None:
    with pytest.raises(SlotError, match="'conv' does not read the units of 'full' one by one"):
        esper.add_slots(Reshaped(), ["full>conv"], VECTORS(0))


def test_hooked_layers_are_refused() -> None:
    model = flat_mlp()
    model[2].register_forward_hook(lambda *_: None)
    with pytest.raises(SlotError, match="'2' has hooks"):
        esper.add_slots(model, ["0>2"], VECTORS(0))


@pytest.mark.parametrize("name", GROWABLE)
def test_empty_slots_on_pairs_are_not_in_the_model(name: str) -> None:
    model, x = build(name), CASES[name].sample(1)
    plain = copy.deepcopy(model)
    esper.add_slots(model, list(CASES[name].pairs), CASES[name].sample(0))
    assert list(state_of(model)) == list(state_of(plain))
    assert same_bits(model(x), plain(x))
    assert not any("esper" in type(module).__module__ for module in model.modules())


@pytest.mark.parametrize("name", ["0 > 2", "0->2", "0=>2", " 0>2"])
def test_a_pair_written_in_another_way_is_named_as_it_should_be(name: str) -> None:
    with pytest.raises(SlotError, match=r"names no pair of layers; write '0>2'"):
        esper.add_slots(flat_mlp(), at=[name], sample_input=VECTORS(0))
