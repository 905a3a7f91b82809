"""Training one arm on one problem: a fixed width, or a model whose size Esper finds.

Every arm has the same splits, batches, optimizer and epochs, starts from the same seed, keeps its
best epoch on validation, and is tested once. FLOPs are those of training and of validation.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from problems import Problem
from sets import RealSet, Splits, split
from torch import Tensor, nn

import esper
from esper.growing.racing import RACE
from esper.growth.footprint import count_flops, training_step_flops
from esper.growth.modules import count_parameters
from esper.modes import evaluation_mode
from esper.training.lookup import find_saved

WIDTHS = (1, 2, 4, 8)
"""Width multiples that the search trains; the first is plain training of the given model."""
EVALUATION_BATCH = 1_000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one arm."""

    validation: float
    test: float
    epoch: int
    """The epoch that counts."""
    flops: float
    parameters: int
    seconds: float
    """CPU time."""
    details: dict[str, Any]
    """Of fixed widths the outcome of half the epochs, of others what was chosen and how."""

    def as_row(self) -> dict[str, Any]:
        """Return it for the results file."""
        return asdict(self)


class EpochBatches:
    """Batches of all samples, with a seed shuffled anew each epoch, alike for every arm."""

    def __init__(self, samples: tuple[Tensor, Tensor], size: int, seed: int | None = None) -> None:
        self._inputs, self._targets = samples
        self._size = size
        self._seed = seed
        self.n_passes = 0
        """How often the data were iterated over to the end."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        n = len(self._inputs)
        order = np.arange(n)
        if self._seed is not None:
            # Not one generator for all epochs: a pass that ends early must not change the next.
            order = np.random.default_rng([self._seed, self.n_passes]).permutation(n)
        for rows in torch.from_numpy(order).split(self._size):
            yield self._inputs[rows], self._targets[rows]
        self.n_passes += 1


def train_width(problem: Problem, data: RealSet, seed: int, multiple: int) -> Outcome:
    """Train the model of a width multiple, plainly."""
    start = time.process_time()
    splits = split(data, seed, max_training=problem.max_training)
    model = make_model(problem, data, seed, multiple)
    optimizer = make_optimizer(problem, model.parameters())
    batches = EpochBatches(splits.train, problem.batch_size, seed)
    best, best_epoch = evaluate(problem, model, splits.validation), 0
    kept = copy.deepcopy(model.state_dict())
    half: dict[str, Any] = {}
    for epoch in range(1, problem.epochs + 1):
        model.train()
        for inputs, targets in batches:
            optimizer.zero_grad()
            problem.loss(model(inputs), targets).backward()
            optimizer.step()
        found = evaluate(problem, model, splits.validation)
        if found < best if problem.is_loss else found > best:
            best, best_epoch, kept = found, epoch, copy.deepcopy(model.state_dict())
        if epoch == problem.epochs // 2:
            seconds = time.process_time() - start
            half = {"half": _test(problem, model, kept, splits), "half_seconds": seconds}
            start = time.process_time() - seconds
    model.load_state_dict(kept)
    training, validation = plain_flops(problem, model, splits)
    return Outcome(
        validation=best,
        test=evaluate(problem, model, splits.test),
        epoch=best_epoch,
        flops=problem.epochs * training + (problem.epochs + 1) * validation,
        parameters=count_parameters(model),
        seconds=time.process_time() - start,
        details=half,
    )


def _test(problem: Problem, model: nn.Module, kept: dict[str, Tensor], splits: Splits) -> float:
    """Return the test score of a state of a model."""
    twin = copy.deepcopy(model)
    twin.load_state_dict(kept)
    return evaluate(problem, twin, splits.test)


def grow_model(problem: Problem, data: RealSet, seed: int, controller: str) -> Outcome:
    """Let `esper.grow` find the size of the given model; what steers it has the default price."""
    start = time.process_time()
    splits = split(data, seed, max_training=problem.max_training)
    model = make_model(problem, data, seed, 1)
    validation = EpochBatches(splits.validation, EVALUATION_BATCH)
    grown = esper.grow(
        model,
        EpochBatches(splits.train, problem.batch_size, seed),
        validation,
        epochs=problem.epochs,
        controller=controller,
        metric=problem.metric,
        optimizer=lambda parameters: make_optimizer(problem, parameters),
        seed=seed,
        progress=False,
    )
    found = grown.summary
    plain_training, plain_validation = plain_flops(problem, model, splits)
    spent = found.flops * problem.epochs * plain_training
    # The mean cost of a validation grows as that of an epoch of training.
    growth = spent / (found.n_epochs * plain_training)
    return Outcome(
        validation=found.after,
        test=evaluate(problem, grown.model, splits.test),
        epoch=found.best_epoch if found.was_kept else 0,
        flops=spent + validation.n_passes * growth * plain_validation,
        parameters=found.parameters_after,
        seconds=time.process_time() - start,
        details={
            "seeds": [list(seed) for seed in found.seeds],
            "relative_training_flops": found.flops,
            "validation_passes": validation.n_passes,
            "epochs": found.n_epochs,
            "stopped": found.stopped,
            "problems": list(found.problems),
            "sizes": [[size.factor, size.n_epochs, size.lost] for size in found.sizes],
        },
    )


def make_model(problem: Problem, data: RealSet, seed: int, multiple: int) -> nn.Module:
    """Return a model with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return problem.make(data, multiple)


def make_optimizer(problem: Problem, parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of all arms."""
    return torch.optim.AdamW(parameters, lr=problem.learning_rate)


def evaluate(problem: Problem, model: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy or the mean loss of a model."""
    batches = zip(*(each.split(EVALUATION_BATCH) for each in samples), strict=True)
    total = 0.0
    with torch.no_grad(), evaluation_mode(model):
        for inputs, targets in batches:
            outputs = model(inputs)
            if problem.is_loss:
                total += len(inputs) * float(problem.loss(outputs, targets))
            else:
                total += float((outputs.argmax(-1) == targets).sum())
    return total / len(samples[0])


def plain_flops(problem: Problem, model: nn.Module, splits: Splits) -> tuple[float, float]:
    """Return the FLOPs of an epoch of training a model, and of validating it once.

    They are counted as Esper counts those of growth, with gradients: torch has a fast path for
    encoders without them, whose FLOPs its counter does not see.
    """
    sample = splits.train[0][: problem.batch_size]
    step = training_step_flops(model, (sample,))
    with evaluation_mode(model), torch.enable_grad():
        forward = count_flops(lambda: model(sample))
    sizes = len(splits.train[0]) / len(sample), len(splits.validation[0]) / len(sample)
    return step * sizes[0], forward * sizes[1]


def identify_controller(controller: str) -> str:
    """Return a controller's name, with a checksum of its weights if it is a learned one.

    Raises:
        EsperError: If there is no such controller.
    """
    saved = None if controller == RACE else find_saved(controller)
    if saved is None:
        return controller
    total = hashlib.sha256(repr((saved.growth, saved.deterministic)).encode())
    for name, tensor in sorted(saved.weights.items()):
        total.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return f"{saved.name}-{total.hexdigest()[:8]}"


def identify_setup(problem: Problem, data: RealSet) -> str:
    """Return a checksum of what results depend on: the data, the model and its training."""
    settings = (problem.metric, problem.epochs, problem.learning_rate, problem.batch_size)
    parts = (*settings, problem.max_training, data.digest, repr(problem.make(data, 1)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
