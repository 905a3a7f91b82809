"""`esper.grow` returns a plain model that is never worse, and changes nothing else."""

from __future__ import annotations

import copy
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from esper import Budget
from esper.config.growth import GrowthConfig
from esper.errors import (
    BadDataError,
    ConfigError,
    ControllerError,
    EsperError,
    NonFiniteError,
    RunError,
    SlotError,
)
from esper.growing.decisions import Decision
from esper.growing.grow import grow
from esper.growing.grown import Grown, GrowthSummary, SlotGrowth, germination_epochs
from esper.growth.blueprints.registry import blueprint_names
from esper.growth.export import comes_from_esper
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_state import SlotState
from esper.modes import THREAD_VARIABLES
from esper.tamiyo import NoGrowth, SavedController, save_controller
from esper.tamiyo.controllers import saved as saved_files
from esper.tasks import bits_per_character, make_task
from tests.growing.own_models import CNN, MLP, Block, Transformer, digits
from tests.tamiyo.fresh_controllers import fresh_controller

TRAIN, VAL = digits()


pytestmark = pytest.mark.usefixtures("fresh_shipped")


def initialized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return a model with initial weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            for name in ("reset_parameters", "_reset_parameters"):
                getattr(module, name, lambda: None)()
    return model


def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return a model's accuracy, computed one sample at a time."""
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        right = [int(twin(x[None]).argmax()) == int(y) for x, y in zip(*data, strict=True)]
    return sum(right) / len(right)


def require_valid(grown: Grown, model: nn.Module) -> None:
    """Check what must hold for every result."""
    summary = grown.summary
    assert summary.before == pytest.approx(accuracy(model, VAL), abs=1e-9)
    assert summary.after == pytest.approx(accuracy(grown.model, VAL), abs=1e-9)
    assert summary.after >= summary.before
    assert summary.was_kept == (summary.grown > summary.before)
    assert not any(type(m).__module__.startswith("esper") for m in grown.model.modules())
    assert not any(
        comes_from_esper(value) for m in grown.model.modules() for value in vars(m).values()
    )
    count = sum(parameter.numel() for parameter in grown.model.parameters())
    assert summary.parameters_after == count
    assert summary.parameters_before == sum(p.numel() for p in model.parameters())
    assert [m.training for m in grown.model.modules()] == [grown.model.training] * len(
        list(grown.model.modules())
    )
    assert grown.model.training == model.training
    assert all(parameter.grad is None for parameter in grown.model.parameters())


@pytest.mark.parametrize(
    ("make", "n_slots"),
    [
        pytest.param(lambda: MLP(1), 2, marks=pytest.mark.slow),
        (lambda: MLP(3), 3),
        (CNN, 5),
        (Transformer, 4),
        pytest.param(lambda: MLP(12, width=8, hidden=2), 12, marks=pytest.mark.slow),
    ],
    ids=["2 slots", "3 slots", "cnn", "transformer", "12 slots"],
)
def test_any_model_grows_with_the_learned_controller(make: Any, n_slots: int) -> None:
    model, steps = initialized(make()), list[Decision]()
    before = copy.deepcopy(model.state_dict())
    options: dict[str, Any] = {"learning_rate": 3e-3, "seed": 1, "controller": "learned"}
    grown = grow(model, TRAIN, VAL, on_step=steps.append, **options)
    require_valid(grown, model)
    assert grown.summary.was_kept
    assert steps == list(grown.timeline)
    assert grown.summary.budget_epochs == 14  # the controller's own
    assert grown.summary.n_epochs == grown.timeline[-1].epoch
    assert grown.summary.flops == grown.timeline[-1].flops
    assert "germinate" in {step.op for step in steps}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(SlotError):
        esper.slots(model)
    used = {step.slot for step in steps if step.slot}
    assert 1 <= len(used) <= n_slots


def test_a_file_of_a_model_is_not_taken_for_a_task() -> None:
    with pytest.raises(ConfigError, match=r"'model\.pt'.* task.* load your model first"):
        grow("model.pt", TRAIN, VAL)


def test_the_beginning_of_a_metric_suggests_it() -> None:
    with pytest.raises(ConfigError, match=r"'acc'.*Did you mean 'accuracy'"):
        grow(MLP(1), TRAIN, VAL, metric="acc")


def test_committed_seeds_are_listed_and_add_their_parameters() -> None:
    model = initialized(MLP(3))
    grown = grow(model, TRAIN, VAL, 30, learning_rate=3e-3, seed=1, controller="learned")
    require_valid(grown, model)
    assert len(grown.summary.seeds) > 1
    best = grown.timeline[: grown.summary.best_epoch]
    planted = Counter((s.slot, s.blueprint) for s in best if s.op == "germinate")
    assert Counter(grown.summary.seeds) <= planted
    added = grown.summary.parameters_after - grown.summary.parameters_before
    assert added == grown.to_json()["seed_parameters"] > 0
    assert grown.trace is not None
    germinated = [(d.slot, d.blueprint, d.epoch) for d in grown.trace if d.op == "germinate"]
    assert len(grown.summary.germinated_after) == len(grown.summary.seeds)
    for (slot, blueprint), epoch in zip(
        grown.summary.seeds, grown.summary.germinated_after, strict=True
    ):
        assert slot in grown.summary.details
        assert (slot, blueprint, epoch) in germinated
    for one in grown.summary.growth:
        assert f"({one.before:,} to {one.after:,} {one.unit}, epoch" in grown.summary.details


