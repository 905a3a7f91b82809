"""One training run of `growth_pays.py`: a fixed or a growing network within a budget of FLOPs."""

from __future__ import annotations

import copy
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from esper.config.growth import GrowthConfig
from esper.growth.footprint import training_step_flops
from esper.growth.host_slots import remove_slots, slots
from esper.growth.hosts import build_host
from esper.growth.modules import count_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import add_slots
from growth_problems import PROBLEMS, SMALL_PROBLEMS, Data

GIGA = 1e9
WARMUP = 0.05
"""Share of the budget in which the learning rate rises, in every arm."""
BETAS = (0.9, 0.99)
EVAL_BATCH = 512
BASES = Path(__file__).parent / "results" / "growth_pays"


@dataclass(frozen=True)
class Arm:
    """How the depth of a network develops."""

    start: int
    """Blocks at the start."""
    final: int
    """Blocks at the end."""
    how: Literal["fixed", "identity", "stacked"] = "fixed"
    """New blocks start as the identity, or the trained blocks are stacked again."""

    @property
    def name(self) -> str:
        """A short name, such as ``L2``, ``2>6`` or ``2>6 stacked``."""
        if self.how == "fixed":
            return f"L{self.final}"
        return f"{self.start}>{self.final}" + (" stacked" if self.how == "stacked" else "")


@dataclass(frozen=True)
class Settings:
    """How new blocks are treated."""

    moments: Literal["zero", "copied"] = "zero"
    """Adam's moments of new parameters: none, or those of the block they copy."""
    inner: Literal["copied", "fresh"] = "copied"
    """Weights of new blocks other than the zeroed ones."""
    rewarm: float = 0.0
    """Share of the budget in which the learning rate of new parameters rises."""
    weight_decay: float = 0.0
    """Decoupled weight decay of all parameters."""


@dataclass(frozen=True)
class Base:
    """How a network was trained before a run begins."""

    budget: float
    """FLOPs, in billions."""
    rate: float
    """Peak learning rate."""


@dataclass(frozen=True)
class Run:
    """The full description of a training run, which is the key of its result."""

    problem: str
    arm: Arm
    budget: float
    """FLOPs, in billions."""
    rate: float
    """Peak learning rate."""
    seed: int
    grow_at: float | None = None
    """Share of the budget after which the network grows."""
    settings: Settings = Settings()
    base: Base | None = None
    """None for a network that begins with random weights."""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Run:
        """Return the run that ``dataclasses.asdict`` turned into fields."""
        arm, settings = Arm(**fields["arm"]), Settings(**fields["settings"])
        base = fields.get("base")
        changes = {"arm": arm, "settings": settings, "base": Base(**base) if base else None}
        return cls(**{**fields, **changes})

    def __str__(self) -> str:
        at = "" if self.grow_at is None else f" @{self.grow_at:g}"
        text = f"{self.problem}, {self.arm.name}{at}, {self.budget:g} GF, rate {self.rate:g}"
        after = "" if self.base is None else f" after {self.base.budget:g} GF"
        return f"{text}{after}, seed {self.seed}"


def train(run: Run) -> dict[str, Any]:
    """Train a network and return its losses and costs."""
    problem = {**PROBLEMS, **SMALL_PROBLEMS}[run.problem]
    data, start = problem.load(), time.process_time()
    model = build_host(problem.host_of(run.arm.start), seed=run.seed)
    optimizer = AdamW(
        model.parameters(),
        run.rate,
        betas=BETAS,
        weight_decay=run.settings.weight_decay,
        fused=True,
    )
    training = Training(model, optimizer, data, run, batch_size=problem.batch_size)
    if run.base is not None:
        load_base(training)
    if run.grow_at is not None:
        training.train_until(run.grow_at)
        training.grow()
    training.train_until(1.0)
    return {
        "validation": _finite(evaluate(training.model, data, "validation", problem.n_scored)),
        "test": _finite(evaluate(training.model, data, "test", problem.n_scored)),
        "gigaflops": round(training.flops / GIGA, 6),
        "steps": training.n_steps,
        "parameters": count_parameters(training.model),
        "jump": _finite(training.jump),
        "seconds": round(time.process_time() - start, 1),
        "data": data.digest,
    }


def _finite(loss: float | None) -> float | None:
    """Return a loss; None if training diverged, because JSON has no other numbers."""
    return loss if loss is not None and math.isfinite(loss) else None


def load_base(training: Training) -> None:
    """Give a training run the network, optimizer and batch order of its base.

    Bases are kept, because many runs begin with the same one.
    """
    run = training.run
    assert run.base is not None
    arm = Arm(run.arm.start, run.arm.start)
    base = Run(run.problem, arm, run.base.budget, run.base.rate, run.seed)
    digest = training.data.digest
    path = BASES / f"{run.problem}-{arm.name}-{base.budget:g}-{base.rate:g}-{run.seed}-{digest}.pt"
    if not path.exists():
        earlier = Training(
            training.model, training.optimizer, training.data, base, batch_size=training.batch_size
        )
        earlier.train_until(1.0)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        torch.save(earlier.state(), unfinished)
        unfinished.replace(path)
    training.load_state(torch.load(path))


