"""Slots can be added to any model by name, and errors say why a block cannot have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import GrowthConfig
from esper.errors import ShapeError, SlotError
from esper.growth.host_slots import own_slots, slots
from esper.growth.modules import count_parameters
from esper.growth.placement import add_slots, find_slots
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import TensorKind
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import (
    HOSTS,
    ConvNet,
    ResidualBlock,
    ResidualMLP,
    Transformer,
    hooks_of,
    lead_to,
    make_host,
    randomize,
    same_bits,
    same_state,
    state_of,
)
from tests.growth.place_models import CASES, GROWABLE, build


class Joined(nn.Module):
    """A model made of modules and a function that connects them."""

    def __init__(self, joined: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.joined = joined
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.joined(self, *args, **kwargs)


VECTORS = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(SlotError, match=r"no submodule.* 'blocks\.2'\. Did you mean 'blocks\."):
        add_slots(ResidualMLP(), ["blocks.2"], VECTORS)
    with pytest.raises(SlotError, match=r"no submodule.* 'zzz'.* stem>\*, blocks\.\*\.up>down, "):
        add_slots(ResidualMLP(), ["zzz"], VECTORS)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("stem", r"at is 'stem'.*\['stem'\]"),
        (None, "at is None"),
        ([], "at is empty"),
        (["stem", "stem"], "'stem' twice"),
        ([""], "list of blocks ''"),
    ],
)
def test_invalid_names_are_rejected(at: Any, message: str) -> None:
    with pytest.raises(SlotError, match=message):
        add_slots(ResidualMLP(), at, VECTORS)


def test_slots_are_added_once() -> None:
    model, _, x = make_host("mlp")
    with pytest.raises(SlotError, match=r"has slots \(blocks\.0, blocks\.1, stem\)"):
        add_slots(model, ["head"], x)


def test_a_model_without_slots_says_how_to_add_them() -> None:
    with pytest.raises(SlotError, match=r"ResidualMLP has no slots.*esper\.add_slots"):
        slots(ResidualMLP())


@pytest.mark.parametrize(
    ("block", "returned"),
    [
        (nn.LSTM(5, 3), r"a tuple of \(a float32 tensor of shape \[4, 3\], a tuple of \(.*\)\)"),
        (Joined(lambda _, x: {"y": x}), "a dict"),
        (Joined(lambda _, x: [x, None]), r"a list of \(a float32 tensor .*, nothing\)"),
        (Joined(lambda _, x: x.argmax(-1)), r"a int64 tensor of shape \[4\]"),
        (Joined(lambda _, x: x.sum()), r"a float32 tensor of shape \[\]"),
        (
            Joined(lambda _, x: x.view(4, 5, 1, 1, 1)),
            r"a float32 tensor of shape \[4, 5, 1, 1, 1\]",
        ),
    ],
)
def test_a_block_with_an_unsupported_output_is_rejected_with_a_description(
    block: nn.Module, returned: str
) -> None:
    model = Joined(lambda m, x: m.block(x), block=block)
    with pytest.raises(SlotError, match=f"'block' .*returns {returned}; a "):
        add_slots(model, ["block"], VECTORS)


def test_a_module_that_is_called_twice_is_rejected() -> None:
    model = Joined(lambda m, x: m.layer(m.layer(x)), layer=nn.Linear(5, 5))
    with pytest.raises(SlotError, match=r"'layer' .*2 times"):
        add_slots(model, ["layer"], VECTORS)


def test_a_module_with_two_names_is_rejected_under_both() -> None:
    layer = nn.Linear(5, 5)
    model = Joined(lambda m, x: m.one(x), one=layer, other=nn.Sequential(layer))
    with pytest.raises(SlotError, match=r"'one' cannot .*same module .*'other\.0'"):
        add_slots(model, ["one"], VECTORS)
    with pytest.raises(SlotError, match=r"'other\.0' cannot .*same module .*'one'"):
        add_slots(model, ["other.0"], VECTORS)


def test_a_module_that_is_not_called_is_rejected() -> None:
    with pytest.raises(SlotError, match=r"'blocks' .*never calls it"):
        add_slots(ResidualMLP(), ["blocks"], VECTORS)


def test_the_model_is_unchanged_if_one_of_several_names_is_rejected() -> None:
    model = ResidualMLP()
    with pytest.raises(SlotError):
        add_slots(model, ["stem", "blocks"], VECTORS)
    add_slots(model, ["stem"], VECTORS)
    assert list(slots(model)) == ["stem"]


def test_a_parallel_seed_reads_the_argument_that_fits_the_output() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, scale: float, mask: Tensor, x: Tensor, other: Tensor) -> Tensor:
            return scale * self.layer(x) * mask.float() + other

    def call(m: nn.Module, x: Tensor) -> Tensor:
        return m.block(2.0, x[:, :1] > 0, x, other=x[:, :3])

    model = Joined(call, block=Mixed())
    add_slots(model, ["block"], VECTORS)
    site = slots(model)["block"].site
    assert (site.input_key, site.input_shape, site.output_shape) == (2, (4, 5), (4, 3))
    place = lead_to(slots(model), "block", Stage.BLENDING, blueprint="low_rank")
    inside: list[Tensor] = []
    place.seed.register_forward_pre_hook(lambda _, args: inside.append(args[0]))
    model(VECTORS)
    assert inside[0] is VECTORS


def test_a_parallel_seed_reads_a_keyword_input() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, *, hidden: Tensor) -> Tensor:
            return self.layer(hidden)

    model = Joined(lambda m, x: m.block(hidden=x), block=Keyword())
    add_slots(model, ["block"], VECTORS)
    assert slots(model)["block"].site.input_key == "hidden"
    place = lead_to(slots(model), "block", Stage.HOLDING, blueprint="low_rank")
    randomize(place.seed)
    torch.testing.assert_close(model(VECTORS), place.block(hidden=VECTORS) + place.seed(VECTORS))


def test_a_block_that_modifies_its_input_takes_serial_seeds_only() -> None:
    model = nn.Sequential(
        nn.Linear(5, 6), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)), nn.Linear(6, 2)
    )
    add_slots(model, ["1"], VECTORS)
    host = slots(model)
    assert "in place" in host["1"].site.why_no_parallel
    assert set(host.slot_config.fits["1"]) == {"noop", "norm", "mlp_small", "mlp_large"}
    before = model(VECTORS)
    lead_to(host, "1", Stage.TRAINING, blueprint="mlp_small")
    model(VECTORS).sum().backward()
    assert same_bits(model(VECTORS), before)


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_parallel_seeds_can_read_the_input_of_a_strided_block(size: int, stride: int) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=stride, padding=1))
    x = torch.randn(2, 2, size, size)
    add_slots(model, ["0"], x)
    site = slots(model)["0"].site
    assert (site.input_key, site.input_shape) == (0, tuple(x.shape))


def test_an_upsampling_block_takes_no_parallel_seed() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2))
    add_slots(model, ["0"], torch.randn(2, 2, 3, 3))
    site = slots(model)["0"].site
    assert site.input_shape is None
    assert "[2, 2, 3, 3]" in site.why_no_parallel


def make_encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 4, 8)


def test_a_torch_encoder_takes_slots_around_its_layers() -> None:
    torch.manual_seed(0)
    model, x = make_encoder()
    model.eval()
    before = model(x)
    add_slots(model, ["layers.1", "layers.0"], x)
    place = lead_to(slots(model), "layers.0", Stage.HOLDING, blueprint="lora_small")
    with torch.no_grad():
        torch.testing.assert_close(model(x), before)
    randomize(place.seed)
    with torch.no_grad():
        fast = model(x)
    assert not torch.allclose(fast, before, atol=1e-3)
    torch.testing.assert_close(fast, model(x))


def test_layers_that_a_torch_encoder_skips_in_inference_are_rejected() -> None:
    model, x = make_encoder()
    with pytest.raises(SlotError, match=r"'layers\.0\.linear1' cannot .*fast path"):
        add_slots(model, ["layers.0.linear1"], x)


@pytest.mark.parametrize("first", ["blocks.0", "blocks.0.mlp"])
def test_nested_slots_can_be_filled_and_emptied_in_any_order(first: str) -> None:
    model, host, x = make_host("transformer")
    before, parameters = model(x), [id(p) for p in model.parameters()]
    order = [first, *({"blocks.0", "blocks.0.mlp"} - {first})]
    for slot in order:
        lead_to(host, slot, Stage.HOLDING, blueprint="mlp_small")
        randomize(host[slot].seed)
    outer, inner = host["blocks.0"], host["blocks.0.mlp"]
    assert model.blocks[0] is outer
    assert outer.block.mlp is inner
    assert not torch.allclose(model(x), before)
    for slot in order:
        host.tick()
        host.prune(slot)
    assert same_bits(model(x), before)
    assert [id(p) for p in model.parameters()] == parameters


def test_shared_weights_stay_shared() -> None:
    def joined(m: nn.Module, tokens: Tensor) -> Tensor:
        return m.head(m.embed(tokens))

    model = Joined(joined, embed=nn.Embedding(7, 4), head=nn.Linear(4, 7, bias=False))
    model.head.weight = model.embed.weight
    tokens = torch.tensor([[1, 2, 3]])
    before = model(tokens)
    add_slots(model, ["embed", "head"], tokens)
    host = slots(model)
    assert host["embed"].site.input_shape is None  # token ids are not features
    place = lead_to(host, "head", Stage.TRAINING, blueprint="lora_small")
    model.double()
    assert place.block.weight is model.embed.weight
    assert count_parameters(model) == 7 * 4 + count_parameters(place.seed)
    host.abandon_growing()
    assert model.head.weight is model.embed.weight
    torch.testing.assert_close(model(tokens).float(), before)


class Stateful(nn.Module):
    """Draws random numbers and has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x + 0.1 * torch.randn_like(x)))


