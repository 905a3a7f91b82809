"""A race of sizes trains each as a plain loop would, and returns the right one."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper.errors import ConfigError, EsperError
from esper.growing.decisions import Decision
from esper.growing.grow import grow
from esper.growing.sizes import SizeRule
from tests.growing.own_models import CNN, MLP, digits

TRAIN, VAL = digits()
SETTINGS: dict[str, Any] = {"learning_rate": 3e-3, "seed": 1}


def small(hidden: int = 2) -> nn.Module:
    """Return an MLP that is too narrow for the digits unless it has more hidden units."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10)
        return nn.Sequential(nn.Flatten(), *layers)


def train_plainly(model: nn.Module, epochs: int, seed: int) -> list[float]:
    """Train a model in a plain loop; return the accuracy after each epoch."""
    found: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
        loader = DataLoader(TensorDataset(*TRAIN), 32, shuffle=True, drop_last=True)
        for _ in range(epochs):
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                found.append(float((model.eval()(VAL[0]).argmax(1) == VAL[1]).double().mean()))
    return found


def loaders() -> tuple[DataLoader[Any], tuple[Tensor, Tensor]]:
    return DataLoader(TensorDataset(*TRAIN), 32, shuffle=True, drop_last=True), VAL


def own_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.0)


@pytest.mark.parametrize("baseline", [True, False])
def test_the_given_size_trains_as_in_a_plain_loop(baseline: bool) -> None:
    model, plain = small(), small()
    given = copy.deepcopy(model.state_dict())
    wanted = train_plainly(plain, 8, seed=1)
    options: dict[str, Any] = {"optimizer": own_optimizer, "seed": 1, "baseline": baseline}
    if not baseline:  # then nothing but the given size fits
        options["max_parameters"] = sum(p.numel() for p in model.parameters())
    grown = grow(model, *loaders(), 8, **options)
    assert grown.summary.baseline == max(wanted)
    if not baseline:
        assert [step.lanes["x1"] for step in grown.timeline] == wanted
    assert all(torch.equal(given[name], t) for name, t in model.state_dict().items())


def test_a_given_size_that_was_given_up_is_returned_if_it_does_as_well_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def give_up(self: SizeRule, curves: Any, lost: Any, before: float) -> dict[int, str]:
        return {1: "x1 was behind"} if len(curves[1]) == 2 and 1 not in lost else {}

    monkeypatch.setattr(SizeRule, "losers", give_up)
    options: dict[str, Any] = {"tolerance": 0.5, "optimizer": own_optimizer, "seed": 1}
    wider = grow(small(32), *loaders(), 8, **options)
    same = grow(small(32), *loaders(), 8, baseline=True, **options)
    assert wider.summary.factor > same.summary.factor == 1
    assert same.summary.after == same.summary.baseline == max(train_plainly(small(32), 8, seed=1))
    assert same.summary.total_flops == wider.summary.total_flops


def test_a_narrow_model_is_widened_to_a_plain_one_of_its_own_class() -> None:
    steps: list[Decision] = []
    grown = grow(small(), TRAIN, VAL, 12, on_step=steps.append, **SETTINGS)
    factor = grown.summary.factor
    assert factor > 1
    assert grown.model[1].out_features == 2 * factor  # type: ignore[index]
    wider = small(2 * factor)
    assert {n: t.shape for n, t in grown.model.state_dict().items()} == {
        n: t.shape for n, t in wider.state_dict().items()
    }
    accuracy = float((grown.model.eval()(VAL[0]).argmax(1) == VAL[1]).float().mean())
    assert accuracy == pytest.approx(grown.summary.after)
    assert steps == list(grown.timeline)
    lost = {size.factor: size for size in grown.summary.sizes if size.lost}
    assert all(size.n_epochs < 12 for size in lost.values())
    assert lost
    assert {step.slot for step in steps if step.op == "stop"}
    assert all(size.lost in grown.summary.details for size in lost.values())


