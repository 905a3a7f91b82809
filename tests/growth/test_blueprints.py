"""Every blueprint starts at zero, can be trained, and is found by its name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.errors import SlotError
from esper.growth.blueprints import (
    Blueprint,
    SeedForm,
    blueprint_names,
    find_blueprint,
    fitting_blueprints,
    register_blueprint,
)
from esper.growth.blueprints import registry as blueprint
from esper.growth.blueprints.seeds import LORA_LARGE_RANK, LORA_SMALL_RANK
from esper.growth.modules import count_parameters
from esper.growth.sites import SlotSite, TensorKind
from esper.growth.surgery.places import BlockList, Group, Place
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS
from tests.growth.helpers import site_for

MAPS = TensorKind.FEATURE_MAP
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@st.composite
def sites(draw: st.DrawFn) -> SlotSite:
    kind = draw(st.sampled_from(list(TensorKind)))
    width, width_in = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    return site_for(kind, width=width, width_in=width_in, size=draw(st.integers(2, 5)))


def plant(name: str, site: SlotSite, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """Return a new seed and an input for it."""
    recipe = find_blueprint(name)
    torch.manual_seed(1)
    return recipe.build(site).to(dtype), torch.randn(recipe.form.input_shape(site)).to(dtype)


@pytest.mark.parametrize("name", BUILTIN_BLUEPRINTS)
@given(site=sites(), dtype=st.sampled_from(DTYPES), is_training=st.booleans())
def test_a_new_seed_returns_zeros_and_gets_gradients(name, site, dtype, is_training) -> None:
    if find_blueprint(name).why_not(site) is not None:
        return
    seed, x = plant(name, site, dtype)
    seed.train(is_training)
    change = seed(x)
    assert change.shape == site.output_shape
    assert change.dtype == dtype
    # Mirrored units of size 1 cancel up to rounding; other seeds are exactly zero.
    assert change.abs().max() <= 16 * torch.finfo(dtype).eps
    if name == "noop":
        assert count_parameters(seed) == 0
        return
    change.backward(torch.randn(change.shape).to(dtype))
    grads = [p.grad for p in seed.parameters() if p.grad is not None]
    if x.numel() > 2 and site.width > 1:  # a norm over a single number is zero
        assert any(bool(grad.any()) for grad in grads) or is_dead(seed, x)
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)


def is_dead(seed: nn.Module, x: torch.Tensor) -> bool:
    """Return whether no unit of a seed's last hidden layer responds to this input."""
    inside: list[torch.Tensor] = []
    last = [m for m in seed.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
    handle = last.register_forward_pre_hook(lambda _, args: inside.append(args[0]))
    seed(x)
    handle.remove()
    return not inside[0].any()


@pytest.mark.parametrize("kind", list(TensorKind))
def test_each_kind_has_the_blueprints_of_the_design(kind: TensorKind) -> None:
    expected = {
        TensorKind.FEATURE_MAP: {
            "attention",
            "depthwise",
            "bottleneck",
            "conv_small",
            "conv_light",
            "conv_heavy",
        },
        TensorKind.SEQUENCE: {
            "lora_small",
            "lora_large",
            "mlp_small",
            "mlp_large",
            "self_attention",
        },
        TensorKind.VECTOR: {"mlp_small", "mlp_large", "low_rank"},
    }
    fitting = fitting_blueprints(site_for(kind), BUILTIN_BLUEPRINTS)
    assert set(fitting) == expected[kind] | {"noop", "norm"}
    assert list(fitting) == sorted(fitting, key=BUILTIN_BLUEPRINTS.index)


@pytest.mark.parametrize("kind", list(TensorKind))
def test_parallel_seeds_do_not_fit_where_the_input_is_unknown(kind: TensorKind) -> None:
    shape = site_for(kind).output_shape
    site = SlotSite(name="x", kind=kind, output_shape=shape, why_no_parallel="it is a secret")
    fitting = fitting_blueprints(site, BUILTIN_BLUEPRINTS)
    assert not {name for name in fitting if name.startswith(("lora", "low_rank"))}
    if kind != MAPS:
        parallel = "low_rank" if kind == TensorKind.VECTOR else "lora_small"
        assert find_blueprint(parallel).why_not(site) == "it is a secret"
    assert {"noop", "norm"} < set(fitting)


def test_sizes_of_seeds_worked_by_hand() -> None:
    vector, sequence = site_for(TensorKind.VECTOR, width=16), site_for(TensorKind.SEQUENCE, width=8)
    feature_map = site_for(MAPS, width=8)
    sizes = {
        ("norm", vector): 16 + 16,
        ("mlp_small", vector): (16 * 8 + 8) + (8 * 16 + 16),
        ("mlp_large", vector): (16 * 32 + 32) + (32 * 16 + 16),
        ("low_rank", vector): 2 * 16 * 2,
        ("lora_small", sequence): 2 * 8 * 4,
        ("lora_large", sequence): 2 * 8 * 8,  # the rank is limited to the width
        ("self_attention", sequence): (8 + 8) + 8 * 24 + (8 * 8 + 8),
        ("attention", feature_map): (8 * 2 + 2) + (2 * 8 + 8),
        ("depthwise", feature_map): (8 * 9 + 8) + (8 * 8 + 8),
        ("bottleneck", feature_map): (8 * 2 + 2) + (2 * 2 * 9 + 2) + (2 * 8 + 8),
        ("conv_small", feature_map): (8 * 2 * 9 + 2) + (2 * 8 * 9 + 8),
        ("conv_heavy", feature_map): (8 * 8 * 9 + 8) + (8 * 8 * 9 + 8),
    }
    for (name, site), expected in sizes.items():
        assert count_parameters(find_blueprint(name).build(site)) == expected, name


UNITS = SlotSite(name="up>down", kind=MAPS, group=Group("up>down", (Place(8, (), (), ()),)))
BLOCKS = SlotSite(
    name="layers.*", kind=MAPS, blocks=BlockList("layers.*", "layers", (), is_stack=True)
)


def test_units_blocks_and_modules_each_have_their_own_blueprints() -> None:
    widen = ("widen_small", "widen_medium", "widen_large", "widen_huge")
    assert fitting_blueprints(UNITS, BUILTIN_BLUEPRINTS) == widen
    assert fitting_blueprints(BLOCKS, BUILTIN_BLUEPRINTS) == ("deepen",)
    reason = find_blueprint("norm").why_not(UNITS)
    assert reason == "it adds modules beside a block, and 'up>down' is for hidden units"
    reason = find_blueprint("widen_huge").why_not(BLOCKS)
    assert reason == "it adds hidden units, and 'layers.*' is for copies of blocks"


def test_self_attention_is_causal() -> None:
    torch.manual_seed(0)
    seed = find_blueprint("self_attention").build(site_for(TensorKind.SEQUENCE, width=8))
    nn.init.normal_(seed[1].project.weight)
    x = torch.randn(2, 6, 8)
    later = x.clone()
    later[:, 4:] = torch.randn(2, 2, 8)  # not a shift, which the norm would remove
    before, after = seed(x), seed(later)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=0.1)


def test_an_unknown_blueprint_gets_a_suggestion() -> None:
    with pytest.raises(SlotError, match=r"no blueprint 'widen_smal'.*Did you mean 'widen_small'\?"):
        find_blueprint("widen_smal")


def test_a_name_can_be_registered_once() -> None:
    with pytest.raises(SlotError, match="blueprint 'norm'"):
        register_blueprint(find_blueprint("norm"))


def test_a_custom_blueprint_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))
    mine = Blueprint(
        name="mine",
        kinds=frozenset({MAPS}),
        form=SeedForm.SERIAL,
        build=lambda site: nn.Identity(),
        summary="mine",
    )
    assert register_blueprint(mine) is mine
    assert find_blueprint("mine") is mine
    assert blueprint_names()[-1] == "mine"


def test_the_catalogue_describes_what_is_built() -> None:
    assert f"rank-{LORA_SMALL_RANK} " in find_blueprint("lora_small").summary
    assert f"rank-{LORA_LARGE_RANK} " in find_blueprint("lora_large").summary
    for name in fitting_blueprints(UNITS, BUILTIN_BLUEPRINTS):
        recipe = find_blueprint(name)
        assert recipe.summary.startswith(f"{recipe.share:.0%} ")