@pytest.mark.parametrize("work", [lambda m, x: add_slots(m, ["body"], x), find_slots])
def test_inspecting_a_model_changes_neither_it_nor_the_generator(work: Callable[..., Any]) -> None:
    model = Stateful()
    model.body[1].eval()  # modules in different modes
    model(VECTORS).sum().backward()
    before, generator = state_of(model), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    work(model, VECTORS)
    assert same_state(before, state_of(model))
    assert torch.equal(generator, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert same_state(grads, {name: p.grad for name, p in model.named_parameters()})
    assert hooks_of(model) == 0


def test_hooks_are_removed_and_modes_restored_when_a_model_fails() -> None:
    model = Stateful().train()
    for work in (lambda x: add_slots(model, ["body"], x), lambda x: find_slots(model, x)):
        with pytest.raises(SlotError, match=r"Stateful .*sample_input"):
            work(torch.randn(4, 99))
        assert hooks_of(model) == 0
        assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    "sample", [(VECTORS, 2.0), [VECTORS, 2.0], {"factor": 2.0, "x": VECTORS}], ids=type
)
def test_a_sample_may_be_positional_or_keyword_arguments(sample: Any) -> None:
    def joined(m: nn.Module, x: Tensor, factor: float) -> Tensor:
        return factor * m.block(x)

    model = Joined(joined, block=ResidualBlock(5, 4))
    add_slots(model, ["block"], sample)
    assert slots(model)["block"].site.output_shape == (4, 5)
    names = find_slots(Joined(joined, block=ResidualBlock(5, 4)), sample).names
    assert names == ["block.up>block.down", "block"]


