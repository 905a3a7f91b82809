"""Trainings that several processes run together, for tests that compare what each ends with."""

from __future__ import annotations

import contextlib
import datetime
import io
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import esper
from esper.config.growth import GrowthConfig
from esper.errors import EsperError
from esper.growth.governor import Governor
from esper.growth.host_slots import slots
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import add_slots

EPOCHS = 14
N_TRAIN, BATCH = 48, 12
BLENDED = GrowthConfig(commits_at_once=False)
TIMEOUT = 120.0
"""Seconds that a rank waits for the others."""


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N_TRAIN + 24, 8, generator=generator, dtype=torch.float64)
    return x, (x[:, :3] ** 2).argmax(1)


X, Y = make_data()


def make_model(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)
    ).double()


def make_norm_model(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 3)
    ).double()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def n_ranks() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model) if distributed.is_initialized() else model


def shares(n_parts: int = 1) -> list[Tensor]:
    """Return the rows that this rank trains on in each step of an epoch."""
    batches = torch.arange(N_TRAIN).split(BATCH)
    parts = [part for batch in batches for part in batch.chunk(n_parts)]
    return [part.chunk(n_ranks())[rank()] for part in parts]


def validate(model: nn.Module) -> tuple[float, float]:
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(X[N_TRAIN:])
    model.train(was_training)
    score = (logits.argmax(1) == Y[N_TRAIN:]).float().mean().item()
    return cross_entropy(logits, Y[N_TRAIN:]).item(), score


def run_epoch(model: nn.Module, grower: esper.Grower, poison: int = -1) -> esper.Decision:
    for number, rows in enumerate(shares()):
        loss = cross_entropy(model(X[rows]), Y[rows])
        if number == 1 and poison == rank():
            loss = loss * math.nan
        loss.backward()
        grower.step(loss)
    inner = getattr(model, "module", model)
    loss, score = validate(inner)
    return grower.end_epoch(val_loss=loss, score=score, validate=lambda: validate(inner)[1])


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def grow_wrapped(
    *,
    wrap_first: bool = True,
    make: Callable[[int], nn.Module] = make_model,
    controller: str = "fixed",
    epochs: int = EPOCHS,
    blends: bool = False,
) -> dict[str, Any]:
    """Grow for a whole life; only rank 0 has a controller that decides anything."""
    inner = make(1 + 10 * rank() if distributed.is_initialized() else 1)
    if blends:
        add_slots(inner, ["0>2", "2>4"], X[:2], growth_config=BLENDED)
    model = wrapped(inner) if wrap_first else inner
    optimizer = make_optimizer(model)
    grower = esper.Grower(
        model,
        optimizer,
        epochs=epochs,
        controller=controller if rank() == 0 else "no-growth",
        sample_input=X[:2] + rank(),
    )
    model = wrapped(inner) if not wrap_first else model
    stages = set[str]()
    for _ in range(epochs):
        stages |= set(run_epoch(model, grower).stages.values())
    ops = [decision.op for decision in grower.trace]
    return {"tensors": tensors(inner), "stages": sorted(stages), "ops": ops}


def grow_after_wrapping() -> dict[str, Any]:
    return grow_wrapped()


def grow_blended() -> dict[str, Any]:
    return grow_wrapped(blends=True)


def grow_before_wrapping() -> dict[str, Any]:
    return grow_wrapped(wrap_first=False)


def grow_at_random() -> dict[str, Any]:
    return grow_wrapped(controller="random", epochs=24)


def grow_with_norms() -> dict[str, Any]:
    return grow_wrapped(make=make_norm_model)


