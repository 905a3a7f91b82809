"""A seed does not affect the host until it is blended, and then does so by its alpha and style."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from esper.growth.blending import AlphaSchedule
from esper.growth.blueprints import SeedForm, find_blueprint
from esper.growth.host_slots import slots
from esper.growth.placement import add_slots
from esper.growth.seed_slot import SeedSlot, find_change_problem
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import (
    HOSTS,
    STYLES,
    grads_of,
    lead_to,
    loss_of,
    make_host,
    randomize,
    same_bits,
    same_state,
)

EVERY_SEED = [
    (name, slot, blueprint)
    for name in HOSTS
    for slot in HOSTS[name][1]
    for blueprint in sorted(make_host(name)[1].slot_config.fits[slot])
]


def without_slots(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the host's own gradients, by their names in a model whose slots are empty."""
    own = {name: grad for name, grad in grads.items() if ".seed." not in name}
    own = {name: grad for name, grad in own.items() if ".gate." not in name}
    return {name.replace(".block.", "."): grad for name, grad in own.items()}


@functools.cache
def plain_results(name: str, is_training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output and the gradients of a model without seeds."""
    model, _, x = make_host(name)
    model.train(is_training)
    return model(x).detach(), grads_of(model, x)


@pytest.mark.parametrize(("name", "slot", "blueprint"), EVERY_SEED)
def test_a_seed_in_training_changes_no_bit_of_the_hosts_output_and_gradients(
    name: str, slot: str, blueprint: str
) -> None:
    styles = BlendStyle.MULTIPLY_LINEAR, BlendStyle.LEARNED_GATE
    cases = [
        (Stage.TRAINING, style, mode) for style, mode in zip(styles, (True, False), strict=True)
    ]
    cases += [(Stage.GERMINATED, BlendStyle.LEARNED_GATE, mode) for mode in (True, False)]
    for stage, style, is_training in cases:
        model, host, x = make_host(name)
        place = lead_to(host, slot, stage, blueprint=blueprint, style=style)
        for part in (place.seed, place.gate):
            if part is not None:
                randomize(part)
        model.train(is_training)
        expected, expected_grads = plain_results(name, is_training)

        with torch.no_grad():
            assert same_bits(model(x), expected)
        model.zero_grad()
        output = model(x)
        assert same_bits(output, expected)
        output.square().sum().backward()
        grads = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        assert same_state(without_slots(grads), expected_grads)
        if stage == Stage.TRAINING and blueprint != "noop":
            assert any(bool(p.grad.any()) for p in place.seed.parameters())
            if place.gate is not None:
                assert place.gate.weight.grad.any()


def seed_gradient_by_hand(place: SeedSlot, plain: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the gradient of a seed's parameters, treating the host's tensors as constants."""
    block = plain.get_submodule(place.name)
    seen: dict[str, Tensor] = {}

    def record(_: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        seen["x"], seen["y"] = args[0].detach(), output.detach().clone()
        output.register_hook(lambda grad: seen.update(grad=grad.clone()))

    handle = block.register_forward_hook(record)
    loss_of(plain, x).backward()
    handle.remove()
    is_serial = find_blueprint(place.life.blueprint).form == SeedForm.SERIAL
    change = place.seed(seen["y"] if is_serial else seen["x"])
    if place.life.style == BlendStyle.MULTIPLY_LINEAR:
        change = seen["y"] * change.tanh()
    if place.life.style == BlendStyle.LEARNED_GATE:
        change = 2.0 * place.gate(seen["y"]).sigmoid() * change
    return list(torch.autograd.grad(change, place.seed_parameters(), seen["grad"]))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("name", "slot", "blueprint"),
    [
        ("mlp", "blocks.1", "mlp_small"),
        ("mlp", "blocks.0", "low_rank"),
        ("conv", "block_1", "conv_heavy"),
        ("conv", "block_2", "bottleneck"),
        ("transformer", "blocks.0", "self_attention"),
        ("transformer", "blocks.0.mlp", "lora_small"),
    ],
)
def test_a_seed_in_training_gets_the_gradient_of_alpha_1(
    name: str, slot: str, blueprint: str, style: BlendStyle
) -> None:
    model, host, x = make_host(name)
    place = lead_to(host, slot, Stage.TRAINING, blueprint=blueprint, style=style)
    for part in (place.seed, place.gate):
        if part is not None:
            randomize(part)
    plain, _, _ = make_host(name)
    grads_of(model, x)
    expected = seed_gradient_by_hand(place, plain, x)
    for parameter, gradient in zip(place.seed_parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("blueprint", ["mlp_small", "low_rank"])
def test_blending_adds_the_seeds_change_times_alpha(
    style: BlendStyle, alpha: float, blueprint: str
) -> None:
    _, host, _ = make_host("mlp")
    place = lead_to(host, "blocks.0", Stage.HOLDING, blueprint=blueprint, style=style)
    place.life.schedule = AlphaSchedule(target=alpha)
    randomize(place)
    x = torch.randn(4, 6)
    y = place.block(x)
    delta = place.seed(y if blueprint == "mlp_small" else x)
    full = {
        BlendStyle.ADD_LINEAR: lambda: y + delta,
        BlendStyle.ADD_SIGMOID: lambda: y + delta,
        BlendStyle.MULTIPLY_LINEAR: lambda: y * (1.0 + delta.tanh()),
        BlendStyle.LEARNED_GATE: lambda: y + 2.0 * place.gate(y).sigmoid() * delta,
    }[style]()
    torch.testing.assert_close(place(x), y + alpha * (full - y))
    if alpha == 0.0:
        assert same_bits(place(x), y)
    else:
        assert (place(x) - y).abs().max() > 1e-3


def test_gradients_of_a_blended_seed_reach_the_host() -> None:
    model, host, x = make_host("mlp")
    place = lead_to(host, "blocks.0", Stage.BLENDING, blueprint="mlp_small")
    randomize(place.seed)
    plain, _, _ = make_host("mlp")
    stem = grads_of(model, x)["stem.weight"]
    assert not torch.allclose(stem, grads_of(plain, x)["stem.weight"])


@pytest.mark.parametrize("blueprint", ["norm", "attention", "depthwise"])
@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING])
def test_an_in_place_operation_after_a_block_does_not_affect_its_seed(
    blueprint: str, stage: Stage
) -> None:
    model, host, x = make_host("conv")  # its activations are in place
    place = lead_to(host, "block_1", stage, blueprint=blueprint)
    inside: list[tuple[Tensor, Tensor]] = []
    place.block.register_forward_hook(lambda _, __, y: inside.append((y, y.clone())))
    grads_of(model, x)
    ((after, before),) = inside
    assert same_bits(after, before)
    assert any(bool(parameter.grad.any()) for parameter in place.seed.parameters())


