"""Widening leaves a model's function as it is and gives the shapes of the wider class."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import esper
from esper.errors import SurgeryError
from tests.growth.surgery.networks import (
    Attention,
    Encoder,
    Experts,
    FusedGate,
    Gated,
    HeadCounts,
    Joined,
    Mobile,
    Packed,
    PackedAttention,
    Recurrent,
    ResNet,
    mlp,
)

IMAGES = (4, 3, 8, 8)

NETWORKS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4, 5)),
    "gated": (Gated, (4, 5)),
    "fused gate": (FusedGate, (4, 5)),
    "lstm": (Recurrent, (4, 6, 5)),
    "gru in both directions": (lambda width: Recurrent(width, nn.GRU, both=True), (4, 6, 5)),
    "plain recurrent": (lambda width: Recurrent(width, nn.RNN), (4, 6, 5)),
    "residual stream": (ResNet, IMAGES),
    "depthwise": (Mobile, IMAGES),
    "encoder": (lambda width: Encoder(3, width), (4, 7, 5)),
}


def settle(model: nn.Module, x: Tensor) -> nn.Module:
    """Give a model statistics and weights that are not the initial ones."""
    for _ in range(2):
        model.train()(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_widened_model_computes_the_same_and_has_the_shapes_of_the_wider_class(name: str) -> None:
    build, size = NETWORKS[name]
    torch.manual_seed(0)
    x = torch.randn(size, dtype=torch.float64)
    model = settle(build(4).double(), x)
    before = model(x)
    change = esper.widen(model, 2.0, sample_input=x[:2])
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    assert shapes(model) == shapes(build(8))
    assert repr(model) == repr(build(8))
    assert change.difference < 1e-10
    assert change.n_new == sum(p.numel() for p in model.parameters()) - sum(
        p.numel() for p in build(4).parameters()
    )


@pytest.mark.parametrize("name", list(NETWORKS))
def test_new_units_learn_at_once(name: str) -> None:
    build, size = NETWORKS[name]
    torch.manual_seed(0)
    x = torch.randn(size)
    model = build(4)
    change = esper.widen(model, 1.5, sample_input=x)
    optimizer = torch.optim.SGD(change.new_parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    for parameter in change.new_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0.0


def test_units_that_are_concatenated_or_flattened_stay_at_their_place() -> None:
    torch.manual_seed(0)
    x = torch.randn(IMAGES, dtype=torch.float64)
    model = settle(Joined(4, 6).double(), x)
    before = model(x)
    esper.widen(model, 1.5, sample_input=x)
    assert shapes(model) == shapes(Joined(6, 9))
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("way", ["apart", "in a row", "head by head"])
@pytest.mark.parametrize(("n_heads", "n_shared"), [(2, 2), (3, 3), (4, 2), (6, 2)])
def test_attention_gets_more_heads(way: str, n_heads: int, n_shared: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 7, 6, dtype=torch.float64)
    model = settle(Attention(n_heads, n_shared, way).double(), x)
    before = model(x)
    change = esper.widen(model, 2.0, sample_input=x)
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    wider = Attention(2 * n_heads, 2 * n_shared, way)
    assert shapes(model) == shapes(wider)
    assert (model.n_heads, model.n_shared) == (wider.n_heads, wider.n_shared)
    (row,) = change.places
    assert (row.before, row.after, row.unit) == (n_heads, 2 * n_heads, "heads")
    with torch.no_grad():  # as long as the new heads are not read, they may hold anything
        model.get_parameter("out.weight")[:, n_heads * 4 :] = 0.1
    assert not torch.allclose(model(x), before, atol=1e-3)


class OneHead(nn.Module):
    """Attention with one head, whose keys may be wider than its values."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(6, 4) for _ in range(3))
        self.out = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.softmax(self.queries(x) @ self.keys(x).mT, -1) @ self.values(x)
        return self.out(y)


@pytest.mark.parametrize("n_positions", [1, 3])
def test_a_sample_of_equal_positions_does_not_pass_one_head_for_many(n_positions: int) -> None:
    torch.manual_seed(0)
    model, x = OneHead().double(), torch.randn(2, 5, 6, dtype=torch.float64)
    equal = torch.randn(2, 1, 6, dtype=torch.float64).expand(2, n_positions, 6)
    before = model(x)
    with pytest.raises(SurgeryError, match=r"queries: it writes attention heads, but"):
        esper.widen(model, 2.0, sample_input=equal, at="queries")
    with contextlib.suppress(SurgeryError):  # its values are plain units
        esper.widen(model, 2.0, sample_input=equal)
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)


