"""A seed is merged into its block's weights exactly where that gives the same function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from esper.growth.blueprints.seeds import MLPSeed
from esper.growth.export import export
from esper.growth.host_slots import HostSlots, slots
from esper.growth.placement import add_slots
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import ConvBlock, ConvNet, lead_to, make_host, randomize


def grow(host: HostSlots, slot: str, blueprint: str, **choices: object) -> SeedSlot:
    """Return a slot with a trained seed that is blended at alpha 0.7."""
    place = lead_to(
        host, slot, Stage.HOLDING, blueprint=blueprint, **{"alpha_target": 0.7, **choices}
    )
    assert place.seed is not None
    randomize(place.seed, seed=1)
    return place


def assert_same(given: Tensor, wanted: Tensor) -> None:
    assert (given - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def types_of(module: nn.Module) -> list[type]:
    return [type(part) for part in module.modules()]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.activation = nn.ReLU()
        self.second = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))


def two_layers(block: nn.Module | None = None) -> tuple[nn.Module, HostSlots, Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(block or TwoLayers(), nn.Linear(3, 2)), torch.randn(5, 3)
    add_slots(model, ["0"], x)
    return model, slots(model), x


def test_a_widened_block_has_more_hidden_units_and_the_same_modules() -> None:
    model, host, x = make_host("mlp")
    parts, before = types_of(model), count(model)
    grow(host, "blocks.0", "widen_large")  # 8 units on width 6: 6 * 8 + 8 + 8 * 6 more numbers
    plain = export(model)
    assert types_of(plain) == parts
    assert count(plain) == before + 104
    assert (plain.blocks[0].up.out_features, plain.blocks[0].down.in_features) == (16, 16)
    assert_same(plain(x), model(x))
    assert all(parameter.requires_grad for parameter in plain.parameters())


def test_a_widened_block_worked_by_hand() -> None:
    model, host, _ = two_layers()
    place = grow(host, "0", "widen_small", alpha_target=0.5)
    seed, block = place.seed, place.block
    plain = export(model)[0]
    assert torch.equal(plain.first.weight[:4], block.first.weight)
    assert torch.equal(plain.first.weight[4:], seed.first.weight)
    assert torch.equal(plain.first.bias, torch.cat([block.first.bias, seed.first.bias]))
    assert torch.equal(plain.second.weight[:, :4], block.second.weight)
    assert torch.equal(plain.second.weight[:, 4:], 0.5 * seed.second.weight)
    assert torch.equal(plain.second.bias, block.second.bias)
    assert plain.first.weight.shape == (5, 3)


@pytest.mark.parametrize(("slot", "units"), [("block_1", 4), ("block_2", 6)])
def test_merged_convolutions_train_like_the_block_and_its_seed(slot: str, units: int) -> None:
    model, host, x = make_host("conv")
    place = grow(host, slot, "widen_large")
    with torch.no_grad():
        for norm in (place.seed.norm, place.block.norm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    plain = export(model)
    merged = plain.get_submodule(slot)
    assert type(merged) is ConvBlock
    assert types_of(plain) == types_of(ConvNet())
    assert merged.norm.num_features == merged.conv_1.out_channels == 2 * units
    assert merged.conv_2.in_channels == 2 * units
    for is_training in (False, True, False):
        model.train(is_training)
        plain.train(is_training)
        assert_same(plain(x), model(x))
    together = torch.cat([place.block.norm.running_var, place.seed.norm.running_var])
    torch.testing.assert_close(merged.norm.running_var, together)


def test_a_low_rank_seed_worked_by_hand() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(5, 3)
    add_slots(model, ["0"], x)
    place = grow(slots(model), "0", "low_rank")
    down, up = place.seed[0].weight, place.seed[1].weight
    plain = export(model)
    assert types_of(plain) == [nn.Sequential, nn.Linear, nn.Tanh]
    torch.testing.assert_close(plain[0].weight, place.block.weight + 0.7 * up @ down)
    assert torch.equal(plain[0].bias, place.block.bias)
    assert_same(plain(x), model(x))


def test_alpha_is_multiplied_into_the_last_layer_of_an_unmerged_seed() -> None:
    model, host, x = make_host("transformer")
    place = grow(host, "blocks.0", "self_attention")
    plain = export(model)
    project = plain.blocks[0].seed[1].project
    torch.testing.assert_close(project.weight, 0.7 * place.seed[1].project.weight)
    torch.testing.assert_close(project.bias, 0.7 * place.seed[1].project.bias)
    assert "alpha" not in plain.blocks[0].code
    assert_same(plain(x), model(x))


class Twice(MLPSeed):
    def forward(self, x: Tensor) -> Tensor:
        return self[0](self[0](x))


@pytest.mark.parametrize(
    "seed",
    [
        nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
        nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3, elementwise_affine=False)),
        nn.Sequential(nn.Linear(3, 3), parametrizations.weight_norm(nn.Linear(3, 3))),
        Twice(3, 3),
    ],
)
def test_alpha_stays_in_the_sum_if_no_layer_can_absorb_it(seed: nn.Module) -> None:
    model, host, x = two_layers()
    grow(host, "0", "mlp_small").seed = seed
    plain = export(model)
    assert "alpha = 0.7" in plain[0].code
    assert_same(plain(x), model(x))


@pytest.mark.parametrize("style", [BlendStyle.MULTIPLY_LINEAR, BlendStyle.LEARNED_GATE])
@pytest.mark.parametrize("blueprint", ["widen_small", "low_rank", "mlp_small"])
def test_seeds_with_a_nonadditive_style_are_never_merged(blueprint: str, style: BlendStyle) -> None:
    model, host, x = two_layers()
    place = grow(host, "0", blueprint, style=style)
    plain = export(model)
    assert "alpha = 0.7" in plain[0].code
    sizes = {name: count(part) for name, part in plain[0].named_children()}
    assert sizes == {name: count(part) for name, part in place.named_children()}
    assert_same(plain(x), model(x))


def _tie(model: nn.Module) -> None:
    model[1].weight = nn.Parameter(torch.randn(4, 3))
    model[0].block.first.weight = model[1].weight
    model[1].bias = nn.Parameter(torch.randn(4))


def _hook(model: nn.Module) -> None:
    model[0].block.second.register_forward_hook(lambda module, args, output: output + 1.0)


def _watch(model: nn.Module) -> None:
    model[0].block.activation.register_forward_hook(lambda module, args, output: None)


def _parametrize(model: nn.Module) -> None:
    parametrizations.weight_norm(model[0].block.second)


def _name_twice(model: nn.Module) -> None:
    model[0].block.other = model[0].block.first


def _change(model: nn.Module) -> None:
    model[0].block.activation = nn.Tanh()


@pytest.mark.parametrize("spoil", [_tie, _hook, _watch, _parametrize, _name_twice, _change])
def test_a_block_with_shared_hooked_or_changed_layers_is_not_merged_into(
    spoil: Callable[[nn.Module], None],
) -> None:
    model, host, x = two_layers()
    grow(host, "0", "widen_large")
    merged = export(model)
    assert type(merged[0]) is TwoLayers
    spoil(model)
    plain = export(model)
    assert type(plain[0]).__name__ == "GrownTwoLayers"
    assert plain[0].block.first.weight.shape == (4, 3)
    assert_same(plain(x), model(x))


def test_norms_with_different_momentum_are_not_merged() -> None:
    model, host, x = make_host("conv")
    place = grow(host, "block_1", "widen_large")
    place.block.norm.momentum = 0.3
    plain = export(model)
    assert plain.block_1.block.norm.num_features == 4
    assert_same(plain.train()(x), model.train()(x))


class Scaled(TwoLayers):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x if scale == 1.0 else scale * x)


def test_a_block_with_several_arguments_is_not_merged_into() -> None:
    model, host, x = two_layers(Scaled())
    assert host["0"].site.path is not None
    grow(host, "0", "widen_large")
    plain = export(model)
    assert plain[0].block.first.out_features == 4
    assert_same(plain[0](x, scale=2.0), model[0].block(x, 2.0) + 0.7 * model[0].seed(x))


def test_shared_weights_stay_shared_after_a_merge() -> None:
    model, host, x = two_layers()
    model.append(nn.Linear(2, 2))
    model.append(nn.Linear(2, 2))
    model[3].weight = model[2].weight
    grow(host, "0", "widen_small")
    plain = export(model)
    assert type(plain[0]) is TwoLayers
    assert plain[3].weight is plain[2].weight
    assert plain[2].weight is not model[2].weight
    assert_same(plain(x), model(x))


def test_a_frozen_weight_stays_frozen_after_a_merge() -> None:
    model, host, _ = two_layers()
    grow(host, "0", "widen_small")
    model[0].block.first.requires_grad_(False)
    frozen = [name for name, p in export(model).named_parameters() if not p.requires_grad]
    assert frozen == ["0.first.weight", "0.first.bias"]


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TwoLayers()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


@pytest.mark.parametrize("inner", ["mlp_small", "widen_small"])
def test_a_block_with_a_nested_seed_is_merged_into_only_if_that_seed_was_merged(
    inner: str,
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Wrapped(), nn.Linear(3, 2)), torch.randn(5, 3)
    add_slots(model, ["0", "0.inner"], x)
    host = slots(model)
    assert host["0"].site.path is not None
    grow(host, "0.inner", inner)
    grow(host, "0", "widen_large")
    plain = export(model)
    assert_same(plain(x), model(x))
    is_merged = type(plain[0]) is Wrapped
    assert is_merged == (inner == "widen_small")
    if is_merged:
        assert plain[0].inner.first.out_features == 4 + 1 + 4


def test_layers_of_different_dtypes_are_not_merged() -> None:
    model, host, x = two_layers()
    grow(host, "0", "widen_large")
    model[0].seed.bfloat16()
    plain = export(model)
    assert plain[0].block.first.weight.shape == (4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model(x)
        assert (plain(x) - wanted).abs().max() <= 0.02 * wanted.abs().max()


class Precise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.double().tanh()


def test_the_sum_keeps_the_dtype_of_the_block() -> None:
    model, host, x = two_layers()
    grow(host, "0", "mlp_small").seed = Precise()
    plain = export(model)
    assert plain[0](x).dtype == torch.float32
    assert_same(plain(x), model(x))


def test_bfloat16_seeds_are_merged() -> None:
    model, host, x = two_layers()
    model.bfloat16()
    grow(host, "0", "widen_large")
    plain = export(model)
    assert type(plain[0]) is TwoLayers
    assert all(parameter.dtype == torch.bfloat16 for parameter in plain.parameters())
    wanted = model(x.bfloat16())
    assert (plain(x.bfloat16()) - wanted).abs().max() <= 0.02 * wanted.abs().max()
