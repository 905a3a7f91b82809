"""`esper.grow` with any loss, metric, data, optimizer and limit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from esper.errors import BadDataError, EsperError, GrowerError
from esper.growing import objectives
from esper.growing.decisions import Decision
from esper.growing.grow import grow

pytestmark = pytest.mark.usefixtures("fresh_shipped")

_GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(120, 6, generator=_GENERATOR)
CLASSES = (X[:, :3] ** 2).argmax(1)
VALUES = X[:, :2].square().sum(1)
TRAIN, VAL = slice(0, 80), slice(80, None)


def make(n_outputs: int = 3, n_inputs: int = 6) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(n_inputs, 8), nn.ReLU(), nn.Linear(8, n_outputs))


def split(targets: Tensor, inputs: Tensor = X) -> tuple[Any, Any]:
    return (inputs[TRAIN], targets[TRAIN]), (inputs[VAL], targets[VAL])


def predict(model: nn.Module, inputs: Tensor = X) -> Tensor:
    with torch.no_grad():
        return model.eval()(inputs[VAL])


@pytest.mark.parametrize(
    ("n_outputs", "targets", "options", "metric", "value"),
    [
        (3, CLASSES, {}, "accuracy", lambda p: (p.argmax(1) == CLASSES[VAL]).float().mean()),
        (
            1,
            (CLASSES == 0).long(),
            {},
            "accuracy",
            lambda p: ((p[:, 0] > 0) == (CLASSES[VAL] == 0)).float().mean(),
        ),
        (
            1,
            VALUES,
            {},
            "r2",
            lambda p: 1 - mse_loss(p[:, 0], VALUES[VAL]) / VALUES[VAL].var(correction=0),
        ),
        (1, VALUES[:, None], {"metric": "mse"}, "mse", lambda p: mse_loss(p, VALUES[VAL][:, None])),
        (
            3,
            torch.where(CLASSES == 2, -100, CLASSES),
            {"class_weights": [1.0, 2.0, 1.0]},
            "accuracy",
            lambda p: (p.argmax(1) == CLASSES[VAL])[CLASSES[VAL] != 2].float().mean(),
        ),
        (
            3,
            nn.functional.one_hot(CLASSES, 3).float() * 0.9 + 0.1 / 3,
            {"loss": nn.CrossEntropyLoss(), "metric": "loss"},
            "loss",
            lambda p: cross_entropy(
                p, nn.functional.one_hot(CLASSES[VAL], 3).float() * 0.9 + 0.1 / 3
            ),
        ),
        (
            3,
            CLASSES,
            {"metric": lambda p, y: (p.softmax(1)[torch.arange(len(y)), y]).mean()},
            "metric",
            lambda p: p.softmax(1)[torch.arange(40), CLASSES[VAL]].mean(),
        ),
    ],
    ids=["classes", "one logit", "values", "mse", "ignored", "soft labels", "own metric"],
)
def test_the_metric_is_that_of_the_returned_model(
    n_outputs: int, targets: Tensor, options: dict[str, Any], metric: str, value: Any
) -> None:
    model = make(n_outputs)
    grown = grow(model, *split(targets), 5, learning_rate=1e-2, batch_size=16, **options)
    assert grown.summary.metric == metric
    assert grown.summary.was_kept
    assert grown.summary.after == pytest.approx(float(value(predict(grown.model))), abs=1e-5)
    assert grown.summary.before == pytest.approx(float(value(predict(model))), abs=1e-5)


class Two(nn.Module):
    """Takes two inputs by name and returns its loss with its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = make()

    def forward(self, a: Tensor, b: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body(torch.cat([a, b], dim=1))
        return {"logits": logits} | (
            {} if labels is None else {"loss": cross_entropy(logits, labels)}
        )


def test_a_model_that_computes_its_loss_learns_from_mappings() -> None:
    def data(rows: slice) -> list[dict[str, Tensor]]:
        parts = zip(X[rows].split(20), CLASSES[rows].split(20), strict=True)
        return [{"a": x[:, :2], "b": x[:, 2:], "labels": y} for x, y in parts]

    with torch.random.fork_rng(devices=[]):
        model = Two()
    grown = grow(model, data(TRAIN), data(VAL), 5, learning_rate=1e-2)
    assert grown.summary.metric == "loss"
    assert grown.summary.after < grown.summary.before
    with torch.no_grad():
        found = grown.model.eval()(X[VAL, :2], X[VAL, 2:], CLASSES[VAL])
    assert grown.summary.after == pytest.approx(float(found["loss"]), rel=1e-5)


def test_the_optimizer_and_the_schedulers_of_the_user_are_used_and_left_alone() -> None:
    for scheduler_of in (
        lambda o: StepLR(o, 1, gamma=0.5),
        lambda o: ReduceLROnPlateau(o),
        lambda o: OneCycleLR(o, 1e-2, total_steps=80),
    ):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
        scheduler = scheduler_of(optimizer)
        before = [p.clone() for p in model.parameters()]
        grown = grow(model, *split(CLASSES), 4, optimizer=optimizer, scheduler=scheduler)
        assert grown.summary.n_epochs == 4
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert not optimizer.state
    grown = grow(
        make(),
        *split(CLASSES),
        4,
        optimizer=lambda parameters: torch.optim.RMSprop(parameters, 1e-2),
        scheduler=lambda optimizer: StepLR(optimizer, 2),
    )
    assert grown.summary.was_kept


def test_limits_end_the_training() -> None:
    model, data = make(), split(CLASSES)
    n = sum(parameter.numel() for parameter in model.parameters())
    steered = {"controller": "learned", "learning_rate": 1e-2}
    small = grow(model, *data, 12, max_parameters=n, **steered)
    assert small.summary.parameters_after == n
    assert f"max_parameters limited growth: seeds that would have made more than {n}" in (
        small.summary.details
    )
    assert all(step.op == "wait" for step in small.timeline)
    larger = grow(model, *data, 12, max_parameters=2 * n, **steered)
    assert larger.summary.parameters_after <= 2 * n
    # Seeds that would be too large are not legal, so that smaller ones are planted instead.
    assert any(step.op == "germinate" for step in larger.timeline)
    assert not any("max_parameters" in step.why for step in larger.timeline)
    whole = grow(model, *data, 8, controller="no-growth")
    half = grow(model, *data, 8, controller="no-growth", max_flops=whole.summary.total_flops / 2)
    assert half.summary.n_epochs == 4
    assert "max_flops" in half.summary.stopped
    assert "max_flops" in str(half.summary)
    assert "max_parameters" not in str(half.summary)
    quick = grow(model, *data, 8, controller="no-growth", max_seconds=1e-9)
    assert quick.summary.n_epochs == 1
    patient = grow(model, *data, 12, controller="no-growth", patience=2, learning_rate=1e-9)
    assert patient.summary.n_epochs == 2
    roomy = grow(model, *data, 2, max_parameters=1000 * n)
    assert "max_parameters" not in str(roomy.summary)


def test_an_interruption_returns_the_best_so_far() -> None:
    def interrupt(step: Decision) -> None:
        if step.epoch == 3:
            raise KeyboardInterrupt

    grown = grow(make(), *split(CLASSES), 20, learning_rate=1e-2, on_step=interrupt)
    assert grown.summary.n_epochs == 3
    assert "interrupted" in str(grown.summary)
    assert grown.summary.was_kept


@pytest.mark.parametrize("stop", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5))])
def test_a_training_resumes_to_the_same_model(tmp_path: Path, stop: int) -> None:
    def interrupt(step: Decision) -> None:
        if step.epoch == stop + 1:
            raise KeyboardInterrupt

    data, settings = split(CLASSES), {"learning_rate": 1e-2, "seed": 3}
    whole = grow(make(), *data, 8, **settings)
    grow(make(), *data, 8, resume=tmp_path, on_step=interrupt, **settings)
    rest = grow(make(), *data, 8, resume=tmp_path, **settings)
    assert rest.timeline == whole.timeline
    assert rest.summary == whole.summary
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, rest.model.state_dict()[name])
    with pytest.raises(GrowerError, match="another training: the model was"):
        grow(make(n_inputs=5), *split(CLASSES, X[:, :5]), 8, resume=tmp_path, **settings)


