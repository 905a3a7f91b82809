"""FLOPs and parameters match hand counts, and a meter adds them up while a host grows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esper.growth.blueprints.seeds import CausalAttention
from esper.growth.footprint import (
    TrainingMeter,
    count_flops,
    footprint,
    forward_flops,
    training_step_flops,
)
from esper.growth.host_slots import slots
from esper.growth.placement import add_slots
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import grads_of, hooks_of, lead_to, make_host, same_state, state_of

# The residual MLP on 4 samples: stem 5 x 6, two blocks of 6 x 8 and 8 x 6, head 6 x 3.
STEM, BLOCK, HEAD = 2 * 4 * 5 * 6, 2 * 4 * (6 * 8 + 8 * 6), 2 * 4 * 6 * 3
FORWARD = STEM + 2 * BLOCK + HEAD
# A backward pass costs two forward passes, but the input needs no gradient.
STEP = 3 * FORWARD - STEM
# A seed of two layers 6 x 3 and 3 x 6 on the same samples.
SEED = 2 * 4 * (6 * 3 + 3 * 6)


def test_an_mlp_worked_by_hand() -> None:
    model, _, x = make_host("mlp")
    counted = footprint(model, x)
    assert counted.host_parameters == counted.parameters == 277
    assert counted.forward_flops == FORWARD == 1920
    assert counted.training_step_flops == STEP == 5520
    assert counted.seed_parameters == {}


def test_a_convolutional_network_worked_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 1, stride=2))
    first, second = 2 * 5 * (6 * 6) * (2 * 3 * 9), 2 * 5 * (3 * 3) * (3 * 4)
    counted = footprint(model, torch.randn(5, 2, 6, 6))
    assert counted.parameters == (2 * 3 * 9 + 3) + (3 * 4 + 4)
    assert counted.forward_flops == first + second
    assert counted.training_step_flops == 3 * (first + second) - first


def test_attention_worked_by_hand() -> None:
    # 2 sequences of 5 steps, 3 heads of width 4; every product is 5 x 5 x 4 for each of 6 heads.
    model = CausalAttention(12, 3)
    product = 2 * 6 * 5 * 5 * 4
    layers = 2 * 10 * (12 * 36 + 12 * 12)
    x = torch.randn(2, 5, 12)
    assert forward_flops(model, x) == layers + 2 * product
    # Backward computes the scores again, then the gradients of both products.
    step = training_step_flops(model, x)
    assert step == 3 * layers - 2 * 10 * 12 * 36 + 2 * product + 5 * product


def test_a_step_costs_three_forward_passes_if_the_input_needs_a_gradient() -> None:
    model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 2))
    x = torch.randn(4, 7)
    embedded = nn.Sequential(nn.Linear(7, 7, bias=False), model)
    added = 2 * 4 * 7 * 7
    assert training_step_flops(embedded, x) == 3 * forward_flops(model, x) + 2 * added


def test_frozen_layers_need_no_weight_gradient() -> None:
    model = nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 2))
    model[0].requires_grad_(False)
    first, second = 2 * 4 * 7 * 9, 2 * 4 * 9 * 2
    assert training_step_flops(model, torch.randn(4, 7)) == first + 2 * second
    model.requires_grad_(False)
    assert training_step_flops(model, torch.randn(4, 7)) == first + second


def test_a_held_seed_has_its_share_of_the_forward_pass() -> None:
    model, host, x = make_host("mlp")
    lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_small")
    lead_to(host, "stem", Stage.HOLDING, blueprint="norm", style=BlendStyle.LEARNED_GATE)
    counted = footprint(model, x)
    gate = 2 * 4 * 6 * 1
    assert counted.host_parameters == 277
    assert counted.seed_parameters == {"blocks.0": (18 + 3) + (18 + 6), "stem": 12 + 7}
    assert counted.forward_flops == FORWARD + SEED + gate
    assert counted.training_step_flops == STEP + 3 * (SEED + gate)
    assert counted.parameters == 277 + 45 + 19


@pytest.mark.parametrize("blueprint", ["mlp_small", "low_rank"])
def test_an_isolated_seed_costs_nothing_in_evaluation_and_less_than_three_passes_in_training(
    blueprint: str,
) -> None:
    model, host, x = make_host("mlp")
    lead_to(host, "blocks.0", Stage.TRAINING, blueprint=blueprint)
    units = {"mlp_small": 3, "low_rank": 1}[blueprint]
    layer = 2 * 4 * 6 * units
    counted = footprint(model, x)
    assert counted.forward_flops == FORWARD
    # Two layers forward, two weight gradients, and the gradient of the hidden units.
    assert counted.training_step_flops == STEP + 5 * layer


def test_a_germinated_seed_costs_nothing_yet() -> None:
    model, host, x = make_host("mlp")
    lead_to(host, "blocks.0", Stage.GERMINATED, blueprint="mlp_large")
    assert footprint(model, x).training_step_flops == STEP


def test_counting_does_not_change_the_model() -> None:
    model, host, x = make_host("conv")
    lead_to(host, "block_1", Stage.BLENDING, blueprint="conv_small")
    grads = grads_of(model, x)
    before, generator = state_of(model), torch.get_rng_state()
    footprint(model, x)
    assert same_state(before, state_of(model))
    assert torch.equal(generator, torch.get_rng_state())
    assert same_state(grads, {name: p.grad for name, p in model.named_parameters()})
    assert hooks_of(model) == 0
    assert all(module.training for module in model.modules())


def test_outputs_of_any_shape_are_counted() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(5, 2), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> dict[str, object]:
            y = self.one(x)
            return {"pair": (y, [self.other(x)]), "choice": y.argmax(-1), "name": "several"}

    # Both layers read the input: two passes each.
    assert training_step_flops(Several(), torch.randn(4, 5)) == 2 * (2 * 4 * 5 * (2 + 3))


def test_any_function_can_be_counted() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert count_flops(lambda: a @ b) == 2 * 3 * 4 * 5
    assert count_flops(lambda: a + 1) == 0


def test_a_meter_follows_the_flops_of_a_growing_host() -> None:
    model, host, x = make_host("mlp")
    meter = TrainingMeter(model, x)
    assert len(x) * meter.training_flops() == STEP
    lead_to(host, "blocks.0", Stage.TRAINING, blueprint="mlp_small")
    assert len(x) * meter.training_flops() == STEP + 5 * SEED // 2
    host.tick()
    host.advance("blocks.0")
    assert len(x) * meter.training_flops() == STEP + 3 * SEED
    host.abandon_growing()
    assert len(x) * meter.training_flops() == STEP


def test_a_meter_counts_again_only_when_slots_have_changed() -> None:
    model, host, x = make_host("mlp")
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    meter = TrainingMeter(model, x)
    for _ in range(5):
        meter.training_flops()
    assert len(calls) == 1
    lead_to(host, "stem", Stage.BLENDING, blueprint="norm")
    for _ in range(5):
        host.tick()  # alpha changes, the cost does not
        meter.training_flops()
    assert len(calls) == 2


def test_a_meter_notices_a_new_gate() -> None:
    model = add_slots(nn.Sequential(nn.Linear(4, 4)), ["0"], torch.randn(2, 4))
    host = slots(model)
    meter = TrainingMeter(model, torch.randn(2, 4))
    lead_to(host, "0", Stage.BLENDING, blueprint="norm")
    while not host["0"].life.schedule.is_at_rest:
        host.tick()
    before = meter.training_flops()
    host.set_alpha_target("0", 1.0, style=BlendStyle.LEARNED_GATE)
    assert meter.training_flops() == before + 3 * 2 * 4


def test_a_meter_accepts_positional_and_keyword_inputs() -> None:
    model, _, x = make_host("mlp")
    totals = [TrainingMeter(model, each).training_flops() for each in (x, (x,), {"x": x})]
    assert totals[0] == totals[1] == totals[2] > 0