class ByHand:
    """A model that is grown by hand, with a Governor."""

    def __init__(self, make: Callable[[int], nn.Module] = make_model, blueprint: str = "") -> None:
        self.inner = make(1)
        at = ["0>2", "4"] if make is make_model else ["3"]
        add_slots(self.inner, at, X[:2], growth_config=BLENDED)
        if blueprint:
            slots(self.inner).germinate("0>2", blueprint)
        self.model = wrapped(self.inner)
        optimizer = make_optimizer(self.model)
        OptimizerKeeper(self.model, optimizer)
        self.governor = Governor(self.model, optimizer)
        self.optimizer = optimizer
        self.slots = slots(self.model)

    def train(self, poison: int = -1) -> list[str]:
        """Train an epoch; return why the governor rolled back."""
        problems: list[str] = []
        for number, rows in enumerate(shares()):
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(X[rows]), Y[rows])
            if number == 1 and poison == rank():
                loss = loss * math.nan
            report = self.governor.step(loss)
            if report is not None:
                problems.append(report.reason)
        self.slots.tick()
        self.governor.end_epoch()
        return problems

    def live(self, slot: str, *, prune: bool = False) -> None:
        """Let a germinated seed live to its end."""
        self.train()
        self.slots.advance(slot)
        self.train()
        self.train()
        self.slots.advance(slot)
        for _ in range(4):
            self.train()
        if prune:
            self.slots.prune(slot)
        else:
            if self.slots[slot].stage.name == "BLENDING":
                self.slots.advance(slot)
            self.train()
            self.train()
            assert self.slots.fossilize(slot).was_done
        self.train()


def grow_by_hand() -> dict[str, Any]:
    run = ByHand(blueprint="widen_small")
    run.live("0>2")
    run.slots.germinate("4", "mlp_small")
    run.live("4", prune=True)
    stages = [slot.stage.name for slot in run.slots.values()]
    return {"tensors": tensors(run.inner), "stages": stages}


def roll_back_by_hand() -> dict[str, Any]:
    run = ByHand(blueprint="widen_small")
    run.train()
    run.slots.advance("0>2")
    problems = run.train(poison=n_ranks() - 1)
    problems += run.train()
    stages = [slot.stage.name for slot in run.slots.values()]
    return {"tensors": tensors(run.inner), "problems": problems, "stages": stages}


def roll_back() -> dict[str, Any]:
    inner = make_model()
    model = wrapped(inner)
    grower = esper.Grower(model, make_optimizer(model), epochs=8, controller="fixed")
    for _ in range(4):
        run_epoch(model, grower)
    decision = run_epoch(model, grower, poison=n_ranks() - 1)
    run_epoch(model, grower)
    return {"tensors": tensors(inner), "problems": [decision.why]}


def accumulate() -> dict[str, Any]:
    """Train with sums of 3 of 8 gradients each epoch, the last one of 2."""
    inner = make_model()
    model = wrapped(inner)
    grower = esper.Grower(model, make_optimizer(model), epochs=EPOCHS, controller="fixed")
    for _ in range(EPOCHS):
        for number, rows in enumerate(shares(2)):
            is_last = number % 3 == 2
            quiet = isinstance(model, DistributedDataParallel) and not is_last
            with model.no_sync() if quiet else contextlib.nullcontext():  # type: ignore[operator]
                loss = cross_entropy(model(X[rows]), Y[rows])
                (loss / 3).backward()
            grower.step(loss, accumulate=3, max_grad_norm=1.0)
        loss, score = validate(inner)
        grower.end_epoch(val_loss=loss, score=score)
    ops = [decision.op for decision in grower.trace]
    return {"tensors": tensors(inner), "ops": ops}


def resume() -> dict[str, Any]:
    """Train to the end, and again from the states of some epochs."""

    def start() -> tuple[nn.Module, esper.Grower]:
        model = wrapped(make_model())
        options: dict[str, Any] = {"epochs": EPOCHS, "controller": "fixed"}
        return model, esper.Grower(model, make_optimizer(model), sample_input=X[:2], **options)

    model, grower = start()
    files: dict[int, io.BytesIO] = {}
    for epoch in range(1, EPOCHS + 1):
        run_epoch(model, grower)
        if epoch in (2, 5, 9, 12):
            files[epoch] = io.BytesIO()
            torch.save(grower.state_dict(), files[epoch])
    found: dict[str, Any] = {"tensors": tensors(model.module)}  # type: ignore[arg-type]
    for epoch, file in files.items():
        file.seek(0)
        again, other = start()
        other.load_state_dict(torch.load(file, weights_only=True))
        for _ in range(epoch, EPOCHS):
            run_epoch(again, other)
        found[f"from epoch {epoch}"] = tensors(again.module)  # type: ignore[arg-type]
    return found


