"""One job of `warm_start.py`: a training run, with a branch for each budget.

Until a branch leaves it, a run has a constant learning rate after a short rise; in a branch the
rate falls to zero. So one run serves all budgets, and each budget ends with its own decay.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

import esper
from esper.growth.footprint import count_flops
from esper.growth.modules import count_parameters
from growth_problems import Data
from growth_runs import EVAL_BATCH, GIGA
from warm_start_problems import PROBLEMS, PROSE, Problem, load_topic

BASES = Path(__file__).parent / "results" / "warm_start"
RISE, DECAY = 0.02, 0.25
"""The rise of the rate, in FLOPs of the given model's training, and the share of a budget in which
the rate falls."""
TUNING_SEED = 1000
"""The seed that settings are chosen on, by the validation loss."""
LORA_LAYERS = ["qkv", "out", "mlp.0", "mlp.2"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The full description of a training run, which is the key of its results."""

    problem: str
    seed: int
    arm: str
    """``base``, ``continue``, ``widen``, ``deepen``, ``both``, ``scratch``, or for forgetting
    ``all``, ``new blocks``, ``new units`` or ``LoRA``."""
    rate: float
    budgets: tuple[float, ...]
    """FLOPs, relative to those that the given model was trained with."""
    base: str = ""
    """What the run begins with: a model whose rate has ``decayed``, or was ``constant``."""
    base_rate: float = 0.0
    size: str = "base"
    """The size of a model that begins with random weights."""
    is_small: bool = False

    def __str__(self) -> str:
        start = f" after {self.base}" if self.base else f", {self.size}"
        return f"{self.problem}, {self.arm}{start}, rate {self.rate:g}, seed {self.seed}"


class Training:
    """Trains a model, and counts FLOPs and seconds of this process."""

    def __init__(self, model: nn.Module, optimizer: AdamW, data: Data, batch_size: int) -> None:
        self.model, self.optimizer = model, optimizer
        self.data, self.batch_size = data, batch_size
        self.generator = torch.Generator()
        self.flops = self.seconds = 0.0

        def step() -> None:
            self._loss(torch.Generator()).backward()

        self.step_flops = float(count_flops(step))
        optimizer.zero_grad()

    def branch(self) -> Training:
        """Return a copy that trains on by itself."""
        twin = copy.copy(self)
        twin.model, twin.optimizer = copy.deepcopy((self.model, self.optimizer))
        twin.generator = torch.Generator().set_state(self.generator.get_state())
        return twin

    def train(self, until: float, rates: tuple[float, float], *, rise: float = 0.0) -> None:
        """Train until so many FLOPs are spent; the rate goes linearly from one to another.

        Args:
            until: FLOPs since the start of this training.
            rates: The first and the last learning rate.
            rise: FLOPs in which the rate first rises from zero.
        """
        start, first, (high, low) = time.process_time(), self.flops, rates
        self.model.train()
        while self.flops + self.step_flops <= until:
            middle = self.flops + 0.5 * self.step_flops
            share = (middle - first) / (until - first)
            rate = (high + (low - high) * share) * min(1.0, middle / rise if rise else 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.zero_grad()
            self._loss(self.generator).backward()
            self.optimizer.step()
            self.flops += self.step_flops
        self.seconds += time.process_time() - start

    def train_with_branches(
        self, budgets: Sequence[float], rate: float, rise: float
    ) -> list[Training]:
        """Train and return a finished branch for each budget, in FLOPs."""
        done: list[Training] = []
        for budget in sorted(budgets):
            self.train((1.0 - DECAY) * budget, (rate, rate), rise=rise)
            done.append(self.branch())
            done[-1].train(budget, (rate, 0.0), rise=rise)
        return done

    def _loss(self, generator: torch.Generator) -> Tensor:
        inputs, targets = self.data.draw(self.batch_size, generator)
        return cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())


def run_job(job: Job) -> list[dict[str, Any]]:
    """Train and return a result for each budget."""
    problem = problem_of(job)
    if job.arm in FORGETTING:
        return [_forget(job, problem)]
    torch.manual_seed(job.seed)
    unit = problem.unit * GIGA
    training = _begin(job, problem)
    training.generator.manual_seed(1000 * job.seed + bool(job.base))
    rise = RISE * unit
    if job.arm == "base":
        return [_score(job, each, budget) for budget, each in _train_base(job, training, unit)]
    ends = training.train_with_branches([b * unit for b in job.budgets], job.rate, rise)
    return [_score(job, end, b) for b, end in zip(sorted(job.budgets), ends, strict=True)]


def problem_of(job: Job) -> Problem:
    """Return the problem of a job."""
    problem = {**PROBLEMS, PROSE.name: PROSE}[job.problem]
    return problem.small() if job.is_small else problem


def _begin(job: Job, problem: Problem) -> Training:
    """Return the training of a model that is new, or given and perhaps grown."""
    model, data = problem.model(job.size), problem.load()
    optimizer = _adamw(model, job.rate)
    start = time.process_time()
    if job.base:
        state = _load_base(job)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        _grow(model, optimizer, problem, job.arm, data, job.seed)
    training = Training(model, optimizer, data, problem.batch_size)
    training.seconds = time.process_time() - start
    return training


def _adamw(model: nn.Module, rate: float) -> AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return AdamW(trained, rate, betas=(0.9, 0.99), weight_decay=0.0, fused=True)


