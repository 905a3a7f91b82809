"""A training step of the GPT host compared with its matrix products, and epochs of many hosts.

Epochs are compared with the time of their FLOPs at the speed of a large matrix product.

Shapes: B sequences of T tokens, width D.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from esper.config.growth import GPTHostConfig, GrowthConfig
from esper.growth.hosts import build_host
from esper.populations import Population
from host_designs import HOSTS, POPULATION, Builder, make_specs
from populations import BLUEPRINTS, plant_seeds
from rows import Ratio, Row, compare
from timing import Call, Effort, Spread, time_side_by_side

GROUP = "gpt_host"
VOCABULARY = 98
HEAD_WIDTH = 32
SIZES = ((64, 32, 32), (64, 16, 64), (128, 32, 32), (128, 16, 64))
"""Width, batch size and context of each row."""
PRODUCTS = "its matrix products, forward and backward"
LARGE = 1024
"""Rows and columns of the large matrix product."""
N_HOSTS = 16
ROUNDS = 8


def run(effort: Effort) -> list[Row]:
    """Measure a step, with the optimizer, at several widths and shapes."""
    rows: list[Row] = []
    for width, batch, context in SIZES:
        config = GPTHostConfig(
            vocabulary=VOCABULARY,
            context=context,
            width=width,
            hidden=4 * width,
            n_heads=width // HEAD_WIDTH,
            n_blocks=4,
        )
        ours = f"GPT host, width {width}, {batch} x {context} tokens, training step"
        calls = {ours: _step(config, batch), PRODUCTS: _products(config, batch)}
        timings = time_side_by_side(calls, effort)
        rows.append(compare(timings, ours, PRODUCTS, group=GROUP, kind=Ratio.COST, limit=1.5))
    short = replace(effort, rounds=min(ROUNDS, effort.rounds))
    return rows + [
        _epoch_row(size, short, is_growing=flag) for size in HOSTS["GPT"] for flag in (False, True)
    ]


def _epoch_row(size: str, effort: Effort, *, is_growing: bool) -> Row:
    """Compare an epoch of many hosts with their FLOPs at the speed of a large matrix product."""
    config = HOSTS["GPT"][size]
    growth = GrowthConfig(min_training_epochs=0, min_holding_epochs=0)
    population = Population(
        Builder(config), make_specs(config, N_HOSTS), POPULATION, growth_config=growth
    )
    if is_growing:
        plant_seeds(population, BLUEPRINTS["GPT"])
    flops = float(population.train_epoch().flops.sum())
    left, right = torch.randn(2, LARGE, LARGE)
    what = f"GPT {size}, epoch of {N_HOSTS} hosts{', growing' if is_growing else ''}"
    product = f"its FLOPs in products of {LARGE} x {LARGE}"
    calls = {what: population.train_epoch, product: lambda: torch.mm(left, right)}
    timings = time_side_by_side(calls, effort)
    ratio, scale = timings.ratio(what, product), flops / (2 * LARGE**3)
    return Row(
        group=GROUP,
        what=what,
        other=product,
        kind=Ratio.COST,
        ours_seconds=timings.seconds(what),
        other_seconds=timings.seconds(product) * scale,
        ratio=Spread(*(value / scale for value in (ratio.median, ratio.low, ratio.high))),
        per_call=N_HOSTS,
        samples=min(timings.n_samples(what), timings.n_samples(product)),
    )


def _step(config: GPTHostConfig, batch: int) -> Call:
    """Return a training step."""
    model = build_host(config)
    # So small that the weights hardly change; the amount of arithmetic is the same.
    optimizer = AdamW(model.parameters(), 1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (batch, config.context + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs).flatten(0, -2), targets).backward()
        optimizer.step()

    return step


def _products(config: GPTHostConfig, batch: int) -> Call:
    """Return the matrix products of a step alone, each with operands of its own."""
    pairs = [pair for pairs in _operands(config, batch) for pair in pairs]

    def multiply() -> None:
        for left, right in pairs:
            torch.matmul(left, right)

    return multiply


def _operands(config: GPTHostConfig, batch: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the operands of each linear layer's and each attention's products."""
    width, rows = config.width, batch * config.context
    for _ in range(config.n_blocks):
        yield _linear(rows, width, 3 * width)
        yield _linear(rows, width, width)
        yield _linear(rows, width, config.hidden)
        yield _linear(rows, config.hidden, width)
        yield _attention(batch * config.n_heads, config.context, width // config.n_heads)
    yield _linear(rows, width, config.vocabulary)


def _linear(rows: int, n_in: int, n_out: int) -> list[tuple[Tensor, Tensor]]:
    """Return the operands of the output and of the gradients of input and weight."""
    x, weight, grad = torch.randn(rows, n_in), torch.randn(n_out, n_in), torch.randn(rows, n_out)
    return [(x, weight.t()), (grad, weight), (grad.t(), x)]


def _attention(n: int, steps: int, width: int) -> list[tuple[Tensor, Tensor]]:
    """Return the operands of scores and output, and of the gradients of both products."""
    heads, scores = torch.randn(n, steps, width), torch.randn(n, steps, steps)
    shared = [(heads, heads.mT), (scores, heads), (scores.mT, heads)]
    return shared + shared
