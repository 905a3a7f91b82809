"""What a model is trained for: the loss of a batch, and the metric of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import binary_cross_entropy_with_logits

from esper.config.checks import as_number, check
from esper.errors import BadDataError, ConfigError, blame_user_code, summarize_error
from esper.formatting import many
from esper.growing.batches import Batch, Batches
from esper.growth.sites import describe
from esper.modes import evaluation_mode
from esper.populations.host_data import sample_means
from esper.storage.checkpoint_folder import typed
from esper.tasks import Metric

MetricName = Literal["accuracy", "mse", "r2", "loss"]

REGRESSION = ("mse", "r2")
"""Metrics that say that targets are numbers to predict, whatever they look like."""

LossFunction = Callable[[Any, Any], Tensor]
"""A loss of outputs and targets, a scalar."""

MetricFunction = Callable[[Any, Any], Any]
"""A metric of outputs and targets, a number where more is better."""

IGNORED = -100
"""The target that cross-entropy ignores."""


def output_of(outputs: Any) -> Tensor | None:
    """Return the predictions among a model's outputs: a tensor, or ``logits``; None if unclear."""
    return outputs if isinstance(outputs, Tensor) else _entry(outputs, "logits")


def own_loss_of(outputs: Any) -> Tensor | None:
    """Return the loss that a model computes itself, as those of Transformers do."""
    found = _entry(outputs, "loss")
    return found if found is not None and found.numel() == 1 else None


def _entry(outputs: Any, name: str) -> Tensor | None:
    is_mapping = isinstance(outputs, Mapping)
    found: Any = cast(Any, outputs).get(name) if is_mapping else getattr(outputs, name, None)
    return found if isinstance(found, Tensor) else None


@dataclass
class Totals:
    """Sums over an evaluation."""

    n_samples: int = 0
    loss: float = 0.0
    n: float = 0.0
    """What the sum of the metric is divided by."""
    metric: float = 0.0
    targets: float = 0.0
    """Sum of the targets of a regression, and of their squares."""
    squares: float = 0.0
    kept: list[tuple[Any, Any, int]] = field(default_factory=list[tuple[Any, Any, int]])
    """Outputs, targets and size of batches that a metric of the user's has not seen yet."""
    n_kept: int = 0
    """Numbers in them."""

    @property
    def mean(self) -> float:
        """The mean of the metric; NaN without any."""
        return self.metric / self.n if self.n else math.nan

    @property
    def share_explained(self) -> float:
        """R²: the share of the variance of the targets that predictions explain."""
        mean = self.targets / max(1.0, self.n)
        variance = max(0.0, self.squares / max(1.0, self.n) - mean**2)
        return 1.0 - self.mean / variance if variance > 0.0 else math.nan


@dataclass(frozen=True)
class Evaluation:
    """The mean loss and the metric of a model on some data."""

    loss: float
    value: float
    """The metric."""
    score: float | None
    """The metric as controllers see it: 1 is perfect, more is better; None if it has no scale."""

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Evaluation:
        """Return an evaluation that was saved as a mapping."""
        return cls(
            loss=typed(saved["loss"], float),
            value=typed(saved["value"], float),
            score=typed(saved["score"], float, NoneType),
        )


@dataclass(frozen=True)
class Objective:
    """The loss and the metric of a training."""

    metric: str
    """The name of the metric."""
    is_better_low: bool
    """Whether a lower metric is better."""
    _loss: LossFunction
    _add: Callable[[Totals, Any, Any, int], None]
    _value: Callable[[Totals], float] = lambda totals: totals.mean
    _score: Callable[[float, Totals], float | None] = lambda value, _: value
    has_scale: bool = True
    """Whether 1 is perfect, so that differences of the metric are points, not shares of it."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of a batch, a scalar."""
        return self._loss(outputs, targets)

    def is_better(self, value: float, other: float) -> bool:
        """Return whether a metric is better than another; NaN is worse than every number."""
        if math.isnan(value):
            return False
        return math.isnan(other) or (value < other if self.is_better_low else value > other)

    def evaluate(self, model: nn.Module, batches: Batches) -> Evaluation:
        """Evaluate a model in evaluation mode; its modes do not change."""
        totals = Totals()
        with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
            for batch in batches:
                outputs = batch.run(model)
                totals.n_samples += batch.size
                totals.loss += float(self._loss(outputs, batch.targets)) * batch.size
                self._add(totals, outputs, batch.targets, batch.size)
        if not totals.n_samples:
            raise BadDataError(f"{batches.name} has no samples in this epoch; it had some before.")
        loss, value = totals.loss / totals.n_samples, self._value(totals)
        return Evaluation(loss, value, self._score(value, totals))


