"""Deepening inserts blocks that start without effect and train from there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import esper
from esper.errors import SurgeryError
from esper.growth.surgery.places import BlockIdentity, BlockList
from tests.growth.surgery.networks import Encoder, EncoderBlock, Gated, ResNet


def names(model: nn.Module) -> list[str]:
    return list(model.state_dict())


@pytest.mark.parametrize("is_post", [False, True])
@pytest.mark.parametrize("by", [1, 2, 3, 7])
def test_a_deeper_model_computes_the_same_and_has_the_names_of_the_deeper_class(
    by: int, is_post: bool
) -> None:
    torch.manual_seed(0)
    model = Encoder(3, is_post=is_post).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(4, 7, 5, dtype=torch.float64)
    before = model(x)
    change = esper.deepen(model, by, sample_input=x[:2])
    tolerance = 1e-6 if is_post else 1e-12  # a norm's epsilon makes it not quite exact
    assert torch.allclose(model(x), before, rtol=0.0, atol=tolerance)
    assert names(model) == names(Encoder(3 + by))
    assert model.depth == 3 + by
    assert [block.layer_idx for block in model.blocks] == list(range(3 + by))
    (row,) = change.places
    assert (row.place, row.before, row.after, row.unit) == ("blocks.*", 3, 3 + by, "blocks")
    deeper = sum(p.numel() for p in Encoder(3 + by).parameters())
    assert (
        change.n_new == row.parameters == deeper - sum(p.numel() for p in Encoder(3).parameters())
    )


def test_new_blocks_learn_at_once() -> None:
    torch.manual_seed(0)
    model, x = Encoder(2), torch.randn(4, 7, 5)
    change = esper.deepen(model, 1, sample_input=x)
    optimizer = torch.optim.SGD(change.new_parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in change.new_parameters())
    assert change.new_names() == [
        n for n, _ in model.named_parameters() if n.startswith("blocks.2.")
    ]


def test_a_resnet_is_deepened_in_every_stage() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    model = ResNet().eval()
    before = model(x)
    change = esper.deepen(model, 1, sample_input=x)
    assert [row.place for row in change.places] == ["first.*", "second.*"]
    assert torch.allclose(model(x), before, atol=1e-6)
    assert names(model) == names(ResNet(depth=3))


def test_a_target_and_a_list_can_be_given() -> None:
    model, x = ResNet(), torch.randn(2, 3, 8, 8)
    esper.deepen(model, to=4, at="second", sample_input=x)
    assert (len(model.first), len(model.second)) == (2, 4)


@given(length=st.integers(1, 12), n_new=st.integers(1, 20), data=st.data())
def test_copies_are_spread_over_the_blocks_that_can_be_copied(
    length: int, n_new: int, data: st.DataObject
) -> None:
    able = data.draw(st.sets(st.integers(0, length - 1), min_size=1))
    identity = BlockIdentity(zeroed=("last",))
    identities = tuple(identity if index in able else None for index in range(length))
    blocks = BlockList("b.*", "b", identities, is_stack=False)
    order = blocks.spread(n_new)
    assert len(order) == length + n_new
    assert sorted(set(order)) == list(range(length))
    assert list(order) == sorted(order)
    counts = [order.count(index) - 1 for index in range(length)]
    assert all(count == 0 for index, count in enumerate(counts) if index not in able)
    used = [counts[index] for index in able]
    assert max(used) - min(used) <= 1


def test_blocks_that_take_turns_are_copied_in_pairs() -> None:
    blocks = BlockList("b.*", "b", (BlockIdentity(zeroed=("last",)),) * 4, is_stack=True)
    assert blocks.spread(2, period=2) == (0, 1, 2, 3, 2, 3)
    assert blocks.spread(4, period=2) == (0, 1, 0, 1, 2, 3, 2, 3)
    assert blocks.spread(3, period=2) == (0, 1, 2, 3)


def test_copies_with_the_weights_of_their_originals_change_the_outputs() -> None:
    torch.manual_seed(0)
    model, x = Encoder(2), torch.randn(2, 7, 5)
    change = esper.deepen(model, 2, sample_input=x, start="copy")
    assert change.difference > 1e-3
    pairs = zip(model.blocks[0].parameters(), model.blocks[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_new_parameters_join_the_groups_of_their_originals() -> None:
    model, x = Encoder(2), torch.randn(2, 7, 5)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
    )
    model(x).sum().backward()
    optimizer.step()
    state = {id(p): values for p, values in optimizer.state.items()}
    change = esper.deepen(model, 1, sample_input=x, optimizer=optimizer)
    for group, is_matrix in zip(optimizer.param_groups, (True, False), strict=True):
        own = {id(p) for p in model.parameters() if (p.ndim > 1) == is_matrix}
        assert {id(p) for p in group["params"]} == own
    assert {id(p) for p in optimizer.state} == set(state)
    change.undo()
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == set(state)


def test_an_optimizer_saved_after_deepening_fits_the_deeper_class() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 7, 5)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    model = Encoder(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step(model, optimizer)
    esper.deepen(model, 3, sample_input=x, optimizer=optimizer)
    step(model, optimizer)
    twin = Encoder(6)
    twin.load_state_dict(model.state_dict())
    resumed = torch.optim.Adam(twin.parameters(), lr=0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(twin, resumed)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_a_moving_average_is_deepened_too_and_undone() -> None:
    torch.manual_seed(0)
    model, x = Encoder(2, is_post=True), torch.randn(2, 7, 5)
    average = torch.optim.swa_utils.AveragedModel(model)
    before, tensors = average(x), copy.deepcopy(model.state_dict())
    change = esper.deepen(model, 2, sample_input=x, ema=average)
    assert torch.allclose(average(x), before, atol=1e-5)
    average.update_parameters(model)
    change.undo()
    assert len(model.blocks) == len(average.module.blocks) == model.depth == 2
    assert all(torch.equal(tensors[name], t) for name, t in model.state_dict().items())


def test_depth_and_width_can_grow_one_after_the_other() -> None:
    torch.manual_seed(0)
    model, x = Encoder(2), torch.randn(2, 7, 5)
    before = model(x)
    esper.deepen(model, 2, sample_input=x)
    esper.widen(model, 2.0, sample_input=x)
    assert torch.allclose(model(x), before, atol=1e-6)
    wider = {name: t.shape for name, t in Encoder(4, 16).state_dict().items()}
    assert {name: t.shape for name, t in model.state_dict().items()} == wider


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "by"),
        ({"by": 1, "to": 4}, "by"),
        ({"by": 0}, "by is 0"),
        ({"by": 1.5}, "by is 1.5"),
        ({"to": 2}, r"to is 2.*blocks\.\*.*2 blocks"),
        ({"by": 1, "start": "random"}, "'random'"),
        ({"by": 1, "at": "head"}, r"'head'.*blocks\.\*"),
        ({"by": 1, "sample_input": None}, "sample_input"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], named: str) -> None:
    model = Encoder(2)
    with pytest.raises(SurgeryError, match=named):
        esper.deepen(model, **{"sample_input": torch.randn(2, 7, 5), **options})
    assert len(model.blocks) == 2


def test_a_model_without_residual_blocks_says_why() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.ReLU()) for _ in range(3)))
    with pytest.raises(SurgeryError, match=r"nothing.*identity"):
        esper.deepen(model, 1, sample_input=torch.randn(2, 5))
    assert len(model) == 3


def test_a_model_without_lists_says_so() -> None:
    with pytest.raises(SurgeryError, match=r"nothing.*nn\.ModuleList"):
        esper.deepen(Gated(4), 1, sample_input=torch.randn(2, 5))


def test_layers_between_blocks_do_not_count_as_blocks() -> None:
    blocks = [EncoderBlock(k, 8, is_post=False) for k in range(2)]
    model = nn.Sequential(nn.Linear(5, 6), *blocks, nn.ReLU(), nn.Linear(6, 3))
    change = esper.deepen(model, to=4, sample_input=torch.randn(2, 7, 5))
    assert [type(each) for each in model] == [nn.Linear, *[EncoderBlock] * 4, nn.ReLU, nn.Linear]
    (row,) = change.places
    assert (row.before, row.after) == (2, 4)
    with pytest.raises(SurgeryError, match="has 4 blocks"):
        esper.deepen(model, to=4, sample_input=torch.randn(2, 7, 5))


class EndsInRelu(nn.Module):
    """A block whose branch ends in an activation without a gradient at zero."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layer, self.activation = nn.Linear(6, 6), activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.activation(self.layer(x))


def test_blocks_whose_copies_would_never_learn_are_refused() -> None:
    flat = nn.Sequential(*(EndsInRelu(nn.ReLU()) for _ in range(2)))
    with pytest.raises(SurgeryError, match="no gradient would reach"):
        esper.deepen(flat, by=1, sample_input=torch.randn(3, 6))
    model = nn.Sequential(*(EndsInRelu(nn.Tanh()) for _ in range(2)))
    change = esper.deepen(model, by=1, sample_input=torch.randn(3, 6))
    model(torch.randn(3, 6)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in change.new_parameters())
