"""Measuring models, and checks that training can mend them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from esper.errors import NonFiniteError
from esper.growing.batches import Batches
from esper.growing.objectives import output_of
from esper.growth.modules import named_modules
from esper.modes import evaluation_mode
from esper.populations.host_data import sample_means
from esper.populations.sequential import EVALUATION_BATCH
from esper.tasks import Metric, Samples


def require_finite(model: nn.Module, batches: Batches) -> None:
    """Reject a model with weights or outputs that no training can mend.

    Outputs of minus infinity, with which models exclude classes, are fine. Outputs that are only
    bad in evaluation mode are fine too: statistics that they depend on may come with training.

    Raises:
        NonFiniteError: Naming the tensor, or the data and the first sample.
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
    for batch in batches:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            with evaluation_mode(model):
                row = _find_bad_row(output_of(batch.run(model)))
            is_mendable = row is not None and (
                _find_bad_row(output_of(batch.run(copy.deepcopy(model).train()))) is None
            )
        if row is not None and not is_mendable:
            raise NonFiniteError(
                f"the model returns NaN or infinite outputs, first for sample {start + row} of "
                f"{batches.name}, although its weights and inputs may be finite; check the data, "
                "and the forward pass for divisions, logarithms and overflow."
            )
        start += batch.size


def _find_bad_row(outputs: Tensor | None) -> int | None:
    if outputs is None or outputs.ndim == 0:
        return None
    is_bad = outputs.isnan() | outputs.isposinf()
    return int(is_bad.flatten(1).any(1).int().argmax()) if bool(is_bad.any()) else None


def measure(model: nn.Module, samples: Samples, metric: Metric) -> float:
    """Return a model's mean metric over samples in evaluation mode; its modes do not change."""
    total = 0.0
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
        for start in range(0, len(samples), EVALUATION_BATCH):
            batch = slice(start, start + EVALUATION_BATCH)
            outputs = model(samples.inputs[batch])
            values = metric.objective.metrics(outputs, samples.targets[batch])
            total += float(sample_means(values).sum())
    return total / len(samples)


def copy_modes(model: nn.Module, twin: nn.Module) -> None:
    """Set each module of a grown model to the mode of the module it comes from.

    A new module takes the mode of the nearest parent that the given model has.
    """
    modes = {name: module.training for name, module in named_modules(model).items()}
    for name, module in named_modules(twin).items():
        while name not in modes:
            name = name.rpartition(".")[0]
        module.training = modes[name]