def test_proposals_are_units_then_lists_of_blocks_then_blocks() -> None:
    found = find_slots(ResidualMLP(), VECTORS)
    assert [(p.name, p.site.what, p.site.size, p.parameters) for p in found] == [
        ("stem>*", "units", 6, 277),  # the residual stream
        ("blocks.*.up>down", "units", 8, 220),
        ("blocks.*", "blocks", 2, 220),
        ("blocks.0", "module", 0, 110),
        ("blocks.1", "module", 0, 110),
    ]
    proposals = find_slots(ConvNet(), torch.randn(2, 1, 6, 6))
    assert {p.site.kind for p in proposals} == {TensorKind.FEATURE_MAP}
    assert [p.name for p in proposals if p.site.what != "units"] == ["block_1", "block_2"]
    assert find_slots(Transformer(), HOSTS["transformer"][2](0)).names == [
        "blocks.*.mlp",
        "blocks.*",
        "blocks",
        "blocks.0",
        "blocks.0.attention",
        "blocks.0.mlp",
        "blocks.1",
        "blocks.1.attention",
        "blocks.1.mlp",
    ]


@pytest.mark.parametrize("name", CASES)
def test_places_of_the_usual_models_are_found_or_refused_with_a_reason(name: str) -> None:
    case, model = CASES[name], build(name)
    x = case.sample(0)
    proposals = find_slots(model, x)
    assert tuple(p.name for p in proposals if p.site.what == "units") == case.places
    for place, reason in case.refused.items():
        with pytest.raises(SlotError, match=reason) as caught:
            add_slots(model, [place], x)
        assert "\n" not in str(caught.value)
        assert own_slots(model) is None


