"""Measuring models, and checks that training can mend them."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from esper.errors import BadDataError, NonFiniteError
from esper.growing.batches import Batch, Batches
from esper.growing.objectives import Objective, output_of
from esper.growth.modules import named_modules
from esper.modes import evaluation_mode
from esper.populations.host import evaluate
from esper.tasks import Metric, Samples

BAD_DATA_ADVICE = "remove such samples, or replace such values, before growing."


def require_finite_data(model: nn.Module, objective: Objective, batches: Batches) -> None:
    """Reject data in memory with NaN or infinity that the model or the loss cannot handle.

    Raises:
        BadDataError: Naming the first such sample and the feature.
    """
    if batches.whole is None:
        return
    found = batches.whole.find_bad_value()
    if found is None:
        return
    batch = batches.whole.take(found.row)
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
        loss = float(objective.loss(batch.run(model), batch.targets))
    if not math.isfinite(loss):
        others = f" ({found.n_rows:,} samples are like it)" * (found.n_rows > 1)
        raise BadDataError(
            f"sample {found.row} of {batches.name} cannot be used: {found.text}{others}; "
            f"{BAD_DATA_ADVICE}"
        )


def require_finite_batch(batch: Batch, number: int, name: str) -> None:
    """Reject a batch of which the loss is not finite, if that is because of its data.

    Raises:
        BadDataError: Naming the batch, the sample in it and the feature.
    """
    found = batch.find_bad_value()
    if found is not None:
        raise BadDataError(
            f"batch {number} of {name} cannot be used: in its sample {found.row}, {found.text}; "
            f"{BAD_DATA_ADVICE}"
        )


def require_finite(model: nn.Module, batches: Batches) -> None:
    """Reject a model with weights or outputs that no training can mend.

    Outputs of minus infinity, with which models exclude classes, are fine. Outputs that are only
    bad in evaluation mode are fine too: statistics that they depend on may come with training.

    Raises:
        NonFiniteError: Naming the tensor, or the data and the first sample.
        BadDataError: If it is the inputs that are not finite.
    """
    tensors = [(f"parameter {n}", p, p.requires_grad) for n, p in model.named_parameters()]
    tensors += [(f"buffer {n}", b, False) for n, b in model.named_buffers()]
    for what, tensor, is_trained in tensors:
        is_bad = ~tensor.isfinite() if is_trained else tensor.isnan()
        if bool(is_bad.any()):
            raise NonFiniteError(
                f"the model's {what} has {int(is_bad.sum()):,} of {tensor.numel():,} values that "
                "are NaN or infinite, so it cannot be trained; initialize it again or load a "
                "checkpoint from before it diverged."
            )
    start = 0
    for number, batch in enumerate(batches):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            with evaluation_mode(model):
                row = _find_bad_row(output_of(batch.run(model)))
            is_mendable = row is not None and (
                _find_bad_row(output_of(batch.run(copy.deepcopy(model).train()))) is None
            )
        if row is not None and not is_mendable:
            require_finite_batch(batch, number, batches.name)
            raise NonFiniteError(
                f"the model returns NaN or infinite outputs, first for sample {start + row} of "
                f"{batches.name}, although its weights and inputs are finite; check the forward "
                "pass for divisions, logarithms and overflow."
            )
        start += batch.size


def _find_bad_row(outputs: Tensor | None) -> int | None:
    if outputs is None or outputs.ndim == 0:
        return None
    is_bad = outputs.isnan() | outputs.isposinf()
    return int(is_bad.flatten(1).any(1).int().argmax()) if bool(is_bad.any()) else None


def measure(model: nn.Module, samples: Samples, metric: Metric) -> float:
    """Return a model's mean metric over samples in evaluation mode; its modes do not change."""
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
        return evaluate(model, metric.objective, samples.inputs, samples.targets)[1]


def copy_modes(model: nn.Module, twin: nn.Module) -> None:
    """Set each module of a grown model to the mode of the module it comes from.

    A new module takes the mode of the nearest parent that the given model has.
    """
    modes = {name: module.training for name, module in named_modules(model).items()}
    for name, module in named_modules(twin).items():
        while name not in modes:
            name = name.rpartition(".")[0]
        module.training = modes[name]
