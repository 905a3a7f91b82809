"""What `warm_start.py` trains, and one of its training runs, with a branch for each budget.

Until a branch leaves it, a run has a constant learning rate after a short rise; in a branch the
rate falls to zero. So one run serves all budgets, and each budget ends with its own decay.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.optim import AdamW

import esper
from esper.config.growth import CNNHostConfig, GPTHostConfig, HostConfig, MLPHostConfig
from esper.growth.footprint import count_flops
from esper.growth.hosts import build_host
from esper.growth.modules import count_parameters
from esper.tasks.data import Samples, TaskData
from esper.tasks.text import SHARES, load_book
from fashion_mnist import VARIABLE, load_fashion_mnist
from growth_problems import ASCII, CONTEXT, Data, ImageData, TextData, read_texts
from growth_runs import BETAS, EVAL_BATCH, GIGA

DATA = Path(__file__).parent / "evidence" / "data"
"""Where `evidence/real/download.py` unpacks the packages with letters and Fashion-MNIST."""
BASES = Path(__file__).parent / "results" / "warm_start"
"""Where given models are kept, because many runs begin with the same one."""
RISE, DECAY = 0.02, 0.25
"""The rise of the rate, in FLOPs of the given model's training, and the share of a budget in which
the rate falls."""
TUNING_SEED = 1000
"""The seed that settings are chosen on, by the validation loss."""
SIZES = ("wide", "deep", "both")
"""Larger models: twice the hidden units of each block, twice the blocks, or both."""
FORGETTING = ("all", "new blocks", "new units", "LoRA")
"""What learns the second text."""
CHANGES = {"widen": "wide", "deepen": "deep", "new units": "wide", "new blocks": "deep"}
"""The size that an arm grows to."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model to train until more of the same brings little, and its data."""

    title: str
    config: HostConfig
    load: Callable[[], Data]
    unit: float
    """FLOPs that the given model was trained with, in billions."""
    batch_size: int
    n_scored: int
    """Held-out samples that are scored."""
    rates: tuple[float, ...]
    """Learning rates that are tried for the given model."""
    bases: tuple[str, ...] = ("decayed", "constant")
    """Phases of the learning rate that given models are taken from."""
    extra: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    """More FLOPs for the given model, relative to those it was trained with."""
    is_accuracy: bool = True
    """Whether the score is accuracy in percent, else the loss in nats."""

    def badness(self, row: dict[str, Any]) -> float:
        """Return what settings are chosen by: the reported score, the lower the better."""
        return -row["accuracy"] if self.is_accuracy else row["loss"]

    def model(self, size: str = "base", *, seed: int = 0) -> nn.Module:
        """Return an untrained model: ``base``, ``wide``, ``deep`` or ``both``."""
        config = self.config
        if size in ("wide", "both"):
            config = replace(config, hidden=2 * config.hidden)
        if size in ("deep", "both"):
            config = replace(config, n_blocks=2 * config.n_blocks)
        return build_host(config, seed=seed)


@lru_cache(maxsize=1)
def _load_letters() -> Data:
    sys.path.append(str(DATA.parent / "real"))  # its modules import each other by their names
    sets: Any = import_module("sets")
    parts = sets.split(sets.Library(DATA).load("letter"), 0, max_training=12_000)
    return ImageData(TaskData.of(Samples(*getattr(parts, name)) for name in SPLITS))


SPLITS = ("train", "validation", "test")


@lru_cache(maxsize=1)
def _load_fashion() -> Data:
    folder = DATA / "dataset-fashion-mnist" / "usr" / "share" / "datasets" / "fashion-mnist"
    os.environ.setdefault(VARIABLE, str(folder))
    return ImageData(TaskData.of(_halve(load_fashion_mnist(n_validation=4_000))))


def _halve(data: TaskData) -> Iterator[Samples]:
    """Yield splits with images at half of their size."""
    for _, split in data.splits():
        yield Samples(avg_pool2d(split.inputs, 2), split.targets)


@lru_cache(maxsize=1)
def _load_text() -> Data:
    return TextData()