def test_the_baseline_is_the_given_model_trained_without_growth() -> None:
    data = split(CLASSES)
    grown = grow(make(), *data, 6, learning_rate=1e-2, seed=1, baseline=True)
    plain = grow(make(), *data, 6, learning_rate=1e-2, seed=1, controller="no-growth")
    assert grown.summary.baseline == plain.summary.after
    assert grown.summary.is_above_baseline == (grown.summary.after > plain.summary.after)


@pytest.mark.parametrize("limit", [{"max_flops": 2.5e5}, {"patience": 1}])
def test_the_baseline_has_the_same_limits_as_growth_had(limit: dict[str, Any]) -> None:
    data, settings = split(CLASSES), {"learning_rate": 1e-2, "seed": 1, **limit}
    grown = grow(make(), *data, 12, baseline=True, **settings)
    assert grown.summary.n_epochs < 12
    plain = grow(make(), *data, 12, controller="no-growth", **settings)
    assert grown.summary.baseline == plain.summary.after


def test_a_limit_of_flops_is_not_exceeded() -> None:
    data = split(CLASSES)
    per_batch = grow(make(), *data, 1, controller="no-growth", max_flops=1.0).summary.total_flops
    for limit in (3.5 * per_batch, 20.5 * per_batch):
        plain = grow(make(), *data, 9, controller="no-growth", max_flops=limit).summary
        assert limit - per_batch < plain.total_flops <= limit
        grown = grow(make(), *data, 9, controller="progressive", max_flops=limit).summary
        assert 0.0 < grown.total_flops <= limit