@pytest.mark.parametrize("name", GROWABLE)
def test_every_place_of_the_usual_models_grows_without_changing_the_outputs(name: str) -> None:
    case, model = CASES[name], build(name)
    model.double()
    x = case.sample(1)
    x = x.double() if x.is_floating_point() else x
    config = GrowthConfig(commits_at_once=True)
    host = slots(add_slots(model, list(case.places), x, growth_config=config))
    before, n_parameters = model(x), count_parameters(model)
    for place in case.places:
        n_new = host[place].count_new("widen_medium")
        assert host.germinate(place, "widen_medium").was_done
        assert count_parameters(model) == n_parameters + n_new
        torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
        n_parameters += n_new


def test_one_place_of_a_group_can_have_the_slot() -> None:
    model = add_slots(ResidualMLP(), ["blocks.1.up>down"], VECTORS)
    slots(model).germinate("blocks.1.up>down", "widen_large")
    assert [block.up.out_features for block in model.blocks] == [8, 16]
    assert [block.down.in_features for block in model.blocks] == [8, 16]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("stem>*", "blocks.0"),  # the residual stream enters and leaves the block
        ("blocks.*.up>down", "blocks.0.up"),
        ("blocks.*.up>down", "blocks.0.up>down"),
    ],
)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_slots_that_would_change_each_other_are_refused(
    first: str, second: str, is_swapped: bool
) -> None:
    names = [second, first] if is_swapped else [first, second]
    with pytest.raises(SlotError, match="cannot both have a slot") as caught:
        add_slots(ResidualMLP(), names, VECTORS)
    assert all(repr(name) in str(caught.value) for name in names)


def test_proposals_for_a_model_without_blocks_are_its_layers() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    assert find_slots(model, VECTORS).names == ["0>2", "0", "2"]


def test_proposals_print_as_a_table() -> None:
    assert str(find_slots(ResidualMLP(), VECTORS)).splitlines()[:3] == [
        "slot              what grows                   parameters",
        "stem>*            6 units                             277",
        "blocks.*.up>down  8 units in each of 2 places         220",
    ]
    nothing = find_slots(nn.Sequential(nn.Flatten(0)), VECTORS)
    assert str(nothing) == "nothing of this model can grow"


@pytest.mark.parametrize("name", HOSTS)
def test_growth_adds_as_many_parameters_as_its_slot_says(name: str) -> None:
    make, _, sample = HOSTS[name]
    for proposal in find_slots(make(), sample(0)):
        model = add_slots(make(), [proposal.name], sample(0))
        host = slots(model)
        host.lives.growth_config = GrowthConfig(commits_at_once=False)
        base, slot = count_parameters(model), host[proposal.name]
        for blueprint in sorted(host.slot_config.fits[proposal.name]):
            n_new = slot.count_new(blueprint)
            host.germinate(proposal.name, blueprint)
            assert count_parameters(model) == base + n_new
            assert slot.count_live() == n_new
            host.abandon_growing()
            assert count_parameters(model) == base
            while slot.stage != Stage.DORMANT:
                host.tick()


def test_printed_slots_say_what_grows() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    add_slots(model, ["0>2", "4"], torch.randn(2, 4))
    assert str(slots(model)).splitlines() == [
        "0>2: dormant; 8 units",
        "4: dormant; modules beside the block",
    ]