def test_a_wide_model_stays_as_it_is() -> None:
    grown = grow(small(64), TRAIN, VAL, 12, tolerance=0.2, **SETTINGS)
    assert grown.summary.factor == 1
    assert grown.summary.parameters_after == grown.summary.parameters_before
    assert grown.summary.baseline == grown.summary.after
    assert "as before" in grown.summary.facts["Size"]


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (grow(small(), TRAIN, VAL, 6, **SETTINGS) for _ in range(2))
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name])
    assert first.timeline == second.timeline


def test_a_size_that_joins_later_has_seen_the_same_batches() -> None:
    seen: dict[int, list[float]] = {}

    class Recording(nn.Module):
        """Records what each width is trained on."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                width = self.inner[1].out_features  # type: ignore[index]
                seen.setdefault(width, []).append(float(x.double().sum()))
            return self.inner(x)

    grown = grow(Recording(), *loaders(), 6, optimizer=own_optimizer, seed=1)
    assert list(seen) == [2, 16, 8]
    for size in grown.summary.sizes:
        assert len(seen[2 * size.factor]) == size.n_epochs * len(loaders()[0])
    for width in (2, 8):
        assert seen[width] == seen[16][: len(seen[width])]


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_race_resumes_to_the_same_bits(tmp_path: Path, stop: int) -> None:
    def interrupt(step: Decision) -> None:
        if step.epoch == stop + 1:
            raise KeyboardInterrupt

    whole = grow(small(), TRAIN, VAL, 8, **SETTINGS)
    cut = grow(small(), TRAIN, VAL, 8, resume=tmp_path, on_step=interrupt, **SETTINGS)
    assert "interrupted" in cut.summary.stopped
    rest = grow(small(), TRAIN, VAL, 8, resume=tmp_path, **SETTINGS)
    assert rest.summary == whole.summary
    assert rest.timeline == whole.timeline
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, rest.model.state_dict()[name])
    with pytest.raises(EsperError, match=r"tolerance was 0\.01"):
        grow(small(), TRAIN, VAL, 8, resume=tmp_path, tolerance=0.1, **SETTINGS)


def test_limits_end_a_race() -> None:
    model = small()
    n = sum(parameter.numel() for parameter in model.parameters())
    limited = grow(model, TRAIN, VAL, 4, max_parameters=2 * n, **SETTINGS).summary
    assert [size.factor for size in limited.sizes] == [1, 2]
    assert limited.parameters_after <= 2 * n
    assert "within max_parameters" in limited.facts["Size"]
    whole = grow(model, TRAIN, VAL, 6, **SETTINGS).summary
    half = grow(model, TRAIN, VAL, 6, max_flops=whole.total_flops / 2, **SETTINGS).summary
    assert 0.4 * whole.total_flops < half.total_flops <= whole.total_flops / 2
    assert "max_flops" in half.stopped
    still = grow(model, TRAIN, VAL, 9, patience=2, learning_rate=1e-12).summary
    assert still.n_epochs < 9
    quick = grow(model, TRAIN, VAL, 9, max_seconds=1e-9, **SETTINGS).summary
    assert quick.n_epochs == 1


def test_the_baseline_of_a_race_that_was_cut_trains_to_its_end_and_may_win() -> None:
    model = small(32)
    n = sum(parameter.numel() for parameter in model.parameters())
    alone = grow(model, TRAIN, VAL, 6, max_parameters=n, **SETTINGS).summary
    limit = 1.01 * alone.total_flops  # of which two sizes train for an epoch or less
    cut = grow(model, TRAIN, VAL, 6, max_flops=limit, baseline=True, **SETTINGS)
    assert cut.summary.n_epochs == 1
    assert cut.summary.baseline == alone.after
    assert len(cut.baseline_scores or ()) == 6
    assert cut.summary.after == alone.after
    assert cut.summary.parameters_after == n


def test_a_model_that_no_epoch_improved_has_no_best_epoch() -> None:
    trained = small(32)
    train_plainly(trained, 6, seed=0)
    spoiled = grow(trained, TRAIN, VAL, 2, optimizer=lambda p: torch.optim.SGD(p, 1e-12)).summary
    assert (spoiled.was_kept, spoiled.best_epoch) == (False, 0)
    assert spoiled.facts["Best epoch"] == "none of 2 was better than the given model"


def test_sizes_that_do_not_fit_into_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    n = sum(parameter.numel() for parameter in small().parameters())
    monkeypatch.setattr("esper.growing.racing.available_memory", lambda: 40.0 * 4 * n)
    found = grow(small(), TRAIN, VAL, 2, **SETTINGS).summary
    assert [size.factor for size in found.sizes] == [1, 2]
    assert "no memory" in found.details


def test_a_model_that_cannot_be_widened_trains_alone() -> None:
    flat = [(images.flatten(1), labels) for images, labels in (TRAIN, VAL)]
    grown = grow(nn.Linear(64, 10), *flat, 4, **SETTINGS)
    assert [size.factor for size in grown.summary.sizes] == [1]
    assert "No wider size was tried" in grown.summary.details
    assert "nothing can be widened" in grown.summary.facts["Size"]
    frozen = small(8)
    frozen[1].requires_grad_(False)  # type: ignore[index]
    assert len(grow(frozen, TRAIN, VAL, 2, **SETTINGS).summary.sizes) == 1


def test_an_optimizer_and_a_scheduler_of_the_model_follow_every_size() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    grown = grow(model, TRAIN, VAL, 6, optimizer=optimizer, scheduler=scheduler, seed=1)
    assert len(grown.summary.sizes) > 1
    assert grown.summary.after > 0.3
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state


def test_a_lane_that_diverges_is_rolled_back() -> None:
    class Spiky(nn.Module):
        """A loss that is not finite for wide models."""

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(outputs, targets)
            is_hot = outputs.requires_grad and bool(outputs.abs().max() > 1.0)
            return loss * float("inf") if is_hot else loss

    grown = grow(small(), TRAIN, VAL, 4, loss=Spiky(), metric="accuracy", **SETTINGS)
    assert all(parameter.isfinite().all() for parameter in grown.model.parameters())


def test_a_trained_model_goes_on_from_what_it_computes() -> None:
    trained = small(4)
    accuracy = max(train_plainly(trained, 10, seed=0))
    grown = grow(trained, TRAIN, VAL, 3, learning_rate=1e-4)
    assert grown.summary.after >= accuracy - 0.05
    assert all(size.value is not None for size in grown.summary.sizes)
    assert min(size.value or 0.0 for size in grown.summary.sizes) > accuracy - 0.1


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
@pytest.mark.parametrize("make", [CNN, partial(MLP, 2)], ids=["cnn", "mlp"])
def test_other_models_and_metrics_race(make: Any, metric: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
    grown = grow(model, TRAIN, VAL, 3, metric=metric, **SETTINGS)
    assert grown.summary.was_kept
    assert len(grown.summary.sizes) > 1


def test_a_race_and_a_controller_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"price is 0\.1"):
        grow(small(), TRAIN, VAL, 2, controller="race", price=0.1)
    with pytest.raises(ConfigError, match="tolerance is -1"):
        grow(small(), TRAIN, VAL, 2, tolerance=-1)
    slotted = esper.add_slots(small(), at=["1>4"], sample_input=TRAIN[0][:2])
    with pytest.raises(ConfigError, match="the model has slots"):
        grow(slotted, TRAIN, VAL, 2, controller="race")
    assert grow(small(), TRAIN, VAL, 2, **SETTINGS).summary.controller == "race"
    assert grow(slotted, TRAIN, VAL, 2, **SETTINGS).summary.controller.startswith("learned")
