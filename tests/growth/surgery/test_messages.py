"""What a change says about itself, and what is said if a model cannot be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.errors import ConfigError, EsperError, SurgeryError
from tests.growth.surgery.networks import Encoder, mlp

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(0))
LOST = "No optimizer was given: one made before does not train what has changed."


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.att, self.head = nn.MultiheadAttention(5, 1, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.att(x, x, x)[0])


class Heads(nn.Module):
    """Attention that takes as many heads of two entries as its projections have."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(5 if k < 3 else 4, 4) for k in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], -1, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(heads.transpose(1, 2).flatten(2))


def change_both_ways(optimizers: Callable[[nn.Module], Any]) -> list[esper.Change]:
    model = Encoder(2, 4)
    optimizer = optimizers(model)
    return [
        esper.widen(model, 2.0, sample_input=SEQUENCES, at="blocks", optimizer=optimizer),
        esper.deepen(model, 1, sample_input=SEQUENCES, optimizer=optimizer),
    ]


def test_a_change_without_the_optimizer_says_what_one_made_before_does() -> None:
    for change in change_both_ways(lambda _: None):
        assert repr(change).splitlines()[-1] == LOST
        assert LOST in change._repr_html_()
    change.undo()
    assert LOST not in repr(change)


def test_a_change_with_the_optimizer_does_not() -> None:
    for change in change_both_ways(lambda model: torch.optim.SGD(model.parameters(), 0.1)):
        assert LOST not in repr(change)
        assert LOST not in change._repr_html_()


def test_what_is_said_of_an_optimizer_made_before_is_true() -> None:
    model = mlp(4).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    esper.widen(model, 2.0, sample_input=X)
    before = model[0].weight.detach().clone()
    model(X).square().mean().backward()
    optimizer.step()
    assert torch.equal(model[0].weight, before)


def test_new_parts_of_frozen_layers_are_noted_and_freeze_old_trains_them() -> None:
    model = mlp(4)
    change = esper.widen(model, 2.0, sample_input=X)
    assert change.notes == ()
    change.undo()
    model.requires_grad_(False)
    change = esper.widen(model, 2.0, sample_input=X)
    (note,) = change.notes
    assert note == (
        "New parts of 0.weight, 0.bias and 4 more do not train, because their layers are frozen; "
        "change.freeze_old() trains all that is new, and only that."
    )
    assert note in repr(change)
    change.freeze_old()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {*change.new_names()}
    assert trained == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "3.weight"}


def test_states_that_cannot_be_carried_are_noted_with_their_optimizer() -> None:
    model = mlp(4)
    matrices = torch.optim.Adafactor([p for p in model.parameters() if p.ndim == 2])
    vectors = torch.optim.Adam([p for p in model.parameters() if p.ndim < 2])
    model(X).square().mean().backward()
    matrices.step()
    vectors.step()
    change = esper.widen(model, 2.0, sample_input=X, optimizer=[matrices, vectors])
    (note,) = change.notes
    assert note.startswith("Adafactor starts anew for 0.weight, 3.weight,")
    assert note in repr(change)
    assert not matrices.state[model[0].weight]
    assert vectors.state[model[0].bias]["exp_avg"].shape == model[0].bias.shape


def test_states_that_are_carried_are_not_noted() -> None:
    model = mlp(4)
    for optimizer in (
        torch.optim.Adafactor(model.parameters()),
        torch.optim.Adam(model.parameters()),
    ):
        change = esper.widen(model, 2.0, sample_input=X, optimizer=optimizer)
        assert change.notes == ()  # there is no state yet
        model(X).square().mean().backward()
        optimizer.step()
    change = esper.widen(model, 2.0, sample_input=X, optimizer=optimizer)
    assert change.notes == ()


def test_an_undone_change_freezes_nothing() -> None:
    model = mlp(4)
    change = esper.widen(model, 2.0, sample_input=X)
    change.undo()
    with pytest.raises(SurgeryError, match="has been undone"):
        change.freeze_old()
    change.unfreeze_old()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_added_heads_are_noted_for_classes_that_derive_their_size() -> None:
    change = esper.widen(Heads(), 2.0, sample_input=SEQUENCES)
    assert change.places[0].unit == "heads"
    assert "name the MLPs in at=" in change.notes[0]


@pytest.mark.parametrize(
    ("layer", "x"),
    [(nn.LSTM(5, 5), SEQUENCES), (nn.Linear(5, 5), X), (nn.Embedding(9, 5), torch.arange(4))],
)
def test_a_bare_layer_is_called_one(layer: nn.Module, x: Tensor) -> None:
    name = type(layer).__name__
    with pytest.raises(SurgeryError, match=rf"it is a single layer, nn\.{name}, .*; wrap it"):
        esper.widen(layer, 2.0, sample_input=x)


@pytest.mark.parametrize("at", [None, "att", "att.out_proj"])
def test_multihead_attention_keeps_its_heads(at: str | None) -> None:
    model = nn.Sequential(Attending(), nn.Linear(3, 4), nn.Linear(4, 3))
    names = None if at is None else f"0.{at}"
    with pytest.raises(SurgeryError, match="MultiheadAttention keeps the heads") as raised:
        esper.widen(model if at else model[0], 2.0, sample_input=SEQUENCES, at=names)
    assert "called 0 times" not in str(raised.value)


ARRAY = "it has a numpy array; give a tensor"
TARGETS = "it has 2 arguments, but forward takes 1; give only the inputs, without targets"


@pytest.mark.parametrize("look", [lambda m, x: esper.widen(m, sample_input=x), esper.find_slots])
@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (X.numpy(), ARRAY),
        ({"input": X.numpy()}, ARRAY),
        ((X, np.zeros(4)), ARRAY),
        ((X, torch.zeros(4)), TARGETS),
        ([X, torch.zeros(4)], TARGETS),
        ({"x": X}, "unexpected keyword argument"),
        (X[:, :2], "cannot be multiplied"),
        (3, "must be Tensor, not int"),
    ],
)
def test_a_sample_that_does_not_run_is_explained(
    look: Callable[[nn.Module, Any], object], sample: Any, said: str
) -> None:
    with pytest.raises(EsperError, match=said):
        look(mlp(4), sample)


@pytest.mark.parametrize("function", ["widen", "deepen", "add_slots", "find_slots"])
def test_arguments_that_there_are_not_get_a_suggestion(function: str) -> None:
    with pytest.raises(ConfigError, match=rf"{function} has no argument 'sample'.*'sample_input'"):
        getattr(esper, function)(mlp(4), sample=X)


def test_a_size_for_which_there_is_no_memory_is_refused_before_any_work() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match=r"factor is 10000000000\.0.* memory"):
        esper.widen(model, 1e10, sample_input=torch.randn(2, 8))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("size", ["by", "to"])
def test_a_list_has_at_most_a_thousand_blocks(size: str) -> None:
    layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2)
    with pytest.raises(SurgeryError, match=rf"{size} is 99,999; layers.* has 2 blocks .* 1,000"):
        esper.deepen(model, **{size: 99_999}, sample_input=torch.randn(2, 4, 8))
    assert len(model.layers) == 2
