"""GradMax finds the largest gradient and changes nothing but the new units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from esper.errors import NonFiniteError, SlotError
from esper.growth.gradmax import maximise_gradient
from esper.growth.host_slots import HostSlots, slots
from esper.growth.placement import add_slots, attach_slots
from esper.growth.sites import BlockPath, SlotSite, TensorKind
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import lead_to, make_host, randomize, same_bits, same_state, state_of

WIDEN = "widen_medium"
SLOT = {"mlp": "stem", "conv": "block_1", "transformer": "blocks.0"}


def row_norms(weight: Tensor) -> Tensor:
    return weight.detach().flatten(1).norm(dim=1)


def linear_host(
    activation: str, *, units: int, shape: tuple[int, ...] = (64,), dtype: torch.dtype
) -> tuple[nn.Module, HostSlots, Callable[[], Tensor]]:
    """Return a linear layer from 24 to 5 features that is being widened, and its loss."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(24, 5)).to(dtype)
    x = torch.randn(*shape, 24, dtype=dtype)
    target = x @ torch.randn(24, 5, dtype=dtype)
    path = BlockPath(
        first="",
        second="",
        norm=None,
        activation=activation,
        hidden=units,
        has_first_bias=True,
    )
    kind = TensorKind.VECTOR if len(shape) == 1 else TensorKind.SEQUENCE
    site = SlotSite(
        name="0",
        kind=kind,
        output_shape=(*shape, 5),
        input_shape=(*shape, 24),
        input_key=0,
        path=path,
    )
    host = attach_slots(model, [site])
    host.germinate("0", "widen_large")
    return model, host, lambda: (model(x) - target).square().sum()


def real_norm(model: nn.Module, host: HostSlots, slot: str, loss: Callable[[], Tensor]) -> Tensor:
    """Return the gradient norm of the outgoing weights in an ordinary backward pass."""
    if host[slot].stage == Stage.GERMINATED:
        assert host.advance(slot).was_done
    model.zero_grad()
    loss().backward()
    return host[slot].seed.second.weight.grad.norm()


@pytest.mark.parametrize(
    ("dtype", "shape", "units"),
    [
        (torch.float32, (64,), 3),
        (torch.float32, (8, 8), 10),
        (torch.float32, (64,), 30),
        (torch.float64, (64,), 10),
    ],
)
def test_without_an_activation_the_singular_value_optimum_is_reached(
    dtype: torch.dtype, shape: tuple[int, ...], units: int
) -> None:
    model, host, loss = linear_host("identity", units=units, shape=shape, dtype=dtype)
    length = row_norms(host["0"].seed.first.weight).mean()
    # At this block, the sum of g x^T is the gradient of the block's own weight.
    (outer,) = torch.autograd.grad(loss(), model[0].weight)
    strengths = torch.zeros(48, dtype=dtype)
    # Of 30 units, 24 can be orthogonal; the other 6 form a second group.
    strengths[:5] = strengths[24:29] = torch.linalg.svdvals(outer)
    optimum = length * strengths[:units].square().sum().sqrt()

    report = maximise_gradient(model, "0", loss)

    assert report.norm_after == pytest.approx(optimum.item(), rel=1e-5)
    assert report.norm_before < report.norm_after
    torch.testing.assert_close(real_norm(model, host, "0", loss), optimum)