def gradients() -> dict[str, Any]:
    """Return the gradients after growth, of a model whose wrapper has hooks and options."""
    inner = make_model()
    model = wrapped(inner)
    if isinstance(model, DistributedDataParallel):
        model = DistributedDataParallel(inner, bucket_cap_mb=1, gradient_as_bucket_view=True)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    grower = esper.Grower(
        model, make_optimizer(model), epochs=3, controller="no-growth", sample_input=X[:2]
    )
    for slot in ("0>2", "2>4"):
        grower.slots.germinate(slot, "widen_large")
    kept = model
    for _ in range(2):
        (rows, *_), _ = shares(), model.zero_grad()
        cross_entropy(model(X[rows]), Y[rows]).backward()
    found = {name: p.grad.clone() for name, p in inner.named_parameters() if p.grad is not None}
    return {"gradients": found, "is_same_object": kept is model, "n_hook_calls": len(calls)}


def score_on_first_rank() -> dict[str, Any]:
    inner = make_model()
    model = wrapped(inner)
    grower = esper.Grower(model, make_optimizer(model), epochs=2, controller="no-growth")
    loss = cross_entropy(model(X[:4]), Y[:4])
    loss.backward()
    grower.step(loss)
    decision = grower.end_epoch(score=0.25 if rank() == 0 else None)
    return {"score": decision.score}


def _error_of(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        work()
    except EsperError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}


def disagree_on_seed() -> dict[str, Any]:
    model = wrapped(make_model())
    optimizer = make_optimizer(model)
    return _error_of(
        lambda: esper.Grower(model, optimizer, epochs=2, seed=rank(), sample_input=X[:2])
    )


def disagree_on_slots() -> dict[str, Any]:
    inner = make_model()
    add_slots(inner, ["0"] if rank() == 0 else ["2"], X[:2])
    model = wrapped(inner)
    return _error_of(lambda: esper.Grower(model, make_optimizer(model), epochs=2))


def disagree_on_calls() -> dict[str, Any]:
    run = ByHand()

    def work() -> None:
        if rank() == 0:
            run.slots.germinate("0>2", "widen_small")
        run.train()

    return _error_of(work)


def forget_to_wrap() -> dict[str, Any]:
    model = make_model()
    grower = esper.Grower(model, make_optimizer(model), epochs=2, controller="no-growth")
    return _error_of(lambda: run_epoch(model, grower))


def disagree_on_batches() -> dict[str, Any]:
    """Make one more step on rank 0 than on the others, which end the epoch."""
    model = wrapped(make_model())
    grower = esper.Grower(model, make_optimizer(model), epochs=2, controller="no-growth")

    def step() -> None:
        loss = cross_entropy(model(X[:4]), Y[:4])
        loss.backward()
        grower.step(loss)

    step()
    if rank() == 0:
        with contextlib.suppress(RuntimeError):  # of DistributedDataParallel
            step()
        return {"error": ""}
    return _error_of(lambda: grower.end_epoch(score=0.5))


ALIKE = (
    grow_after_wrapping,
    grow_blended,
    grow_before_wrapping,
    grow_at_random,
    grow_by_hand,
    roll_back,
    roll_back_by_hand,
    accumulate,
)
"""Scenarios that give the same in one process with the same global batches."""


def _run_rank(
    number: int, size: int, folder: str, scenarios: Sequence[Callable[[], Any]], timeout: float
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=number,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    found = {scenario.__name__: scenario() for scenario in scenarios}
    torch.save(found, f"{folder}/rank-{number}.pt")
    distributed.destroy_process_group()


def run_ranks(
    size: int, scenarios: Sequence[Callable[[], Any]], folder: Path, timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """Run scenarios in several processes, one after another; return what each rank found."""
    arguments = (size, str(folder), tuple(scenarios), timeout)
    multiprocessing.spawn(_run_rank, arguments, nprocs=size)
    return [torch.load(folder / f"rank-{number}.pt") for number in range(size)]


if __name__ == "__main__":  # by torchrun
    distributed.init_process_group("gloo")
    torch.save(grow_after_wrapping(), f"{sys.argv[1]}/rank-{rank()}.pt")
    distributed.destroy_process_group()
