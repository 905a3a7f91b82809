"""Only what is new trains if the rest is frozen, until that is lifted."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import esper
from esper.errors import SurgeryError
from tests.growth.surgery.networks import Encoder, Gated

X = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(0))


def train(model: nn.Module, x: Tensor = X) -> None:
    """Train what can be with everything that could change a frozen entry."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("is_wider_first", [True, False])
def test_two_changes_without_training_between_them_have_new_parts_together(
    is_wider_first: bool,
) -> None:
    torch.manual_seed(0)
    model = Encoder(2, width=4)
    before = state(model)
    for is_widening in (is_wider_first, not is_wider_first):
        if is_widening:
            change = esper.widen(model, 2.0, sample_input=X, at="blocks")
        else:
            change = esper.deepen(model, by=1, sample_input=X)
    change.freeze_old()
    train(model)
    after = state(model)
    for name, old in before.items():
        rows = tuple(slice(0, n) for n in old.shape)
        assert torch.equal(after[name][rows], old), name
    # The new block stands at the end; zeros of what starts without effect have gone.
    assert all(after[name].abs().min() > 0 for name in change.new_names() if "norm" not in name)
    new_block = {name for name in after if name.startswith("blocks.2.")}
    assert set(change.new_names()) == new_block | change.new_entries().keys()
    assert change.new_entries() == {
        f"blocks.{k}.mlp.{name}": entries
        for k in range(2)
        for name, entries in (
            ("0.weight", {0: [(4, 8)]}),
            ("0.bias", {0: [(4, 8)]}),
            ("2.weight", {1: [(4, 8)]}),
        )
    }


def test_entries_of_a_place_that_is_widened_twice_are_all_new() -> None:
    model = Encoder(2, width=4)
    esper.widen(model, 2.0, sample_input=X, at="blocks.0.mlp")
    change = esper.widen(model, 1.5, sample_input=X, at="blocks.0.mlp")
    assert change.new_entries()["blocks.0.mlp.2.weight"] == {1: [(4, 12)]}


def test_what_was_trained_since_an_earlier_change_is_old() -> None:
    torch.manual_seed(0)
    model = Encoder(2, width=4)
    esper.widen(model, 2.0, sample_input=X, at="blocks.*.mlp")
    train(model)
    before = state(model)
    change = esper.deepen(model, by=1, sample_input=X)
    change.freeze_old()
    train(model)
    after = state(model)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(name.startswith("blocks.2.") for name in change.new_names())


def test_an_earlier_change_cannot_freeze_what_a_later_one_has_changed() -> None:
    model = Gated(4)
    first = esper.widen(model, 2.0, sample_input=X[0])
    second = esper.widen(model, 2.0, sample_input=X[0])
    with pytest.raises(SurgeryError, match="last change"):
        first.freeze_old()
    second.undo()
    first.freeze_old()


def test_gradients_and_momentum_from_before_leave_what_is_frozen_as_it_is() -> None:
    torch.manual_seed(0)
    model = Encoder(2, width=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(X).square().mean().backward()
    optimizer.step()
    change = esper.deepen(model, by=1, sample_input=X, optimizer=optimizer)
    change.freeze_old()
    before = state(model)
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
    changed = {name for name, old in before.items() if not torch.equal(state(model)[name], old)}
    assert changed <= set(change.new_names()) != set()


def test_freezing_can_be_lifted() -> None:
    torch.manual_seed(0)
    model = Gated(4)
    model.down.bias.requires_grad_(False)
    change = esper.widen(model, 2.0, sample_input=X[0])
    n_hooks = len(_global_optimizer_post_hooks)
    change.freeze_old()
    change.freeze_old()
    assert len(_global_optimizer_post_hooks) == n_hooks + 1
    before = state(model)
    change.unfreeze_old()
    change.unfreeze_old()
    assert len(_global_optimizer_post_hooks) == n_hooks
    assert not model.down.bias.requires_grad
    train(model, X[0])
    for name, tensor in state(model).items():
        assert torch.equal(tensor, before[name]) == (name == "down.bias"), name


def test_a_frozen_model_is_freed() -> None:
    gc.collect()
    n_hooks = len(_global_optimizer_post_hooks)
    model = Gated(4)
    esper.widen(model, 2.0, sample_input=X[0]).freeze_old()
    train(model, X[0])
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert len(_global_optimizer_post_hooks) == n_hooks
