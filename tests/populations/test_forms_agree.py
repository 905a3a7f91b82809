"""Both forms of a population agree: decisions exactly, numbers up to rounding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from esper.config.growth import PopulationConfig
from esper.growth.placement import add_slots
from esper.lifecycle.factored_actions import WAIT, BlendStyle, GrowthAction, Op
from esper.populations import Population
from esper.populations.host_data import BatchOrder
from tests.populations.worlds import (
    CNN,
    CONFIGS,
    FORMS,
    MLP,
    Builder,
    Make,
    apply_all,
    compiled,
    in_torch,
    make_specs,
    module_slots,
    to_double,
)

SIZES = (40, 40, 24, 7)


def make_pair(
    design: str, config: PopulationConfig, dtype: torch.dtype, sizes: tuple[int, ...] = SIZES
) -> tuple[Population, Population]:
    specs = make_specs(CONFIGS[design], sizes)
    specs = to_double(specs) if dtype == torch.float64 else specs
    build = Builder(CONFIGS[design], dtype)
    return in_torch(build, specs, config), compiled(build, specs, config)


def assert_same_state(first: Population, second: Population, tolerance: float) -> None:
    for host in range(first.n_hosts):
        a, b = first.get_state(host), second.get_state(host)
        for fact in ("lives", "n_germinated", "batch_order", "is_finished"):
            assert a.facts[fact] == b.facts[fact]
        models = [{n for n in s.tensors if n.startswith("model/")} for s in (a, b)]
        assert models[0] == models[1]
        for name in a.tensors.keys() | b.tensors.keys():
            # The momentum of what has no effect may be zero up to rounding, or not there.
            one, other = (s.tensors.get(name, torch.zeros(())) for s in (a, b))
            torch.testing.assert_close(
                *torch.broadcast_tensors(one, other.to(one.dtype)),
                atol=tolerance,
                rtol=0,
                check_dtype=False,
                msg=f"{host}: {name}",
            )


def run_together(
    pair: tuple[Population, Population], script: list[list[GrowthAction]], tolerance: float
) -> None:
    for actions in script:
        outcomes = [apply_all(population, actions) for population in pair]
        assert outcomes[0] == outcomes[1]
        reports = [population.train_epoch() for population in pair]
        np.testing.assert_allclose(reports[0].losses, reports[1].losses, atol=tolerance)
        np.testing.assert_allclose(
            reports[0].gradient_norms, reports[1].gradient_norms, atol=10 * tolerance
        )
        np.testing.assert_allclose(
            reports[0].seed_gradient_norms, reports[1].seed_gradient_norms, atol=10 * tolerance
        )
        np.testing.assert_allclose(
            reports[0].gradient_noise, reports[1].gradient_noise, atol=10 * tolerance
        )
        np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
        for slot in (None, *pair[0].slot_config.slot_ids):
            judged = [population.evaluate(without_slot=slot) for population in pair]
            np.testing.assert_allclose(judged[0].losses, judged[1].losses, atol=tolerance)
            np.testing.assert_allclose(judged[0].metrics, judged[1].metrics)
            np.testing.assert_array_equal(judged[0].flops, judged[1].flops)
        assert_same_state(*pair, tolerance)


def act(op: Op, slot: str, **fields: object) -> GrowthAction:
    return GrowthAction(op=op, slot=slot, **fields)  # type: ignore[arg-type]


def life_script(slots: list[str], blueprints: tuple[str, str]) -> list[list[GrowthAction]]:
    """Germinate, blend, fossilize and prune, each host at its own stage."""
    first, second = slots[0], slots[-1]
    gate, multiply = BlendStyle.LEARNED_GATE, BlendStyle.MULTIPLY_LINEAR
    go_first, go_second = act(Op.ADVANCE, first), act(Op.ADVANCE, second)
    return [
        [
            act(Op.GERMINATE, first, blueprint=blueprints[0]),
            act(Op.GERMINATE, second, blueprint=blueprints[1], style=gate, alpha_target=0.7),
            act(Op.GERMINATE, first, blueprint=blueprints[0], style=multiply),
            WAIT,
        ],
        [go_first, go_second, go_first, act(Op.GERMINATE, first, blueprint=blueprints[0])],
        [go_first, go_second, WAIT, go_first],
        [WAIT, WAIT, act(Op.PRUNE, first), go_first],
        [WAIT, WAIT, WAIT, WAIT],
        [go_first, go_second, WAIT, WAIT],
        [
            act(Op.FOSSILIZE, first),
            act(Op.SET_ALPHA_TARGET, second, alpha_target=0.5, alpha_speed_epochs=3),
            WAIT,
            go_first,
        ],
        [WAIT, WAIT, act(Op.GERMINATE, second, blueprint=blueprints[1]), WAIT],
        [WAIT, WAIT, WAIT, act(Op.PRUNE, first, alpha_speed_epochs=3)],
        [WAIT, act(Op.PRUNE, second, alpha_speed_epochs=3), WAIT, WAIT],
    ]


BLUEPRINT_PAIRS = {
    "mlp": [("mlp_large", "mlp_small"), ("low_rank", "norm")],
    "cnn": [
        ("conv_small", "attention"),
        ("norm", "conv_light"),
        ("depthwise", "bottleneck"),
    ],
}


@pytest.mark.parametrize(
    ("design", "blueprints", "optimizer"),
    [
        *((design, pairs[0], "adamw") for design, pairs in BLUEPRINT_PAIRS.items()),
        *(
            pytest.param(design, pair, "adamw", marks=pytest.mark.slow)
            for design, pairs in BLUEPRINT_PAIRS.items()
            for pair in pairs[1:]
        ),
        *(
            pytest.param("mlp", BLUEPRINT_PAIRS["mlp"][0], name, marks=pytest.mark.slow)
            for name in ("adam", "sgd")
        ),
    ],
)
def test_both_forms_agree_over_a_whole_life_in_double_precision(
    design: str, blueprints: tuple[str, str], optimizer: str
) -> None:
    config = PopulationConfig(
        optimizer=optimizer,  # type: ignore[arg-type]
        batch_size=8,
        weight_decay=0.01,
    )
    pair = make_pair(design, config, torch.float64)
    script = life_script(module_slots(CONFIGS[design]), blueprints)
    run_together(pair, script, tolerance=1e-9)


@pytest.mark.parametrize("design", ["cnn", pytest.param("mlp", marks=pytest.mark.slow)])
def test_five_epochs_agree_to_1e_4_in_single_precision(design: str) -> None:
    pair = make_pair(design, PopulationConfig(batch_size=8), torch.float32)
    script = life_script(module_slots(CONFIGS[design]), BLUEPRINT_PAIRS[design][0])
    run_together(pair, script[:5], tolerance=1e-4)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        FORMS,
        (compiled, in_torch),
        (compiled, compiled),
        pytest.param(in_torch, in_torch, marks=pytest.mark.slow),
    ],
)
def test_a_state_continues_in_either_form(source: Make, target: Make) -> None:
    specs = make_specs(MLP, SIZES)
    config = PopulationConfig(batch_size=8)
    script = life_script(module_slots(MLP), BLUEPRINT_PAIRS["mlp"][0])
    first = source(Builder(MLP), specs, config)
    for actions in script[:4]:
        apply_all(first, actions)
        first.train_epoch()
    second = target(Builder(MLP), specs, config)
    second.load_state_dict(first.state_dict())
    for actions in script[4:]:
        assert apply_all(first, actions) == apply_all(second, actions)
        first.train_epoch()
        second.train_epoch()
    # The same form goes on to the bit; the other adds in another order.
    assert_same_state(first, second, tolerance=0.0 if source is target else 1e-5)


def test_sgd_without_momentum_has_no_state_in_either_form() -> None:
    config = PopulationConfig(optimizer="sgd", momentum=0.0, batch_size=8, learning_rate=0.05)
    pair = make_pair("mlp", config, torch.float64)
    run_together(pair, life_script(["blocks.0", "blocks.1"], ("mlp_small", "norm")), 1e-9)
    assert not [name for name in pair[0].get_state(0).tensors if name.startswith("optimizer/")]
    for source, target in (pair, pair[::-1]):
        target.load_state_dict(source.state_dict())
        assert_same_state(*pair, tolerance=1e-9)


@pytest.mark.parametrize("design", ["mlp", "cnn"])
def test_a_last_batch_that_ruins_a_host_is_undone_in_both_forms(design: str) -> None:
    # One batch per epoch, so that each batch is the last.
    specs = to_double(make_specs(CONFIGS[design], (8, 8, 8)))
    specs[1] = dataclasses.replace(specs[1], learning_rate=1e4)
    config = PopulationConfig(optimizer="sgd", batch_size=8, learning_rate=0.01)
    build = Builder(CONFIGS[design], torch.float64)
    pair = (in_torch(build, specs, config), compiled(build, specs, config))
    initial = pair[0].get_state(1).tensors
    before = pair[0].evaluate().losses
    for epoch in range(3):
        reports = [population.train_epoch() for population in pair]
        for population, report in zip(pair, reports, strict=True):
            assert report.interventions.keys() == {1}
            np.testing.assert_allclose(report.losses, reports[0].losses, rtol=1e-9)
            for name, tensor in initial.items():
                assert torch.equal(population.get_state(1).tensors[name], tensor), (epoch, name)
            np.testing.assert_allclose(population.evaluate().losses[1], before[1])
        assert_same_state(*pair, tolerance=1e-9)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_both_forms_judge_from_the_first_batch_on(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr("esper.populations.vector_hosts._kernel", None)
    specs = to_double(make_specs(MLP, (24, 24, 24)))
    specs[1].data.train_inputs[5] *= 1e12  # one of three batches in each epoch
    config = PopulationConfig(batch_size=8)
    build = Builder(MLP, torch.float64)
    pair = (in_torch(build, specs, config), compiled(build, specs, config))
    initial = pair[0].get_state(1).tensors
    for _ in range(3):
        reports = [population.train_epoch() for population in pair]
        for population, report in zip(pair, reports, strict=True):
            assert report.interventions.keys() == {1}
            assert "e+" in report.interventions[1].reason
            for name, tensor in initial.items():
                assert torch.equal(population.get_state(1).tensors[name], tensor), name
        watched = [population.get_state(1).facts["losses"] for population in pair]
        np.testing.assert_allclose(watched[0], watched[1], rtol=1e-9)
        assert_same_state(*pair, tolerance=1e-9)


def test_checking_the_last_state_of_an_epoch_changes_no_buffer() -> None:
    """Running statistics follow the batches of training only: a plain loop has the same."""
    config = PopulationConfig(batch_size=8, optimizer="sgd", momentum=0.0, learning_rate=0.01)
    specs = to_double(make_specs(CNN, (24,)))
    build = Builder(CNN, torch.float64)
    model = build(0)
    order = BatchOrder(0, 24, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, weight_decay=config.weight_decay)
    for batch in torch.from_numpy(order.draw_epoch()):
        optimizer.zero_grad()
        data = specs[0].data
        outputs = model(data.train_inputs[batch])
        torch.nn.functional.cross_entropy(outputs, data.train_targets[batch]).backward()
        optimizer.step()
    expected = dict(model.named_buffers())
    assert expected
    for form in FORMS:
        population = form(build, specs, config)
        population.train_epoch()
        found = population.get_state(0).tensors
        for name, buffer in expected.items():
            torch.testing.assert_close(found[f"model/{name}"], buffer)


class _Counting(nn.Module):
    """Counts its training batches in one buffer and replaces another; both change its output."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6))
        self.head = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return self.head(self.block(x - self.mean)) / (1 + self.count)


def test_checking_the_last_state_does_not_count_as_a_batch() -> None:
    def build(seed: int) -> nn.Module:
        return add_slots(_Counting(), ["block"], torch.randn(2, 6))

    specs = make_specs(MLP, (24,))
    population = in_torch(build, specs, PopulationConfig(batch_size=8))
    for epoch in range(1, 3):
        population.train_epoch()
        assert population.get_state(0).tensors["model/count"] == 3 * epoch
    order, mean = BatchOrder(0, 24, 8), torch.zeros(6)
    for batch in (*order.draw_epoch(), *order.draw_epoch()):
        mean = 0.5 * mean + 0.5 * specs[0].data.train_inputs[torch.from_numpy(batch)].mean(0)
    torch.testing.assert_close(population.model(0).mean, mean)