class Germinating(NoGrowth):
    """Germinates once, before the epoch after ``epoch``, and waits otherwise."""

    def __init__(self, slot: int = 0, blueprint: str = "mlp_small", epoch: int = 0) -> None:
        super().__init__()
        self._slot, self._blueprint, self._epoch, self._n = slot, blueprint, epoch, 0

    def act(self, observations: Any, masks: Any, is_first: Any) -> Any:
        chosen = super().act(observations, masks, is_first)
        self._n = 0 if is_first[0] else self._n + 1
        if self._n == self._epoch:
            chosen[0, HEAD_NAMES.index("op")] = Op.GERMINATE
            chosen[0, HEAD_NAMES.index("slot")] = self._slot
            chosen[0, HEAD_NAMES.index("blueprint")] = blueprint_names().index(self._blueprint)
        return chosen


def test_a_row_shows_the_slots_after_its_own_decision_and_epoch() -> None:
    given: dict[str, Any] = {"controller": Germinating(epoch=2), "at": ["blocks.0"]}
    grown = grow(initialized(MLP(1)), TRAIN, VAL, 4, **given)
    assert [step.op for step in grown.timeline] == ["wait", "wait", "germinate", "wait"]
    assert [bool(step.stages) for step in grown.timeline] == [False, False, True, True]
    sizes = [step.seed_parameters for step in grown.timeline]
    assert sizes[:2] == [0, 0]
    assert sizes[2] == sizes[3] == grown.trace[2].seed_parameters > 0


def test_the_summary_says_how_much_wider_and_deeper_places_have_become() -> None:
    model = initialized(MLP(2))
    for slot, blueprint, sizes in (
        (0, "deepen", "blocks.* (2 to 3 blocks, epoch 1)"),
        (1, "widen_large", "blocks.*.first>second (4 to 8 units, epoch 1)"),
    ):
        names = ["blocks.*", "blocks.*.first>second"]
        script = Germinating(slot, blueprint)
        grown = grow(model, TRAIN, VAL, 3, controller=script, at=names, learning_rate=3e-3)
        assert f"Grew {sizes}: " in grown.summary.details
        assert grown.summary.growth[0].slot == names[slot]


def test_the_summary_says_that_new_entries_of_frozen_layers_did_not_train() -> None:
    model = initialized(MLP(1))
    model.blocks[0].first.requires_grad_(False)  # type: ignore[index,union-attr]
    given: dict[str, Any] = {"controller": Germinating(blueprint="widen_large"), "at": ["blocks.0"]}
    given["at"] = ["blocks.0.first>blocks.0.second"]
    summary = grow(model, TRAIN, VAL, 3, learning_rate=3e-3, **given).summary
    assert summary.frozen == ("blocks.0.first.weight", "blocks.0.first.bias")
    assert "did not train: blocks.0.first.weight and blocks.0.first.bias;" in summary.details


def timeline_step(epoch: int, op: str = "wait", **options: Any) -> Decision:
    values: dict[str, Any] = {
        "epochs": 8,
        "train_loss": None,
        "val_loss": None,
        "slot": "a",
        "score": 0.5,
        "flops": 0.0,
        "parameters": 10,
        "seed_parameters": 0,
    }
    return Decision(epoch=epoch, op=op, **values | options)


def test_seeds_are_listed_with_the_epochs_of_the_timeline_that_they_germinate_in() -> None:
    """The first seed is pruned, the next two are committed; the last comes after the best epoch."""
    one, two = ({"a": SlotState("dormant", None, 0.0, None, n_fossils=n)} for n in (1, 2))
    timeline = [
        timeline_step(1, "germinate", blueprint="norm"),
        timeline_step(2, "prune"),
        timeline_step(3, "germinate", blueprint="norm"),
        timeline_step(4, "fossilize", slots={"a": SlotState("fossilized", "norm", 1.0, None)}),
        timeline_step(5, "germinate", blueprint="norm", slots=one),
        timeline_step(6, "germinate", slot="b", blueprint="mlp_small", slots=one),
        timeline_step(7, "fossilize", slots=two),
        timeline_step(8, "germinate", blueprint="norm", slots=two),
    ]
    growth = (SlotGrowth("a", ("norm", "norm")), SlotGrowth("b", ("mlp_small",)))
    seeds = [("a", "norm"), ("a", "norm"), ("b", "mlp_small")]
    epochs = germination_epochs(timeline, seeds, 7)
    assert epochs == (2, 4, 5)
    assert germination_epochs(timeline[:4], seeds, 7) == ()
    summary = grow(initialized(MLP(1)), TRAIN, VAL, 1, controller="no-growth").summary
    listed = replace(summary, growth=growth, germinated_after=epochs, was_kept=True)
    assert "Grew a twice (norm, epochs 3 and 5), b (mlp_small, epoch 6): " in listed.details
    assert "Grew a twice (norm), b (mlp_small): " in replace(listed, germinated_after=()).details