def test_heads_are_found_although_all_positions_of_the_sample_are_equal() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 7, 6, dtype=torch.float64)
    model = Attention(2, 2, "apart").double()
    before = model(x)
    esper.widen(model, 2.0, sample_input=x[:, :1].expand(4, 7, 6))
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    assert shapes(model) == shapes(Attention(4, 4, "apart"))


@pytest.mark.parametrize("way", ["measured", "sinks"])
def test_heads_that_are_reshaped_by_their_size_become_more(way: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    model = Packed(way).double()
    before = model(x)
    esper.widen(model, 2.0, sample_input=x)
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    assert shapes(model) == shapes(Packed(way, 4))


@pytest.mark.parametrize("way", ["halves", "in turns", "two stacks"])
def test_stacked_experts_get_more_units(way: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8, dtype=torch.float64)
    model = nn.Sequential(*(Experts(way, 5).double() for _ in range(2)))
    before = model(x)
    change = esper.widen(model, 2.0, sample_input=x)
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    assert shapes(model) == shapes(nn.Sequential(Experts(way, 10), Experts(way, 10)))
    ((row),) = change.places
    assert (row.place, row.before, row.after, row.members) == ("*.mix", 5, 10, 2)
    model(x).square().sum().backward()
    for layer in model:
        new = layer.mix.down.grad[:, 5:]
        assert new.abs().min() > 0.0


def test_stacks_of_a_fixed_size_say_so() -> None:
    def fixed(mix: nn.Module, _: object) -> None:
        mix.get_parameter("down").view(3, 5, 8)

    model = Experts("halves", 5)
    model.mix.register_forward_pre_hook(fixed)
    with pytest.raises(SurgeryError, match=r"mix: its stacked weights"):
        esper.widen(model, 2.0, sample_input=torch.randn(2, 8), at="mix")


def test_heads_that_a_shared_configuration_counts_become_more_together() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    model = Packed("counted").double()
    before = model(x)
    change = esper.widen(model, 2.0, sample_input=x)
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    assert shapes(model) == shapes(Packed("counted", 4))
    assert model.config == HeadCounts(4)
    change.undo()
    assert model.config == HeadCounts(2)
    with pytest.raises(SurgeryError, match="cannot be widened"):
        esper.widen(model, 2.0, sample_input=x, at="blocks.1.qkv")
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("way", ["nanoGPT", "timm"])
def test_heads_whose_size_follows_from_the_width_say_why_there_cannot_be_more(way: str) -> None:
    x = torch.randn(2, 5, 8)
    for options in ({}, {"at": "blocks.1.qkv"}):
        with pytest.raises(SurgeryError, match=r"qkv: it writes attention heads, but .*fixed"):
            esper.widen(Packed(way), 2.0, sample_input=x, **options)
    last = nn.Sequential(PackedAttention(way, HeadCounts(2)))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), last)
    with pytest.raises(SurgeryError, match=r"3\.0\.qkv: it writes attention heads"):
        esper.widen(model, 2.0, sample_input=x, at="3")


def test_multihead_attention_says_why_it_cannot_get_more_heads() -> None:
    layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    with pytest.raises(SurgeryError, match=r"self_attn: nn\.MultiheadAttention keeps"):
        esper.widen(model, 2.0, sample_input=torch.randn(2, 4, 8), at="layers.1.self_attn")


def test_old_units_get_the_gradients_that_they_got_before() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(8, 5, dtype=torch.float64), torch.randint(0, 3, (8,))
    small = Gated(4).double()
    wide = copy.deepcopy(small)
    esper.widen(wide, 2.0, sample_input=x)
    for model in (small, wide):
        F.cross_entropy(model(x), target).backward()
    for name, parameter in small.named_parameters():
        rows = [slice(0, n) for n in parameter.shape]
        found = wide.get_parameter(name).grad
        assert found is not None
        assert torch.allclose(found[tuple(rows)], parameter.grad, atol=1e-12)


@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    factor=st.floats(1.05, 4.0),
    seed=st.integers(0, 10_000),
)
def test_any_mlp_computes_the_same_after_widening(
    widths: list[int], factor: float, seed: int
) -> None:
    torch.manual_seed(seed)
    sizes = [3, *widths, 2]
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out, bias=seed % 2 == 0), nn.Tanh()]
    model = nn.Sequential(*layers[:-1]).double()
    x = torch.randn(3, 3, dtype=torch.float64)
    before = model(x)
    change = esper.widen(model, factor, sample_input=x)
    assert torch.allclose(model(x), before, rtol=0.0, atol=1e-10)
    wider = [max(1, round(n * (factor - 1))) + n for n in widths]
    assert [place.after for place in change.places] == wider


