"""The built-in hosts: their sizes, weights, slots and random growth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
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


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_widening_can_be_merged_into_every_block(name: str) -> None:
    assert all(site.path is not None for site in slots(make_host(SMALL[name])).sites)


def test_the_transformer_has_slots_on_its_mlp_and_around_the_block() -> None:
    sites = {site.name: site for site in slots(make_host(SMALL["gpt"])).sites}
    assert sites.keys() == {"blocks.0.mlp", "blocks.0"}
    assert sites["blocks.0.mlp"].path is not None


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
        self.model = make_host(config, seed=seed, growth_config=GrowthConfig(embargo_epochs=2))
        self.base = count_parameters(self.model)
        self.optimizer = AdamW(self.model.parameters(), 0.01)
        OptimizerKeeper(self.model, self.optimizer, seed_lr_factor=0.5)
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
        seeds = sum(p.numel() for s in self.slots.values() for p in s.grown_parameters())
        assert count_parameters(self.model) == self.base + seeds
        assert not find_leftovers(self.model, self.optimizer)
        members = [id(p) for group in self.optimizer.param_groups for p in group["params"]]
        assert sorted(members) == sorted(id(p) for p in self.model.parameters())
        assert hooks_of(self.model) == 0
        for slot in self.slots.values():
            assert (slot.seed is not None) == slot.life.has_seed
            assert len(slot.absorbed) == len(slot.life.fossils)
            is_used = slot.life.has_seed or bool(slot.life.fossils)
            assert any(m is slot for m in self.model.modules()) == is_used


@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "gpt"))]
)
def test_random_growth_leaves_nothing_behind(name: str) -> None:
    seen: set[Stage] = set()
    for seed in range(N_WALKS):
        walk = Walk(SMALL[name], seed)
        for _ in range(12):
            walk.live_an_epoch()
            seen |= {slot.stage for slot in walk.slots.values()}
        walk.slots.abandon_growing()
        for _ in range(5):
            walk.slots.tick()
        walk.check()
        assert all(s.stage == Stage.DORMANT for s in walk.slots.values())
        committed = sum(p.numel() for s in walk.slots.values() for p in s.grown_parameters())
        assert count_parameters(walk.model) == walk.base + committed
    assert seen == set(Stage)


@pytest.mark.parametrize("name", SMALL)
def test_seeds_of_a_smaller_host_have_the_size_of_its_design(name: str) -> None:
    design = replace(SMALL[name], hidden=8)
    small, large = make_host(SMALL[name], seed=3, design=design), make_host(design, seed=3)
    assert (
        count_parameters(small)
        == count_parameters(make_host(SMALL[name]))
        < count_parameters(large)
    )
    slot = next(iter(slots(small)))
    for host in (small, large):
        slots(host).germinate(slot, "widen_large")
        slots(host).advance(slot)
        host(sample_input(design)).sum().backward()
    first, second = (slots(host)[slot].seed for host in (small, large))
    assert first is not None
    assert second is not None
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_host_may_differ_from_its_design_only_in_hidden() -> None:
    config = MLPHostConfig(width=8, hidden=4)
    with pytest.raises(ConfigError, match=r"width=8, hidden=4.*design .*width=16"):
        make_host(config, design=MLPHostConfig(width=16))
    with pytest.raises(ConfigError, match=r"MLPHostConfig.*design CNNHostConfig"):
        make_host(config, design=CNNHostConfig())


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


def test_widening_is_merged_into_a_block_without_skips() -> None:
    host = make_host(WITHOUT_SKIPS, seed=0)
    host_slots = slots(host)
    host_slots.germinate("blocks.0", "widen_large")
    host_slots.advance("blocks.0")
    seed = host_slots["blocks.0"].seed
    assert seed is not None
    torch.nn.init.normal_(seed.second.weight, generator=torch.Generator().manual_seed(1))
    host_slots.tick()
    for _ in range(2):
        host_slots.advance("blocks.0")
        for _ in range(3):
            host_slots.tick()
    host_slots.fossilize("blocks.0")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(2))
    plain = esper.export(host)
    torch.testing.assert_close(plain(x), host(x))
    assert sum(p.numel() for p in plain.parameters()) == 7 * 4 + (5 * 2 + 4 * 3) + 5 * 5


def test_has_skips_must_be_a_bool() -> None:
    with pytest.raises(ConfigError, match="has_skips is 1"):
        MLPHostConfig(has_skips=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
@pytest.mark.parametrize("has_skips", [True, False])
def test_hosts_with_norms_widen_by_units_of_the_same_kind_and_merge(
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
    assert [
        site.path and (site.path.hidden, site.path.activation) for site in slots(host).sites
    ] == [(6, activation)] * 2
    grown = build_host(replace(config, hidden=12))
    for slot in slots(host):
        action = GrowthAction(op=Op.GERMINATE, slot=slot, blueprint="widen_large", alpha_target=1.0)
        assert slots(host).apply(action).was_done
    merged = esper.export(host)
    assert [p.shape for p in merged.parameters()] == [p.shape for p in grown.parameters()]
    x = sample_input(config, 7)
    torch.testing.assert_close(merged(x), host(x))


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ConfigError, match=r"activation.*'relux'.*tanh"):
        MLPHostConfig(activation="relux")  # pyright: ignore[reportArgumentType]