def test_the_result_can_be_exported_by_torch(tmp_path: Path) -> None:
    grown = grow(initialized(CNN()), TRAIN, VAL, 6, learning_rate=3e-3, seed=2)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(grown.model.eval(), (VAL[0],), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "grown.pt2")
    loaded = torch.export.load(tmp_path / "grown.pt2").module()
    torch.testing.assert_close(loaded(VAL[0][:7]), grown.model(VAL[0][:7]))


class Perfect(nn.Module):
    """Knows every image, and has a block that could grow."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
        self.register_buffer("images", VAL[0].flatten(1))
        self.register_buffer("labels", nn.functional.one_hot(VAL[1], 10).float())

    def forward(self, x: Tensor) -> Tensor:
        known = (x.flatten(1)[:, None] - self.images).abs().sum(2) < 1e-3
        return self.block(x.flatten(1)) + 1e3 * known.to(x.dtype) @ self.labels


@pytest.mark.parametrize("controller", ["learned", "no-growth"])
def test_a_perfect_model_is_returned_unchanged(controller: str) -> None:
    model = initialized(Perfect()).eval()
    grown = grow(model, TRAIN, VAL, 6, controller=controller)
    require_valid(grown, model)
    assert grown.summary.before == grown.summary.after == 1.0
    assert not grown.summary.was_kept
    assert grown.summary.seeds == ()
    assert grown.model is not model
    assert type(grown.model) is Perfect
    assert grown.model.state_dict().keys() == model.state_dict().keys()
    for name, tensor in grown.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert tensor.data_ptr() != model.state_dict()[name].data_ptr()
    assert "returned unchanged" in grown.summary.details
    assert "6 of 6 epochs; no epoch was better than the given model." in grown.summary.details
    assert "(the end; the given model is kept)" in str(grown.timeline[-1])


def test_a_model_that_training_ruins_is_returned_unchanged() -> None:
    good = grow(
        initialized(MLP(2)), TRAIN, VAL, 12, controller="no-growth", learning_rate=1e-2
    ).model
    ruined = grow(good, TRAIN, VAL, 1, controller="no-growth", learning_rate=0.3)
    require_valid(ruined, good)
    assert ruined.timeline[0].score < ruined.summary.before - 0.2
    assert not ruined.summary.was_kept
    assert all(
        torch.equal(tensor, good.state_dict()[name])
        for name, tensor in ruined.model.state_dict().items()
    )


def test_the_default_generators_do_not_change() -> None:
    model, loader = (
        initialized(MLP(2)),
        DataLoader(TensorDataset(*TRAIN), batch_size=50, shuffle=True),
    )
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    grow(model, loader, VAL, 4, learning_rate=3e-3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]


def test_the_seed_determines_the_result() -> None:
    model = initialized(MLP(2))
    one, same, other = (grow(model, TRAIN, VAL, 6, seed=seed) for seed in (3, 3, 4))
    assert one.timeline == same.timeline
    assert one.summary == same.summary
    weights = same.model.state_dict()
    assert all(torch.equal(tensor, weights[n]) for n, tensor in one.model.state_dict().items())
    assert one.timeline != other.timeline


class Watched(nn.Module):
    """Notes the number of threads of each forward pass in training mode."""

    seen: ClassVar[list[int]] = []  # shared by all copies

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(torch.get_num_threads())
        return x


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch as it starts on a machine with two processors."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("esper.modes.default_threads", lambda: {2})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    Watched.seen.clear()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fails", [False, True])
def test_a_small_model_trains_on_one_thread(fails: bool) -> None:
    model = nn.Sequential(initialized(MLP(1)), Watched())

    def on_step(_: Decision) -> None:
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        grow(model, TRAIN, VAL, 2, at=["0.blocks.0"], on_step=on_step, baseline=True)
    assert set(Watched.seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_model_that_outgrows_one_thread_gets_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), Watched(), nn.Linear(4, 10))
    first = 32 * esper.footprint(model, TRAIN[0][:1]).training_step_flops
    monkeypatch.setattr("esper.modes.SMALL_STEP", first * 1.5)
    wanted: dict[str, Any] = {"target": {"parameters": 1200}, "fractions": [0.5]}
    Watched.seen.clear()
    grow(model, TRAIN, VAL, 8, controller="progressive", **wanted)
    seen = [n for n, _ in groupby(Watched.seen)]
    assert seen == [1, 2]


@pytest.mark.usefixtures("two_threads")
def test_a_task_host_trains_on_one_thread() -> None:
    seen: list[int] = []
    grow(
        "spirals",
        epochs=2,
        controller="no-growth",
        on_step=lambda _: seen.append(torch.get_num_threads()),
    )
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_resuming_does_not_warn_about_threads(tmp_path: Path) -> None:
    model = initialized(MLP(1))
    grow(model, TRAIN, VAL, 4, resume=tmp_path, max_flops=1.0)
    assert grow(model, TRAIN, VAL, 4, resume=tmp_path).summary.n_epochs == 4


def test_a_bar_is_shown_while_slots_are_being_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait_for_bar(*_: Any, **__: Any) -> None:
        for _ in range(500):
            time.sleep(0.01)
            if "finding slots" in capsys.readouterr().err:
                raise ConfigError("seen")

    monkeypatch.setattr("esper.progress.LOG_INTERVAL", 0.1)
    monkeypatch.setattr("esper.growing.own_models.place_slots", wait_for_bar)
    with pytest.raises(ConfigError, match="seen"):
        grow(initialized(MLP(1)), TRAIN, VAL, 2, progress=True, controller="learned")


def test_dtype_and_modes_are_preserved() -> None:
    model = initialized(CNN()).double().train()
    model.early[1].eval()  # type: ignore[index]
    grown = grow(model, TRAIN, VAL, 8, controller="no-growth", learning_rate=3e-3)
    assert {p.dtype for p in grown.model.parameters()} == {torch.float64}
    modes = {name: module.training for name, module in model.named_modules()}
    assert {name: module.training for name, module in grown.model.named_modules()} == modes


def test_frozen_parameters_do_not_learn() -> None:
    model = initialized(MLP(2))
    model.stem.requires_grad_(False)  # type: ignore[union-attr]
    grown = grow(model, TRAIN, VAL, 6, learning_rate=3e-3, weight_decay=0.1)
    assert grown.summary.was_kept
    old = grown.model.stem.weight[:12]  # type: ignore[union-attr]
    assert torch.equal(old, model.stem.weight)  # type: ignore[union-attr]
    assert not grown.model.stem.weight.requires_grad  # type: ignore[union-attr]


def test_the_seed_may_be_an_integer_of_numpy() -> None:
    given: dict[str, Any] = {"train_data": TRAIN, "val_data": VAL, "epochs": 1}
    model = MLP(1)
    found, expected = (grow(copy.deepcopy(model), seed=seed, **given) for seed in (np.int64(3), 3))
    assert found.summary.after == expected.summary.after


def test_a_controller_can_be_given_in_any_form(tmp_path: Path) -> None:
    model = initialized(MLP(2))
    folder = save_controller(fresh_controller(n_epochs=3), tmp_path / "kept")
    for controller, n_epochs, name in (
        (folder, 3, "fresh"),
        (str(folder), 3, "fresh"),
        (fresh_controller(n_epochs=4), 4, "fresh"),
        ("no-growth", 16, "no-growth"),
        (NoGrowth(finish_after=2, name="mine"), 16, "mine"),
    ):
        summary = grow(model, TRAIN, VAL, controller=controller).summary
        assert (summary.budget_epochs, summary.controller) == (n_epochs, name)
    assert (
        grow(model, TRAIN, VAL, Budget(n_epochs=2), controller="learned").summary.budget_epochs == 2
    )
    with pytest.raises(RunError, match=r"'shiped'.* 'shipped'"):
        grow(model, TRAIN, VAL, controller="shiped")


def expecting(value: float, **options: Any) -> SavedController:
    """Return a controller that always expects the same return."""
    scale = {"return_mean": value, "return_std": 0.0}
    return replace(fresh_controller(), origin=scale, **options)


def test_the_summary_says_which_slots_ended_at_the_limit() -> None:
    def widened(slot: int) -> GrowthSummary:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 10)
        )
        limit = GrowthConfig(commits_at_once=True, embargo_epochs=1, max_widening=2.0)
        esper.add_slots(
            initialized(model), at=["1>3", "3>5"], sample_input=VAL[0][:2], growth_config=limit
        )
        script = Germinating(slot, "widen_large")
        return grow(model, TRAIN, VAL, 3, controller=script, learning_rate=1e-2).summary

    for slot, at in enumerate(("1>3", "3>5")):
        summary = widened(slot)
        assert summary.was_kept
        assert (summary.full_slots, summary.max_widening) == ((at,), 2.0)
        assert f"{at} hit the size limit (2 times" in summary.details
    summary = widened(0)
    full = tuple(SlotGrowth(name, (), is_full=True) for name in ("a", "b", "c"))
    assert "a, b and c hit" in replace(summary, growth=full, germinated_after=()).details
    assert "limit" not in replace(summary, growth=(), germinated_after=()).details


def test_a_printed_summary_has_four_facts_that_fit_and_leads_with_the_baseline() -> None:
    settings: dict[str, Any] = {"learning_rate": 3e-3, "seed": 1}
    grown = grow(initialized(MLP(1)), TRAIN, VAL, 4, baseline=True, **settings)
    plain = grow(initialized(MLP(1)), TRAIN, VAL, 4, controller="no-growth", **settings).summary
    summary = grown.summary
    score, size, cost, best = summary.facts.values()
    gap = f"{100.0 * (summary.after - plain.after):+.1f} points"
    assert score == f"{summary.after:g} with growth, {plain.after:g} with no growth ({gap})"
    before, after = summary.parameters_before, summary.parameters_after
    assert size.startswith(f"{after:,} parameters, {summary.factor} times the width of {before:,}")
    assert "million FLOPs: " in cost
    assert best == f"{summary.best_epoch} of 4"
    assert replace(summary, baseline=None).facts["Validation accuracy"] == (
        f"{summary.after:g}; {summary.before:g} before training"
    )
    lines = str(replace(summary, problems=("the loss is nan " * 9,) * 2)).splitlines()
    assert max(map(len, lines)) <= 79
    facts = [f"{name} {fact}" for name, fact in summary.facts.items()]
    assert str(summary).split() == " ".join(facts).split()


@pytest.mark.parametrize(
    ("metric", "is_better", "words"),
    [
        ("accuracy", False, "(-5.0 points)"),
        ("mse", True, "(better by 0.05)"),
        ("mse", False, "(worse by 0.05)"),
    ],
)
def test_a_difference_to_no_growth_says_which_is_better(
    metric: str, is_better: bool, words: str
) -> None:
    plain = grow(initialized(MLP(1)), TRAIN, VAL, 1, controller="no-growth").summary
    found = replace(plain, metric=metric, is_above_baseline=is_better, after=0.5, was_kept=True)
    assert words in str(replace(found, baseline=0.55))
    assert "(no difference)" in replace(found, baseline=0.5).facts[f"Validation {metric}"]


def test_a_summary_has_no_exponents() -> None:
    plain = grow(initialized(MLP(1)), TRAIN, VAL, 1, controller="no-growth").summary
    tiny = replace(plain, was_kept=True, after=1.2e-7, before=3.4e8, total_flops=5.6e13, flops=2e-6)
    for text in (str(tiny), tiny.details, str(replace(tiny, baseline=7.8e-9))):
        assert not re.search(r"\de[-+]?\d", text)
    assert "0.00000012; 340,000,000 before training" in str(tiny)
    assert "56 trillion FLOPs" in str(tiny)


def test_paired_rewards_make_the_expectation_a_gain_over_the_baseline() -> None:
    paired = expecting(0.021, rewards="paired")
    grown = grow(initialized(MLP(2)), TRAIN, VAL, 2, controller=paired, learning_rate=3e-3)
    assert grown.trace is not None
    assert (grown.trace.expected, grown.trace[0].is_gain) == (0.021, True)


def test_a_loss_that_is_a_class_is_refused_with_the_object_to_give() -> None:
    with pytest.raises(ConfigError, match=r"give an object of it, CrossEntropyLoss\(\)"):
        grow(MLP(1), TRAIN, VAL, 2, loss=nn.CrossEntropyLoss)


def test_the_case_of_an_optimizers_name_does_not_mislead_the_hint() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'adamw'\?"):
        grow(MLP(1), TRAIN, VAL, 2, optimizer="AdamW")


def test_a_host_of_a_task_pays_the_price_that_is_given() -> None:
    own, free, dear = (
        grow("spirals", controller="no-growth", price=price, n_epochs=3)
        for price in (None, 0.0, 0.5)
    )
    score, flops = free.score, free.summary.flops
    assert free.episode_return == pytest.approx(score)
    usual = make_task("spirals").budget.flop_price
    assert own.episode_return == pytest.approx(score - usual * flops)
    assert dear.episode_return == pytest.approx(score - 0.5 * flops)


def test_a_missing_shipped_controller_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", tmp_path / "elsewhere")
    with pytest.raises(ControllerError, match="elsewhere"):
        grow(initialized(MLP(1)), TRAIN, VAL, controller="learned")


def test_training_settings_are_used() -> None:
    model = initialized(MLP(1))
    still = grow(model, TRAIN, VAL, 2, controller="no-growth", optimizer="sgd", learning_rate=1e-12)
    assert still.summary.grown == still.summary.before
    once = grow(model, TRAIN, VAL, 3, controller="no-growth", batches_per_epoch=1)
    assert once.summary.flops == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": 3}, "model is an int"),
        ({"model": nn.Flatten()}, "Flatten has no trainable parameter"),
        ({"train_data": (TRAIN[0][:, :, :4], TRAIN[1])}, "fails on a batch of train_data"),
        (
            {"val_data": (VAL[0].flatten(1)[:, :9], VAL[1])},
            "fails on a batch of val_data, a float32",
        ),
        ({"train_data": (TRAIN[0], TRAIN[1] + 1)}, r"target of train_data is 10; .* 0\.\.9"),
        ({"train_data": (TRAIN[0], TRAIN[1] - 1)}, "target of train_data is -1"),
        ({"val_data": (VAL[0], VAL[1].float())}, "val_data that are a float32"),
        ({"val_data": (VAL[0], VAL[1][:-1])}, "val_data: .* 100 inputs .* 99 targets"),
        ({"val_data": (VAL[0][:1], VAL[1][:1])}, "val_data has 1 sample"),
        (
            {"val_data": (VAL[0] / 0.0, VAL[1])},
            r"sample 0 of val_data .*: feature \[0, 0, 0\] is nan \(100 samples",
        ),
        ({"train_data": (TRAIN[0], TRAIN[1][:, None])}, r"shape \[32, 1\]"),
        ({"train_data": iter([TRAIN])}, "train_data is a list_iterator"),
        ({"train_data": TRAIN[0]}, "train_data is a Tensor"),
        ({"at": ["block.0"]}, "'block.0'"),
        ({"epochs": 0}, "^epochs is 0"),
        ({"val_data": None}, "val_data is missing; it must be a pair"),
        ({"val_data": (VAL[0][:0], VAL[1][:0])}, "val_data has 0 samples"),
        ({"lr": 1e-2}, "'lr'; write learning_rate="),
        ({"patiense": 3}, "'patiense'. Did you mean 'patience'"),
        ({"n_epochs": 3}, "'n_epochs'; write epochs="),
        ({"device": "cpu"}, r"'device'; .* model\.to\(device\)"),
        ({"controller": "huristic"}, "'huristic'.* mean 'heuristic'"),
        ({"epochs": "many"}, "epochs is 'many'"),
        ({"progress": "yes"}, "progress is 'yes'"),
        ({"optimizer": "lion"}, "optimizer is 'lion'"),
        ({"loss": 3}, "loss is 3"),
        ({"class_weights": [1.0, 2.0]}, r"class_weights have shape \[2\]"),
        ({"max_parameters": 0}, "max_parameters is 0"),
        ({"max_parameters": -1}, "max_parameters is -1"),
        ({"max_parameters": "600"}, "max_parameters is '600'"),
        ({"learning_rat": 1.0}, "'learning_rat'. Did you mean 'learning_rate'"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"metric": "f1"}, "metric is 'f1'"),
        ({"metric": len}, "the metric raised TypeError"),
        ({"controller": np.zeros((2, 3))}, "controller is "),
        ({"metric": "acuracy"}, "metric is 'acuracy'; .* Did you mean 'accuracy'"),
        ({"optimizer": "adamv"}, "optimizer is 'adamv'; .* Did you mean 'adam"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_arguments_are_rejected_on_one_line(change: dict[str, Any], message: str) -> None:
    wanted: dict[str, Any] = {"model": MLP(1), "train_data": TRAIN, "val_data": VAL, "epochs": 2}
    with pytest.raises((BadDataError, ConfigError, EsperError), match=message) as caught:
        grow(**wanted | change)
    assert "\n" not in str(caught.value)
    assert not re.search(r"host 0|task 'own", str(caught.value))


def spoiled(data: tuple[Tensor, Tensor], sample: int, feature: int, value: float) -> Any:
    """Return inputs ``[N, 64]`` with a bad value, and targets."""
    inputs = data[0].flatten(1).clone()
    inputs[sample, feature] = value
    return inputs, data[1]


def flat_model() -> nn.Module:
    return initialized(nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["train_data", "val_data"])
def test_a_bad_input_in_memory_is_found_before_training(value: float, name: str) -> None:
    data = {"train_data": (TRAIN[0].flatten(1), TRAIN[1]), "val_data": (VAL[0].flatten(1), VAL[1])}
    data[name] = spoiled(data[name], 17, 5, value)
    steps: list[Decision] = []
    wanted = f"^sample 17 of {name} cannot be used: feature 5 is {value};"
    with pytest.raises(BadDataError, match=wanted):
        grow(flat_model(), **data, epochs=2, on_step=steps.append)
    assert not steps


@pytest.mark.parametrize("name", ["train_data", "val_data"])
def test_a_bad_input_of_a_loader_is_found_in_its_batch(name: str) -> None:
    data = {"train_data": (TRAIN[0].flatten(1), TRAIN[1]), "val_data": (VAL[0].flatten(1), VAL[1])}
    data[name] = spoiled(data[name], 45, 5, math.nan)
    loaders = {key: DataLoader(TensorDataset(*each), batch_size=20) for key, each in data.items()}
    wanted = f"^batch 2 of {name} cannot be used: in its sample 5, feature 5 is nan;"
    with pytest.raises(BadDataError, match=wanted):
        grow(flat_model(), **loaders, epochs=2)


def test_a_bad_target_is_found_before_training() -> None:
    inputs, targets = TRAIN[0].flatten(1), TRAIN[0].flatten(1)[:, :10].clone()
    targets[3, 7] = math.nan
    with pytest.raises(BadDataError, match=r"^sample 3 of train_data .*feature 7 of the target is"):
        grow(flat_model(), (inputs, targets), (VAL[0].flatten(1), VAL[0].flatten(1)[:, :10]), 2)


def test_missing_values_that_the_model_fills_in_are_fine() -> None:
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.nan_to_num()

    model = nn.Sequential(Fill(), *flat_model().children())
    data = spoiled(TRAIN, 17, 5, math.nan), spoiled(VAL, 1, 5, math.nan)
    assert not grow(model, *data, 2).summary.problems


ONE_HOT = nn.functional.one_hot(TRAIN[1], 10), nn.functional.one_hot(VAL[1], 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("loads", [False, True])
def test_one_hot_targets_are_rejected_with_what_to_do(dtype: torch.dtype, loads: bool) -> None:
    train = TRAIN[0], ONE_HOT[0].to(dtype)
    data: Any = DataLoader(TensorDataset(*train), batch_size=20) if loads else train
    with pytest.raises(BadDataError, match=r"of train_data .*class numbers.* loss") as caught:
        grow(initialized(MLP(1)), data, (VAL[0], ONE_HOT[1].to(dtype)), 2)
    assert "\n" not in str(caught.value)


def test_one_hot_targets_are_used_with_a_loss_or_as_a_regression() -> None:
    data = (TRAIN[0], ONE_HOT[0].float()), (VAL[0], ONE_HOT[1].float())
    with_loss = grow(initialized(MLP(1)), *data, 2, loss=nn.CrossEntropyLoss())
    assert with_loss.summary.metric == "loss"
    assert grow(initialized(MLP(1)), *data, 2, metric="r2").summary.metric == "r2"


def test_shares_that_are_not_one_hot_are_a_regression() -> None:
    shares = TRAIN[0].flatten(1)[:, :10].softmax(1), VAL[0].flatten(1)[:, :10].softmax(1)
    grown = grow(initialized(MLP(1)), (TRAIN[0], shares[0]), (VAL[0], shares[1]), 2)
    assert grown.summary.metric == "r2"


def test_a_class_may_be_missing_from_the_validation_data() -> None:
    kept = VAL[1] != 3
    grown = grow(initialized(MLP(1)), TRAIN, (VAL[0][kept], VAL[1][kept]), 2)
    assert grown.summary.after >= grown.summary.before


class Twofold(nn.Module):
    """Returns its logits and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.block(x.flatten(1)), x


