"""Judging models of the user's own: whether data fit, and how well a model does on them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from esper.errors import BadDataError
from esper.growth.dry_run import evaluation_mode
from esper.growth.modules import named_modules
from esper.growth.populations.objective import CrossEntropy, sample_means
from esper.growth.populations.sequential import EVALUATION_BATCH
from esper.growth.tensor_kinds import describe
from esper.tasks import Metric, Samples


def require_fit(model: nn.Module, samples: Samples, name: str, metric: Metric) -> None:
    """Refuse samples that a model cannot be run on, or whose targets it has no outputs for.

    Raises:
        BadDataError: Naming the set, what is wrong with it, and what is needed.
    """
    if len(samples) < 2:
        raise BadDataError(f"{name} has {len(samples)} sample; at least 2 are needed.")
    inputs, targets = samples.inputs[:2], samples.targets[:2]
    try:
        with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
            outputs: Any = model(inputs.clone())
    # A user's model may raise anything.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise BadDataError(
            f"the model cannot be run on two inputs of {name}, {describe(inputs)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (2,):
        raise BadDataError(
            f"the model returns {describe(outputs)} for two inputs of {name}; it must return one "
            "tensor, with a row for each sample."
        )
    if isinstance(metric.objective, CrossEntropy):
        _require_classes(outputs, targets, samples, name)


def measure(model: nn.Module, samples: Samples, metric: Metric) -> float:
    """Return a model's mean metric over samples, in evaluation mode; its modes stay as they are."""
    total = 0.0
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
        for start in range(0, len(samples), EVALUATION_BATCH):
            batch = slice(start, start + EVALUATION_BATCH)
            outputs = model(samples.inputs[batch])
            values = metric.objective.metrics(outputs, samples.targets[batch])
            total += float(sample_means(values).sum())
    return total / len(samples)


def is_above(score: float, other: float) -> bool:
    """Return whether a score is above another; what is not a number is below every number."""
    return not math.isnan(score) and (math.isnan(other) or score > other)


def copy_modes(model: nn.Module, twin: nn.Module) -> None:
    """Put each module of a grown twin into the mode of the module it comes from.

    A module that the model does not have takes the mode of the nearest one around it that it has.
    """
    modes = {name: module.training for name, module in named_modules(model).items()}
    for name, module in named_modules(twin).items():
        while name not in modes:
            name = name.rpartition(".")[0]
        module.training = modes[name]


def _require_classes(outputs: Tensor, targets: Tensor, samples: Samples, name: str) -> None:
    """Refuse targets that are not one class for each prediction, or of a class there is not."""
    if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
        raise BadDataError(
            f"the model returns {describe(outputs)} for targets of {name} of shape "
            f"{list(targets.shape)}; it must return logits, one more axis than targets have."
        )
    least, most = int(samples.targets.min()), int(samples.targets.max())
    n_classes = outputs.shape[-1]
    if least < 0 or most >= n_classes:
        raise BadDataError(
            f"a target of {name} is {least if least < 0 else most}; the model has {n_classes} "
            f"outputs, so targets must be in 0..{n_classes - 1}."
        )
