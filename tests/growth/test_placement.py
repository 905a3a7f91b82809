"""Slots can be added to any model by name, and errors say why a block cannot have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.errors import ShapeError, SlotError
from esper.growth.footprint import forward_flops
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.growth.placement import add_slots, find_slots
from esper.growth.seed_slot import SeedSlot
from esper.growth.shares import ShareTable
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
    with pytest.raises(SlotError, match=r"no submodule 'blocks\.2'\. Did you mean 'blocks\."):
        add_slots(ResidualMLP(), ["blocks.2"], VECTORS)
    with pytest.raises(SlotError, match=r"no submodule 'zzz'.* stem, blocks"):
        add_slots(ResidualMLP(), ["zzz"], VECTORS)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("stem", r"at is 'stem'.*\['stem'\]"),
        (None, "at is None"),
        ([], "at is empty"),
        (["stem", "stem"], "'stem' twice"),
        ([""], "has no submodule ''"),
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
    place = lead_to(slots(model), "block", Stage.BLENDING, blueprint="widen_small")
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
    place = lead_to(slots(model), "block", Stage.HOLDING, blueprint="widen_large")
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
def test_a_strided_block_can_be_widened(size: int, stride: int) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=stride, padding=1))
    x = torch.randn(2, 2, size, size)
    add_slots(model, ["0"], x)
    place = lead_to(slots(model), "0", Stage.BLENDING, blueprint="widen_large")
    randomize(place.seed)
    torch.testing.assert_close(model(x), place.block(x) + place.alpha * place.seed(x))


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
    assert names == ["block", "block.up>block.down"]


def test_proposals_are_the_blocks_of_a_model_in_order() -> None:
    pairs = ["blocks.0.up>blocks.0.down", "blocks.1.up>blocks.1.down"]
    names = ["blocks.0", pairs[0], "blocks.1", pairs[1]]
    assert find_slots(ResidualMLP(), VECTORS).names == names
    proposals = find_slots(ConvNet(), torch.randn(2, 1, 6, 6))
    assert [(p.name, p.kind, p.width, p.can_widen) for p in proposals] == [
        ("block_1", TensorKind.FEATURE_MAP, 4, True),
        ("block_1.conv_1>block_1.conv_2", TensorKind.FEATURE_MAP, 4, True),
        ("block_2", TensorKind.FEATURE_MAP, 8, True),
        ("block_2.conv_1>block_2.conv_2", TensorKind.FEATURE_MAP, 6, True),
    ]
    tokens = torch.zeros(2, 5, dtype=torch.long)
    assert find_slots(Transformer(), tokens).names == [
        "blocks",
        "blocks.0",
        "blocks.0.attention",
        "blocks.0.mlp",
        "blocks.0.mlp.0>blocks.0.mlp.2",
        "blocks.1",
        "blocks.1.attention",
        "blocks.1.mlp",
        "blocks.1.mlp.0>blocks.1.mlp.2",
    ]


def test_proposals_are_ranked_by_width_and_by_their_share_of_the_model() -> None:
    proposals = find_slots(Transformer(), torch.zeros(2, 5, dtype=torch.long))
    assert sorted(proposal.rank for proposal in proposals) == list(range(1, 10))
    best = sorted(proposals, key=lambda proposal: proposal.rank)
    assert [proposal.can_widen for proposal in best] == [True] * 4 + [False] * 5
    assert best[-1].name == "blocks"  # a stack of proposed blocks
    for group in (best[:4], best[4:8]):
        scores = [proposal.share.score for proposal in group]
        assert scores == sorted(scores, reverse=True)


def test_shares_worked_by_hand() -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 3))
    proposals = {proposal.name: proposal for proposal in find_slots(model, VECTORS)}
    assert list(proposals) == ["0", "0>2", "2", "2>3", "3"]
    # 20, 15 and 12 parameters; 40, 24 and 18 FLOPs for each sample
    wanted = {"0": (20, 40), "0>2": (35, 64), "2": (15, 24), "2>3": (27, 42), "3": (12, 18)}
    for name, (n_parameters, flops) in wanted.items():
        share = proposals[name].share
        assert (share.parameters, share.flops) == pytest.approx((n_parameters / 47, flops / 82))
    shares = {name: proposal.share.gradient for name, proposal in proposals.items()}
    assert shares["0"] + shares["2"] + shares["3"] == pytest.approx(1.0)
    assert shares["0>2"] == pytest.approx(shares["0"] + shares["2"])


def test_proposals_for_a_model_without_blocks_are_its_layers() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    assert find_slots(model, VECTORS).names == ["0", "0>2", "2"]


def test_proposals_print_as_a_table() -> None:
    text = str(find_slots(ResidualMLP(), VECTORS))
    assert "blocks.0: vector [B, D], width 6; widening can be merged\n  rank " in text
    # 110 of 277 parameters, 2 * 96 of 2 * 240 FLOPs
    assert "hidden units to the model's own layers; 40% of the parameters, 40% of the FLOPs" in text
    assert "  mlp_small                 45 parameters             72 FLOPs/sample\n" in text
    nothing = find_slots(nn.Sequential(nn.Flatten(0)), VECTORS)
    assert str(nothing) == "no block of this model can have a slot"


@pytest.mark.parametrize("name", HOSTS)
def test_a_seed_costs_what_its_proposal_says(name: str) -> None:
    make, _, sample = HOSTS[name]
    proposals = find_slots(make(), sample(0))
    model = add_slots(make(), proposals.names, sample(0))
    host, x = slots(model), sample(1)
    base = count_parameters(model), forward_flops(model, x)
    for proposal in proposals:
        assert set(proposal.costs) == set(host.slot_config.fits[proposal.name])
        for blueprint, cost in proposal.costs.items():
            lead_to(host, proposal.name, Stage.BLENDING, blueprint=blueprint)
            assert count_parameters(model) - base[0] == cost.parameters
            assert forward_flops(model, x) - base[1] == len(x) * cost.flops
            host.abandon_growing()
            while host[proposal.name].stage != Stage.DORMANT:
                host.tick()


def test_printed_slots_say_whether_widening_adds_to_the_models_own_layers() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    add_slots(model, ["0>2", "4"], torch.randn(2, 4))
    assert str(slots(model)).splitlines() == [
        "0>2: dormant; widening adds hidden units to the model's own layers",
        "4: dormant; seeds grow beside the block",
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
    with pytest.raises(SlotError, match=r"Sequential .*sample_input") as caught:
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


def test_a_seed_rejects_an_image_size_it_does_not_fit() -> None:
    block = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(nn.Identity(), block)
    add_slots(model, ["1"], torch.randn(2, 2, 8, 8))
    place = lead_to(slots(model), "1", Stage.BLENDING, blueprint="widen_small")
    assert place(torch.randn(2, 2, 8, 8)).shape == (2, 4, 1, 1)
    with pytest.raises(ShapeError, match=r"widen_small .*slot '1' .*\[2, 4, 2, 2\]"):
        model(torch.randn(2, 2, 16, 16))


def test_changing_alpha_keeps_the_style_by_default() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    add_slots(model, ["0"], torch.randn(2, 5))
    host, style = slots(model), BlendStyle.MULTIPLY_LINEAR
    lead_to(host, "0", Stage.HOLDING, blueprint="mlp_small", style=style)
    host.set_alpha_target("0", 0.5)
    assert host["0"].life.style == style


class _Attends(nn.Module):
    """Attention without weights: all of its FLOPs are products that torch counts on GPUs alone."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_the_share_of_flops_includes_attention() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), _Attends()), torch.randn(2, 1, 32, 4)
    share = ShareTable(model, x).share(["1"]).flops
    assert share == pytest.approx(forward_flops(model[1], x) / forward_flops(model, x))
    assert share > 0.5