def test_places_that_repeat_form_a_group() -> None:
    x = torch.randn(2, 7, 5)
    change = esper.widen(Encoder(3, 8), 2.0, sample_input=x)
    (row,) = change.places
    assert (row.place, row.before, row.after, row.members) == ("blocks.*.mlp", 8, 16, 3)


def test_single_places_and_modules_around_them_can_be_named() -> None:
    x = torch.randn(2, 7, 5)
    model = Encoder(3, 8)
    esper.widen(model, 2.0, sample_input=x, at="blocks.1.mlp")
    assert [block.mlp[0].out_features for block in model.blocks] == [8, 16, 8]
    net = ResNet()
    esper.widen(net, 2.0, sample_input=torch.randn(IMAGES), at=["first"])
    assert [block.conv1.out_channels for block in net.first] == [8, 8]
    assert [block.conv1.out_channels for block in net.second] == [8, 8]
    assert net.stem.out_channels == 4


@pytest.mark.parametrize(
    "make",
    [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad],
)
def test_an_optimizer_keeps_its_groups_and_its_state(make: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    model = mlp(4)
    options = {"momentum": 0.9} if make is torch.optim.SGD else {}
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = make(groups, lr=0.01, **options)
    model(x).square().mean().backward()
    optimizer.step()
    before = {
        name: {key: v for key, v in optimizer.state[p].items() if torch.is_tensor(v)}
        for name, p in model.named_parameters()
    }
    esper.widen(model, 2.0, sample_input=x, optimizer=optimizer)
    named = dict(model.named_parameters())
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [
        id(p) for p in named.values() if p.ndim > 1
    ]
    for name, states in before.items():
        for key, old in states.items():
            new = optimizer.state[named[name]][key]
            if old.numel() == 1 and named[name].numel() > 1:
                assert torch.equal(new, old)
                continue
            rows = tuple(slice(0, n) for n in old.shape)
            assert torch.equal(new[rows], old)
            assert new.count_nonzero() == old.count_nonzero()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_state_of_a_layer_of_one_unit_grows_with_it(make: Any) -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(5, 1), nn.Tanh(), nn.Linear(1, 1))
    options = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=0.01, **options)
    model(x).square().mean().backward()
    optimizer.step()
    old = {key: v.clone() for key, v in optimizer.state[model[0].bias].items() if v.ndim}
    esper.widen(model, 3.0, sample_input=x, optimizer=optimizer)
    for key, value in old.items():
        assert optimizer.state[model[0].bias][key].tolist() == [value.item(), 0.0, 0.0]
    model(x).square().mean().backward()
    optimizer.step()


def test_a_moving_average_gets_the_same_new_units() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    model = mlp(4).eval()
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.mul_(1.1)
    before = average(x)
    esper.widen(model, 2.0, sample_input=x, ema=average)
    assert torch.allclose(average(x), before, atol=1e-6)
    assert torch.equal(average.module[0].weight[4:], model[0].weight[4:])
    average.update_parameters(model)


def test_undo_restores_the_same_objects() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    model = mlp(4).eval()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    parameters, state = list(model.parameters()), copy.deepcopy(optimizer.state_dict())
    tensors, text = copy.deepcopy(model.state_dict()), repr(model)
    change = esper.widen(model, 2.0, sample_input=x, optimizer=optimizer, ema=average)
    change.undo()
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert repr(model) == text
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name])
    assert average.module[0].out_features == 4
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for key, values in state["state"].items():
        assert all(torch.equal(after["state"][key][name], v) for name, v in values.items())
    with pytest.raises(SurgeryError, match="undone"):
        change.undo()