def test_a_training_can_be_resumed_with_more_epochs(tmp_path: Path) -> None:
    data, settings = split(CLASSES), {"learning_rate": 1e-2, "seed": 3}
    whole = grow(make(), *data, 6, controller="no-growth", **settings)
    grow(make(), *data, 4, controller="no-growth", resume=tmp_path, **settings)
    rest = grow(make(), *data, 6, controller="no-growth", resume=tmp_path, **settings)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, rest.model.state_dict()[name])
    assert (rest.summary.n_epochs, rest.summary.budget_epochs) == (6, 6)
    assert rest.summary.flops == pytest.approx(whole.summary.flops)
    assert rest.summary.total_flops == pytest.approx(whole.summary.total_flops)
    with pytest.raises(GrowerError, match="epochs is 5, but 6"):
        grow(make(), *data, 5, controller="no-growth", resume=tmp_path, **settings)


def test_a_training_that_a_limit_ended_goes_on_without_it(tmp_path: Path) -> None:
    data, settings = split(CLASSES), {"learning_rate": 1e-2, "controller": "no-growth"}
    whole = grow(make(), *data, 6, **settings).summary
    for limit in ({"max_flops": 0.5 * whole.total_flops}, {"patience": 1}, {"max_seconds": 1e-9}):
        folder = tmp_path / next(iter(limit))
        short = grow(make(), *data, 6, resume=folder, **limit, **settings).summary
        again = grow(make(), *data, 6, resume=folder, **limit, **settings).summary
        assert (short.n_epochs, short.stopped) == (again.n_epochs, again.stopped)
        assert 0 < short.n_epochs < 6
        assert grow(make(), *data, 6, resume=folder, **settings).summary.n_epochs == 6


def test_floats_that_are_0_or_1_are_classes_if_there_is_one_output() -> None:
    wanted = (CLASSES > 0).long()
    options: dict[str, Any] = {"controller": "no-growth", "learning_rate": 1e-2}
    whole = grow(make(n_outputs=1), *split(wanted), 4, **options)
    for targets in (wanted.float(), wanted[:, None].float()):
        found = grow(make(n_outputs=1), *split(targets), 4, **options)
        assert found.summary.metric == "accuracy"
        assert found.summary.after == whole.summary.after
    logistic = nn.BCEWithLogitsLoss()
    own = grow(make(n_outputs=1), *split(wanted[:, None].float()), 4, loss=logistic, **options)
    assert (own.summary.metric, own.summary.after) == ("accuracy", whole.summary.after)
    numbers = grow(make(n_outputs=1), *split(wanted.float()), 4, metric="mse", **options)
    assert numbers.summary.metric == "mse"
    other = grow(make(n_outputs=1), *split(wanted.float() + 0.5), 1, **options)
    assert other.summary.metric == "r2"


