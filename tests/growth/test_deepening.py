"""``deepen`` inserts a copy of a residual block that starts as the identity."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import esper
from esper.config.growth import CNNHostConfig, GPTHostConfig, GrowthConfig, MLPHostConfig
from esper.errors import IllegalActionError, SlotError, UnsupportedHostError
from esper.growth.blueprints.deepening import BlockCopy
from esper.growth.footprint import count_flops, footprint
from esper.growth.host_slots import HostSlots, slots
from esper.growth.hosts import build_host, sample_input, slot_names
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import ResidualBlock, ResidualMLP, randomize


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class BasicBlock(nn.Module):
    """A ResNet's block: the ReLU comes after the addition."""

    def __init__(self, width: int, width_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or width != width_out:
            self.downsample = nn.Conv2d(width, width_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ScaledBlock(nn.Module):
    """A block whose branch ends in a scale per feature that is a parameter of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.1))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.down(torch.relu(self.up(self.norm(x))))


class GatedBlock(nn.Module):
    """Two branches without biases; norms are registered last, but run first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.mix_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor, *, strength: Tensor) -> Tensor:
        x = x + strength * self.mix(self.mix_norm(x))
        h = self.mlp_norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


class Stack(nn.Module):
    """Blocks in a ModuleList, all called with the same further arguments."""

    def __init__(self, *blocks: nn.Module, **arguments: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.arguments = arguments

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layers:
            x = block(x, **self.arguments)
        return x


def encoder(*, norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.1, batch_first=True, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def own_host(config: MLPHostConfig | CNNHostConfig | GPTHostConfig) -> Callable[[], nn.Module]:
    return lambda: build_host(config)


MLP = MLPHostConfig(n_features=5, n_classes=3, width=6, hidden=4)
CNN = CNNHostConfig(image_size=5, n_classes=3, width=4, hidden=3)
GPT = GPTHostConfig(vocabulary=7, context=6, width=8, hidden=12)

MODELS: dict[str, tuple[Callable[[], nn.Module], str, Tensor, tuple[str, ...]]] = {
    "mlp host": (own_host(MLP), "blocks.0", sample_input(MLP), ("second",)),
    "cnn host": (own_host(CNN), "blocks.1", sample_input(CNN), ("second",)),
    "gpt host": (own_host(GPT), "blocks.0", sample_input(GPT), ("attention.project", "mlp.2")),
    "resnet": (
        lambda: nn.Sequential(BasicBlock(3, 4, 2), BasicBlock(4, 4), BasicBlock(4, 4)),
        "1",
        normal(2, 3, 8, 8),
        ("bn2",),
    ),
    "layer scale": (
        lambda: Stack(ScaledBlock(6), ScaledBlock(6)),
        "layers.0",
        normal(3, 6),
        ("down",),
    ),
    "gated": (
        lambda: Stack(GatedBlock(6), GatedBlock(6), strength=torch.tensor(0.5)),
        "layers.1",
        normal(2, 5, 6),
        ("mix", "down"),
    ),
    "pre-norm": (
        lambda: encoder(norm_first=True),
        "layers.0",
        normal(2, 5, 8),
        ("self_attn.out_proj", "linear2"),
    ),
    "post-norm": (
        lambda: encoder(norm_first=False),
        "layers.0",
        normal(2, 5, 8),
        ("self_attn.out_proj", "linear2"),
    ),
}
"""Constructor, slot, input and the layers that end the residual branches of its block."""


def make(name: str, *, config: GrowthConfig | None = None) -> tuple[nn.Module, HostSlots, Tensor]:
    """Return a model with random weights and norms, its slots and an input."""
    build, slot, x, _ = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
        for module in model.modules():
            if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
    esper.add_slots(model, [slot], x, growth_config=config)
    return model.eval(), slots(model), x


def deepen(host: HostSlots, slot: str) -> BlockCopy:
    """Insert a copy at once, behind those that are there."""
    if host[slot].stage == Stage.FOSSILIZED:
        host.absorb(slot)
    assert host.germinate(slot, "deepen").was_done
    host.commit(slot)
    seed = host[slot].seed
    assert isinstance(seed, BlockCopy)
    return seed


def train(model: nn.Module, x: Tensor, *, n_steps: int = 3) -> None:
    """Train all parameters, in evaluation mode, so that nothing is random."""
    optimizer = AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (model(x) - 1.0).square().mean().backward()
        optimizer.step()


@torch.no_grad()
def run(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


def assert_close(given: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(given, wanted, atol=tolerance, rtol=tolerance)


def assert_unchanged(name: str, given: Tensor, wanted: Tensor) -> None:
    if name == "post-norm":
        # Normalizing twice differs from once by the norm's epsilon, 1e-5.
        assert_close(given, wanted, 3e-5)
    else:
        assert torch.equal(given, wanted)


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layers_of_residual_branches_are_zeroed(name: str) -> None:
    model, host, _ = make(name)
    slot, zeroed = MODELS[name][1], MODELS[name][3]
    identity = host[slot].site.identity
    assert identity is not None
    assert identity.zeroed == zeroed
    assert identity.norms == (("norm1", "norm2") if name == "post-norm" else ())
    assert identity.is_universal == (name not in ("post-norm", "resnet"))
    assert identity.is_entry
    assert model.get_submodule(slot) is host[slot].block


@pytest.mark.parametrize("start", ["copied", "fresh"])
@pytest.mark.parametrize("name", MODELS)
def test_a_committed_copy_changes_nothing_and_learns(name: str, start: Any) -> None:
    model, host, x = make(name, config=GrowthConfig(deepen_start=start))
    slot, before = MODELS[name][1], run(model, x)
    seed = deepen(host, slot)
    assert_unchanged(name, run(model, x), before)
    (model(x) - 1.0).square().mean().backward()
    for layer in seed.identity.zeroed:
        for parameter in seed.block.get_submodule(layer).parameters(recurse=False):
            assert parameter.grad is not None
            assert parameter.grad.any()
    first = {name: p.detach().clone() for name, p in seed.named_parameters()}
    train(model, x)
    assert not [name for name, p in seed.named_parameters() if torch.equal(p, first[name])]
    assert not torch.allclose(run(model, x), before, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_export_adds_an_entry_to_the_list_of_the_block(name: str) -> None:
    model, host, x = make(name)
    slot = MODELS[name][1]
    parent, _, index = slot.rpartition(".")
    n_before = len(list(model.get_submodule(parent).children()))
    deepen(host, slot)
    train(model, x)
    plain = esper.export(model)
    container = plain.get_submodule(parent)
    assert type(container) in (nn.ModuleList, nn.Sequential)
    assert len(container) == n_before + 1  # pyright: ignore[reportArgumentType]
    assert_close(run(plain, x), run(model, x))
    block, copied = (container.get_submodule(str(int(index) + k)) for k in (0, 1))
    shapes = [{n: p.shape for n, p in m.named_parameters()} for m in (block, copied)]
    assert shapes[0] == shapes[1]
    assert count_parameters(plain) == count_parameters(model)


@pytest.mark.parametrize("name", ["mlp host", "gpt host", "resnet", "gated", "post-norm"])
def test_a_slot_deepens_again_and_again(name: str) -> None:
    model, host, x = make(name)
    slot = MODELS[name][1]
    parent, _, index = slot.rpartition(".")
    kept: list[BlockCopy] = []
    for _ in range(3):
        before = run(model, x)
        kept.append(deepen(host, slot))
        assert_unchanged(name, run(model, x), before)
        train(model, x, n_steps=2)
        assert not torch.allclose(run(model, x), before, atol=1e-4)
    plain = esper.export(model)
    assert_close(run(plain, x), run(model, x))
    for number, seed in enumerate(kept):
        entry = plain.get_submodule(f"{parent}.{int(index) + 1 + number}".lstrip("."))
        layer = MODELS[name][3][0]
        given, wanted = (
            dict(m.get_submodule(layer).named_parameters()) for m in (entry, seed.block)
        )
        assert all(torch.equal(given[key], wanted[key]) for key in wanted)


def test_a_deepened_net_trains_like_the_deeper_net_built_by_hand() -> None:
    torch.manual_seed(0)
    model = ResidualMLP()
    x = normal(4, 5)
    deeper = copy.deepcopy(model)
    twin = copy.deepcopy(model.blocks[0])
    nn.init.zeros_(twin.down.weight)
    nn.init.zeros_(twin.down.bias)
    deeper.blocks = nn.ModuleList([deeper.blocks[0], twin, deeper.blocks[1]])
    host = slots(esper.add_slots(model, ["blocks.0"], x))
    deepen(host, "blocks.0")
    train(model, x, n_steps=20)
    train(deeper, x, n_steps=20)
    plain = esper.export(model).state_dict()
    assert plain.keys() == deeper.state_dict().keys()
    for name, tensor in deeper.state_dict().items():
        torch.testing.assert_close(plain[name], tensor, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["gpt host", "resnet", "gated"])
def test_a_copy_trains_in_isolation(name: str) -> None:
    model, host, x = make(name)
    slot = MODELS[name][1]
    host.germinate(slot, "deepen")
    with torch.no_grad():
        before = model(x)
    assert host.advance(slot).was_done
    seed = host[slot].seed
    assert isinstance(seed, BlockCopy)
    randomize(seed)
    output = model(x)
    assert torch.equal(output, before)
    plain = copy.deepcopy(model)
    slots(plain).abandon_growing()
    (model(x) - 1.0).square().mean().backward()
    (plain(x) - 1.0).square().mean().backward()
    own = {n: p.grad for n, p in model.named_parameters() if ".seed." not in n}
    for (name, gradient), parameter in zip(own.items(), plain.parameters(), strict=True):
        assert gradient is not None
        assert torch.equal(gradient, parameter.grad), name  # pyright: ignore[reportArgumentType]
    assert all(p.grad is not None for p in seed.parameters())


def test_copied_parameters_join_the_groups_of_their_originals() -> None:
    names = slot_names(GPT)
    model = esper.add_slots(build_host(GPT), names, sample_input(GPT))
    host = slots(model)
    decays = {True: 0.1, False: 0.0}
    groups = [
        {"params": [p for p in model.parameters() if (p.ndim > 1) is flag], "weight_decay": decay}
        for flag, decay in decays.items()
    ]
    optimizer = AdamW(groups, 1e-3)
    esper.OptimizerKeeper(model, optimizer)
    host.germinate("blocks.0.mlp", "widen_large")
    host.commit("blocks.0.mlp")
    for _ in range(2):
        seed = deepen(host, "blocks.0")
        found = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        for name, parameter in seed.named_parameters():
            assert found[id(parameter)] == decays[parameter.ndim > 1], name


def test_the_dropout_of_an_isolated_copy_does_not_change_the_hosts() -> None:
    model, host, x = make("pre-norm")
    model.train()
    torch.manual_seed(3)
    before = model(x)
    host.germinate("layers.0", "deepen")
    assert host.advance("layers.0").was_done
    randomize(host["layers.0"].seed)
    torch.manual_seed(3)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_keeps_its_copies(name: str, tmp_path: Path) -> None:
    model, host, x = make(name)
    build, slot = MODELS[name][:2]
    deepen(host, slot)
    train(model, x)
    deepen(host, slot)
    train(model, x)
    esper.save(model, tmp_path)
    again = esper.load(tmp_path, build).eval()
    assert torch.equal(run(again, x), run(model, x))
    assert slots(again).sites == host.sites
    assert_close(run(esper.export(again), x), run(model, x))


def test_one_branch_at_a_lower_alpha_is_an_entry_too() -> None:
    model, host, x = make("mlp host")
    host.germinate("blocks.0", "deepen", alpha_target=0.5)
    host.commit("blocks.0")
    randomize(host["blocks.0"].seed)
    plain = esper.export(model)
    assert len(plain.blocks) == 3
    assert_close(run(plain, x), run(model, x))


@pytest.mark.parametrize(
    ("name", "style", "alpha"),
    [
        ("gpt host", BlendStyle.ADD_LINEAR, 0.5),
        ("gpt host", BlendStyle.MULTIPLY_LINEAR, 1.0),
        ("gated", BlendStyle.LEARNED_GATE, 1.0),
        ("resnet", BlendStyle.ADD_SIGMOID, 0.7),
        ("post-norm", BlendStyle.ADD_LINEAR, 0.5),
    ],
)
def test_a_copy_that_is_blended_otherwise_is_an_entry_of_another_kind(
    name: str, style: BlendStyle, alpha: float
) -> None:
    model, host, x = make(name)
    slot = MODELS[name][1]
    parent = slot.rpartition(".")[0]
    n_before = len(list(model.get_submodule(parent).children()))
    host.germinate(slot, "deepen", style=style, alpha_target=alpha)
    host.commit(slot)
    randomize(host[slot].seed)
    plain = esper.export(model)
    assert len(list(plain.get_submodule(parent).children())) == n_before + 1
    assert_close(run(plain, x), run(model, x))


class CountingStack(Stack):
    """Knows the number of its blocks."""

    def forward(self, x: Tensor) -> Tensor:
        for index in range(2):
            x = self.layers[index](x)
        return x


def test_a_list_of_fixed_length_gets_no_more_entries() -> None:
    model = CountingStack(ResidualBlock(6, 4), ResidualBlock(6, 4))
    x = normal(3, 6)
    host = slots(esper.add_slots(model, ["layers.0"], x))
    identity = host["layers.0"].site.identity
    assert identity is not None
    assert not identity.is_entry
    deepen(host, "layers.0")
    train(model, x)
    plain = esper.export(model)
    assert len(plain.layers) == 2
    assert_close(run(plain, x), run(model, x))


class Cache:
    """Collects one tensor for each layer, as the caches of Transformers do."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [SimpleNamespace(is_initialized=False) for _ in range(n_layers)]


class CachingBlock(ResidualBlock):
    def __init__(self, layer_idx: int) -> None:
        super().__init__(6, 4)
        self.layer_idx = layer_idx

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        layer = cache.layers[self.layer_idx]
        assert not layer.is_initialized, "another block has written to this layer"
        layer.is_initialized = True
        return super().forward(x)


class CachingStack(nn.Module):
    """Has a cache layer for each of its blocks, and runs all or a fixed number of them."""

    def __init__(self, n_run: int | None) -> None:
        super().__init__()
        self.layers, self.n_run = nn.ModuleList(map(CachingBlock, range(2))), n_run

    def forward(self, x: Tensor) -> Tensor:
        cache = Cache(len(self.layers))
        for index in range(self.n_run or len(self.layers)):
            x = self.layers[index](x, cache)
        return x


def test_copies_have_their_own_layers_of_a_cache() -> None:
    model, x = CachingStack(None), normal(3, 6)
    host = slots(esper.add_slots(model, ["layers.0", "layers.1"], x))
    for slot in ("layers.1", "layers.0", "layers.1"):
        deepen(host, slot)
        train(model, x)
    plain = esper.export(model)
    assert [block.layer_idx for block in plain.layers] == list(range(5))
    assert_close(run(plain, x), run(model, x))


def test_a_cache_without_room_for_one_more_layer_is_named() -> None:
    model, x = CachingStack(2), normal(3, 6)
    host = slots(esper.add_slots(model, ["layers.0"], x))
    deepen(host, "layers.0")
    with pytest.raises(UnsupportedHostError, match=r"'layers\.0'.*cache.*one more entry"):
        esper.export(model)


def test_a_block_outside_a_list_is_deepened_too() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ResidualBlock(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x)

    x = normal(3, 6)
    model = esper.add_slots(Net(), ["block"], x)
    deepen(slots(model), "block")
    train(model, x)
    assert_close(run(esper.export(model), x), run(model, x))


@pytest.mark.parametrize(
    ("order", "n_blocks"),
    [
        (("deepen", "widen_large"), 2),
        (("widen_large", "deepen"), 3),
        (("deepen", "mlp_small"), 3),
        (("deepen", "norm", "deepen", "mlp_small", "deepen"), 5),
        (("deepen", "lora_large", "norm", "deepen"), 3),
    ],
)
def test_copies_and_other_seeds_share_a_slot(order: tuple[str, ...], n_blocks: int) -> None:
    torch.manual_seed(0)
    model, x = Stack(ResidualBlock(6, 4), ResidualBlock(6, 4)), normal(3, 4, 6)
    host = slots(esper.add_slots(model, ["layers.0"], x))
    for number, blueprint in enumerate(order):
        if host["layers.0"].stage == Stage.FOSSILIZED:
            host.absorb("layers.0")
        before = run(model, x)
        host.germinate("layers.0", blueprint)
        host.commit("layers.0")
        assert_close(run(model, x), before)
        randomize(host["layers.0"].seed, seed=number)
    plain = esper.export(model)
    torch.testing.assert_close(run(plain, x), run(model, x), atol=1e-4, rtol=1e-5)
    assert len(plain.layers) == n_blocks


def test_a_copy_is_refused_where_other_seeds_change_what_it_relies_on() -> None:
    model, host, x = make("post-norm")
    host.germinate("layers.0", "mlp_small")
    host.commit("layers.0")
    host.absorb("layers.0")
    host.germinate("layers.0", "deepen")
    with pytest.raises(SlotError, match=r"'layers\.0'.*mlp_small"):
        host.commit("layers.0")
    outcome = host.advance("layers.0")
    assert not outcome.was_done
    assert "mlp_small" in outcome.reason
    assert model(x) is not None


def test_seeds_inside_the_block_are_not_copied() -> None:
    names = slot_names(GPT)
    model = esper.add_slots(build_host(GPT), names, sample_input(GPT)).eval()
    host, x = slots(model), sample_input(GPT)
    host.germinate("blocks.0.mlp", "widen_large")
    host.commit("blocks.0.mlp")
    train(model, x)
    before = run(model, x)
    seed = deepen(host, "blocks.0")
    assert torch.equal(run(model, x), before)
    assert count_parameters(seed) == count_parameters(build_host(GPT).blocks[0])
    train(model, x)
    assert_close(run(esper.export(model), x), run(model, x))


def test_fresh_weights_are_drawn_by_the_layers_own_law() -> None:
    config = GrowthConfig(deepen_start="fresh")
    _, host, _ = make("gpt host", config=config)
    block = host["blocks.0"].block
    with torch.no_grad():
        block.mlp[0].weight.mul_(0.01)  # a model that starts with smaller weights than torch
    copied, seeds = block.state_dict(), []
    for seed in (1, 1, 2):
        host.seed, host.n_germinated = seed, 0
        host.germinate("blocks.0", "deepen")
        seeds.append(host["blocks.0"].seed.block.state_dict())
        host.abandon_growing()
        while host["blocks.0"].stage != Stage.DORMANT:
            host.tick()
    name = "attention.query_key_value.weight"
    assert torch.equal(seeds[0][name], seeds[1][name])
    assert not torch.equal(seeds[0][name], seeds[2][name])
    assert not torch.equal(seeds[0][name], copied[name])
    ratio = seeds[0]["mlp.0.weight"].std() / copied["mlp.0.weight"].std()
    assert ratio.item() == pytest.approx(1.0, abs=1e-5)
    assert not seeds[0]["mlp.2.weight"].any()
    assert not seeds[0]["attention.project.bias"].any()


class IndexedBlock(ResidualBlock):
    """A block that knows its place."""

    def __init__(self, config: SimpleNamespace, layer_idx: int) -> None:
        super().__init__(6, 4)
        self.config, self.layer_idx = config, layer_idx


class IndexedModel(nn.Module):
    """Reads the number and the kinds of its blocks from its configuration."""

    def __init__(self, n_layer: int = 3) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            n_layer=n_layer, n_head=n_layer, layer_types=["a", "b", "c"], other=[1, 2, 3]
        )
        self.num_layers = n_layer
        self.h = nn.ModuleList(IndexedBlock(self.config, index) for index in range(n_layer))

    def forward(self, x: Tensor) -> Tensor:
        for kind, block in zip(self.config.layer_types, self.h[: self.config.n_layer], strict=True):
            assert block.layer_idx >= 0
            assert kind
            x = block(x)
        return x


def test_indices_and_counts_follow_the_list() -> None:
    model, x = IndexedModel(), normal(3, 6)
    before = copy.deepcopy(vars(model.config))
    host = slots(esper.add_slots(model, ["h.0", "h.1"], x))
    assert vars(model.config) == before
    assert len(model.h) == 3
    for slot in ("h.1", "h.0", "h.1"):
        deepen(host, slot)
        train(model, x)
    plain = esper.export(model)
    assert vars(model.config) == before
    assert plain.config.layer_types == ["a", "a", "b", "b", "b", "c"]
    assert (plain.config.n_layer, plain.num_layers, plain.config.n_head) == (6, 6, 3)
    assert plain.config.other == [1, 2, 3]
    assert [block.layer_idx for block in plain.h] == list(range(6))
    assert all(block.config is plain.config for block in plain.h)
    assert_close(run(plain, x), run(model, x))


def test_a_copy_costs_what_its_block_costs() -> None:
    model, host, x = make("gpt host")
    block = copy.deepcopy(host["blocks.0"].block)
    proposal = next(p for p in esper.find_slots(build_host(GPT), x) if p.name == "blocks.0")
    before = footprint(model, x)
    deepen(host, "blocks.0")
    after = footprint(model, x)
    flops = count_flops(lambda: block(normal(2, 6, 8)))
    assert after.seed_parameters["blocks.0"] == count_parameters(block)
    assert after.forward_flops - before.forward_flops == flops
    assert proposal.costs["deepen"].parameters == count_parameters(block)
    assert 2 * proposal.costs["deepen"].flops == flops


def why_not(model: nn.Module, slot: str, x: Any) -> str:
    """Return what a user reads who asks for a copy of a block."""
    host = slots(esper.add_slots(model, [slot], x))
    with pytest.raises(IllegalActionError) as caught:
        host.germinate(slot, "deepen")
    message = str(caught.value)
    assert f"'deepen' does not fit slot {slot!r}" in message
    assert "\n" not in message
    return message


def test_a_block_that_is_not_residual_is_refused() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)))
    assert "residual block" in why_not(model, "0", normal(3, 6))


def test_a_block_that_changes_the_shape_is_refused() -> None:
    model = nn.Sequential(BasicBlock(3, 4, 2))
    assert "[2, 3, 8, 8] to [2, 4, 4, 4]" in why_not(model, "0", normal(2, 3, 8, 8))


def test_a_block_that_shares_a_parameter_is_refused() -> None:
    model = Stack(ResidualBlock(6, 4), ResidualBlock(6, 4))
    model.layers[1].up.weight = model.layers[0].up.weight
    assert "layers.1.up.weight" in why_not(model, "layers.0", normal(3, 6))


def test_a_block_with_an_argument_that_it_may_change_is_refused() -> None:
    class Noting(ResidualBlock):
        def forward(self, x: Tensor, notes: dict[str, Any]) -> Tensor:
            notes["n"] = notes.get("n", 0) + 1
            return super().forward(x)

    model = Stack(Noting(6, 4), Noting(6, 4), notes={})
    assert "dict" in why_not(model, "layers.0", normal(3, 6))


def test_a_block_that_changes_its_input_in_place_is_refused() -> None:
    class InPlace(ResidualBlock):
        def forward(self, x: Tensor) -> Tensor:
            y = x.clone() if x.requires_grad else x
            y += self.down(torch.relu(self.up(x)))
            return y

    model = nn.Sequential(nn.Linear(6, 6), InPlace(6, 4))
    assert "in place" in why_not(model, "1", normal(3, 6))


def test_a_single_layer_is_refused() -> None:
    assert "Linear" in why_not(nn.Sequential(nn.Linear(6, 6)), "0", normal(3, 6))


def test_the_message_names_the_slots_that_fit() -> None:
    model, x = ResidualMLP(), normal(4, 5)
    host = slots(esper.add_slots(model, ["stem", "blocks.1"], x))
    with pytest.raises(IllegalActionError, match=r"'stem'.*fits blocks\.1"):
        host.germinate("stem", "deepen")


def test_only_a_new_seed_is_committed_at_once() -> None:
    _, host, _ = make("mlp host")
    with pytest.raises(SlotError, match=r"'blocks\.0' is dormant"):
        host.commit("blocks.0")
    host.germinate("blocks.0", "deepen")
    host.tick()
    with pytest.raises(SlotError, match=r"'blocks\.0' is germinated"):
        host.commit("blocks.0")
    with pytest.raises(SlotError, match=r"'blocks\.0' is germinated"):
        host.absorb("blocks.0")


def test_a_stack_and_a_block_inside_it_are_both_deepened_and_exported() -> None:
    torch.manual_seed(0)
    for order in (("1", "1.0"), ("1.0", "1")):
        stack = nn.Sequential(ResidualMLP().blocks[0], ResidualMLP().blocks[1])
        model = nn.Sequential(nn.Linear(6, 6), stack, nn.Linear(6, 3)).eval()
        x = torch.randn(4, 6)
        esper.add_slots(model, ["1", "1.0"], x)
        for name in order:
            slots(model).germinate(name, "deepen")
            slots(model).commit(name)
            slots(model).absorb(name)
        torch.testing.assert_close(esper.export(model)(x), model(x))


class TwoBranches(nn.Module):
    """A block with two residual branches of little weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * torch.tanh(self.one(x))
        return x + 0.1 * torch.tanh(self.two(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_branch_of_a_copy_is_zero_whatever_the_type(dtype: torch.dtype) -> None:
    model = nn.Sequential(*(TwoBranches(4) for _ in range(3))).to(dtype)
    x = normal(2, 4).to(dtype)
    before = model(x)
    change = esper.deepen(model, 1, sample_input=x)
    assert torch.equal(model(x), before)
    assert [p.abs().max().item() for p in change.new_parameters()] == [0.0] * 4
