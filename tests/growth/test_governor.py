"""The governor rolls a host back to its last good state, bit for bit, and reports why."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from esper.config.growth import CNNHostConfig, GovernorConfig, GrowthConfig
from esper.errors import SlotError, TensorError
from esper.growth.governor import Governor, GovernorReport, LossWatch
from esper.growth.host_slots import slots
from esper.growth.hosts import make_host, sample_input
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import add_slots
from esper.lifecycle.stages import Stage
from tests.growth.helpers import find_leftovers

SIZES = CNNHostConfig(image_size=4, width=4, hidden=4, n_classes=3)
X, Y = sample_input(SIZES, 12), torch.arange(12) % 3


class World:
    """A host with a fossilized and a blending seed, trained for some epochs."""

    def __init__(self, make_optimizer: Callable[[Any], Optimizer]) -> None:
        self.model = make_host(SIZES)
        self.optimizer = make_optimizer(self.model.parameters())
        OptimizerKeeper(self.model, self.optimizer)
        self.slots = slots(self.model)
        self.governor = Governor(self.model, self.optimizer)
        self.slots.germinate("blocks.0", "conv_small")
        for _ in range(4):
            self.slots.advance("blocks.0")
            self.train_epoch()
        assert self.slots.fossilize("blocks.0").was_done
        self.slots.germinate("blocks.1", "conv_light")
        for _ in range(3):
            self.slots.advance("blocks.1")
            self.train_epoch()
        assert self.slots["blocks.1"].stage == Stage.BLENDING

    def train_epoch(self) -> None:
        for _ in range(2):
            assert self.step() is None
        self.slots.tick()
        assert self.governor.end_epoch() is None

    def step(
        self, x: Tensor = X, spoil: Callable[[], object] | None = None
    ) -> GovernorReport | None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), Y)
        if spoil is not None:
            spoil()
        return self.governor.step(loss)

    def copy_state(self) -> dict[str, Any]:
        """Return a copy of the state of the host, its seeds and its optimizer."""
        named = {id(p): n for n, p in self.model.named_parameters()}
        return {
            "tensors": {n: t.clone() for n, t in self.model.state_dict().items()},
            "moments": {named[id(p)]: copy.deepcopy(s) for p, s in self.optimizer.state.items()},
            "groups": [
                {**group, "params": [named[id(p)] for p in group["params"]]}
                for group in self.optimizer.param_groups
            ],
            "lives": self.slots.lives.to_json(),
            "n_germinated": self.slots.n_germinated,
        }


def assert_identical(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_identical(one, other)
    else:
        assert a == b


def spoil_data(world: World) -> GovernorReport | None:
    x = X.clone()
    x[3, 0, 1, 1] = torch.nan
    return world.step(x)


def spoil_loss(world: World) -> GovernorReport | None:
    world.optimizer.zero_grad()
    return world.governor.step(world.model(X).sum() * torch.inf)


def spoil_gradient(world: World) -> GovernorReport | None:
    weight = world.model.head.weight  # type: ignore[union-attr]
    handle = weight.register_hook(lambda grad: grad * torch.nan)
    report = world.step()
    handle.remove()
    return report


def spoil_weight(world: World) -> GovernorReport | None:
    world.step()
    with torch.no_grad():
        world.model.head.weight[0, 0] = torch.nan  # type: ignore[union-attr, index]
    return world.governor.end_epoch()


SPOILERS: dict[str, tuple[Callable[[World], GovernorReport | None], str]] = {
    "data": (spoil_data, "loss is nan"),
    "loss": (spoil_loss, "loss is (inf|-inf|nan)"),
    "gradient": (spoil_gradient, "gradient of head.weight"),
    "weight": (spoil_weight, "^head.weight"),
}
MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, 0.05, momentum=0.9),
    "adamw": lambda p: AdamW(p, 0.01),
}


def record_state_before_pruning(world: World) -> list[dict[str, Any]]:
    """Return a list that gets a copy of the state each time seeds are about to be pruned."""
    states: list[dict[str, Any]] = []
    original = world.slots.abandon_growing

    def record_then_abandon() -> list[str]:
        states.append(world.copy_state())
        return original()

    world.slots.abandon_growing = record_then_abandon  # type: ignore[method-assign]
    return states


@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize("name", SPOILERS)
def test_a_broken_host_is_rolled_back_exactly(name: str, optimizer: str) -> None:
    spoil, reason = SPOILERS[name]
    world = World(MAKERS[optimizer])
    good = world.copy_state()
    world.step()  # changes parameters, buffers and moments
    before_pruning = record_state_before_pruning(world)
    report = spoil(world)
    assert report is not None
    assert re.search(reason, report.reason)
    assert report.pruned == ("blocks.1",)
    assert_identical(before_pruning[0], good)
    assert world.slots["blocks.1"].stage == Stage.PRUNED
    assert world.slots["blocks.0"].absorbed
    assert not find_leftovers(world.model, world.optimizer)
    world.slots.tick()
    world.train_epoch()


def test_an_action_since_the_last_good_state_is_undone() -> None:
    world = World(MAKERS["adamw"])
    for _ in range(2):
        world.train_epoch()
    assert world.slots.advance("blocks.1").was_done
    world.train_epoch()
    before = world.copy_state()
    world.train_epoch()
    assert world.slots.fossilize("blocks.1").was_done
    before_pruning = record_state_before_pruning(world)
    report = spoil_data(world)
    assert report is not None
    assert report.pruned == ("blocks.1",)
    # No loss was seen after the last update, so the good state is that of an epoch before.
    assert_identical(before_pruning[0], before)


def test_an_action_on_a_state_with_a_good_loss_is_kept_with_its_values() -> None:
    world = World(MAKERS["adamw"])
    for _ in range(2):
        world.train_epoch()
    assert world.slots.advance("blocks.1").was_done
    world.train_epoch()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(world.model(X), Y).item()
    assert world.governor.end_epoch(loss) is None
    assert world.slots.fossilize("blocks.1").was_done
    fossilized = world.copy_state()
    assert spoil_data(world) is not None
    assert_identical(world.copy_state(), fossilized)


@pytest.mark.parametrize("optimizer", MAKERS)
def test_a_last_batch_that_ruins_the_host_is_undone(optimizer: str) -> None:
    world = World(MAKERS[optimizer])
    good = world.copy_state()
    world.step()
    for group in world.optimizer.param_groups:
        group["lr"] = 1e4
    world.step()
    for group, own in zip(world.optimizer.param_groups, good["groups"], strict=True):
        group["lr"] = own["lr"]
    assert world.governor.end_epoch() is None  # finite, so nothing is known yet
    before_pruning = record_state_before_pruning(world)
    report = world.step()
    assert report is not None
    assert "recent losses" in report.reason
    assert_identical(before_pruning[0], good)


@pytest.mark.parametrize("value", [1e12, torch.nan])
@pytest.mark.parametrize("optimizer", MAKERS)
def test_a_good_state_with_ruined_moments_is_rolled_back_to_twice(
    optimizer: str, value: float
) -> None:
    world = World(MAKERS[optimizer])
    assert world.step() is None
    for state in world.optimizer.state.values():
        state["exp_avg" if optimizer == "adamw" else "momentum_buffer"].fill_(value)
    assert world.governor.end_epoch() is None
    start = world.model.head.weight.detach().clone()  # type: ignore[union-attr, operator]
    reports = [world.step() for _ in range(12)]
    assert [report is None for report in reports] == [True, False, True, False, *[True] * 8]
    assert world.governor.end_epoch() is None
    assert not torch.equal(world.model.head.weight, start)  # type: ignore[union-attr, arg-type]


def test_bad_batches_do_not_reset_the_moments_of_a_state_that_can_be_trained() -> None:
    world = World(MAKERS["adamw"])
    world.step()
    assert spoil_data(world) is not None
    moments = world.copy_state()["moments"]
    for n_updates in (2, 1):
        for _ in range(n_updates):
            assert world.step() is None
        assert spoil_data(world) is not None
        assert_identical(world.copy_state()["moments"], moments)


def test_a_bad_loss_at_the_end_of_an_epoch_rolls_back_at_once() -> None:
    world = World(MAKERS["sgd"])
    good = world.copy_state()
    world.step()
    before_pruning = record_state_before_pruning(world)
    report = world.governor.end_epoch(9.3e12)
    assert report is not None
    assert "9.3e+12" in report.reason
    assert_identical(before_pruning[0], good)


def test_a_seed_that_germinated_since_the_last_good_state_is_undone() -> None:
    world = World(MAKERS["adamw"])
    for _ in range(2):
        world.train_epoch()
    world.slots.prune("blocks.1")
    for _ in range(5):
        world.train_epoch()
    count = world.slots.n_germinated
    world.slots.germinate("blocks.1", "norm")
    report = spoil_data(world)
    assert report is not None
    assert report.pruned == ()
    assert world.slots["blocks.1"].stage == Stage.DORMANT
    assert world.slots["blocks.1"].seed is None
    assert world.slots.n_germinated == count
    assert not find_leftovers(world.model, world.optimizer)


def test_a_seed_removed_from_a_broken_host_is_restored_before_it_is_pruned() -> None:
    world = World(MAKERS["adamw"])
    for _ in range(2):
        world.train_epoch()
    good = world.copy_state()
    assert world.step() is None
    with torch.no_grad():
        world.model.head.weight[0, 0] = torch.nan  # type: ignore[union-attr, index]
    assert world.slots.prune("blocks.1").was_done
    assert world.slots["blocks.1"].seed is None
    before_pruning = record_state_before_pruning(world)
    assert spoil_data(world) is not None
    assert_identical(before_pruning[0], good)


UNITS, BLOCKS = "blocks.*.first>second", "blocks.*"
GROWTH = {"units": (UNITS, "widen_large"), "blocks": (BLOCKS, "deepen")}


@pytest.mark.parametrize("commits_at_once", [True, False])
@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize("what", GROWTH)
def test_growth_of_the_models_own_layers_is_rolled_back_exactly(
    what: str, optimizer: str, commits_at_once: bool
) -> None:
    world = World(MAKERS[optimizer])
    world.slots.lives.growth_config = GrowthConfig(commits_at_once=commits_at_once)
    world.train_epoch()
    slot, blueprint = GROWTH[what]
    good = world.copy_state()
    parameters = list(world.model.parameters())
    names = [name for name, _ in world.model.named_modules()]
    assert world.step() is None  # the state of the last epoch is good
    assert world.slots.germinate(slot, blueprint).was_done
    size = world.slots[slot].size
    before_pruning = record_state_before_pruning(world)
    assert spoil_data(world) is not None
    assert_identical(before_pruning[0], good)
    assert [name for name, _ in world.model.named_modules() if "blocks.1" not in name] == [
        name for name in names if "blocks.1" not in name
    ]
    assert world.slots[slot].size < size
    own = {id(p) for p in world.model.parameters()}
    assert own <= {id(p) for p in parameters}  # the very same tensors, but for the pruned seed
    assert not find_leftovers(world.model, world.optimizer)
    while world.slots["blocks.1"].stage != Stage.DORMANT:
        world.train_epoch()
    assert world.slots.germinate(slot, blueprint).was_done
    world.train_epoch()


def test_a_host_that_was_rolled_back_trains_like_one_that_was_not() -> None:
    rescued, calm = World(MAKERS["adamw"]), World(MAKERS["adamw"])
    assert spoil_data(rescued) is not None
    calm.governor.restore("for comparison")
    for world in (rescued, calm):
        world.slots.tick()
        world.train_epoch()
    for p, q in zip(rescued.model.parameters(), calm.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_loss_far_outside_its_recent_range_is_an_outlier() -> None:
    world = World(MAKERS["sgd"])
    world.governor.watch.config = GovernorConfig(warmup_losses=2)
    world.optimizer.zero_grad()
    report = world.governor.step(nn.functional.cross_entropy(100.0 * world.model(X), (Y + 1) % 3))
    assert report is not None
    assert "recent losses" in report.reason


def test_a_permanent_change_of_the_loss_level_causes_one_rollback() -> None:
    world = World(MAKERS["sgd"])
    world.governor.watch.config = GovernorConfig(warmup_losses=2)
    n_rollbacks = 0
    for _ in range(30):
        world.optimizer.zero_grad()
        loss = 5.0 * nn.functional.cross_entropy(world.model(X), Y) + 20.0
        n_rollbacks += world.governor.step(loss) is not None
        world.governor.end_epoch()
    assert n_rollbacks == 1


@pytest.mark.parametrize("number", [0, 1, 6, 25])
def test_a_spike_is_an_outlier_at_any_time(number: int) -> None:
    model = make_host(SIZES)
    governor = Governor(model, SGD(model.parameters(), 0.01))
    for step in range(number + 2):  # a second spike follows right after the rollback
        scale = 1e9 if step >= number else 1.0
        loss = scale * nn.functional.cross_entropy(model(X), Y)
        report = governor.step(loss)
        assert (report is not None) == (step >= number)
    assert governor.step(nn.functional.cross_entropy(model(X), Y)) is None


def test_a_run_that_diverges_in_warm_up_is_stopped() -> None:
    watch = LossWatch(1, GovernorConfig())
    for loss in 2.3 * 50.0 ** np.arange(10):
        if loss > watch.limits()[0]:
            break
        watch.add(np.array([loss]))
    assert watch.count[0] <= 4


def test_a_rollback_to_an_early_state_with_a_high_loss_is_not_followed_by_another() -> None:
    watch = LossWatch(1, GovernorConfig(warmup_losses=2))
    for loss in (900.0, *[0.01] * 400):
        watch.add(np.array([loss]))
    assert watch.judge(900.0) is not None
    watch.on_rollback()
    assert watch.judge(900.0) is None


@pytest.mark.parametrize("level", [1e-3, 25.0, 1e4, 1e12])
def test_any_permanent_level_is_accepted_after_a_few_rollbacks(level: float) -> None:
    watch = LossWatch(1, GovernorConfig())
    for _ in range(30):
        watch.add(np.array([1.0]))
    n_rollbacks = 0
    while watch.judge(level) is not None:
        watch.on_rollback()
        n_rollbacks += 1
    assert n_rollbacks <= 6
    for _ in range(50):
        watch.add(np.array([level]))
        assert watch.judge(level) is None


def test_losses_that_are_not_finite_do_not_widen_the_bound() -> None:
    watch = LossWatch(1, GovernorConfig())
    watch.add(np.array([2.0]))
    before = watch.limits()[0]
    for loss in (np.nan, np.inf, -np.inf):
        assert watch.judge(loss) is not None
        watch.on_rollback()
    assert watch.limits()[0] == before


class _ListSGD(Optimizer):
    """Plain SGD that keeps its last two gradients in a list, in a dict."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        history = self.state[p].setdefault("history", {"gradients": []})
                        history["gradients"].append(p.grad.clone())
                        del history["gradients"][:-2]
                        for gradient in history["gradients"]:
                            p -= group["lr"] * gradient.mul_(0.5)


