"""A copy of a user's model gets slots; the model itself does not change."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import esper
from esper.errors import SlotError, UnsupportedHostError
from esper.growing.slots import choose_slots, copy_model, place_slots
from esper.growth.placement import SlotProposals, find_slots
from tests.growing.own_models import CNN, MLP, Transformer
from tests.growth.place_models import CASES, build

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def with_slots(
    model: nn.Module, at: list[str] | None, sample: torch.Tensor, *, for_depth: bool = False
) -> nn.Module:
    """Return a copy of a model with slots."""
    twin = copy_model(model)
    place_slots(twin, at, sample, for_depth=for_depth)
    return twin


def flat_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (MLP(1), ["blocks.0.first>blocks.0.second", "blocks.*"]),
        (MLP(12), ["blocks.*.first>second", "blocks.*"]),
        (
            CNN(),
            ["stem>early.0", "early.0>early.3", "early.3>late.0", "late.0>late.3", "late.3>head"],
        ),
        (Transformer(), ["encoder.layers.*.linear1>linear2", "encoder.layers.*"]),
        (flat_mlp(), ["1>3"]),
    ],
    ids=["1", "12", "cnn", "transformer", "layers"],
)
def test_what_a_model_can_grow_of_its_own_gets_slots(model: nn.Module, names: list[str]) -> None:
    twin = with_slots(model, None, IMAGES)
    assert list(esper.slots(twin)) == names
    assert torch.equal(twin.eval()(IMAGES), model.eval()(IMAGES))


def test_residual_streams_are_not_chosen() -> None:
    proposals = find_slots(build("resnet"), IMAGES)
    streams = [each.name for each in proposals if each.is_stream]
    assert [name.partition(">")[0] for name in streams] == [
        "stem+layers.0.conv2",
        "layers.1.conv2",
    ]
    units = {name for name in choose_slots(proposals) if ">" in name}
    assert units == set(CASES["resnet"].places) - set(streams)
    assert tuple(choose_slots(find_slots(build("vgg"), IMAGES))) == CASES["vgg"].places


def test_a_model_whose_own_layers_cannot_grow_gets_slots_beside_its_outer_blocks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 10), nn.Softmax(-1)))
    twin = with_slots(model, None, IMAGES)
    assert {name: slot.site.what for name, slot in esper.slots(twin).items()} == {"1": "module"}


def deep(n_blocks: int) -> nn.Module:
    """Blocks of growing size, so that later ones have more parameters."""
    widths = [6 + index for index in range(n_blocks + 1)]
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, widths[0]),
        *(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)),
    )


@pytest.mark.parametrize("n_blocks", [3, 20])
def test_at_most_12_places_are_chosen_the_largest_first(n_blocks: int) -> None:
    proposals = find_slots(deep(n_blocks), IMAGES)
    chosen = choose_slots(proposals)
    units = [proposal for proposal in proposals if proposal.site.what == "units"]
    assert len(units) == n_blocks
    best = sorted(units, key=lambda each: -each.parameters)[:12]
    assert chosen == [name for name in proposals.names if name in {each.name for each in best}]
    esper.add_slots(deep(n_blocks), chosen, IMAGES)


def test_nothing_is_chosen_from_no_proposals() -> None:
    assert choose_slots(SlotProposals()) == []


def test_the_slots_of_the_model_are_used() -> None:
    model = esper.add_slots(MLP(3), ["blocks.1"], IMAGES)
    model(IMAGES).sum().backward()
    twin = with_slots(model, None, IMAGES)
    assert list(esper.slots(twin)) == ["blocks.1"]
    assert esper.slots(twin) is not esper.slots(model)
    assert all(parameter.grad is None for parameter in twin.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_named_blocks_get_slots() -> None:
    model = MLP(3)
    assert list(esper.slots(with_slots(model, ["blocks.2", "stem"], IMAGES))) == [
        "blocks.2",
        "stem",
    ]
    with pytest.raises(SlotError, match="has no slots"):
        esper.slots(model)


def test_models_that_cannot_grow_are_rejected_on_one_line() -> None:
    slotted = esper.add_slots(MLP(2), ["blocks.1"], IMAGES)
    with pytest.raises(SlotError, match=r"slots \(blocks\.1\)"):
        with_slots(slotted, ["blocks.0"], IMAGES)
    esper.slots(slotted).germinate("blocks.1", "mlp_small")
    with pytest.raises(SlotError, match=r"'blocks\.1' is in use"):
        with_slots(slotted, None, IMAGES)
    with pytest.raises(SlotError, match="Flatten"):
        with_slots(nn.Flatten(), None, IMAGES)
    with pytest.raises(SlotError, match="'block'"):
        with_slots(MLP(1), ["block"], IMAGES)
    model = MLP(1)
    model.cache = model.stem.weight * 2  # type: ignore[assignment]
    with pytest.raises(UnsupportedHostError, match="MLP cannot be copied"):
        copy_model(model)


def test_depth_alone_takes_the_lists_of_residual_blocks() -> None:
    twin = with_slots(MLP(3), None, IMAGES, for_depth=True)
    assert list(esper.slots(twin)) == ["blocks.*"]
    with pytest.raises(SlotError, match="Sequential"):
        with_slots(flat_mlp(), None, IMAGES, for_depth=True)