class Labelled(nn.Module):
    """A block with attributes and methods that a model may use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.label = "mine"

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def double(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return 2.0 * x

    def __len__(self) -> int:
        return 1


def test_a_slot_forwards_attributes_to_its_block() -> None:
    model = nn.Sequential(Labelled())
    add_slots(model, ["0"], torch.randn(2, 4))
    slots(model).germinate("0", "norm")
    place = model[0]
    assert isinstance(place, SeedSlot)
    assert place.label == "mine"
    assert place.layer is place.block.layer
    with pytest.raises(AttributeError, match="'Labelled' object has no attribute 'nothing'"):
        _ = place.nothing


def test_a_slot_is_in_the_model_only_while_it_holds_a_seed() -> None:
    model, host, _ = make_host("mlp")
    block = model.blocks[0]
    assert not any(isinstance(module, SeedSlot) for module in model.modules())
    host.germinate("blocks.0", "norm")
    assert model.blocks[0] is host["blocks.0"]
    assert host["blocks.0"].block is block
    host.tick()
    host.prune("blocks.0")
    assert model.blocks[0] is block


def test_a_disabled_seed_does_not_affect_the_output() -> None:
    model, host, x = make_host("mlp")
    plain, _, _ = make_host("mlp")
    place = lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_small")
    randomize(place.seed)
    grown = model(x)
    with host["blocks.0"].switched_off():
        assert same_bits(model(x), plain(x))
        with host["blocks.0"].switched_off():
            pass
        assert same_bits(model(x), plain(x))
    assert same_bits(model(x), grown)
    assert not same_bits(grown, plain(x))
    with pytest.raises(ZeroDivisionError), host["blocks.0"].switched_off():
        _ = 1 // 0
    assert same_bits(model(x), grown)


def test_a_copy_of_a_model_grows_independently() -> None:
    model, host, x = make_host("mlp")
    lead_to(host, "blocks.0", Stage.TRAINING, blueprint="mlp_small")
    heard: list[str] = []
    host.listeners.append(lambda: heard.append("original"))
    twin = copy.deepcopy(model)
    twin_host = slots(twin)
    assert twin_host.model is twin
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    before = model(x)

    twin_host.tick()
    twin_host.advance("blocks.0")
    randomize(twin_host["blocks.0"].seed)

    assert host["blocks.0"].stage == Stage.TRAINING
    assert twin.blocks[0].stage == Stage.BLENDING
    assert same_bits(model(x), before)
    assert not same_bits(twin(x), before)
    twin_host.abandon_growing()
    assert heard == []
    assert isinstance(model.blocks[0], SeedSlot)
    assert not isinstance(twin.blocks[0], SeedSlot)
    assert same_bits(twin(x), before)


def test_the_same_seed_in_a_copy_gets_the_same_weights() -> None:
    model, host, _ = make_host("mlp")
    twin = copy.deepcopy(model)
    torch.manual_seed(5)
    host.germinate("stem", "mlp_small")
    torch.manual_seed(6)
    slots(twin).germinate("stem", "mlp_small")
    assert same_state(host["stem"].seed.state_dict(), slots(twin)["stem"].seed.state_dict())


@pytest.mark.parametrize("style", STYLES)
def test_a_seed_follows_the_dtype_of_its_host(
    style: BlendStyle,
) -> None:
    model, host, x = make_host("mlp")
    model.double()  # while the slot is not in the model
    place = lead_to(host, "stem", Stage.BLENDING, blueprint="mlp_small", style=style)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model(x.double()).dtype == torch.float64
    model.to(torch.bfloat16)
    assert {p.dtype for p in place.seed_parameters()} == {torch.bfloat16}
    assert model(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("style", STYLES)
def test_seeds_in_training_and_blended_seeds_work_under_autocast(
    style: BlendStyle,
) -> None:
    model, host, x = make_host("mlp")
    plain, _, _ = make_host("mlp")
    place = lead_to(host, "blocks.0", Stage.TRAINING, blueprint="low_rank", style=style)
    randomize(place.seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(model(x), plain(x))
        host.tick()
        host.advance("blocks.0")
        model(x).float().square().sum().backward()
    assert all(bool(p.grad.any()) for p in place.seed.parameters())


def test_a_seed_follows_the_mode_of_its_model() -> None:
    model, host, _ = make_host("conv")
    model.eval()
    place = lead_to(host, "block_1", Stage.GERMINATED, blueprint="conv_small")
    assert not any(module.training for module in model.modules())
    model.train()
    assert all(module.training for module in place.modules())


def test_seeds_of_a_frozen_host_get_gradients() -> None:
    model, host, x = make_host("mlp")
    model.requires_grad_(False)
    place = lead_to(host, "blocks.1", Stage.TRAINING, blueprint="mlp_small")
    grads_of(model, x)
    assert place.seed[-1].weight.grad.any()


class Biased(nn.Module):
    """A seed whose output does not start at zero."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y) + self.bias


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (Biased(0.25), "0.25"),
        (Biased(float("nan")), "not finite"),
        (nn.Flatten(0), "[24]"),
    ],
)
def test_a_seed_that_would_change_the_host_does_not_start_training(
    seed: nn.Module, reason: str
) -> None:
    _, host, _ = make_host("mlp")
    host.germinate("blocks.0", "norm")
    host["blocks.0"].seed = seed
    outcome = host.advance("blocks.0")
    assert not outcome.was_done
    assert reason in outcome.reason
    assert host["blocks.0"].stage == Stage.GERMINATED