def test_optimizer_state_in_lists_and_frozen_parameters_are_rolled_back() -> None:
    model = make_host(SIZES)
    governor = Governor(model, _ListSGD(model.parameters()))
    weight: nn.Parameter = model.head.weight  # type: ignore[assignment]
    frozen: nn.Parameter = model.head.bias  # type: ignore[assignment]
    frozen.requires_grad_(False)

    def step(scale: float) -> GovernorReport | None:
        governor.optimizers[0].zero_grad()
        return governor.step(scale * nn.functional.cross_entropy(model(X), Y))

    assert step(1.0) is None
    assert governor.end_epoch() is None
    good = copy.deepcopy(governor.optimizers[0].state[weight])
    assert step(1.0) is None
    assert step(1.0) is None
    frozen.requires_grad_(True)
    weight.requires_grad_(False)
    assert step(torch.nan) is not None
    assert_identical(governor.optimizers[0].state[weight], good)
    assert weight.requires_grad
    assert not frozen.requires_grad


def test_small_rises_of_a_tiny_loss_are_not_outliers() -> None:
    watch = LossWatch(1, GovernorConfig())
    for _ in range(30):
        watch.add(np.array([0.0]))
    assert watch.limits()[0] == pytest.approx(1.0)


class _WithBuffers(nn.Module):
    """Has a mask of minus infinity and replaces the tensor of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1), persistent=False)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(self.block(x))


def test_masks_may_be_infinite_and_buffers_may_be_replaced() -> None:
    model = _WithBuffers()
    add_slots(model, ["block"], torch.randn(2, 4))
    optimizer = SGD(model.parameters(), 0.1)
    governor = Governor(model, optimizer)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    start = model.block.weight.detach().clone()
    assert governor.step(nn.functional.cross_entropy(model(x), y)) is None
    assert governor.end_epoch() is None
    assert not torch.equal(model.block.weight, start)
    mean = model.mean.clone()
    assert governor.step(nn.functional.cross_entropy(model(x), y)) is None
    assert governor.step(nn.functional.cross_entropy(model(x * torch.nan), y)) is not None
    assert torch.equal(model.mean, mean)
    assert governor.end_epoch() is None


def test_learning_rates_are_not_rolled_back() -> None:
    world = World(MAKERS["sgd"])
    scheduler = ExponentialLR(world.optimizer, 0.5)
    world.step()
    for _ in range(3):
        scheduler.step()
        assert spoil_data(world) is not None
    assert world.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**3)


def test_a_governor_created_before_the_optimizer_keeper_rolls_back_too() -> None:
    model = make_host(SIZES)
    optimizer = SGD(model.parameters(), 0.1)
    governor = Governor(model, optimizer)
    OptimizerKeeper(model, optimizer)
    assert governor.step(model(X * torch.nan).sum()) is not None
    assert not find_leftovers(model, optimizer)


def test_an_untrained_seed_and_a_loss_without_gradient_are_rejected() -> None:
    model = make_host(SIZES)
    governor = Governor(model, SGD(model.parameters(), 0.1))
    with pytest.raises(TensorError, match="requires_grad=False"):
        governor.step(torch.tensor(1.0))
    with pytest.raises(TensorError, match=r"shape \[2\]"):
        governor.step(model(X)[:2, 0])
    with pytest.raises(SlotError, match=r"seed in slot 'blocks\.0'"):
        slots(model).germinate("blocks.0", "norm")
    with pytest.raises(SlotError, match=r"SGD .*CNNHost"):
        Governor(model, SGD(nn.Linear(2, 2).parameters(), 0.1))


def test_sparse_gradients_are_checked_too() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 3))
    tokens = torch.tensor([[0, 1], [2, 3]])
    add_slots(model, ["1"], tokens)
    governor = Governor(model, SGD(model.parameters(), 0.1))
    assert governor.step(model(tokens).square().mean()) is None
    assert governor.gradient_norm > 0.0


def test_the_running_mean_and_variance_are_plain_averages_at_first() -> None:
    losses = np.array([3.0, 1.0, 2.0, 5.0])
    watch = LossWatch(1, GovernorConfig(warmup_losses=2))
    for loss in losses:
        watch.add(np.array([loss]))
    assert watch.mean[0] == pytest.approx(losses.mean())
    assert watch.variance[0] == pytest.approx(losses.var())


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=60), st.integers(0, 3))
def test_each_host_is_watched_independently(losses: list[float], column: int) -> None:
    config = GovernorConfig(warmup_losses=2)
    together, alone = LossWatch(4, config), LossWatch(1, config)
    rng = np.random.default_rng(0)
    for loss in losses:
        others = rng.uniform(0.1, 10.0, 4)
        others[column] = loss
        together.add(others)
        alone.add(np.array([loss]))
    assert together.get_state(column) == alone.get_state()
    assert together.limits()[column] == alone.limits()[0]


def test_a_falling_loss_is_never_an_outlier() -> None:
    watch = LossWatch(1, GovernorConfig(warmup_losses=2))
    for loss in np.linspace(5.0, 1.0, 50):
        watch.add(np.array([loss]))
        assert watch.limits()[0] > loss * 1.5
