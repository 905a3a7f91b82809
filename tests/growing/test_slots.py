"""A copy of a user's model gets slots; the model itself does not change."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.errors import SlotError, UnsupportedHostError
from esper.growing.slots import choose_slots, copy_model, copy_with_slots
from esper.growth.placement import SlotProposals, find_slots
from tests.growing.own_models import CNN, MLP, Transformer

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (MLP(1), ["blocks.0"]),
        (MLP(3), ["blocks.0", "blocks.1", "blocks.2"]),
        (MLP(12), [f"blocks.{i}" for i in range(12)]),
        (CNN(), ["early", "late"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), ["1", "3"]),
    ],
    ids=["1", "3", "12", "cnn", "layers"],
)
def test_the_innermost_blocks_get_slots(model: nn.Module, names: list[str]) -> None:
    twin = copy_with_slots(model, None, IMAGES)
    assert list(esper.slots(twin)) == names
    assert torch.equal(twin.eval()(IMAGES), model.eval()(IMAGES))


def test_a_transformer_can_grow_inside_its_layers() -> None:
    names = list(esper.slots(copy_with_slots(Transformer(), None, IMAGES)))
    assert names
    assert all(name.startswith("encoder.layers.") for name in names)


class Deep(nn.Module):
    """Blocks that can be widened by merging, among others that cannot."""

    def __init__(self, n_merging: int, n_others: int) -> None:
        super().__init__()
        two = [nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6)) for _ in range(n_merging)]
        one = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(n_others)]
        self.merging, self.others = nn.Sequential(*two), nn.Sequential(*one)

    def forward(self, x: Tensor) -> Tensor:
        return self.others(self.merging(x))


@pytest.mark.parametrize(("n_merging", "n_others"), [(3, 4), (12, 5), (20, 0), (5, 30), (0, 13)])
def test_at_most_12_places_are_chosen_and_merging_ones_first(n_merging: int, n_others: int) -> None:
    proposals = find_slots(Deep(n_merging, n_others), torch.randn(2, 6))
    chosen = choose_slots(proposals)
    n_chosen = min(12, n_merging + n_others)
    merging = [int(name.rpartition(".")[2]) for name in chosen if name.startswith("merging.")]
    others = [int(name.rpartition(".")[2]) for name in chosen if name.startswith("others.")]
    assert len(chosen) == len(set(chosen)) == n_chosen
    assert len(merging) == min(12, n_merging)
    for places, count in ((merging, n_merging), (others, n_others)):
        assert places == sorted(places)
        if len(places) > 1:  # from the first to the last, no gap more than one larger than another
            gaps = [b - a for a, b in pairwise(places)]
            assert (places[0], places[-1]) == (0, count - 1)
            assert max(gaps) - min(gaps) <= 1


def test_nothing_is_chosen_from_no_proposals() -> None:
    assert choose_slots(SlotProposals()) == []


def test_the_slots_of_the_model_are_used() -> None:
    model = esper.add_slots(MLP(3), ["blocks.1"], IMAGES)
    model(IMAGES).sum().backward()
    twin = copy_with_slots(model, None, IMAGES)
    assert list(esper.slots(twin)) == ["blocks.1"]
    assert esper.slots(twin) is not esper.slots(model)
    assert all(parameter.grad is None for parameter in twin.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_named_blocks_get_slots() -> None:
    model = MLP(3)
    assert list(esper.slots(copy_with_slots(model, ["blocks.2", "stem"], IMAGES))) == [
        "blocks.2",
        "stem",
    ]
    with pytest.raises(SlotError, match="has no slots"):
        esper.slots(model)


def test_models_that_cannot_grow_are_rejected_on_one_line() -> None:
    slotted = esper.add_slots(MLP(2), ["blocks.1"], IMAGES)
    with pytest.raises(SlotError, match=r"slots \(blocks\.1\)"):
        copy_with_slots(slotted, ["blocks.0"], IMAGES)
    esper.slots(slotted).germinate("blocks.1", "widen_small")
    with pytest.raises(SlotError, match=r"'blocks\.1' is in use"):
        copy_with_slots(slotted, None, IMAGES)
    with pytest.raises(SlotError, match="Flatten"):
        copy_with_slots(nn.Flatten(), None, IMAGES)
    with pytest.raises(SlotError, match="'block'"):
        copy_with_slots(MLP(1), ["block"], IMAGES)
    model = MLP(1)
    model.cache = model.stem.weight * 2  # type: ignore[assignment]
    with pytest.raises(UnsupportedHostError, match="MLP cannot be copied"):
        copy_model(model)