def test_minus_zero_counts_as_zero() -> None:
    assert find_change_problem(torch.tensor([-0.0, 0.0]), (2,)) is None


@pytest.mark.parametrize("is_training", [True, False])
def test_probing_a_seed_does_not_change_its_statistics_or_mode(is_training: bool) -> None:
    model, host, _ = make_host("conv")
    model.train(is_training)
    host.germinate("block_1", "bottleneck")
    seed = host["block_1"].seed
    before = copy.deepcopy(seed.state_dict())
    assert host.advance("block_1").was_done
    assert same_state(before, seed.state_dict())
    assert all(module.training == is_training for module in seed.modules())


def test_restyling_creates_and_removes_the_gate() -> None:
    model, host, x = make_host("mlp")
    lead_to(host, "stem", Stage.HOLDING, blueprint="norm")
    n_parameters = sum(p.numel() for p in model.parameters())
    before = model(x)
    host.set_alpha_target("stem", 1.0, style=BlendStyle.LEARNED_GATE)
    # A new gate is fully open.
    torch.testing.assert_close(model(x), before)
    assert sum(p.numel() for p in model.parameters()) == n_parameters + 6 + 1
    host.set_alpha_target("stem", 1.0, style=BlendStyle.ADD_LINEAR)
    assert sum(p.numel() for p in model.parameters()) == n_parameters


def test_listeners_are_called_when_parameters_are_added_or_removed() -> None:
    _, host, _ = make_host("mlp")
    heard: list[int] = []
    host.listeners.append(lambda: heard.append(len(host.growing_parameters())))
    lead_to(host, "stem", Stage.HOLDING, blueprint="norm")
    assert heard == [1]
    host.tick()
    host.prune("stem")
    assert heard == [1, 0]


def test_a_block_without_parameters_can_have_a_seed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh()))
    x = torch.randn(2, 3)
    add_slots(model, ["1"], x)
    lead_to(slots(model), "1", Stage.TRAINING, blueprint="mlp_small")
    assert same_bits(model(x), torch.tanh(model[0](x)))