class Training:
    """Trains within a budget; the learning rate falls linearly to zero with the FLOPs spent."""

    def __init__(
        self, model: nn.Module, optimizer: AdamW, data: Data, run: Run, *, batch_size: int
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.data = data
        self.run = run
        self.flops = 0.0
        self.n_steps = 0
        self.jump: float | None = None
        """Change of the validation loss at the moment of growth."""
        self.batch_size = batch_size
        self._generator = torch.Generator().manual_seed(run.seed)

    def train_until(self, share: float) -> None:
        """Train until a share of the budget is spent."""
        self.model.train()
        budget = self.run.budget * GIGA
        cost = self._step_flops()
        while self.flops + cost <= share * budget:
            self._set_rates((self.flops + 0.5 * cost) / budget)
            inputs, targets = self.data.draw(self.batch_size, self._generator)
            self.optimizer.zero_grad()
            loss_of(self.model, inputs, targets).backward()
            self.optimizer.step()
            self.flops += cost
            self.n_steps += 1

    def state(self) -> dict[str, Any]:
        """Return what a later run continues from."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what an earlier run ended with."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])

    def grow(self) -> None:
        """Add the new blocks."""
        before = evaluate(self.model, self.data, "validation", EVAL_BATCH)
        n_new = self.run.arm.final - self.run.arm.start
        grow = deepen if self.run.arm.how == "identity" else stack
        sample, _ = self.data.held_out("validation")
        grow(
            self.model,
            self.optimizer,
            n_new,
            self.run.settings,
            seed=self.run.seed,
            sample=sample[:2],
        )
        self.jump = evaluate(self.model, self.data, "validation", EVAL_BATCH) - before

    def _step_flops(self) -> int:
        inputs, _ = self.data.draw(self.batch_size, torch.Generator().manual_seed(0))
        return training_step_flops(self.model, inputs)

    def _set_rates(self, progress: float) -> None:
        """Set the learning rate of old and new parameters, by the share of the budget spent."""
        rate = self.run.rate * min(progress / WARMUP, (1.0 - progress) / (1.0 - WARMUP))
        old, *new = self.optimizer.param_groups
        old["lr"] = rate
        for group in new:
            rise, since = self.run.settings.rewarm, progress - (self.run.grow_at or 0.0)
            group["lr"] = rate * min(1.0, since / rise) if rise else rate


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of all predictions."""
    return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, split: str, n: int | None = None) -> float:
    """Return the loss on a split, or on its first ``n`` samples."""
    model.eval()
    inputs, targets = (part[:n] for part in data.held_out(split))
    parts = zip(inputs.split(EVAL_BATCH), targets.split(EVAL_BATCH), strict=True)
    total = sum(len(x) * loss_of(model, x, y).item() for x, y in parts)
    model.train()
    return total / len(inputs)


def deepen(
    model: nn.Module, optimizer: AdamW, n_new: int, settings: Settings, *, seed: int, sample: Tensor
) -> None:
    """Insert identity blocks after the existing ones, as evenly as possible."""
    blocks, name = model.get_submodule("blocks"), "blocks.*"
    old = {id(parameter) for parameter in model.parameters()}
    config = GrowthConfig(deepen_start=settings.inner)
    grown = slots(add_slots(model, [name], sample, growth_config=config, seed=seed))
    OptimizerKeeper(model, optimizer)
    for _ in range(n_new):
        before = list(blocks.children())
        grown.germinate(name, "deepen")
        after = list(blocks.children())
        (index,) = (k for k, block in enumerate(after) if not any(block is one for one in before))
        if settings.moments == "copied":
            copy_moments(optimizer, after[index], after[index - 1])
        grown.absorb(name)
    remove_slots(model)
    if settings.rewarm:
        host = optimizer.param_groups[0]
        new = [parameter for parameter in host["params"] if id(parameter) not in old]
        host["params"] = [parameter for parameter in host["params"] if id(parameter) in old]
        optimizer.add_param_group({"params": new})


def stack(
    model: nn.Module, optimizer: AdamW, n_new: int, settings: Settings, *, seed: int, sample: Tensor
) -> None:
    """Put copies of the trained blocks on top, in their order."""
    old = list(model.get_submodule("blocks").children())
    copies = [copy.deepcopy(block) for block in (old * n_new)[:n_new]]
    model.blocks = nn.Sequential(*old, *copies)
    optimizer.add_param_group({"params": list(nn.ModuleList(copies).parameters())})
    if settings.moments == "copied":
        for new, block in zip(copies, old * n_new, strict=False):
            copy_moments(optimizer, new, block)


def copy_moments(optimizer: AdamW, new: nn.Module, old: nn.Module) -> None:
    """Give the parameters of a copied block the optimizer state of the block."""
    for one, other in zip(new.parameters(), old.parameters(), strict=True):
        state = optimizer.state[other].items()
        optimizer.state[one] = {name: value.clone() for name, value in state}