def _grow(
    model: nn.Module, optimizer: AdamW, problem: Problem, arm: str, data: Data, seed: int
) -> list[esper.Change]:
    sample, _ = data.draw(2, torch.Generator().manual_seed(seed))
    changes: list[esper.Change] = []
    if arm in ("widen", "both", "new units"):
        generator = torch.Generator().manual_seed(seed)
        changes.append(
            esper.widen(
                model,
                problem.factor,
                sample_input=sample,
                at=problem.widened,
                optimizer=optimizer,
                generator=generator,
            )
        )
    if arm in ("deepen", "both", "new blocks"):
        changes.append(
            esper.deepen(model, by=problem.n_blocks, sample_input=sample, optimizer=optimizer)
        )
    return changes


def _train_base(job: Job, training: Training, unit: float) -> list[tuple[float, Training]]:
    """Train the given model twice over: to the end of the decay, and at a constant rate."""
    training.train(0.8 * unit, (job.rate, job.rate), rise=RISE * unit)
    decayed = training.branch()
    decayed.train(unit, (job.rate, 0.0))
    training.train(unit, (job.rate, job.rate))
    for phase, each in (("decayed", decayed), ("constant", training)):
        path = _base_path(job, phase)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        torch.save(
            {"model": each.model.state_dict(), "optimizer": each.optimizer.state_dict()}, unfinished
        )
        unfinished.replace(path)
    return [(1.0, decayed), (1.0, training)]


def _base_path(job: Job, phase: str) -> Path:
    problem = problem_of(job)
    name = f"{problem.name}-{problem.unit:g}-{job.rate:g}-{job.seed}-{problem.load().digest}"
    return BASES / f"{name}-{phase}.pt"


def _load_base(job: Job) -> dict[str, Any]:
    """Return a trained model and its optimizer's state; it is trained again if it is not kept."""
    base = replace(job, arm="base", rate=job.base_rate, base="", size="base", budgets=(1.0,))
    path = _base_path(base, job.base)
    if not path.exists():
        run_job(base)
    return torch.load(path)


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, split: str, n: int) -> tuple[float, float]:
    """Return the mean loss of a split, and the share of right predictions in percent.

    At most ``n`` samples are scored, at equal distances.
    """
    model.eval()
    inputs, targets = data.held_out(split)
    chosen = torch.linspace(0, len(inputs) - 1, min(n, len(inputs))).long()
    loss, right, total = 0.0, 0, targets[chosen].numel()
    for rows in torch.split(chosen, EVAL_BATCH):
        logits, y = model(inputs[rows]).flatten(0, -2), targets[rows].flatten()
        loss += cross_entropy(logits, y, reduction="sum").item()
        right += int((logits.argmax(-1) == y).sum())
    return loss / total, 100.0 * right / total


def _score(job: Job, training: Training, budget: float) -> dict[str, Any]:
    data, n = training.data, problem_of(job).n_scored
    split = "validation" if job.seed == TUNING_SEED else "test"
    loss, accuracy = evaluate(training.model, data, split, n)
    return {
        "budget": budget,
        split: round(loss, 5),
        "accuracy": round(accuracy, 3),
        "gigaflops": round(training.flops / GIGA, 4),
        "parameters": count_parameters(training.model),
        "seconds": round(training.seconds, 2),
        "data": data.digest,
    }


FORGETTING = ("all", "new blocks", "new units", "LoRA")
"""What learns the second text."""


def _forget(job: Job, problem: Problem) -> dict[str, Any]:
    """Train a model that knows prose on code; return its losses on both."""
    prose, code = load_topic("prose"), load_topic("code")
    model, unit = problem.model(), problem.unit * GIGA
    model.load_state_dict(_load_base(job)["model"])
    n, before = problem.n_scored, dict[str, float]()
    if job.arm == FORGETTING[0]:
        for name, text in (("prose_before", prose), ("code_before", code)):
            before[name] = round(evaluate(model, text, "test", n)[0], 5)
    if job.arm == "LoRA":
        model = _with_lora(model, problem, job.seed)
    # Only what will train is given to the new optimizer, and no moments are kept: another text.
    changes = _grow(model, _adamw(model, job.rate), problem, job.arm, prose, job.seed)
    for change in changes:
        change.freeze_old()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    optimizer = _adamw(model, job.rate)
    training = Training(model, optimizer, code, problem.batch_size)
    training.generator.manual_seed(1000 * job.seed + 1)
    (budget,) = job.budgets
    training.train((1.0 - DECAY) * budget * unit, (job.rate, job.rate), rise=RISE * unit)
    training.train(budget * unit, (job.rate, 0.0))
    return {
        **_score(job, training, budget),
        "prose": round(evaluate(model, prose, "test", n)[0], 5),
        **before,
        "trained": sum(change.n_new for change in changes) or trained,
    }


def _with_lora(model: nn.Module, problem: Problem, seed: int) -> nn.Module:
    """Return a model with adapters that have about as many parameters as the new blocks have."""
    from peft import LoraConfig, get_peft_model

    n_new = count_parameters(problem.model("deep")) - count_parameters(problem.model())
    torch.manual_seed(seed)
    config = LoraConfig(r=1, target_modules=LORA_LAYERS)
    one = get_peft_model(copy.deepcopy(model), config)
    per_rank = sum(p.numel() for p in one.parameters() if p.requires_grad)
    rank = round(n_new / per_rank)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=LORA_LAYERS)
    return get_peft_model(model, config)
