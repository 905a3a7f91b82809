"""Every population trains hosts independently, finishes them and restarts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from esper.config.growth import PopulationConfig
from esper.errors import (
    ConfigError,
    IllegalActionError,
    ShapeError,
    SlotError,
)
from esper.growth.blueprints import registry as blueprint
from esper.growth.host_slots import slots
from esper.growth.placement import add_slots
from esper.growth.sites import TensorKind
from esper.lifecycle.factored_actions import WAIT, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    HostData,
    HostSpec,
    Population,
)
from tests.populations.worlds import (
    CNN,
    FORMS,
    MLP,
    Builder,
    Make,
    in_torch,
    make_data,
    make_specs,
)

CONFIG = PopulationConfig(batch_size=8)


def germinate(slot: str, blueprint: str = "norm") -> GrowthAction:
    return GrowthAction(op=Op.GERMINATE, slot=slot, blueprint=blueprint)


def advance(slot: str) -> GrowthAction:
    return GrowthAction(op=Op.ADVANCE, slot=slot)


def snapshot(population: Population, host: int) -> dict[str, torch.Tensor]:
    return population.get_state(host).tensors


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("form", FORMS)
def test_training_improves_every_host(form: Make) -> None:
    config = PopulationConfig(batch_size=8, learning_rate=0.01)
    population = form(Builder(MLP), make_specs(MLP, (64, 48, 64)), config)
    before = population.evaluate("train")
    for _ in range(15):
        report = population.train_epoch()
    after = population.evaluate("train")
    assert (after.losses < before.losses).all()
    assert (after.metrics > before.metrics).all()
    assert (report.flops > 0).all()
    assert not report.interventions


@pytest.mark.parametrize("form", FORMS)
def test_a_host_does_not_depend_on_its_neighbours(form: Make) -> None:
    specs = make_specs(CNN, (24, 16, 24))
    together = form(Builder(CNN), specs, CONFIG)
    alone = form(Builder(CNN), specs[1:2], CONFIG)
    together.apply(0, germinate("blocks.0"))
    for population, host in ((together, 1), (alone, 0)):
        population.apply(host, germinate("blocks.1", "conv_small"))
        population.train_epoch()
        population.apply(host, advance("blocks.1"))
        population.train_epoch()
        population.train_epoch()
    for name, tensor in snapshot(together, 1).items():
        torch.testing.assert_close(tensor, snapshot(alone, 0)[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["data", "weight", "seed weight"])
@pytest.mark.parametrize("form", FORMS)
def test_a_failing_host_is_rolled_back_and_the_others_continue(form: Make, kind: str) -> None:
    specs = make_specs(CNN, (24, 24, 24))
    populations = [form(Builder(CNN), specs, CONFIG) for _ in range(2)]
    for population in populations:
        population.apply(1, germinate("blocks.0"))
        for _ in range(2):
            population.apply(1, advance("blocks.0"))
            population.train_epoch()
    hit, calm = populations
    assert hit.lives(1)["blocks.0"].stage == Stage.BLENDING
    good = snapshot(hit, 1)
    if kind == "data":
        specs[1].data.train_inputs.data[:] = torch.nan
    else:
        name = "head.weight" if kind == "weight" else "blocks.0.seed.0.weight"
        hit._hosts[1].model.get_parameter(name).data.view(-1)[0] = torch.nan
    report = hit.train_epoch()
    calm.finish(1)
    calm.train_epoch()
    assert report.interventions.keys() == {1}
    assert report.interventions[1].pruned == ("blocks.0",)
    assert "nan" in report.interventions[1].reason or "finite" in report.interventions[1].reason
    assert hit.lives(1)["blocks.0"].stage == Stage.EMBARGOED
    now = snapshot(hit, 1)
    own = {n.replace("blocks.0.block.", "blocks.0."): t for n, t in good.items()}
    assert_same(now, {name: tensor for name, tensor in own.items() if ".seed." not in name})
    for host in (0, 2):
        for name, tensor in snapshot(hit, host).items():
            torch.testing.assert_close(tensor, snapshot(calm, host)[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_finished_host_does_not_change_and_costs_nothing(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (24, 16, 24)), CONFIG)
    population.train_epoch()
    population.finish(2)
    before, score = snapshot(population, 2), population.evaluate(hosts=[2])
    report = population.train_epoch()
    assert_same(snapshot(population, 2), before)
    assert report.flops[2] == report.losses[2] == 0.0
    assert report.flops[0] > 0.0
    np.testing.assert_array_equal(population.evaluate(hosts=[2]).losses, score.losses)


@pytest.mark.parametrize("form", FORMS)
def test_a_restarted_host_keeps_nothing_of_the_old_one(
    form: Make,
) -> None:
    population = form(Builder(MLP), make_specs(MLP, (24, 16, 24)), CONFIG)
    population.apply(1, germinate("blocks.0"))
    population.apply(2, germinate("blocks.0"))
    for _ in range(2):
        population.apply(1, advance("blocks.0"))
        population.train_epoch()
    population.finish(1)
    spec = HostSpec(seed=77, data=make_data(MLP, 40, seed=5), learning_rate=0.02)
    population.restart(1, spec)
    fresh = form(Builder(MLP), [spec], CONFIG)
    assert_same(snapshot(population, 1), snapshot(fresh, 0))
    assert population.get_state(1).facts == fresh.get_state(0).facts
    population.train_epoch()
    fresh.train_epoch()
    for name, tensor in snapshot(population, 1).items():
        torch.testing.assert_close(tensor, snapshot(fresh, 0)[name], atol=1e-6, rtol=0)
    assert population.lives(2)["blocks.0"].stage == Stage.GERMINATED


@pytest.mark.parametrize("form", FORMS)
def test_a_host_can_be_copied_as_a_model(form: Make) -> None:
    config = PopulationConfig(batch_size=8, learning_rate=0.05)
    population = form(Builder(CNN), make_specs(CNN, (24, 16)), config)
    population.apply(0, germinate("blocks.0"))
    for _ in range(3):
        if population.lives(0)["blocks.0"].stage < Stage.BLENDING:
            population.apply(0, advance("blocks.0"))
        population.train_epoch()
    model = population.model(0).eval()
    data = population.specs[0].data
    assert slots(model)["blocks.0"].stage == Stage.BLENDING
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(data.validation_inputs), data.validation_targets)
        with slots(model)["blocks.0"].switched_off():
            without = nn.functional.cross_entropy(
                model(data.validation_inputs), data.validation_targets
            )
    assert population.evaluate(hosts=[0]).losses[0] == pytest.approx(loss.item(), abs=1e-5)
    judged = population.evaluate(hosts=[0], without_slot="blocks.0").losses[0]
    assert judged == pytest.approx(without.item(), abs=1e-5)
    assert abs(loss.item() - without.item()) > 1e-4
    before = snapshot(population, 0)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert_same(snapshot(population, 0), before)


@pytest.mark.parametrize("form", FORMS)
def test_evaluation_keeps_the_order_of_hosts(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (24, 60, 9, 24)), CONFIG)
    population.train_epoch()
    all_hosts = population.evaluate()
    some = population.evaluate(hosts=[2, 0, 3])
    np.testing.assert_allclose(some.losses, all_hosts.losses[[2, 0, 3]], rtol=1e-5)
    with pytest.raises(SlotError, match=r"Did you mean 'blocks\.0'"):
        population.evaluate(without_slot="block.0")


@pytest.mark.parametrize("form", FORMS)
def test_slot_arrays_match_the_lives(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), CONFIG)
    population.apply(1, germinate("blocks.1"))
    for _ in range(2):
        population.apply(1, advance("blocks.1"))
        population.train_epoch()
    arrays = population.slot_arrays()
    life = population.lives(1)["blocks.1"]
    assert arrays.stage.tolist() == [[0, 0, 0, 0], [0, 0, 0, Stage.BLENDING]]
    assert arrays.age_epochs[1, 3] == 2
    assert arrays.alpha[1, 3] == life.alpha > 0.5
    assert arrays.alpha_at_rest[:, 2:].tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("form", FORMS)
def test_invalid_arguments_are_rejected_by_name_and_value(form: Make) -> None:
    specs = make_specs(MLP, (16, 16))
    with pytest.raises(ConfigError, match="specs is empty"):
        form(Builder(MLP), [], CONFIG)
    population = form(Builder(MLP), specs, CONFIG)
    with pytest.raises(IllegalActionError, match=r"fossilize .*blocks\.0"):
        population.apply(0, GrowthAction(op=Op.FOSSILIZE, slot="blocks.0"))
    with pytest.raises(ConfigError, match=r"1 hosts.* 2"):
        population.load_state_dict(form(Builder(MLP), specs[:1], CONFIG).state_dict())
    with pytest.raises(ConfigError, match=r"no host 7; .*0 to 1"):
        population.apply(7, WAIT)
    with pytest.raises(ConfigError, match="there is no host -1"):
        population.evaluate(hosts=[-1])
    assert len(population.evaluate(hosts=[]).losses) == 0
    bad = HostData(torch.zeros(4, 9), torch.zeros(4).long(), torch.zeros(2, 9), torch.zeros(2))
    with pytest.raises(ConfigError, match=r"host 1 .*mat1"):
        form(Builder(MLP), [specs[0], HostSpec(seed=1, data=bad)], CONFIG)
    wrong = HostData(torch.zeros(4, 6), torch.full((4,), 3), torch.zeros(2, 6), torch.zeros(2))
    with pytest.raises(ConfigError, match=r"host 0 .*target 3"):
        form(Builder(MLP), [HostSpec(seed=1, data=wrong)], CONFIG)
    before = snapshot(population, 1)
    with pytest.raises(ConfigError, match="host 1 "):
        population.restart(1, HostSpec(seed=5, data=bad))
    assert_same(snapshot(population, 1), before)
    with pytest.raises(ShapeError, match="3 inputs and 2 targets"):
        HostData(torch.zeros(3, 1), torch.zeros(2), torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(ConfigError, match="Did you mean 'adamw'"):
        PopulationConfig(optimizer="adamww")  # type: ignore[arg-type]


class _Noisy(nn.Module):
    """A model with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.stem(x)))