@lru_cache(maxsize=1)
def _load_prose() -> Data:
    """Return the book that ships with Esper, and the reference of the language in Python's help."""
    texts = (load_book(), "".join(topics.values()))
    ends = (0, SHARES[0], SHARES[0] + SHARES[1], 100)
    cuts = [[len(text) * end // 100 for end in ends] for text in texts]
    return TextData(
        {
            split: {str(k): t[cuts[k][i] : cuts[k][i + 1]] for k, t in enumerate(texts)}
            for i, split in enumerate(("training", "validation", "test"))
        }
    )


@lru_cache(maxsize=1)
def load_code() -> Data:
    """Return the source files of Python's library, without the text of its help."""
    return TextData(
        {
            split: {n: t for n, t in files.items() if n.endswith(".py") and "topics" not in n}
            for split, files in read_texts().items()
        }
    )


_GPT = Problem(
    title="character GPT of width 48 on text",
    config=GPTHostConfig(vocabulary=len(ASCII), context=CONTEXT, width=48, hidden=96, n_heads=4),
    load=_load_text,
    unit=500.0,  # 1.7 million characters, 35 for each of its parameters
    batch_size=64,
    n_scored=2048,
    rates=(5e-3,),
    bases=("decayed",),
    is_accuracy=False,
)
PROBLEMS = {
    "letters": Problem(
        title="residual MLP on letter recognition",
        config=MLPHostConfig(n_features=16, n_classes=26, width=32, hidden=64),
        load=_load_letters,
        unit=24.0,  # 36 passes over the data
        batch_size=256,
        n_scored=4_000,
        rates=(5e-3, 1e-2),
    ),
    "fashion": Problem(
        title="residual CNN on Fashion-MNIST, 7 x 7",
        config=CNNHostConfig(image_size=7),
        load=_load_fashion,
        unit=60.0,  # 14 passes over the data
        batch_size=64,
        n_scored=10_000,
        rates=(1e-2, 2e-2),
        bases=("decayed",),
    ),
    "text": _GPT,
}
PROSE = "prose"
ALL_PROBLEMS = {**PROBLEMS, PROSE: replace(_GPT, load=_load_prose, unit=300.0)}
"""With the model that learns code after prose."""


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

    @property
    def about(self) -> Problem:
        """Its problem; one that takes seconds if the job is small."""
        problem = ALL_PROBLEMS[self.problem]
        return replace(problem, unit=problem.unit / 200) if self.is_small else problem

    @property
    def unit(self) -> float:
        """FLOPs that the given model was trained with."""
        return self.about.unit * GIGA


class Training:
    """Trains a model, and counts FLOPs and seconds of this process."""

    def __init__(self, job: Job, model: nn.Module, optimizer: AdamW, data: Data) -> None:
        self.job, self.model, self.optimizer, self.data = job, model, optimizer, data
        # Arms of a seed share their batches; a trained model goes on with other ones.
        self.generator = torch.Generator().manual_seed(1000 * job.seed + bool(job.base))
        self.flops = self.seconds = 0.0
        self.step_flops = float(count_flops(lambda: self._loss(torch.Generator()).backward()))
        optimizer.zero_grad()

    def branch(self) -> Training:
        """Return a copy that trains on by itself."""
        twin = copy.copy(self)
        twin.model, twin.optimizer = copy.deepcopy((self.model, self.optimizer))
        twin.generator = torch.Generator().set_state(self.generator.get_state())
        return twin

    def train(self, until: float, *, decays: bool = False) -> None:
        """Train until so many FLOPs, relative to the unit, are spent since the start.

        The rate rises at the start; then it is constant, or falls linearly to zero.
        """
        start, first, unit = time.process_time(), self.flops, self.job.unit
        self.model.train()
        while self.flops + self.step_flops <= until * unit:
            middle = self.flops + 0.5 * self.step_flops
            fall = (until * unit - middle) / (until * unit - first) if decays else 1.0
            for group in self.optimizer.param_groups:
                group["lr"] = self.job.rate * fall * min(1.0, middle / (RISE * unit))
            self.optimizer.zero_grad()
            self._loss(self.generator).backward()
            self.optimizer.step()
            self.flops += self.step_flops
        self.seconds += time.process_time() - start

    def train_with_branches(self, budgets: Sequence[float]) -> list[Training]:
        """Train and return a finished branch for each budget, the smallest first."""
        done: list[Training] = []
        for budget in sorted(budgets):
            self.train((1.0 - DECAY) * budget)
            done.append(self.branch())
            done[-1].train(budget, decays=True)
        return done

    def score(self, budget: float) -> dict[str, Any]:
        """Return what a run has reached with a budget."""
        split = "validation" if self.job.seed == TUNING_SEED else "test"
        loss, accuracy = evaluate(self.model, self.data, split, self.job.about.n_scored)
        return {
            "budget": budget,
            "loss": round(loss, 5),
            "accuracy": round(accuracy, 3),
            "gigaflops": round(self.flops / GIGA, 4),
            "parameters": count_parameters(self.model),
            "seconds": round(self.seconds, 2),
            "data": self.data.digest,
        }

    def _loss(self, generator: torch.Generator) -> Tensor:
        inputs, targets = self.data.draw(self.job.about.batch_size, generator)
        return cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())


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


def run_job(job: Job) -> list[dict[str, Any]]:
    """Train and return a result for each budget."""
    if job.arm == "base":
        return [each.score(1.0) for each in _train_base(job)]
    if job.arm in FORGETTING:
        return [_forget(job)]
    start, data = time.process_time(), job.about.load()
    model = job.about.model(job.size, seed=job.seed)
    optimizer = _adamw(model, job.rate)
    if job.base:
        state = _load_base(job)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        _grow(job, model, optimizer)
    training = Training(job, model, optimizer, data)
    training.seconds = time.process_time() - start
    ends = training.train_with_branches(job.budgets)
    return [end.score(b) for b, end in zip(sorted(job.budgets), ends, strict=True)]


def _adamw(model: nn.Module, rate: float) -> AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return AdamW(trained, rate, betas=BETAS, weight_decay=0.0, fused=True)


def _grow(job: Job, model: nn.Module, optimizer: AdamW) -> list[esper.Change]:
    size, problem = CHANGES.get(job.arm, job.arm), job.about
    sample, _ = problem.load().draw(2, torch.Generator().manual_seed(job.seed))
    changes: list[esper.Change] = []
    if size in ("wide", "both"):
        at = "blocks.*.mlp" if isinstance(problem.config, GPTHostConfig) else "blocks"
        drawn = torch.Generator().manual_seed(job.seed)
        options: dict[str, Any] = {"optimizer": optimizer, "generator": drawn}
        changes.append(esper.widen(model, 2.0, sample_input=sample, at=at, **options))
    if size in ("deep", "both"):
        n_new = problem.config.n_blocks
        changes.append(esper.deepen(model, by=n_new, sample_input=sample, optimizer=optimizer))
    return changes


def _train_base(job: Job) -> list[Training]:
    """Train the given model twice over: to the end of the decay, and at a constant rate."""
    model = job.about.model(seed=job.seed)
    constant = Training(job, model, _adamw(model, job.rate), job.about.load())
    constant.train(0.8)
    decayed = constant.branch()
    decayed.train(1.0, decays=True)
    constant.train(1.0)
    for phase, each in (("decayed", decayed), ("constant", constant)):
        path = _base_path(job, phase)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        state = {"model": each.model.state_dict(), "optimizer": each.optimizer.state_dict()}
        torch.save(state, unfinished)
        unfinished.replace(path)
    return [decayed, constant]


def _base_path(job: Job, phase: str) -> Path:
    problem = job.about
    name = f"{job.problem}-{problem.unit:g}-{job.rate:g}-{job.seed}-{problem.load().digest}"
    return BASES / f"{name}-{phase}.pt"


def _load_base(job: Job) -> dict[str, Any]:
    """Return a trained model and its optimizer's state; it is trained again if it is not kept."""
    base = replace(job, arm="base", rate=job.base_rate, base="", size="base", budgets=(1.0,))
    path = _base_path(base, job.base)
    if not path.exists():
        _train_base(base)
    return torch.load(path, weights_only=True)


def _forget(job: Job) -> dict[str, Any]:
    """Train a model that knows prose on code; return its losses on both."""
    problem, model, (budget,) = job.about, job.about.model(), job.budgets
    model.load_state_dict(_load_base(job)["model"])
    prose, code, n = problem.load(), load_code(), problem.n_scored
    before = [evaluate(model, text, "test", n)[0] for text in (prose, code)]
    if job.arm == "LoRA":
        model = _with_lora(model, problem, job.seed)
    # Only what will train is given to the new optimizer, and no moments are kept: another text.
    changes = _grow(job, model, _adamw(model, job.rate))
    for change in changes:
        change.freeze_old()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    training = Training(job, model, _adamw(model, job.rate), code)
    training.train((1.0 - DECAY) * budget)
    training.train(budget, decays=True)
    return {
        **training.score(budget),
        "prose": round(evaluate(model, prose, "test", n)[0], 5),
        "before": [round(loss, 5) for loss in before],
        "trained": sum(change.n_new for change in changes) or trained,
    }


def _with_lora(model: nn.Module, problem: Problem, seed: int) -> nn.Module:
    """Return a model with adapters that have about as many parameters as the new blocks have."""
    from peft import LoraConfig, get_peft_model

    n_new = count_parameters(problem.model("deep")) - count_parameters(problem.model())
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and "blocks" in n]
    per_rank = sum(
        m.in_features + m.out_features
        for m in map(model.get_submodule, layers)
        if isinstance(m, nn.Linear)
    )
    rank = round(n_new / per_rank)
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=layers)
    return get_peft_model(model, config)
