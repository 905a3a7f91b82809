"""State dicts of growing models rebuild the structure, in models that know nothing of growth."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import esper
from esper.errors import GrowerError, SavedModelError
from esper.growth.export import require_plain
from esper.integrations import rebuild_on_load
from esper.integrations.grown_states import KEY, GrownState, find_grown

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def grown_net(*, is_blended: bool = True) -> Net:
    """Return a model with a seed on one block, blended in if wanted."""
    torch.manual_seed(1)
    model = Net()
    rebuild_on_load(model.body)
    esper.add_slots(model.body, at=["0"], sample_input=X)
    slots = esper.slots(model.body)
    blueprint = slots["0"].site and next(iter(slots.slot_config.fits["0"]))
    slots.germinate("0", blueprint, tempo_epochs=1)
    for parameter in slots["0"].seed_parameters():
        nn.init.normal_(parameter)
    if is_blended:
        for _ in range(8):
            if esper.slots(model.body)["0"].stage.name in ("GERMINATED", "TRAINING"):
                slots.advance("0")
            slots.tick()
    return model.eval()


def test_a_grown_state_is_loaded_into_a_model_of_the_original_design() -> None:
    model, fresh = grown_net(), Net().eval()
    state = model.state_dict()
    assert find_grown(state) == ["body"]
    rebuild_on_load(fresh.body)
    fresh.load_state_dict(state)
    assert torch.equal(fresh(X), model(X))
    assert not torch.equal(Net()(X), model(X))
    with pytest.raises(RuntimeError, match=KEY):
        Net().load_state_dict(state)


def test_a_state_replaces_another_structure_and_keeps_the_same_one() -> None:
    model, other = grown_net(), grown_net(is_blended=False)
    early, late = copy.deepcopy(other.state_dict()), copy.deepcopy(model.state_dict())
    seed = esper.slots(model.body)["0"].seed
    model.load_state_dict(late)
    assert esper.slots(model.body)["0"].seed is seed
    y = model(X)
    model.load_state_dict(early)
    assert torch.equal(model(X), other(X))
    model.load_state_dict(late)
    assert torch.equal(model(X), y)


def test_a_file_of_a_grown_state_needs_no_pickling() -> None:
    file = io.BytesIO()
    torch.save(grown_net().state_dict(), file)
    file.seek(0)
    fresh = Net()
    rebuild_on_load(fresh.body)
    fresh.load_state_dict(torch.load(file, weights_only=True))


def test_while_a_grower_is_awaited_the_model_stays_without_seeds() -> None:
    model, fresh = grown_net(), Net()
    state = GrownState(fresh.body)
    state.is_waiting = True
    names, parameters = list(fresh.state_dict()), list(fresh.parameters())
    fresh.load_state_dict(model.state_dict())
    assert list(fresh.state_dict()) == names
    assert all(a is b for a, b in zip(fresh.parameters(), parameters, strict=True))
    assert torch.equal(state.take_weights()["0.block.weight"], model.body[0].block.weight)
    empty = GrownState(Net())
    optimizer = torch.optim.SGD(fresh.parameters(), 0.1)
    with pytest.raises(GrowerError, match="growing model"):
        empty.resume(esper.Grower(fresh, optimizer, epochs=1, controller="no-growth"), {})


def test_what_was_widened_waits_without_touching_what_an_optimizer_holds() -> None:
    model, fresh = Net(), Net()
    rebuild_on_load(model.body)
    slots = esper.slots(esper.add_slots(model.body, at=["0>2"], sample_input=X))
    slots.germinate("0>2", min(slots.slot_config.fits["0>2"]))
    state, parameters = GrownState(fresh.body), list(fresh.parameters())
    state.is_waiting = True
    fresh.load_state_dict(model.state_dict())
    assert all(a is b for a, b in zip(fresh.parameters(), parameters, strict=True))
    assert torch.equal(state.take_weights()["0.weight"], model.body[0].weight)


def test_tied_weights_that_a_file_holds_once_are_kept_under_all_names() -> None:
    model, fresh = nn.Sequential(Net(), nn.Linear(6, 8)), nn.Sequential(Net(), nn.Linear(6, 8))
    for net in (model, fresh):
        net[1].weight = net[0].body[0].weight
    rebuild_on_load(model)
    slots = esper.slots(esper.add_slots(model, at=["0.body.2"], sample_input=X))
    slots.germinate("0.body.2", next(iter(slots.slot_config.fits["0.body.2"])))
    state = GrownState(fresh)
    state.is_waiting = True
    once = model.state_dict()
    tied = once.pop("1.weight")
    fresh.load_state_dict(once, strict=False)
    assert torch.equal(state.take_weights()["1.weight"], tied)


def test_removing_all_seeds_gives_the_original_model_back() -> None:
    model = grown_net()
    plain = Net()
    esper.slots(model.body).remove_all()
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if KEY not in n})
    assert torch.equal(plain(X), model(X))


def test_an_exported_model_has_no_hooks_of_ours() -> None:
    plain = esper.export(grown_net())
    require_plain(plain)
    assert KEY not in str(list(plain.state_dict()))


def test_a_damaged_structure_is_named() -> None:
    state, fresh = grown_net().state_dict(), Net()
    state[f"body.{KEY}"] = state[f"body.{KEY}"][:-9]
    rebuild_on_load(fresh.body)
    with pytest.raises(SavedModelError, match=rf"'body\.{KEY}'.*damaged"):
        fresh.load_state_dict(state)