def test_empty_slots_are_not_in_the_model() -> None:
    model, _, x = make_host("mlp")
    plain = ResidualMLP()
    plain.load_state_dict(model.state_dict())
    assert same_bits(model(x), plain(x))
    assert not any(isinstance(module, SeedSlot) for module in model.modules())


def test_the_seed_argument_determines_the_weights_of_new_seeds() -> None:
    def grown(seed: int) -> Tensor:
        model = add_slots(ResidualMLP(), ["stem"], VECTORS, seed=seed)
        slots(model).germinate("stem", "mlp_small")
        return slots(model)["stem"].seed[0].weight

    assert same_bits(grown(3), grown(3))
    assert not same_bits(grown(3), grown(4))


class _ListOfSteps(nn.Module):
    """Registers a block by name and calls it through a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.steps = [self.a]

    def forward(self, x: Tensor) -> Tensor:
        return self.steps[0](x)


def test_a_block_that_is_called_through_another_reference_is_rejected() -> None:
    model = _ListOfSteps()
    with pytest.raises(SlotError, match=r"'a' cannot .*nn\.ModuleList"):
        add_slots(model, ["a"], torch.randn(2, 4))
    assert type(model.a) is nn.Linear
    with pytest.raises(SlotError, match="has no slots"):
        slots(model)


class _ReadsAlpha(nn.Module):
    """Reads an attribute of its block that slots define too."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.block.alpha = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block.alpha * self.block(x)


def test_a_block_whose_attributes_a_slot_would_hide_is_rejected() -> None:
    with pytest.raises(SlotError, match=r"'block' cannot .*attribute"):
        add_slots(_ReadsAlpha(), ["block"], torch.randn(2, 4))


class _WalksItsBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        assert len(self.block) == 2
        assert [type(part) for part in self.block] == [nn.Linear, nn.ReLU]
        return self.block(x) + self.block[0].bias


def test_a_slot_can_be_iterated_and_indexed_like_its_block() -> None:
    model = _WalksItsBlock()
    x = torch.randn(2, 4)
    before = model(x)
    add_slots(model, ["block"], x)
    slots(model).germinate("block", "mlp_small")
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("sample", [torch.randn(2, 99), torch.zeros(2, 5).int(), None, "x"])
def test_a_sample_that_the_model_fails_on_is_rejected_in_one_line(sample: Any) -> None:
    with pytest.raises(SlotError, match="sample_input") as caught:
        add_slots(nn.Sequential(nn.Linear(5, 5), nn.ReLU()), ["0"], sample)
    assert "\n" not in str(caught.value)


def test_slots_behave_like_a_mapping() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    add_slots(model, ["0"], torch.randn(2, 5))
    host = slots(model)
    assert "0" in host
    assert "1" not in host
    assert host.get("nope") is None
    with pytest.raises(SlotError, match="no slot 'nope'"):
        host["nope"]


def test_a_compiled_model_has_the_slots_of_the_original() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    assert add_slots(compiled, ["0"], torch.randn(2, 5)) is compiled
    assert slots(compiled) is slots(model)


def test_a_seed_takes_the_dtype_of_the_model_if_the_block_has_no_parameters() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    add_slots(model, ["1"], x)
    slots(model).germinate("1", "mlp_small")
    assert slots(model).advance("1").was_done
    model(x).sum().backward()


def test_a_seed_that_returns_another_shape_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1))
    add_slots(model, ["0"], torch.randn(2, 2, 8, 8))
    place = lead_to(slots(model), "0", Stage.BLENDING, blueprint="conv_small")
    place.seed = nn.AdaptiveAvgPool2d(8)
    assert place(torch.randn(2, 2, 8, 8)).shape == (2, 4, 8, 8)
    with pytest.raises(ShapeError, match=r"conv_small .*slot '0' .*\[2, 4, 8, 8\]"):
        model(torch.randn(2, 2, 16, 16))


def test_changing_alpha_keeps_the_style_by_default() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    add_slots(model, ["0"], torch.randn(2, 5))
    host, style = slots(model), BlendStyle.MULTIPLY_LINEAR
    lead_to(host, "0", Stage.HOLDING, blueprint="mlp_small", style=style)
    host.set_alpha_target("0", 0.5)
    assert host["0"].life.style == style
