"""The built-in hosts: their sizes, weights, slots and random growth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import AdamW

import esper
from esper.config.growth import (
    CNNHostConfig,
    GPTHostConfig,
    GrowthConfig,
    HostConfig,
    MLPHostConfig,
)
from esper.errors import ConfigError
from esper.growth.governor import Governor
from esper.growth.host_slots import HostSlots, slots
from esper.growth.hosts import build_host, make_host, sample_input
from esper.growth.modules import count_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_EPOCHS,
    GrowthAction,
    Op,
)
from esper.lifecycle.stages import Stage
from tests.growth.helpers import find_leftovers, hooks_of

SMALL: dict[str, HostConfig] = {
    "mlp": MLPHostConfig(n_features=4, n_classes=3, width=4, hidden=4),
    "cnn": CNNHostConfig(image_size=4, n_classes=3, width=4, hidden=3),
    "gpt": GPTHostConfig(vocabulary=5, context=4, width=4, hidden=4, n_blocks=1),
}
N_WALKS = 16


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (MLPHostConfig(width=9, hidden=9), 1_000),
        (CNNHostConfig(width=4, hidden=6), 1_000),
        (GPTHostConfig(vocabulary=16, context=16, width=8, hidden=14, n_blocks=1), 1_000),
    ],
)
def test_hosts_can_be_as_small_as_a_thousand_parameters(config: HostConfig, limit: int) -> None:
    assert 0.8 * limit < count_parameters(make_host(config)) < 1.2 * limit


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_determines_the_host_and_the_global_generator_is_untouched(
    name: str,
) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second, other = (make_host(SMALL[name], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    x = sample_input(SMALL[name])
    assert torch.equal(first(x), second(x))
    assert not torch.equal(first(x), other(x))


@pytest.mark.parametrize("name", SMALL)
def test_a_host_with_empty_slots_is_the_plain_model(name: str) -> None:
    host, plain = make_host(SMALL[name], seed=1), build_host(SMALL[name], seed=1)
    assert [type(m) for m in host.modules()] == [type(m) for m in plain.modules()]
    assert host.state_dict().keys() == plain.state_dict().keys()


def test_a_host_grows_in_its_own_layers_and_beside_its_blocks() -> None:
    kinds = {
        name: [(site.name, site.what) for site in slots(make_host(config)).sites]
        for name, config in SMALL.items()
    }
    beside = [("blocks.0", "module"), ("blocks.1", "module")]
    own = [("blocks.*.first>second", "units"), ("blocks.*", "blocks")]
    assert kinds["mlp"] == kinds["cnn"] == [*own, *beside]
    # A transformer of one block: nothing repeats.
    assert [what for _, what in kinds["gpt"]] == ["units", "blocks", "module"]


def test_a_host_may_have_no_slots_beside_its_blocks() -> None:
    host = make_host(SMALL["mlp"], has_modules=False)
    assert list(slots(host)) == ["blocks.*.first>second", "blocks.*"]


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def test_the_transformer_is_causal() -> None:
    host = make_host(SMALL["gpt"]).eval()
    tokens = sample_input(SMALL["gpt"])
    changed = tokens.clone()
    changed[:, 2:] = (changed[:, 2:] + 1) % 5
    assert torch.equal(host(tokens)[:, :2], host(changed)[:, :2])
    assert not torch.equal(host(tokens)[:, 2:], host(changed)[:, 2:])


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConfigError, match="width is 0"):
        MLPHostConfig(width=0)
    with pytest.raises(ConfigError, match="n_heads"):
        GPTHostConfig(width=10, n_heads=4)
    with pytest.raises(ConfigError, match="n_blocks is True"):
        CNNHostConfig(n_blocks=True)


class Walk:
    """A host that grows by random legal actions, with its optimizer and governor."""

    def __init__(self, config: HostConfig, seed: int) -> None:
        growth = GrowthConfig(embargo_epochs=2, commits_at_once=seed % 2 == 0, max_widening=4.0)
        self.model = make_host(config, seed=seed, growth_config=growth)
        self.config = config
        self.optimizer = AdamW(self.model.parameters(), 0.01)
        OptimizerKeeper(self.model, self.optimizer)
        self.slots: HostSlots = slots(self.model)
        self.governor = Governor(self.model, self.optimizer)
        self.rng = np.random.default_rng(seed)
        self.x = sample_input(config)

    def legal_actions(self) -> Iterator[GrowthAction]:
        config = self.slots.slot_config
        for op in (Op.GERMINATE, Op.ADVANCE, Op.SET_ALPHA_TARGET, Op.PRUNE, Op.FOSSILIZE):
            for slot in config.slot_ids:
                fitting = [name for name in config.blueprints if config.does_fit(name, slot)]
                action = GrowthAction(
                    op=op,
                    slot=slot,
                    blueprint=str(self.rng.choice(fitting)),
                    style=STYLES[self.rng.integers(len(STYLES))],
                    tempo_epochs=TEMPO_EPOCHS[self.rng.integers(len(TEMPO_EPOCHS))],
                    alpha_target=ALPHA_TARGETS[self.rng.integers(len(ALPHA_TARGETS))],
                    alpha_speed_epochs=ALPHA_SPEED_EPOCHS[self.rng.integers(4)],
                    alpha_curve=ALPHA_CURVES[self.rng.integers(len(ALPHA_CURVES))],
                )
                if self.slots.lives.is_legal(action):
                    yield action

    def live_an_epoch(self) -> None:
        actions = list(self.legal_actions())
        if actions and self.rng.random() < 0.8:
            # Rarely pruned, so that some seeds are old enough to be committed.
            weights = np.array([0.2 if action.op == Op.PRUNE else 1.0 for action in actions])
            self.slots.apply(actions[self.rng.choice(len(actions), p=weights / weights.sum())])
        self.optimizer.zero_grad()
        # Sometimes the loss is NaN, so that the governor takes part in the walk.
        scale = torch.nan if self.rng.random() < 0.05 else 1.0
        self.governor.step(scale * self.model(self.x).square().mean())
        self.slots.tick()
        self.governor.end_epoch()
        self.check()

    def check(self) -> None:
        """Check that the slots account for everything in the model and the optimizer."""
        units, blocks, *_ = self.slots.values()
        own = replace(self.config, hidden=units.size, n_blocks=blocks.size)
        beside = sum(p.numel() for p in self.slots.grown_parameters())
        assert count_parameters(self.model) == count_parameters(build_host(own)) + beside
        assert not find_leftovers(self.model, self.optimizer)
        members = [id(p) for group in self.optimizer.param_groups for p in group["params"]]
        assert sorted(members) == sorted(id(p) for p in self.model.parameters())
        is_blending = any(s.life.is_growing and s.alpha < 1.0 for s in (units, blocks))
        assert (hooks_of(self.model) > 0) == is_blending
        for slot in self.slots.values():
            if not isinstance(slot, SeedSlot):
                fossils = slot.site.size + slot.life.units
                live = slot.life.live_units if slot.life.has_seed else 0
                assert slot.size == fossils + live
                continue
            assert (slot.seed is not None) == slot.life.has_seed
            assert len(slot.absorbed) == len(slot.life.fossils)
            is_used = slot.life.has_seed or bool(slot.life.fossils)
            assert any(m is slot for m in self.model.modules()) == is_used


@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "gpt"))]
)
def test_random_growth_leaves_nothing_behind(name: str) -> None:
    seen: set[Stage] = set()
    grown: set[bool] = set()
    for seed in range(N_WALKS if name == "mlp" else 3 * N_WALKS):
        walk = Walk(SMALL[name], seed)
        for _ in range(12):
            walk.live_an_epoch()
            seen |= {slot.stage for slot in walk.slots.values()}
        walk.slots.abandon_growing()
        for _ in range(5):
            walk.slots.tick()
        walk.check()
        assert all(s.stage == Stage.DORMANT or s.is_full() for s in walk.slots.values())
        grown.add(walk.slots["blocks.*"].size > walk.config.n_blocks)
    assert seen == set(Stage)
    assert grown == {False, True}


WITHOUT_SKIPS = MLPHostConfig(
    n_features=6, n_classes=5, width=4, hidden=1, n_blocks=1, has_skips=False
)


def test_without_skips_one_hidden_unit_limits_the_rank_to_one() -> None:
    host = make_host(WITHOUT_SKIPS, seed=0)
    logits = host(10 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.linalg.matrix_rank(logits - logits.mean(0), tol=1e-5) == 1
    residual = make_host(MLPHostConfig(n_features=6, n_classes=5, width=4, hidden=1, n_blocks=1))
    logits = residual(10 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.linalg.matrix_rank(logits - logits.mean(0), tol=1e-5) == 4


def test_a_block_without_skips_can_be_widened_but_not_copied() -> None:
    config = replace(WITHOUT_SKIPS, n_blocks=2)
    host = make_host(config, seed=0, growth_config=GrowthConfig(commits_at_once=True))
    assert list(slots(host)) == ["blocks.*.first>second", "blocks.0", "blocks.1"]
    x = sample_input(config, 20)
    before = host(x)
    slots(host).germinate("blocks.*.first>second", "widen_huge")
    torch.testing.assert_close(host(x), before)
    assert shapes(host) == shapes(build_host(replace(config, hidden=4)))


def test_has_skips_must_be_a_bool() -> None:
    with pytest.raises(ConfigError, match="has_skips is 1"):
        MLPHostConfig(has_skips=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
@pytest.mark.parametrize("has_skips", [True, False])
def test_hosts_with_norms_and_any_activation_grow_wider_and_deeper(
    activation: str, has_skips: bool
) -> None:
    config = MLPHostConfig(
        n_features=4,
        n_classes=3,
        width=5,
        hidden=6,
        has_skips=has_skips,
        activation=activation,  # pyright: ignore[reportArgumentType]
        has_norm=True,
    )
    host = make_host(config, growth_config=GrowthConfig(commits_at_once=True))
    x = sample_input(config, 7)
    before = host(x)
    units = "blocks.*.body"
    slots(host).germinate(units, "widen_large")
    wider = replace(config, hidden=12)
    assert shapes(host) == shapes(build_host(wider))
    torch.testing.assert_close(esper.export(host)(x), before)


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ConfigError, match=r"activation.*'relux'.*tanh"):
        MLPHostConfig(activation="relux")  # pyright: ignore[reportArgumentType]