def make_objective(
    model: nn.Module,
    batch: Batch,
    name: str,
    *,
    loss: LossFunction | None = None,
    metric: str | Metric | MetricFunction | None = None,
    class_weights: Any = None,
    all_targets: Tensor | None = None,
) -> Objective:
    """Return the loss and the metric of a training, chosen by a first batch where not given.

    Without a loss: the model's own, if it returns one; cross-entropy for classes, or for a single
    output the binary one; the squared error for other targets. Without a metric: accuracy for
    classes, R² for others, and the loss where the model computes it itself. Classes are whole
    targets, or floats of which all are 0 or 1 if there is a single output and no metric of a
    regression. If all targets are in memory, all are checked. ``name`` is that of the data, for
    messages.

    Raises:
        BadDataError: If outputs and targets do not fit.
        ConfigError: If the loss, metric or class weights are invalid.
    """
    if isinstance(loss, type):
        raise ConfigError(
            f"loss is the class {loss.__name__}; give an object of it, {loss.__name__}()."
        )
    check("loss", loss, LossFunction | None)
    check("metric", metric, MetricName | Metric | MetricFunction | None)
    outputs = _try_model(model, batch, name)
    predictions, targets = output_of(outputs), batch.targets
    known = targets if all_targets is None else all_targets
    if loss is None and metric not in REGRESSION and _are_flags(predictions, known):
        targets, known = targets.long(), known.long()
    chosen = metric if metric is not None else _default_metric(loss, outputs, targets)
    if isinstance(chosen, Metric):
        return _from_metric(chosen, loss, predictions, targets, name)
    weights = _read_weights(class_weights, predictions)
    if loss is None and _is_whole(targets) and predictions is not None:
        is_single = _is_single(predictions, targets)
        n_classes = 2 if is_single else predictions.shape[-1]
        _require_range(known, n_classes, name, is_single=is_single)
    if loss is None and metric not in REGRESSION and own_loss_of(outputs) is None:
        _require_no_rows(known, name)
    function = loss or _default_loss(outputs, targets, weights, name)
    if loss is not None and class_weights is not None:
        raise ConfigError("class_weights are given with a loss; give the loss its weights instead.")
    _try_loss(function, outputs, targets, name)
    if not isinstance(chosen, str):
        try:
            found = chosen(outputs, targets)
        except Exception as error:
            blame_user_code(BadDataError, error, "the metric", f"on a batch of {name}.")
        as_number("what the metric returns", found)
        return _from_function(chosen, function)
    if chosen != "loss" and predictions is None:
        raise _unclear(outputs, name)
    return _make_named(chosen, function)


def _try_model(model: nn.Module, batch: Batch, name: str) -> Any:
    try:
        with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
            return batch.run(model)
    # A user's model may raise anything.
    except Exception as error:
        shown = ", ".join(map(describe, (*batch.args, *batch.kwargs.values())))
        raise BadDataError(
            f"the model fails on a batch of {name}, {shown}: {summarize_error(error)}"
        ) from error


def _try_loss(function: LossFunction, outputs: Any, targets: Any, name: str) -> None:
    try:
        found = function(outputs, targets)
    except BadDataError:
        raise
    except Exception as error:
        raise BadDataError(
            f"the loss fails on outputs {describe(outputs)} and targets {describe(targets)} of "
            f"{name}: {summarize_error(error)}"
        ) from error
    if not isinstance(found, Tensor) or found.numel() != 1:
        raise BadDataError(
            f"the loss of a batch of {name} is {describe(found)}; it must be a scalar tensor."
        )


def _is_whole(targets: Any) -> bool:
    return isinstance(targets, Tensor) and not (targets.is_floating_point() or targets.is_complex())


def _is_single(predictions: Tensor, targets: Tensor) -> bool:
    """Return whether a model has one output for each target, and each sample one of them."""
    if predictions.shape == (*targets.shape, 1):
        return True
    is_column = targets.ndim == 1 or targets.shape[-1] == 1
    return predictions.shape == targets.shape and is_column


def _default_metric(loss: LossFunction | None, outputs: Any, targets: Any) -> str:
    if loss is None and own_loss_of(outputs) is not None:
        return "loss"
    predictions = output_of(outputs)
    if predictions is None or targets is None:
        return "loss"
    if _is_whole(targets):
        if loss is not None and _is_single(predictions, targets):
            return "accuracy" if int(targets.max()) <= 1 else "loss"
        fits = predictions.shape[:-1] == targets.shape
        return "accuracy" if fits or loss is None else "loss"
    if loss is not None and _are_shares(targets):  # it takes probabilities of classes
        return "loss"
    is_logistic = loss is binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)
    if is_logistic and _are_flags(predictions, targets):
        return "accuracy"
    return "r2" if predictions.numel() == cast(Tensor, targets).numel() else "loss"


