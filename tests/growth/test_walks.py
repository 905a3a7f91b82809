"""Pruning leaves nothing behind, however a host was grown."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
from torch import Tensor, nn

from esper.growth.host_slots import HostSlots
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import (
    HEAD_NAMES,
    BlendStyle,
    GrowthAction,
    Op,
    decode_action,
    growth_action_spec,
)
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.action_masks import compute_action_masks
from tests.growth.helpers import (
    HOSTS,
    hooks_of,
    lead_to,
    loss_of,
    make_host,
    randomize,
    same_bits,
    same_state,
    state_of,
)

N_WALKS = {"mlp": 16, "conv": 12, "transformer": 12}
N_EPOCHS = 14
# Chosen so that every stage is reached within a few epochs.
WEIGHTS = {
    Op.WAIT: 1,
    Op.GERMINATE: 9,
    Op.SET_ALPHA_TARGET: 2,
    Op.PRUNE: 2,
    Op.FOSSILIZE: 9,
    Op.ADVANCE: 9,
}


@pytest.mark.parametrize("name", HOSTS)
def test_pruning_restores_the_original_model(name: str) -> None:
    for slot in HOSTS[name][1]:
        model, host, x = make_host(name)
        model.eval()
        before, output, modules = state_of(model), model(x), list(model.modules())
        parameters = [id(parameter) for parameter in model.parameters()]
        for blueprint in host.slot_config.fits[slot]:
            place = lead_to(
                host, slot, Stage.HOLDING, blueprint=blueprint, style=BlendStyle.LEARNED_GATE
            )
            randomize(place.seed)
            randomize(place.gate)
            assert blueprint == "noop" or not same_bits(model(x), output)
            host.tick()
            host.prune(slot, speed_epochs=3)
            while host[slot].stage != Stage.DORMANT:
                host.tick()
            assert same_bits(model(x), output)
            assert same_state(before, state_of(model))
            assert list(model.modules()) == modules
            assert [id(parameter) for parameter in model.parameters()] == parameters


def draw_legal(host: HostSlots, rng: random.Random) -> GrowthAction:
    """Draw an action that the masks allow, op first as a policy does."""
    config = host.slot_config
    masks = compute_action_masks(host.lives.mask_states, config)
    ops = [op for op in WEIGHTS if masks["op"][op]]
    op = rng.choices(ops, [WEIGHTS[each] for each in ops])[0]
    sizes = growth_action_spec(config).sizes
    chosen = {head: rng.randrange(size) for head, size in zip(HEAD_NAMES, sizes, strict=True)}
    chosen["op"] = op
    allowed = masks["slot_by_op"][op].nonzero().flatten().tolist()
    chosen["slot"] = rng.choice(allowed)
    fitting = config.fits[config.slot_ids[chosen["slot"]]]
    chosen["blueprint"] = config.blueprint_index(rng.choice(sorted(fitting)))
    return decode_action([chosen[head] for head in HEAD_NAMES], config)


def walk(
    name: str, seed: int, made: list[weakref.ref[nn.Module]]
) -> tuple[nn.Module, HostSlots, Tensor]:
    """Grow a host by random legal actions and train it, then prune what is not committed."""
    rng = random.Random(seed)
    model, host, x = make_host(name)
    model.train(rng.random() < 0.5)
    for _ in range(N_EPOCHS):
        host.apply(draw_legal(host, rng))
        for slot in host.values():
            if slot.stage == Stage.GERMINATED and slot.life.age_epochs == 0:
                made.append(weakref.ref(slot.seed))
            elif slot.stage == Stage.TRAINING:
                randomize(slot.seed, seed)
        assert_consistent(model, host)
        loss_of(model, x).backward()
        model.zero_grad()
        host.tick()
        assert_consistent(model, host)
    host.abandon_growing()
    while any(life.stage != Stage.DORMANT for _, life in host.lives.items()):
        host.tick()
    return model, host, x


def assert_consistent(model: nn.Module, host: HostSlots) -> None:
    """Check that exactly the slots that hold a seed or a fossil are in the model."""
    placed = {module.name for module in model.modules() if isinstance(module, SeedSlot)}
    assert placed == {name for name, slot in host.items() if slot.seed is not None or slot.absorbed}
    assert placed == {name for name, life in host.lives.items() if life.has_seed or life.fossils}
    for slot in host.values():
        has_gate = slot.seed is not None and slot.life.style == BlendStyle.LEARNED_GATE
        assert (slot.gate is not None) == has_gate


@pytest.mark.parametrize("name", N_WALKS)
def test_random_legal_walks_leave_nothing_behind(name: str) -> None:
    made: list[weakref.ref[nn.Module]] = []
    ends = [walk(name, seed, made) for seed in range(N_WALKS[name])]
    committed: set[nn.Module] = set()
    for model, host, x in ends:
        plain, _, _ = make_host(name)
        own = {id(p) for slot in host.values() for p in slot.grown_parameters()}
        kept = [part for slot in host.values() for part in slot.absorbed]
        committed |= {part.seed for part in kept}
        assert all(slot.seed is None for slot in host.values())

        rest = [parameter for parameter in model.parameters() if id(parameter) not in own]
        originals = list(plain.parameters())
        assert len(rest) == len(originals)
        assert all(same_bits(p, q) for p, q in zip(rest, originals, strict=True))
        assert hooks_of(model) == 0
        if not kept:
            assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
            plain.load_state_dict(model.state_dict())  # running statistics have changed
            model.eval()
            plain.eval()
            assert same_bits(model(x), plain(x))
    gc.collect()
    alive = [seed() for seed in made if seed() is not None]
    assert set(alive) == committed
    # The walks were not trivial: some seeds were pruned and some were committed.
    assert len(made) - 3 > len(committed) > 3