@pytest.mark.parametrize(
    ("activation", "shape"),
    [("relu", (64,)), ("gelu", (8, 8)), ("silu", (64,)), ("tanh", (64,))],
)
def test_with_an_activation_no_random_start_is_better(
    activation: str, shape: tuple[int, ...]
) -> None:
    model, host, loss = linear_host(activation, units=3, shape=shape, dtype=torch.float32)
    seed = host["0"].seed
    length = row_norms(seed.first.weight).mean()
    report = maximise_gradient(model, "0", loss)
    assert report.norm_after == pytest.approx(real_norm(model, host, "0", loss).item(), rel=1e-5)

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        seed.first.bias.zero_()
    for _ in range(200):
        draw = torch.randn(seed.first.weight.shape, generator=generator)
        with torch.no_grad():
            seed.first.weight.copy_(length * draw / draw.norm(dim=1, keepdim=True))
        assert real_norm(model, host, "0", loss) <= report.norm_after


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_only_the_new_units_change_and_the_output_does_not(name: str, stage: Stage) -> None:
    model, host, x = make_host(name)
    slot = SLOT[name]
    lead_to(host, slot, stage, blueprint=WIDEN)
    model(x).square().sum().backward()  # so that there are gradients to preserve
    outputs, modes = model(x), [module.training for module in model.modules()]
    before = state_of(model)
    grads = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    generator = torch.get_rng_state()
    length = row_norms(host[slot].seed.first.weight).mean()

    report = maximise_gradient(model, slot, lambda: model(x).square().sum())

    after = state_of(model)
    changed = {key for key in after if not same_bits(after[key], before[key])}
    assert changed <= {f"{slot}.seed.{w}" for w in ("first.weight", "first.bias", "second.weight")}
    assert f"{slot}.seed.first.weight" in changed
    assert not after[f"{slot}.seed.second.weight"].any()
    assert same_state(
        grads, {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    )
    assert torch.equal(generator, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert same_bits(outputs, model(x))
    first = host[slot].seed.first
    torch.testing.assert_close(row_norms(first.weight), length.expand(len(first.weight)))
    assert first.bias is None or not first.bias.any()
    assert report.norm_after > report.norm_before > 0.0


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
@pytest.mark.parametrize("style", list(BlendStyle))
def test_the_reported_norm_is_that_of_an_ordinary_backward_pass(
    name: str, style: BlendStyle
) -> None:
    model, host, x = make_host(name)
    slot = SLOT[name]
    lead_to(host, slot, Stage.TRAINING, blueprint=WIDEN, style=style)
    if host[slot].gate is not None:
        randomize(host[slot].gate)

    def loss() -> Tensor:
        return model(x).square().sum()

    before = real_norm(model, host, slot, loss)
    report = maximise_gradient(model, slot, loss)
    assert report.norm_before == pytest.approx(before.item(), rel=1e-5)
    after = real_norm(model, host, slot, loss)
    assert report.norm_after == pytest.approx(after.item(), rel=1e-5)


def test_each_unit_has_the_better_of_its_two_signs() -> None:
    model, host, loss = linear_host("relu", units=6, dtype=torch.float32)
    maximise_gradient(model, "0", loss, n_iterations=0)  # singular vectors may have either sign
    seed = host["0"].seed
    real_norm(model, host, "0", loss)
    chosen = seed.second.weight.grad.norm(dim=0)
    with torch.no_grad():
        seed.first.weight.neg_()
    real_norm(model, host, "0", loss)
    assert (chosen >= seed.second.weight.grad.norm(dim=0)).all()


@pytest.mark.parametrize("slot", ["block_1", "block_2"])
def test_more_iterations_find_a_larger_gradient(slot: str) -> None:
    norms = []
    for n_iterations in (0, 1, 10, 30):
        model, host, x = make_host("conv")
        host.germinate(slot, WIDEN)
        report = maximise_gradient(
            model, slot, lambda m=model, x=x: m(x).square().sum(), n_iterations=n_iterations
        )
        norms.append(report.norm_after)
    assert norms == sorted(norms)
    assert norms[2] > 1.01 * norms[0]


def test_a_model_in_evaluation_mode_stays_in_it() -> None:
    model, host, x = make_host("conv")
    model.eval()
    host.germinate("block_1", WIDEN)
    maximise_gradient(model, "block_1", lambda: model(x).square().sum())
    assert not any(module.training for module in model.modules())


def test_a_loss_may_call_the_model_several_times() -> None:
    model, host, x = make_host("mlp")
    lead_to(host, "blocks.1", Stage.TRAINING, blueprint=WIDEN)

    def loss() -> Tensor:
        return model(x).square().sum() + model(2 * x).abs().sum()

    report = maximise_gradient(model, "blocks.1", loss)
    real = real_norm(model, host, "blocks.1", loss)
    assert report.norm_after == pytest.approx(real.item(), rel=1e-5)


def test_units_of_a_frozen_host_can_be_initialized() -> None:
    model, host, x = make_host("mlp")
    model.requires_grad_(False)
    lead_to(host, "stem", Stage.GERMINATED, blueprint=WIDEN)
    report = maximise_gradient(model, "stem", lambda: model(x).square().sum())
    assert report.norm_after > report.norm_before


def test_weights_are_kept_if_nothing_better_is_found() -> None:
    # Inputs this small only activate units through a bias, and starting points have none.
    model, host, _ = linear_host("relu", units=4, dtype=torch.float32)
    with torch.no_grad():
        host["0"].seed.first.bias.fill_(0.1)
    x = torch.full((16, 24), 1e-6)
    before = state_of(model)
    report = maximise_gradient(model, "0", lambda: model(x).sum())
    assert (
        report.norm_after
        == pytest.approx(report.norm_before)
        == pytest.approx(real_norm(model, host, "0", lambda: model(x).sum()).item())
    )
    assert same_state(before, state_of(model))


def test_unsuitable_slots_and_losses_are_rejected_by_name() -> None:
    model, host, x = make_host("mlp")

    def loss() -> Tensor:
        return model(x).square().sum()

    with pytest.raises(SlotError, match=r"no slot 'blocks\.2'.*Did you mean 'blocks"):
        maximise_gradient(model, "blocks.2", loss)
    with pytest.raises(SlotError, match="slot 'stem' holds no seed"):
        maximise_gradient(model, "stem", loss)
    lead_to(host, "stem", Stage.BLENDING, blueprint=WIDEN)
    with pytest.raises(SlotError, match="slot 'stem' is blending"):
        maximise_gradient(model, "stem", loss)
    lead_to(host, "blocks.0", Stage.BLENDING, blueprint="mlp_small")
    with pytest.raises(SlotError, match=r"slot 'blocks\.0' holds a 'mlp_small' seed"):
        maximise_gradient(model, "blocks.0", loss)
    lead_to(host, "blocks.1", Stage.TRAINING, blueprint=WIDEN)
    for useless in (lambda: x.sum(), lambda: model(x), lambda: model(x).sum().detach()):
        with pytest.raises(SlotError, match=r"loss .*slot 'blocks\.1'"):
            maximise_gradient(model, "blocks.1", useless)
    with pytest.raises(NonFiniteError, match=r"at slot 'blocks\.1' is not finite"):
        maximise_gradient(model, "blocks.1", lambda: model(x).sum() * float("nan"))
    randomize(host["blocks.1"].seed)
    with pytest.raises(SlotError, match=r"slot 'blocks\.1' has already been trained"):
        maximise_gradient(model, "blocks.1", loss)


def test_hooks_are_removed_and_the_seed_enabled_again_when_the_loss_fails() -> None:
    model, host, _ = make_host("mlp")
    lead_to(host, "stem", Stage.GERMINATED, blueprint=WIDEN)
    with pytest.raises(RuntimeError):
        maximise_gradient(model, "stem", lambda: model(torch.zeros(2, 99)))
    assert not host["stem"].block._forward_hooks
    assert not host["stem"].is_off


def test_a_block_with_a_keyword_input_can_be_widened() -> None:
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Keyword()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(features=x)

    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, *, features: Tensor) -> Tensor:
            return self.layer(features)

    torch.manual_seed(0)
    model, x = Caller(), torch.randn(7, 5)
    add_slots(model, ["inner"], x)
    slots(model).germinate("inner", WIDEN)
    report = maximise_gradient(model, "inner", lambda: model(x).square().sum())
    assert dataclasses.astuple(report)[1] > dataclasses.astuple(report)[0]