def build_noisy(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return add_slots(_Noisy(), ["stem"], torch.randn(2, 6))


def test_dropout_depends_on_the_hosts_seed_and_continues_after_a_load() -> None:
    specs = make_specs(MLP, (24, 24))
    first = in_torch(build_noisy, specs, CONFIG)
    second = in_torch(build_noisy, specs[1:], CONFIG)
    torch.manual_seed(1)
    first.train_epoch()
    torch.manual_seed(2)
    second.train_epoch()
    assert_same(snapshot(first, 1), snapshot(second, 0))
    resumed = in_torch(build_noisy, specs, CONFIG)
    resumed.load_state_dict(first.state_dict())
    for population in (first, resumed):
        population.train_epoch()
    assert_same(snapshot(first, 1), snapshot(resumed, 1))


@pytest.mark.parametrize("form", FORMS)
def test_finish_is_the_last_action(form: Make) -> None:
    population = form(Builder(MLP), make_specs(MLP, (16, 16)), CONFIG)
    assert population.apply(0, GrowthAction(op=Op.FINISH)).was_done
    assert population.is_finished.tolist() == [True, False]
    assert population.apply(0, WAIT).was_done
    with pytest.raises(IllegalActionError, match="host 0 has finished"):
        population.apply(0, germinate("blocks.0"))


@pytest.mark.parametrize("form", FORMS)
def test_a_committed_seed_survives_a_failing_epoch(form: Make) -> None:
    specs = make_specs(MLP, (16, 16))
    population = form(Builder(MLP), specs, CONFIG)
    population.apply(0, germinate("blocks.0"))
    for _ in range(4):
        population.apply(0, advance("blocks.0"))
        population.train_epoch()
    assert population.apply(0, GrowthAction(op=Op.FOSSILIZE, slot="blocks.0")).was_done
    before = snapshot(population, 0)
    specs[0].data.train_inputs.data[:] = torch.nan
    report = population.train_epoch()
    assert report.interventions[0].pruned == ()
    assert population.lives(0)["blocks.0"].stage == Stage.FOSSILIZED
    assert_same(snapshot(population, 0), before)


@pytest.mark.parametrize("form", FORMS)
def test_a_new_seed_is_pruned_when_its_host_fails(
    form: Make,
) -> None:
    specs = make_specs(MLP, (16, 16))
    population = form(Builder(MLP), specs, CONFIG)
    population.train_epoch()
    population.apply(0, germinate("blocks.0"))
    population.restart(1, specs[1])
    resumed = form(Builder(MLP), specs, CONFIG)
    resumed.load_state_dict(population.state_dict())
    specs[0].data.train_inputs.data[:] = torch.nan
    for one in (population, resumed):
        assert one.train_epoch().interventions[0].pruned == ("blocks.0",)
        assert one.lives(0)["blocks.0"].stage == Stage.EMBARGOED
        assert one.get_state(0).facts["n_germinated"] == 1


class _SquaredError:
    """An objective with several numbers per prediction."""

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean(-1)

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -self.losses(outputs, targets)


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_of_an_evaluation_is_the_mean_over_samples(form: Make) -> None:
    data = HostData(torch.randn(9, 6), torch.randn(9, 3), torch.randn(5, 6), torch.randn(5, 3))
    specs = [HostSpec(seed=seed, data=data) for seed in range(2)]
    population = form(Builder(MLP), specs, CONFIG, objective=_SquaredError())
    population.train_epoch()
    judged = population.evaluate()
    for host in range(2):
        with torch.no_grad():
            outputs = population.model(host).eval()(data.validation_inputs)
        expected = nn.functional.mse_loss(outputs, data.validation_targets).item()
        assert judged.losses[host] == pytest.approx(expected, rel=1e-5)
        assert judged.metrics[host] == pytest.approx(-expected, rel=1e-5)


class _Scale(nn.Module):
    """A custom seed that the kernel does not have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(width))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y * self.factor


def test_custom_blueprints_grow_in_every_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))
    blueprint.register_blueprint(
        blueprint.Blueprint(
            name="scale",
            kinds=frozenset({TensorKind.VECTOR}),
            form=blueprint.SeedForm.SERIAL,
            build=lambda site: _Scale(site.width),
            summary="a factor for each feature",
        )
    )
    specs = make_specs(MLP, (16, 24))
    pair = [form(Builder(MLP), specs, CONFIG) for form in FORMS]
    for population in pair:
        population.apply(0, germinate("blocks.0", "scale"))
        population.apply(1, germinate("blocks.0", "mlp_small"))
        for _ in range(4):
            population.apply(0, advance("blocks.0"))
            population.apply(1, advance("blocks.0"))
            population.train_epoch()
    first, second = (snapshot(population, 0) for population in pair)
    assert first["model/blocks.0.seed.factor"].abs().max() > 0
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], atol=1e-6, rtol=0)
