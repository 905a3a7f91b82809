"""`esper.Grower` and `esper.grow`, with and without growth, compared with plain PyTorch loops.

Whole trainings are compared in CPU seconds of one thread. Growth is compared with training the size
that it ends at from the start, for as many epochs: what it adds is finding where the model can
grow, growing it, and watching each step; what it saves is the work of the epochs before it grew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

import esper
from esper.config.growth import GPTHostConfig
from esper.growth.hosts import build_host
from rows import Ratio, Row, compare
from timing import Call, Effort, time_side_by_side

GROUP = "grower"
CONFIG = GPTHostConfig(vocabulary=256, context=64, width=384, hidden=1536, n_heads=6, n_blocks=6)
"""A transformer of about 10 million parameters."""
BATCH_SIZE = 8
WITHOUT = "without a Grower"
BUDGET_SECONDS = 60.0
PLAIN = "a plain PyTorch loop"
BATCH, N_CLASSES = 32, 10


@dataclass(frozen=True)
class Problem:
    """A model to be grown, and its data."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    epochs: int
    target: int = 0
    """Parameters that it is grown to, early on; 0 to leave it as it is."""
    limit: float | None = None
    n_validation: int = 256

    @property
    def data(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Training and validation data."""
        n = len(self.inputs) - self.n_validation
        return (self.inputs[:n], self.targets[:n]), (self.inputs[n:], self.targets[n:])


def make_mlp(width: int) -> nn.Module:
    """Return an MLP of two hidden layers."""
    layers = (nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, N_CLASSES))


def make_cnn(width: int) -> nn.Module:
    """Return a CNN of three layers with batch norm."""
    layers: list[nn.Module] = []
    for n_in, n_out, stride in ((1, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 2)):
        layers += [nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)]
        layers.append(nn.ReLU())
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, N_CLASSES)
    return nn.Sequential(*layers, *head)


def make_gpt(width: int) -> nn.Module:
    """Return a GPT of three blocks."""
    sizes = {"width": width, "hidden": width, "n_heads": 4, "n_blocks": 3}
    return build_host(GPTHostConfig(vocabulary=64, context=32, **sizes))


def make_problems() -> list[Problem]:
    """Return what is trained."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1256, 64, generator=generator)
    vectors = x, x[:, :N_CLASSES].argmax(1)
    images = x[:896].view(-1, 1, 8, 8), x[:896, :N_CLASSES].argmax(1)
    first, step = torch.randint(64, (2, 768, 1), generator=generator)
    tokens = (first + step * torch.arange(33)) % 64
    texts = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    found = [
        Problem(f"MLP of {width} units", partial(make_mlp, width), *vectors, 24, limit=1.2)
        for width in (16, 70, 270)
    ]
    found.append(Problem("MLP", partial(make_mlp, 16), *vectors, 24, 8_000, 1.5))
    for size, mlp, cnn, gpt in (
        (100_000, 100, 28, 40),
        (300_000, 200, 52, 72),
        (1_000_000, 400, 96, 136),
    ):
        found += [
            Problem("MLP", partial(make_mlp, mlp), *vectors, 12, size, 1.15),
            Problem("CNN", partial(make_cnn, cnn), *images, 8, size, 1.15),
            Problem("GPT", partial(make_gpt, gpt), *texts, 8, size, 1.15),
        ]
    return found


def run(effort: Effort) -> list[Row]:
    """Measure the step of a transformer, and whole trainings."""
    model = build_host(CONFIG)
    size = sum(parameter.numel() for parameter in model.parameters())
    ours = f"GPT, {size / 1e6:.1f}M parameters, {BATCH_SIZE} x {CONFIG.context} tokens, step"
    calls = {ours: _step(copy.deepcopy(model), grows=True), WITHOUT: _step(model, grows=False)}
    budget = BUDGET_SECONDS if effort.budget_seconds else 0.0
    timings = time_side_by_side(calls, replace(effort, budget_seconds=budget))
    return [
        compare(timings, ours, WITHOUT, group=GROUP, kind=Ratio.COST, limit=1.02),
        *(compare_trainings(problem, effort) for problem in make_problems()),
    ]


def compare_trainings(problem: Problem, effort: Effort) -> Row:
    """Compare `esper.grow` with a loop that trains the final size and validates every epoch."""
    torch.manual_seed(0)
    model = problem.build()
    train = partial(_grow, model, problem)
    grown = train()
    final = grown.model if problem.target else model
    sizes = [sum(p.numel() for p in each.parameters()) for each in (model, final)]
    how = f"{sizes[0]:,} to {sizes[1]:,} parameters" if problem.target else "no growth"
    name = f"esper.grow, {problem.name}, {problem.epochs} epochs, {how}"
    other = f"{PLAIN}, {sizes[1]:,} parameters"
    calls: dict[str, Call] = {name: train, other: partial(_train_plainly, final, problem)}
    few = replace(effort, rounds=min(effort.rounds, 8), counts_cpu=True)
    timings = time_side_by_side(calls, few)
    return compare(timings, name, other, group=GROUP, kind=Ratio.COST, limit=problem.limit)


def _grow(model: nn.Module, problem: Problem) -> esper.Grown:
    if not problem.target:
        options = {"controller": "no-growth"}
    else:
        target = {"parameters": problem.target}
        options = {"controller": "progressive", "target": target, "fractions": [0.1]}
    return esper.grow(
        model, *problem.data, problem.epochs, batch_size=BATCH, progress=False, **options
    )


def _train_plainly(model: nn.Module, problem: Problem) -> None:
    twin = copy.deepcopy(model)
    (x, y), (x_val, y_val) = problem.data
    optimizer = AdamW(twin.parameters(), 1e-3, weight_decay=0.0)
    for _ in range(problem.epochs):
        twin.train()
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            optimizer.zero_grad()
            logits = twin(x[rows]).flatten(0, -2)
            cross_entropy(logits, y[rows].flatten()).backward()
            optimizer.step()
        twin.eval()
        with torch.no_grad():
            logits = twin(x_val).flatten(0, -2)
        cross_entropy(logits, y_val.flatten()).item()
        (logits.argmax(1) == y_val.flatten()).float().mean().item()


def _step(model: nn.Module, *, grows: bool) -> Call:
    """Return a training step, with a Grower that has found its slots or without one."""
    # So small that the weights hardly change; the amount of arithmetic is the same.
    optimizer = AdamW(model.parameters(), 1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(CONFIG.vocabulary, (BATCH_SIZE, CONFIG.context + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def compute_loss() -> Tensor:
        return cross_entropy(model(inputs).flatten(0, -2), targets)

    if not grows:

        def step() -> None:
            compute_loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    grower = esper.Grower(
        model, optimizer, epochs=10, controller="no-growth", sample_input=inputs[:1]
    )

    def grower_step() -> None:
        loss = compute_loss()
        loss.backward()
        grower.step(loss)

    return grower_step
