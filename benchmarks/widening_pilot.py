"""Compare networks that gain attention heads, or a wider residual stream, with every fixed size.

Run:  python benchmarks/widening_pilot.py

A pilot beside `growth_pays.py`: its text, its character GPT of two blocks, its equal training FLOPs
and its learning-rate schedule. Every finished training run is one line of
benchmarks/growth_pays/widening.jsonl, and runs that are there are not repeated.

Shapes: W channels of the residual stream before growth, W' after it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import AdamW

from esper.config.growth import GPTHostConfig
from esper.growth.blueprints.seeds import CausalAttention
from esper.growth.hosts import build_host
from esper.growth.modules import count_parameters, seeded
from growth_campaign import Results
from growth_problems import ASCII, CONTEXT, PROBLEMS
from growth_report import Comparison, table
from growth_runs import BETAS, EVAL_BATCH, GIGA, Arm, Run, Training, evaluate

ROWS = Path(__file__).parent / "growth_pays" / "widening.jsonl"
HEAD = 8
"""Channels of an attention head."""
WIDTH = 16
"""Channels of the residual stream where heads are compared."""
BUDGETS = (20.0, 66.0, 166.0)
RATES = (1e-2, 2e-2, 4e-2)
TIMINGS = (0.4, 0.2)
"""Shares of the budget after which a network grows; rates are tuned at the first."""
SEEDS = (1000, 1001, 1002, 1004, 1005)
FRESH_SEEDS = (1006, 1007, 1008, 1009, 1010)
"""Repeats what was best with the others, which may owe that to chance."""
TUNING_SEED = 1003
NEW_WEIGHTS = 10_000
"""Added to the seed of a run for the weights that growth draws."""
WRITERS = ("token.weight", "position.weight", "project.weight", "project.bias", "mlp.2.")
"""The parameters that write to the residual stream."""


@dataclass(frozen=True)
class Part:
    """One table: fixed sizes of one thing, and the growths between them."""

    title: str
    thing: Literal["text-heads", "text-stream"]
    sizes: tuple[int, ...]
    growths: tuple[tuple[int, int], ...]
    budgets: tuple[float, ...]
    seeds: tuple[int, ...] = SEEDS[:3]

    def arms(self) -> Iterator[tuple[Arm, float | None]]:
        """Yield each arm with the time of its growth."""
        for size in self.sizes:
            yield Arm(size, size), None
        for start, final in self.growths:
            for grow_at in TIMINGS:
                yield Arm(start, final, "identity"), grow_at


PARTS = (
    Part(
        "Attention heads",
        "text-heads",
        sizes=(1, 2, 4),
        growths=((1, 2), (1, 4), (2, 4)),
        budgets=BUDGETS[:2],
    ),
    Part(
        "Residual stream",
        "text-stream",
        sizes=(8, 16, 24),
        growths=((8, 16), (16, 24)),
        budgets=BUDGETS[:2],
    ),
    Part(
        "Residual stream, where sizes are close",
        "text-stream",
        sizes=(16, 24),
        growths=((16, 24),),
        budgets=BUDGETS[1:],
        seeds=SEEDS,
    ),
    Part(
        "Residual stream, other seeds",
        "text-stream",
        sizes=(16, 24),
        growths=((16, 24),),
        budgets=BUDGETS[1:2],
        seeds=FRESH_SEEDS,
    ),
)


def config_of(thing: str, size: int) -> GPTHostConfig:
    """Return the network of a number of heads, or of a width of the stream."""
    width, n_heads = (WIDTH, size) if thing == "text-heads" else (size, size // HEAD)
    return GPTHostConfig(
        vocabulary=len(ASCII), context=CONTEXT, width=width, hidden=4 * width, n_heads=n_heads
    )


class HeadAttention(CausalAttention):
    """Causal attention with heads of `HEAD` channels, however wide the stream is."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__(HEAD * n_heads, n_heads)
        self.query_key_value = nn.Linear(width, 3 * HEAD * n_heads, bias=False)
        self.project = nn.Linear(HEAD * n_heads, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output, in the shape of ``x``."""
        shape = (*x.shape[:2], self.n_heads, HEAD)
        parts = self.query_key_value(x).chunk(3, -1)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in parts)
        gathered = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(gathered.transpose(1, 2).flatten(2))


def build(config: GPTHostConfig, *, seed: int) -> nn.Module:
    """Return a network of heads with `HEAD` channels; Esper's own host where that has them."""
    model = build_host(config, seed=seed)
    if config.n_heads * HEAD != config.width:
        with seeded(seed):
            for block in model.get_submodule("blocks").children():
                block.attention = HeadAttention(config.width, config.n_heads)
    return model


@torch.no_grad()
def widen(
    model: nn.Module, optimizer: AdamW, config: GPTHostConfig, *, seed: int
) -> tuple[nn.Module, AdamW]:
    """Return a larger network that computes the same, and its optimizer.

    New heads and hidden units start with zero output weights. New channels of the stream start at
    zero, because everything that writes to them is zero. Layer norms would notice them in two
    ways. The mean: they ignore a constant added to all channels, so the old channels are centred
    first, and the mean stays zero. The variance: it shrinks by W / W', so their weights and
    epsilons shrink to match. All other new weights are fresh. Adam keeps the moments of old
    weights and has none of new ones.
    """
    width = model.get_submodule("head").in_features
    if config.width > width:
        centre_stream(model)
    grown = build(config, seed=seed)
    old = dict(model.named_parameters())
    rate = optimizer.defaults["lr"]
    larger = AdamW(grown.parameters(), rate, betas=BETAS, weight_decay=0.0, fused=True)
    for name, parameter in grown.named_parameters():
        if is_writer(name):
            parameter.zero_()
        insert(name, old[name], into=parameter)
        larger.state[parameter] = {"step": optimizer.state[old[name]]["step"].clone()}
        for moment in ("exp_avg", "exp_avg_sq"):
            padded = larger.state[parameter][moment] = torch.zeros_like(parameter)
            insert(name, optimizer.state[old[name]][moment], into=padded)
    for norm in grown.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.weight *= math.sqrt(width / config.width)
            norm.eps *= width / config.width
    return grown, larger


def is_writer(name: str) -> bool:
    """Return whether a parameter writes to the residual stream."""
    return any(writer in name for writer in WRITERS)


@torch.no_grad()
def centre_stream(model: nn.Module) -> None:
    """Give the stream a mean of zero over its channels, which no layer norm notices."""
    for name, parameter in model.named_parameters():
        if is_writer(name):
            # Embeddings have the channels last, layers first.
            axis = 1 if name.startswith(("token", "position")) else 0
            parameter -= parameter.mean(axis, keepdim=True)


def insert(name: str, small: Tensor, *, into: Tensor) -> None:
    """Write a tensor to the first places of a larger one, in each axis."""
    if "query_key_value" in name:
        # Queries, keys and values, each with the channels of all heads.
        small, into = (part.view(3, -1, part.shape[1]) for part in (small, into))
    into[tuple(map(slice, small.shape))] = small


class WideningTraining(Training):
    """Trains within a budget; growth widens the network."""

    def grow(self) -> None:
        """Widen the network."""
        before = evaluate(self.model, self.data, "validation", EVAL_BATCH)
        config = config_of(self.run.problem, self.run.arm.final)
        seed = self.run.seed + NEW_WEIGHTS
        self.model, self.optimizer = widen(self.model, self.optimizer, config, seed=seed)
        self.jump = evaluate(self.model, self.data, "validation", EVAL_BATCH) - before


def train(run: Run) -> dict[str, Any]:
    """Train a network and return its loss and costs."""
    problem, start = PROBLEMS["text"], time.process_time()
    data = problem.load()
    model = build(config_of(run.problem, run.arm.start), seed=run.seed)
    optimizer = AdamW(model.parameters(), run.rate, betas=BETAS, weight_decay=0.0, fused=True)
    training = WideningTraining(model, optimizer, data, run, batch_size=problem.batch_size)
    if run.grow_at is not None:
        training.train_until(run.grow_at)
        training.grow()
    training.train_until(1.0)
    loss = evaluate(training.model, data, "validation")
    return {
        "validation": loss if math.isfinite(loss) else None,
        "gigaflops": round(training.flops / GIGA, 6),
        "steps": training.n_steps,
        "parameters": count_parameters(training.model),
        "jump": training.jump,
        "seconds": round(time.process_time() - start, 1),
        "data": data.digest,
    }


def find_loss(run: Run, results: Results) -> float:
    """Return the validation loss of a run, which is trained if it is not in the results."""
    if run.problem == "text-stream" and run.arm == Arm(WIDTH, WIDTH):
        # The same network as with two heads.
        run = replace(run, problem="text-heads", arm=Arm(WIDTH // HEAD, WIDTH // HEAD))
    if run not in results:
        results.add(run, result := train(run))
        print(f"{run}: {result['validation']} in {result['seconds']:g} s", flush=True)
    return results.loss(run)


def choose_rate(run: Run, results: Results) -> float:
    """Return the learning rate of an arm, chosen on another seed.

    The smallest budget tries all rates. Longer training needs a lower rate, if another, so each
    larger budget tries all up to that of the budget before, and the two lowest in any case.
    """
    grow_at = None if run.grow_at is None else TIMINGS[0]
    run = replace(run, grow_at=grow_at, seed=TUNING_SEED)
    rates, place = RATES, BUDGETS.index(run.budget)
    if place:
        before = RATES.index(choose_rate(replace(run, budget=BUDGETS[place - 1]), results))
        rates = RATES[: max(2, before + 1)]
    return min(rates, key=lambda rate: find_loss(replace(run, rate=rate), results))


def compare(part: Part, results: Results) -> Comparison:
    """Return the losses of all arms of a part."""
    fixed: dict[str, dict[float, list[float]]] = {}
    grown: dict[str, dict[float, list[float]]] = {}
    for budget in part.budgets:
        for arm, grow_at in part.arms():
            run = Run(part.thing, arm, budget, RATES[0], TUNING_SEED, grow_at)
            run = replace(run, rate=choose_rate(run, results))
            losses = [find_loss(replace(run, seed=seed), results) for seed in part.seeds]
            name = f"{arm.final}" if grow_at is None else f"{arm.name} at {grow_at:.0%}"
            (fixed if grow_at is None else grown).setdefault(name, {})[budget] = losses
    return Comparison(fixed, grown)


def report(part: Part, found: Comparison) -> str:
    """Return losses and their differences from the best fixed size, with a verdict."""
    rows: list[list[str]] = []
    for arm in found.arms:
        row = [arm]
        for budget in found.budgets:
            text, is_best = f"{found.mean(arm, budget):.3f}", arm == found.best_fixed(budget)
            difference = found.difference(arm, budget).text()
            row.append(f"**{text}**" if is_best else f"{text}, {difference}")
        rows.append([*row, f"{max(found.regrets(arm)):.3f}"])
    names = ["validation loss", *(f"{budget:g} GF" for budget in found.budgets), "worst regret"]
    title = f"## {part.title}, {len(part.seeds)} seeds"
    return f"{title}\n\n{table(names, rows)}\n\n{found.verdict()}\n"


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    results = Results(ROWS)
    for thing in ("text-heads", "text-stream"):
        results.drop_other_data(thing, PROBLEMS["text"].load().digest)
    for part in PARTS:
        print("\n" + report(part, compare(part, results)), flush=True)


if __name__ == "__main__":
    main()