def _are_flags(predictions: Tensor | None, targets: Any) -> bool:
    """Return whether floats are 0 or 1, one for each output, which then are two classes."""
    if predictions is None or not isinstance(targets, Tensor) or not targets.is_floating_point():
        return False
    is_column = targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1)
    is_single = is_column and (predictions.ndim == 1 or predictions.shape[1:] == (1,))
    return is_single and bool(((targets == 0) | (targets == 1)).all())


def _are_shares(targets: Any) -> bool:
    """Return whether targets are rows of numbers that add up to 1, as probabilities do."""
    if not isinstance(targets, Tensor) or not targets.is_floating_point() or targets.ndim < 2:
        return False
    if targets.shape[-1] < 2 or not bool((targets >= 0).all()):
        return False
    sums = targets.float().sum(-1)
    return torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


def _require_no_rows(targets: Any, name: str) -> None:
    """Reject one-hot rows of floating-point numbers, which would be a regression."""
    if _are_shares(targets) and bool(((targets == 0) | (targets == 1)).all()):
        raise BadDataError(
            f"the targets of {name} are one-hot rows, {describe(targets)}; give class numbers, "
            "targets.argmax(-1), or a loss, such as torch.nn.CrossEntropyLoss(). For a regression "
            "give metric='r2'."
        )


def _default_loss(outputs: Any, targets: Any, weights: Tensor | None, name: str) -> LossFunction:
    if own_loss_of(outputs) is not None:
        return lambda found, _: cast(Tensor, own_loss_of(found))
    predictions = output_of(outputs)
    if predictions is None:
        raise _unclear(outputs, name)
    if not isinstance(targets, Tensor):
        raise BadDataError(
            f"the targets of {name} are {describe(targets)}; give a loss that reads them: "
            "loss=function of outputs and targets."
        )
    if not _is_whole(targets):
        _require_alike(predictions, targets, name)
        return lambda found, wanted: functional.mse_loss(
            _require_output(found).reshape(wanted.shape), wanted
        )
    if _is_single(predictions, targets):
        return lambda found, wanted: binary_cross_entropy_with_logits(
            _require_output(found).reshape(wanted.shape),
            wanted.to(_require_output(found).dtype),
            pos_weight=None if weights is None else weights[1] / weights[0],
        )
    if predictions.ndim < 2 or predictions.shape[:-1] != targets.shape:
        raise BadDataError(
            f"the model returns {describe(predictions)} for targets of {name} of shape "
            f"{list(targets.shape)}; it must return logits, with one more axis than the targets, "
            "which are class numbers. For anything else, such as one-hot or multi-label targets, "
            "give a loss."
        )
    return lambda found, wanted: functional.cross_entropy(
        _require_output(found).flatten(0, -2), wanted.flatten(), weight=weights
    )


def _require_output(outputs: Any) -> Tensor:
    found = output_of(outputs)
    assert found is not None, "the first batch had predictions"
    return found


def _unclear(outputs: Any, name: str) -> BadDataError:
    return BadDataError(
        f"the model returns {describe(outputs)} for {name}; it must return a tensor, or outputs "
        "with 'logits' or 'loss'. For anything else, give a loss and a metric, which are functions "
        "of outputs and targets."
    )


def _require_alike(predictions: Tensor, targets: Tensor, name: str) -> None:
    if predictions.shape != targets.shape and not _is_single(predictions, targets):
        raise BadDataError(
            f"the model returns {describe(predictions)} for targets of {name} that are "
            f"{describe(targets)}; for regression they must have the same shape. For soft labels "
            "give a loss, such as torch.nn.CrossEntropyLoss()."
        )


def _require_range(targets: Tensor, n_classes: int, name: str, *, is_single: bool) -> None:
    wanted = targets[targets != IGNORED]
    if not wanted.numel():
        return
    minimum, maximum = int(wanted.min()), int(wanted.max())
    if minimum < 0 or maximum >= n_classes:
        wrong, n_outputs = minimum if minimum < 0 else maximum, 1 if is_single else n_classes
        allowed = f"in 0..{n_classes - 1}, or {IGNORED} to be ignored."
        if is_single:
            allowed = "0 or 1. For regression, give them as floats, or give a loss."
        raise BadDataError(
            f"a target of {name} is {wrong}; the model has {many(n_outputs, 'output')}, so whole "
            f"targets must be {allowed}"
        )