def test_a_model_that_was_trained_further_is_not_undone() -> None:
    x = torch.randn(6, 5)
    model = mlp(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    change = esper.widen(model, 2.0, sample_input=x, optimizer=optimizer)
    model(x).sum().backward()
    optimizer.step()
    with pytest.raises(SurgeryError, match="trained"):
        change.undo()
    assert model[0].out_features == 8


def test_only_new_entries_train_if_the_old_ones_are_frozen() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    model = Gated(4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    change = esper.widen(model, 2.0, sample_input=x)
    change.freeze_old()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.5
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert not model.down.bias.requires_grad
    with pytest.raises(SurgeryError, match="trained"):
        change.undo()
    for name, old in before.items():
        rows = tuple(slice(0, n) for n in old.shape)
        assert torch.equal(model.get_parameter(name)[rows], old), name
    assert model.down.weight[:, 4:].abs().min() > 0.0


def test_undo_makes_frozen_parameters_trainable_again() -> None:
    model = Gated(4)
    change = esper.widen(model, 2.0, sample_input=torch.randn(2, 5))
    change.freeze_old()
    change.undo()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_table_says_what_grew() -> None:
    x = torch.randn(2, 5)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    change = esper.widen(model, 2.0, sample_input=x)
    lines = str(change).splitlines()
    assert lines[0].split() == ["place", "before", "after", "new", "parameters"]
    assert lines[1].split() == ["0>2", "8", "units", "16", "units", "72"]
    assert lines[2].startswith("75 parameters became 147; outputs on the sample ")
    assert change.new_names() == ["0.weight", "0.bias", "2.weight"]
    assert "<table" in change._repr_html_()


class Shared(nn.Module):
    """The same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(torch.relu(self.first(x)))))


class Normed(nn.Module):
    """A norm across units, in the model's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.layer_norm(self.first(x), (6,)))


class Fixed(nn.Module):
    """A size that stands in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).view(-1, 6))


class Noisy(nn.Module):
    """A random output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(self.first(x), 0.5))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (Shared(), "called 2 times"),
        (Normed(), "mixes units"),
        (Fixed(), "a size is fixed"),
        (Noisy(), "random"),
        (nn.Linear(5, 3), "nothing"),
        (nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)), "LayerNorm"),
    ],
)
def test_a_model_that_cannot_be_widened_says_why_and_stays_as_it_is(
    model: nn.Module, named: str
) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SurgeryError, match=named):
        esper.widen(model, 2.0, sample_input=torch.randn(2, 5))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_equal_blocks_become_wider_though_the_first_is_also_called_elsewhere() -> None:
    torch.manual_seed(0)
    model, x = Encoder(4), torch.randn(2, 5)
    first, head = model.blocks[0].mlp[0], model.head
    model.head = nn.Identity()
    model.register_forward_hook(lambda _, __, y: head(y + first(y).sum(-1, keepdim=True)))
    before = model(x)
    change = esper.widen(model, 2.0, sample_input=x, at="blocks")
    assert torch.allclose(model(x), before, atol=1e-6)
    assert [block.mlp[0].out_features for block in model.blocks] == [8, 16, 16, 16]
    assert [row.members for row in change.places] == [3]
    change.undo()
    with pytest.raises(SurgeryError, match="called 2 times"):
        esper.widen(model, 2.0, sample_input=x, at="blocks.0.mlp")


def test_tied_weights_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    model[2].weight = model[0].weight
    with pytest.raises(SurgeryError, match="tied"):
        esper.widen(model, 2.0, sample_input=torch.randn(2, 5))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"factor": 1.0}, "factor is 1"),
        ({"factor": "2"}, "factor is '2'"),
        ({"factor": float("nan")}, "factor is nan"),
        ({"sample_input": None}, "sample_input"),
        ({"sample_input": torch.randn(2, 4)}, "sample_input"),
        ({"sample_input": torch.empty(0, 5)}, r"sample_input has shape \[0, 5\]"),
        ({"sample_input": torch.full((2, 5), float("nan"))}, "NaN on this sample_input"),
        ({"at": "nowhere"}, "'nowhere'.*0>2"),
        ({"at": "1"}, "'1' cannot be widened. It computes no units.*0>2"),
        ({"at": ["0>3"]}, "0>2"),
        ({"at": []}, r"at is \[\].*0>2"),
        ({"at": nn.ReLU()}, r"at is ReLU.*0>2"),
        ({"optimizer": "adam"}, "optimizer is"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "SGD"),
        ({"ema": 3}, "ema is"),
        ({"generator": 3}, "generator is an int"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], named: str) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    values = {"factor": 2.0, "sample_input": torch.randn(2, 5), **options}
    with pytest.raises(SurgeryError, match=named):
        esper.widen(model, values.pop("factor"), **values)
    assert model[0].out_features == 8


def test_models_that_are_wrapped_sliced_or_empty_are_refused_in_a_line() -> None:
    x = torch.randn(2, 5)
    with pytest.raises(SurgeryError, match=r"nn\.Module"):
        esper.widen("model", 2.0, sample_input=x)  # pyright: ignore[reportArgumentType]
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))
    with pytest.raises(SurgeryError, match="meta"):
        esper.widen(empty, 2.0, sample_input=x)
    parallel = nn.DataParallel(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)))
    with pytest.raises(SurgeryError, match="DataParallel"):
        esper.widen(parallel, 2.0, sample_input=x)


