"""`esper.Grower` and `esper.grow` while nothing grows, compared with plain PyTorch loops."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn
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
WIDTHS = (70, 270, 950)
"""Widths of MLPs of about 10,000, 100,000 and 1 million parameters."""
N_SAMPLES, N_VALIDATION, N_EPOCHS = 2000, 1000, 12
PLAIN = "a plain PyTorch loop"


def run(effort: Effort) -> list[Row]:
    """Measure the step of a transformer, and whole trainings of MLPs."""
    model = build_host(CONFIG)
    size = sum(parameter.numel() for parameter in model.parameters())
    ours = f"GPT, {size / 1e6:.1f}M parameters, {BATCH_SIZE} x {CONFIG.context} tokens, step"
    calls = {ours: _step(copy.deepcopy(model), grows=True), WITHOUT: _step(model, grows=False)}
    budget = BUDGET_SECONDS if effort.budget_seconds else 0.0
    timings = time_side_by_side(calls, replace(effort, budget_seconds=budget))
    return [
        compare(timings, ours, WITHOUT, group=GROUP, kind=Ratio.COST, limit=1.02),
        *(_compare_trainings(width, effort) for width in WIDTHS),
    ]


def _compare_trainings(width: int, effort: Effort) -> Row:
    """Compare `esper.grow`, whose controller waits, with a loop that validates after each epoch."""
    x = torch.randn(N_SAMPLES + N_VALIDATION, 64, generator=torch.Generator().manual_seed(0))
    y = x[:, :10].argmax(1)
    train, validation = (x[:N_SAMPLES], y[:N_SAMPLES]), (x[N_SAMPLES:], y[N_SAMPLES:])
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )

    def plain() -> None:
        twin = copy.deepcopy(model)
        optimizer = AdamW(twin.parameters(), 1e-3, weight_decay=0.0)
        for _ in range(N_EPOCHS):
            twin.train()
            order = torch.randperm(N_SAMPLES)
            for start in range(0, N_SAMPLES, 32):
                rows = order[start : start + 32]
                optimizer.zero_grad()
                cross_entropy(twin(train[0][rows]), train[1][rows]).backward()
                optimizer.step()
            twin.eval()
            with torch.no_grad():
                logits = twin(validation[0])
            cross_entropy(logits, validation[1]).item()
            (logits.argmax(1) == validation[1]).float().mean().item()

    def ours() -> None:
        esper.grow(model, train, validation, N_EPOCHS, controller="no-growth", progress=False)

    size = sum(parameter.numel() for parameter in model.parameters())
    name = f"esper.grow, MLP of {size:,} parameters, {N_EPOCHS} epochs, no growth"
    timings = time_side_by_side({name: ours, PLAIN: plain}, effort)
    return compare(timings, name, PLAIN, group=GROUP, kind=Ratio.COST, limit=1.3)


def _step(model: nn.Module, *, grows: bool) -> Call:
    """Return a training step, with a Grower that has found its slots or without one."""
    # So small that the weights hardly change; the amount of arithmetic is the same.
    optimizer = AdamW(model.parameters(), 1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(CONFIG.vocabulary, (BATCH_SIZE, CONFIG.context + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def compute_loss() -> torch.Tensor:
        return cross_entropy(model(inputs).flatten(0, -2), targets)

    if not grows:

        def step() -> None:
            compute_loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    at = [f"blocks.{number}" for number in range(CONFIG.n_blocks)]
    grower = esper.Grower(
        model, optimizer, epochs=10, controller="no-growth", at=at, sample_input=inputs[:1]
    )

    def grower_step() -> None:
        loss = compute_loss()
        loss.backward()
        grower.step(loss)

    return grower_step