def _read_weights(given: Any, predictions: Tensor | None) -> Tensor | None:
    if given is None:
        return None
    if predictions is None:
        raise ConfigError("class_weights need a model that returns logits.")
    weights = torch.as_tensor(given, dtype=predictions.dtype, device=predictions.device)
    n_classes = max(2, predictions.shape[-1])
    if weights.shape != (n_classes,) or not bool((weights >= 0).all()):
        raise ConfigError(
            f"class_weights have shape {list(weights.shape)}; they must be {n_classes} numbers of "
            "at least 0, one for each class."
        )
    return weights


def _from_metric(
    metric: Metric, loss: LossFunction | None, predictions: Tensor | None, targets: Any, name: str
) -> Objective:
    """Return the objective of an :class:`esper.Metric`, the mean over samples."""
    if predictions is None:
        raise BadDataError(f"an esper.Metric needs a model that returns a tensor for {name}.")
    own = metric.objective

    def add(totals: Totals, outputs: Any, wanted: Any, size: int) -> None:
        totals.metric += float(sample_means(own.metrics(_require_output(outputs), wanted)).sum())
        totals.n += size

    def mean_loss(outputs: Any, wanted: Any) -> Tensor:
        return own.losses(_require_output(outputs), wanted).mean()

    function = loss or mean_loss
    _try_loss(function, predictions, targets, name)
    is_low = metric.best < metric.worst
    return Objective(
        metric.name, is_low, function, add, _score=lambda value, _: float(metric.score(value))
    )


MAX_KEPT = 2**26
"""Outputs and targets, in numbers, up to which a metric of the user's sees all data at once."""


def _from_function(metric: MetricFunction, loss: LossFunction) -> Objective:
    """Return an objective whose metric sees all data at once, as F1 or a correlation must.

    Where there is too much of it, or batches cannot be joined, it is the mean over batches.
    """

    def call(outputs: Any, targets: Any) -> float:
        return as_number("what the metric returns", metric(outputs, targets))

    def add_kept(totals: Totals) -> None:
        for outputs, targets, size in totals.kept:
            totals.metric += call(outputs, targets) * size
            totals.n += size
        totals.kept, totals.n_kept = [], 0

    def add(totals: Totals, outputs: Any, targets: Any, size: int) -> None:
        totals.kept.append((outputs, targets, size))
        totals.n_kept += sum(each.numel() for each in (outputs, targets) if torch.is_tensor(each))
        if totals.n_kept > MAX_KEPT or not _can_join(totals.kept[0], totals.kept[-1]):
            add_kept(totals)

    def value(totals: Totals) -> float:
        if totals.n:
            add_kept(totals)
            return totals.mean
        outputs, targets, _ = zip(*totals.kept, strict=True)
        return call(torch.cat(outputs), torch.cat(targets))

    name = getattr(metric, "__name__", type(metric).__name__)
    name = "metric" if name == "<lambda>" else name
    return Objective(name, False, loss, add, value, has_scale=False)


def _can_join(first: tuple[Any, Any, int], other: tuple[Any, Any, int]) -> bool:
    """Return whether outputs and targets of batches are tensors that differ in length alone."""
    return all(
        isinstance(part, Tensor)
        and part.ndim > 0
        and len(part) == other[2]
        and isinstance(known, Tensor)
        and known.shape[1:] == part.shape[1:]
        for known, part in zip(first[:2], other[:2], strict=True)
    )


def _make_named(metric: str, loss: LossFunction) -> Objective:
    """Return the objective of a metric that is given by its name."""
    match metric:
        case "accuracy":
            return Objective(metric, False, loss, _add_hits)
        case "r2":
            return Objective(metric, False, loss, _add_errors, lambda sums: sums.share_explained)
        case "mse":
            return Objective(
                metric, True, loss, _add_errors, _score=lambda _, totals: totals.share_explained
            )
        case _:  # the totals have the loss already, which has no scale
            return Objective(
                metric,
                True,
                loss,
                _add=lambda totals, outputs, targets, size: None,
                _value=lambda totals: totals.loss / totals.n_samples,
                _score=lambda value, totals: None,
            )


def _add_hits(totals: Totals, outputs: Any, targets: Any, _: int) -> None:
    predictions = _require_output(outputs)
    if _is_single(predictions, targets):
        found = (predictions.reshape(targets.shape) > 0).long()
    else:
        found = predictions.argmax(-1)
    counted = targets != IGNORED
    totals.metric += float(((found == targets) & counted).sum())
    totals.n += float(counted.sum())


def _add_errors(totals: Totals, outputs: Any, targets: Any, _: int) -> None:
    wanted = cast(Tensor, targets).double()
    errors = _require_output(outputs).reshape(wanted.shape).double() - wanted
    totals.metric += float(errors.square().sum())
    totals.n += wanted.numel()
    totals.squares += float(wanted.square().sum())
    totals.targets += float(wanted.sum())