def test_a_training_that_is_rolled_back_says_so() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) * (
            math.nan if outputs.requires_grad else 1.0
        )

    grown = grow(make(), *split(CLASSES), 3, loss=broken)
    assert len(grown.summary.problems) == 3
    assert "3 of 3 epochs" in str(grown.summary)
    assert "nan" in str(grown.summary)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"metric": "loss"}, "the metric was accuracy, and now is loss"),
        ({"learning_rate": 1e-4}, "the learning rate was 0.001"),
        ({"seed": 9}, "seed was 0, and now is 9"),
    ],
)
def test_another_training_is_not_resumed(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    data = split(CLASSES)
    grow(make(), *data, epochs=3, controller="no-growth", resume=tmp_path)
    wanted: dict[str, Any] = {"epochs": 3, **change}
    with pytest.raises(GrowerError, match=named):
        grow(make(), *data, controller="no-growth", resume=tmp_path, **wanted)


@pytest.mark.parametrize(
    ("targets", "options", "named"),
    [
        (nn.functional.one_hot(CLASSES, 3), {}, "one-hot"),
        (CLASSES, {"metric": lambda outputs, _: outputs}, "the metric returns"),
        (CLASSES, {"patience": 0}, "patience is 0"),
        (CLASSES, {"max_flops": math.nan}, "max_flops is nan"),
        (CLASSES, {"scheduler": "cosine"}, "scheduler is a str"),
        (CLASSES, {"max_parameters": 3}, "max_parameters is 3"),
        (
            CLASSES,
            {"controller": "progressive", "target": {"parameters": 400}, "max_parameters": 200},
            "target is 400",
        ),
    ],
)
def test_what_cannot_work_is_refused_on_one_line(
    targets: Tensor, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(EsperError, match=named) as caught:
        grow(make(), *split(targets), 4, **options)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_no_classes_of_a_single_output() -> None:
    with pytest.raises(BadDataError, match="50; the model has 1 output"):
        grow(make(1), *split(50 * CLASSES.clamp(max=1)), 2)
    grown = grow(make(1), *split(50 * CLASSES[:, None]), 2, loss=lambda o, t: mse_loss(o, t * 1.0))
    assert grown.summary.metric == "loss"


def test_a_loader_keeps_its_batches() -> None:
    loader = DataLoader(TensorDataset(X[TRAIN], CLASSES[TRAIN]), batch_size=40, shuffle=True)
    grown = grow(make(), loader, DataLoader(TensorDataset(X[VAL], CLASSES[VAL])), 3)
    assert grown.summary.n_epochs == 3


def test_outputs_that_no_default_fits_ask_for_a_loss() -> None:
    with pytest.raises(BadDataError, match="soft labels"):
        grow(make(), *split(torch.rand(120, 2)), 2)


def test_nothing_that_was_blended_in_is_thrown_away_unmentioned() -> None:
    """The seeds of the returned model are listed, and its size is theirs."""
    grown = grow(make(), *split(CLASSES), 6, learning_rate=1e-2, seed=2)
    added = grown.summary.parameters_after - grown.summary.parameters_before
    assert (added > 0) == bool(grown.summary.seeds)
    assert not math.isnan(grown.summary.after)


def test_a_metric_without_a_name_and_read_only_arrays_are_fine() -> None:
    inputs, targets = X.numpy().copy(), CLASSES.numpy().copy()
    inputs.flags.writeable = False
    data = (inputs[TRAIN], targets[TRAIN]), (inputs[VAL], targets[VAL])
    grown = grow(make(), *data, 1, metric=lambda found, y: (found.argmax(1) == y).float().mean())
    assert grown.summary.metric == "metric"


class Normed(nn.Sequential):
    """Needs two samples for its batch statistics."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_last_batch_of_one_sample_is_answered_with_drop_last() -> None:
    loader = DataLoader(TensorDataset(X[:33], CLASSES[:33]), batch_size=32)
    with pytest.raises(EsperError, match=r"on a batch of 1 sample; .*drop_last=True"):
        grow(Normed(), loader, (X[VAL], CLASSES[VAL]), 1, controller="no-growth")


def precision_of_class_1(outputs: Tensor, targets: Tensor) -> Tensor:
    hits = outputs.argmax(1) == 1
    return (hits & (targets == 1)).sum() / hits.sum().clamp(min=1)


@pytest.mark.parametrize("limit", [2**26, 0], ids=["whole", "too much"])
def test_a_metric_of_the_users_sees_all_batches_at_once(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectives, "MAX_KEPT", limit)
    loader = DataLoader(TensorDataset(X[VAL], CLASSES[VAL]), 7)
    grown = grow(
        make(),
        (X[TRAIN], CLASSES[TRAIN]),
        loader,
        8,
        controller="no-growth",
        learning_rate=3e-2,
        metric=precision_of_class_1,
    )
    found = predict(grown.model)
    whole = float(precision_of_class_1(found, CLASSES[VAL]))
    parts = zip(found.split(7), CLASSES[VAL].split(7), strict=True)
    mean = sum(len(y) * float(precision_of_class_1(p, y)) for p, y in parts) / len(found)
    assert abs(whole - mean) > 1e-3
    assert grown.summary.after == pytest.approx(whole if limit else mean)


def test_the_scale_of_a_metric_of_the_users_does_not_matter() -> None:
    found = set[tuple[tuple[int, int, int], ...]]()
    for scale in (0.01, 1.0, 100.0):
        grown = grow(
            make(),
            *split(CLASSES),
            6,
            learning_rate=1e-2,
            seed=0,
            metric=lambda p, y, s=scale: s * (p.argmax(1) == y).double().mean(),
        )
        sizes = ((one.factor, one.n_epochs, one.best_epoch) for one in grown.summary.sizes)
        found.add(tuple(sizes))
    assert len(found) == 1
