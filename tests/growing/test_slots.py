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
from tests.growth.pair_models import CASES, build

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
        (MLP(1), ["blocks.0"]),
        (MLP(3), ["blocks.0", "blocks.1", "blocks.2"]),
        (MLP(12), [f"blocks.{i}" for i in range(12)]),
        (
            CNN(),
            ["stem>early.0", "early.0>early.3", "early.3>late.0", "late.0>late.3", "late.3>head"],
        ),
        (flat_mlp(), ["1>3"]),
    ],
    ids=["1", "3", "12", "cnn", "layers"],
)
def test_places_where_width_can_grow_get_slots(model: nn.Module, names: list[str]) -> None:
    twin = with_slots(model, None, IMAGES)
    assert list(esper.slots(twin)) == names
    assert torch.equal(twin.eval()(IMAGES), model.eval()(IMAGES))


def test_a_transformer_can_grow_in_and_beside_its_layers() -> None:
    names = list(esper.slots(with_slots(Transformer(), None, IMAGES)))
    layers = [f"encoder.layers.{i}" for i in range(2)]
    assert set(names) == {*layers, *(f"{layer}.linear1>{layer}.linear2" for layer in layers)}


def test_a_block_around_layers_that_can_be_widened_grows_deeper_alone() -> None:
    twin = with_slots(Transformer(), None, IMAGES)
    fits = esper.slots(twin).slot_config.fits
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        assert fits[layer] == {"deepen"}
        assert "widen_huge" in fits[f"{layer}.linear1>{layer}.linear2"]
    lines = dict(line.split(": dormant; ") for line in str(esper.slots(twin)).splitlines())
    assert lines["encoder.layers.0"] == "copies of the block grow behind it"
    with pytest.raises(SlotError, match="slots inside"):
        esper.slots(twin).germinate("encoder.layers.1", "widen_large")
    assert esper.slots(twin).germinate("encoder.layers.0", "deepen").was_done


def test_a_block_alone_can_be_widened_from_beside() -> None:
    named = with_slots(Transformer(), ["encoder.layers.0"], IMAGES)
    assert {"deepen", "widen_large"} <= esper.slots(named).slot_config.fits["encoder.layers.0"]


def test_neither_shortcuts_nor_norms_are_chosen() -> None:
    chosen = choose_slots(find_slots(build("resnet"), IMAGES))
    assert {name for name in chosen if ">" in name} == set(CASES["resnet"].pairs)
    assert {name for name in chosen if ">" not in name} == {f"layers.{i}" for i in range(3)}
    assert tuple(choose_slots(find_slots(build("vgg"), IMAGES))) == CASES["vgg"].pairs


def deep(n_blocks: int) -> nn.Module:
    """Blocks of growing size, so that later ones have a larger share of the model."""
    widths = [6 + index for index in range(n_blocks + 1)]
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, widths[0]),
        *(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)),
    )


@pytest.mark.parametrize("n_blocks", [3, 12, 20])
def test_at_most_12_places_are_chosen_by_rank(n_blocks: int) -> None:
    proposals = find_slots(deep(n_blocks), IMAGES)
    chosen = choose_slots(proposals)
    pairs = [proposal for proposal in proposals if proposal.site.pair is not None]
    assert len(pairs) == n_blocks
    best = sorted(pairs, key=lambda proposal: proposal.rank)[:12]
    assert {each.name for each in best} == set(chosen) & {each.name for each in pairs}
    assert chosen == [name for name in proposals.names if name in chosen]
    assert len(chosen) <= 12
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
    esper.slots(slotted).germinate("blocks.1", "widen_small")
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


class Encoder(nn.Module):
    """More pre-norm layers than there are slots; each has a pair, and can be copied."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
            for _ in range(n_layers)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def test_a_third_of_the_slots_is_for_depth_where_there_are_too_many_places() -> None:
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    proposals = find_slots(Encoder(7), x)
    chosen = choose_slots(proposals, 6)
    assert len(chosen) == 6
    assert sum(">" not in name for name in chosen) == 2
    few = choose_slots(find_slots(Encoder(2), x), 6)
    assert sum(">" in name for name in few) == sum(">" not in name for name in few) == 2


def test_depth_alone_takes_the_outer_residual_blocks() -> None:
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    twin = with_slots(Encoder(3), None, x, for_depth=True)
    assert list(esper.slots(twin)) == ["layers.0", "layers.1", "layers.2"]
    with pytest.raises(SlotError, match="Sequential"):
        with_slots(flat_mlp(), None, IMAGES, for_depth=True)