def test_the_generator_decides_the_new_weights() -> None:
    x = torch.randn(2, 5)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = mlp(4)
        torch.manual_seed(len(found))
        esper.widen(model, 2.0, sample_input=x, generator=torch.Generator().manual_seed(3))
        found.append(model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_can_be_widened(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Gated(16).to(dtype), torch.randn(4, 5).to(dtype)
    before = model(x)
    esper.widen(model, 2.0, sample_input=x)
    assert model.gate.weight.dtype == dtype
    assert torch.allclose(model(x).float(), before.float(), atol=2e-2)


def test_frozen_layers_stay_frozen() -> None:
    model = Gated(4).requires_grad_(False)
    esper.widen(model, 2.0, sample_input=torch.randn(2, 5))
    assert not any(p.requires_grad for p in model.parameters())


class Sampled(nn.Module):
    """A random output that is often the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.multinomial(self.second(self.first(x)).softmax(-1), 1).float()


@pytest.mark.parametrize("seed", range(4))
def test_outputs_that_are_sampled_are_refused_even_if_they_agree_twice(seed: int) -> None:
    torch.manual_seed(seed)
    with pytest.raises(SurgeryError, match="random"):
        esper.widen(Sampled(), 2.0, sample_input=torch.randn(1, 5))


class Classes(nn.Module):
    """An output that says nothing about a small change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).argmax(-1)


def test_outputs_without_numbers_to_compare_are_refused() -> None:
    with pytest.raises(SurgeryError, match="Classes returns no floating-point tensor"):
        esper.widen(Classes(), 2.0, sample_input=torch.randn(1, 5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_models_are_refused_in_a_line() -> None:
    x = torch.randn(2, 5)
    dynamic = torch.ao.quantization.quantize_dynamic(mlp(4), {nn.Linear}, dtype=torch.qint8)
    integers = mlp(4)
    integers[0].weight = nn.Parameter(torch.ones(4, 5, dtype=torch.int8), requires_grad=False)
    for model, name in ((dynamic, "0"), (integers, "0.weight")):
        with pytest.raises(SurgeryError, match=f"{name} is quantized"):
            esper.widen(model, 2.0, sample_input=x)


def test_an_optimizer_that_keeps_its_parameters_is_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(SurgeryError, match="LBFGS"):
        esper.widen(
            model,
            2.0,
            sample_input=torch.randn(2, 5),
            optimizer=torch.optim.LBFGS(model.parameters()),
        )
    assert model[0].out_features == 8


def test_undo_goes_backwards() -> None:
    x = torch.randn(2, 5)
    model = mlp(4)
    first = esper.widen(model, 2.0, sample_input=x)
    second = esper.widen(model, 2.0, sample_input=x)
    with pytest.raises(SurgeryError, match="last change first"):
        first.undo()
    second.undo()
    first.undo()
    assert model[0].out_features == 4


def test_an_iterable_of_batches_is_no_sample() -> None:
    model = mlp(4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4, 5)))
    for sample in (loader, loader.dataset, iter(loader)):
        with pytest.raises(SurgeryError, match=f"sample_input is an? {type(sample).__name__}"):
            esper.widen(model, 2.0, sample_input=sample)  # pyright: ignore[reportArgumentType]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_refused_in_a_line() -> None:
    scripted = torch.jit.script(mlp(4))
    for model in (scripted, nn.Sequential(scripted)):
        with pytest.raises(SurgeryError, match="scripted"):
            esper.widen(model, 2.0, sample_input=torch.randn(2, 5))


def test_a_place_that_cannot_be_widened_says_why() -> None:
    model = nn.Sequential(mlp(4), *(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)) for _ in "12"))
    for name in ("1.0", "1"):
        with pytest.raises(SurgeryError, match=f"'{name}' cannot be widened. .*LayerNorm.*0.0>3"):
            esper.widen(model, 2.0, sample_input=torch.randn(2, 5), at=name)


def test_a_model_without_layers_says_what_it_lacks() -> None:
    with pytest.raises(SurgeryError, match="no linear"):
        esper.widen(nn.Sequential(nn.ReLU()), 2.0, sample_input=torch.randn(2, 5))


def test_what_a_user_wrote_on_a_parameter_stays_there() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight.lr_scale = 0.1
    esper.widen(model, 2.0, sample_input=torch.randn(2, 4))
    assert model[0].weight.lr_scale == 0.1