def test_a_model_that_returns_a_tuple_is_rejected() -> None:
    with pytest.raises(BadDataError, match="returns a tuple"):
        grow(Twofold(), TRAIN, VAL, 2)


class Broken(MLP):
    """Returns NaN until it has been trained."""

    def __init__(self) -> None:
        super().__init__(1)
        self.register_buffer("n_seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.n_seen += 1
        return super().forward(x) + (0.0 if self.n_seen else float("nan"))


def test_any_number_is_better_than_nan() -> None:
    metric = bits_per_character(10)
    model = initialized(Broken())
    grown = grow(model, TRAIN, VAL, 3, controller="no-growth", metric=metric)
    assert math.isnan(grown.summary.before)
    assert grown.summary.was_kept
    assert 0.0 < grown.summary.after < math.log2(10) + 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_with_bad_weights_is_rejected(value: float) -> None:
    model = initialized(MLP(2))
    name, weight = list(model.named_parameters())[-1]
    weight.data.view(-1)[1] = value
    with pytest.raises(NonFiniteError, match=rf"parameter {re.escape(name)} has 1 of"):
        grow(model, TRAIN, VAL, 2)


class NaNForOne(MLP):
    """Returns NaN for samples like one of the validation set."""

    def forward(self, x: Tensor) -> Tensor:
        is_odd = (x == VAL[0][3]).flatten(1).all(1, keepdim=True)
        return super().forward(x).masked_fill(is_odd, math.nan)


def test_a_model_with_bad_outputs_is_rejected() -> None:
    with pytest.raises(NonFiniteError, match="sample 3 of val_data"):
        grow(initialized(NaNForOne(1)), TRAIN, VAL, 2)


class Masked(MLP):
    """Excludes a class by a logit of minus infinity."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x), torch.full((len(x), 1), -math.inf)], 1)


def test_excluded_classes_are_not_bad_outputs() -> None:
    assert grow(initialized(Masked(1)), TRAIN, VAL, 1, controller="no-growth").summary.n_epochs == 1


def test_a_metric_whose_best_value_is_lowest_decreases() -> None:
    model = initialized(MLP(2))
    grown = grow(model, TRAIN, VAL, 6, metric=bits_per_character(10), learning_rate=3e-3)
    assert grown.summary.was_kept
    assert grown.summary.after < grown.summary.before
    with torch.no_grad():
        loss = nn.functional.cross_entropy(grown.model.eval()(VAL[0]), VAL[1])
    assert grown.summary.after == pytest.approx(float(loss) / math.log(2), rel=1e-5)


class TokenModel(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.block = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        return self.head(y + self.block(y))


def test_sequence_predictions_are_supported() -> None:
    tokens = torch.randint(5, (120, 7), generator=torch.Generator().manual_seed(0))
    data = (tokens, (tokens + 1) % 5)
    train, val = (data[0][:80], data[1][:80]), (data[0][80:], data[1][80:])
    grown = grow(initialized(TokenModel()), train, val, 8, learning_rate=1e-2)
    assert grown.summary.after > max(grown.summary.before, 0.6)


def test_more_than_12_slots_can_be_named() -> None:
    model = initialized(MLP(15, width=8, hidden=2))
    names = [f"blocks.{i}" for i in range(15)]
    grown = grow(model, TRAIN, VAL, 8, at=names, learning_rate=3e-3, controller="learned")
    require_valid(grown, model)
    assert {step.slot for step in grown.timeline if step.slot} <= set(names)


def test_a_completely_frozen_model_is_rejected() -> None:
    with pytest.raises(ConfigError, match="MLP has no trainable parameter"):
        grow(MLP(1).requires_grad_(False), TRAIN, VAL, 2)


def test_a_built_in_host_is_returned_as_a_plain_module() -> None:
    host = esper.make_host(esper.MLPHostConfig(n_features=64, n_classes=10, width=8, hidden=4))
    flat = [(images.flatten(1), labels) for images, labels in (TRAIN, VAL)]
    for lr in (3e-3, 1e-12):
        grown = grow(host, *flat, 6, learning_rate=lr)
        assert grown.summary.was_kept == (lr > 1e-6)
        assert not any(type(m).__module__.startswith("esper") for m in grown.model.modules())


def test_a_compiled_model_is_unwrapped() -> None:
    model = initialized(MLP(1))
    compiled = torch.compile(model, backend="eager")
    grown = grow(compiled, TRAIN, VAL, 3, controller="no-growth", learning_rate=3e-3)
    assert type(grown.model) is MLP
    assert grown.summary.was_kept


class Counting(MLP):
    """Counts how often it is called."""

    def __init__(self) -> None:
        super().__init__(1)
        self.n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        return super().forward(x)


def test_the_given_model_is_never_called() -> None:
    model = initialized(Counting())
    grow(model, TRAIN, VAL, 2)
    assert model.n_calls == 0


def test_a_single_layer_grows_inside_a_sequential() -> None:
    flat = [(images.flatten(1), labels) for images, labels in (TRAIN, VAL)]
    model = initialized(nn.Linear(64, 10))
    with pytest.raises(SlotError, match=r"Linear.* nn\.Sequential\(model\)"):
        grow(model, *flat, 2, controller="learned")
    grown = grow(nn.Sequential(model), *flat, 8, learning_rate=3e-3, controller="learned")
    assert {step.slot for step in grown.timeline} == {"", "0"}


def test_the_growth_settings_of_the_controller_are_used() -> None:
    model, is_blended = initialized(MLP(2)), []
    for epochs in (0, 8):
        own = GrowthConfig(min_training_epochs=epochs, commits_at_once=False)
        saved = fresh_controller(growth=own)
        timeline = grow(model, TRAIN, VAL, 8, controller=saved, at=["blocks.0"]).timeline
        assert any("training" in step.stages.values() for step in timeline)
        is_blended.append(any("blending" in step.stages.values() for step in timeline))
    assert is_blended == [True, False]


def flat_layers(*widths: int) -> list[nn.Module]:
    """Return linear layers with activations between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return layers[:-1]


def test_progressive_growth_reaches_the_depth_that_was_asked_for() -> None:
    model = initialized(MLP(2))
    grown = grow(
        model,
        TRAIN,
        VAL,
        10,
        controller="progressive",
        target={"depth": 5},
        fractions=[0.2, 0.5],
        learning_rate=3e-3,
    )
    require_valid(grown, model)
    blocks = grown.model.get_submodule("blocks")
    assert type(blocks) is torch.nn.Sequential
    assert [type(block).__name__ for block in blocks] == ["Block"] * 5
    epochs = [step.epoch for step in grown.timeline if step.op == "germinate"]
    assert epochs == [3, 4, 6]
    assert grown.summary.controller == "progressive"


def test_progressive_growth_reaches_a_number_of_parameters() -> None:
    model = initialized(MLP(2))
    n = sum(parameter.numel() for parameter in model.parameters())
    wanted = {"parameters": 2 * n}
    grown = grow(model, TRAIN, VAL, 24, controller="progressive", target=wanted, seed=3)
    assert grown.summary.parameters_after == pytest.approx(2 * n, rel=0.1)


def test_a_target_that_needs_more_epochs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs 10 new seeds.* the budget is 12"):
        grow(initialized(MLP(2)), TRAIN, VAL, 12, controller="progressive", target={"depth": 12})


@pytest.mark.parametrize("option", [{"target": {"depth": 3}}, {"fractions": [0.3]}])
def test_a_target_needs_the_progressive_controller(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*progressive"):
        grow(initialized(MLP(2)), TRAIN, VAL, 2, controller="no-growth", **option)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (nn.Sequential(nn.Flatten(), *flat_layers(64, 12, 12, 12, 10)), 3000),
        pytest.param(
            nn.Sequential(nn.Flatten(), *flat_layers(64, 16, 16, 10)), 5000, marks=pytest.mark.slow
        ),
    ],
)
def test_neighbouring_pairs_are_counted_when_growing_to_a_size(
    model: nn.Module, wanted: int
) -> None:
    grown = grow(
        model, TRAIN, VAL, 30, controller="progressive", target={"parameters": wanted}, seed=1
    )
    assert grown.summary.parameters_after == pytest.approx(wanted, rel=0.06)


def test_a_depth_counts_the_blocks_of_a_stack_and_not_the_stack() -> None:
    stack = nn.Sequential(Block(12, 4), Block(12, 4))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), stack, nn.Linear(12, 10))
    grown = grow(model, TRAIN, VAL, 12, controller="progressive", target={"depth": 4})
    assert sum(type(module).__name__ == "Block" for module in grown.model.modules()) == 4


def test_limits_name_the_model_and_the_argument_that_was_given() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
    with pytest.raises(ConfigError, match=r"max_parameters is 100; .* 310, the parameters of the"):
        esper.grow(model, TRAIN, VAL, epochs=1, max_parameters=100)
    with pytest.raises(ConfigError, match=r"^price is -1"):
        esper.grow(model, TRAIN, VAL, epochs=1, price=-1)


@pytest.mark.parametrize("is_bound", [True, False])
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
def test_settings_of_an_optimizer_do_not_go_with_ones_own(name: str, is_bound: bool) -> None:
    model = MLP(1)

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.1)

    optimizer = make(model.parameters()) if is_bound else make
    with pytest.raises(ConfigError, match=f"{name} does not go with an optimizer of your own"):
        esper.grow(model, TRAIN, VAL, 1, optimizer=optimizer, **{name: 0.5})
