"""Trainings of a model that FSDP2 shards among processes, beside the same ones unsharded."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss

import esper
from esper.config.growth import GrowthConfig
from esper.growth.governor import Governor
from esper.growth.host_slots import slots
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import add_slots
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle
from tests.growing.rank_runs import _error_of, n_ranks, rank
from tests.growth.helpers import ResidualMLP

generator = torch.Generator().manual_seed(0)
X = torch.randn(24, 5, generator=generator, dtype=torch.float64)
Y = torch.stack([X[:, 0] * X[:, 1], X[:, 2].abs(), X[:, 3] * X[:, 4]], dim=1)
SLOTS = ["blocks.0", "blocks.1"]
CASES = [
    ("blocks.0", "mlp_small", BlendStyle.ADD_LINEAR),
    ("blocks.0", "low_rank", BlendStyle.LEARNED_GATE),
    ("blocks.0", "norm", BlendStyle.MULTIPLY_LINEAR),
]
GROWTH = GrowthConfig(commits_at_once=False)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return ResidualMLP().double()


def sharded(model: nn.Module) -> nn.Module:
    if distributed.is_initialized():
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block.block if isinstance(block, SeedSlot) else block)
        fully_shard(model)
    return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 1e-2)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Return the values of a model's tensors, gathered, in a form that does not name DTensor."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
        for name, t in found.items()
    }


def unsharded_names(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]


def validate(model: nn.Module) -> float:
    with torch.no_grad():
        return mse_loss(model(X), Y).item()


class Run:
    """A training by hand, with a Governor."""

    def __init__(self, *, germinate: tuple[str, str] | None = None) -> None:
        self.model = make_model()
        add_slots(self.model, SLOTS, X[:2], growth_config=GROWTH)
        self.slots = slots(self.model)
        if germinate is not None:
            self.slots.germinate(*germinate)
        sharded(self.model)
        self.optimizer = make_optimizer(self.model)
        OptimizerKeeper(self.model, self.optimizer)
        self.governor = Governor(self.model, self.optimizer)

    def train(self, n_epochs: int = 1, poison: int = -1) -> list[str]:
        problems: list[str] = []
        for _ in range(n_epochs):
            for rows in torch.arange(len(X)).split(12):
                own = rows.chunk(n_ranks())[rank()]
                self.optimizer.zero_grad()
                loss = mse_loss(self.model(X[own]), Y[own])
                loss = loss * torch.nan if poison == rank() else loss
                report = self.governor.step(loss)
                problems += [] if report is None else [report.reason]
            validate(self.model)
            self.slots.tick()
            self.governor.end_epoch()
        return problems

    def live(self, slot: str, blueprint: str, style: BlendStyle, *, prune: bool) -> None:
        self.slots.germinate(slot, blueprint, style=style)
        self.train()
        self.slots.advance(slot)
        self.train(2)
        self.slots.advance(slot)
        self.train(5)
        if prune:
            self.slots.prune(slot)
        else:
            self.slots.advance(slot)
            self.train(2)
            outcome = self.slots.fossilize(slot)
            assert outcome.was_done, outcome.reason
        self.train()

    def found(self) -> dict[str, Any]:
        unsharded = unsharded_names(self.model) if distributed.is_initialized() else []
        plain = esper.export(self.model)
        folder = [tempfile.mkdtemp()] if rank() == 0 else [""]
        if distributed.is_initialized():
            distributed.broadcast_object_list(folder)
        esper.save(self.model, folder[0])
        loaded = esper.load(folder[0], make_model)
        with torch.no_grad():
            outputs = self.model(X)
            exported, again = plain(X), loaded(X)
        return {
            "tensors": whole(self.model),
            "unsharded": unsharded,
            "outputs": outputs,
            "exported": exported,
            "loaded": again,
            "is plain": not any(isinstance(m, FSDPModule) for m in plain.modules()),
        }


def live_sharded() -> dict[str, Any]:
    """Let a seed of each kind live, once to be committed and once to be pruned."""
    found: dict[str, Any] = {}
    for slot, blueprint, style in CASES:
        for prune in (False, True):
            run = Run()
            run.train()
            run.live(slot, blueprint, style, prune=prune)
            found[f"{slot} {blueprint} {'pruned' if prune else 'kept'}"] = run.found()
    return found


def shard_after_germinating() -> dict[str, Any]:
    run = Run(germinate=("blocks.0", "mlp_small"))
    run.train()
    run.slots.advance("blocks.0")
    run.train(2)
    problems = run.train(poison=n_ranks() - 1)
    run.train()
    return {**run.found(), "problems": problems}


def grow_sharded() -> dict[str, Any]:
    """Grow with a Grower, and again from the middle."""

    def start() -> tuple[nn.Module, esper.Grower]:
        model = make_model()
        add_slots(model, SLOTS, X[:2], growth_config=GROWTH)
        sharded(model)
        options: dict[str, Any] = {"epochs": 14, "controller": "fixed", "sample_input": X[:2]}
        return model, esper.Grower(model, make_optimizer(model), **options)

    def train(model: nn.Module, grower: esper.Grower) -> None:
        for rows in torch.arange(len(X)).split(12):
            own = rows.chunk(n_ranks())[rank()]
            loss = mse_loss(model(X[own]), Y[own])
            loss.backward()
            grower.step(loss, max_grad_norm=1.0)
        loss = validate(model)
        grower.end_epoch(val_loss=loss, validate=lambda: -validate(model))

    model, grower = start()
    file = io.BytesIO()
    for epoch in range(14):
        train(model, grower)
        if epoch == 5:
            torch.save(grower.state_dict(), file)
    again, other = start()
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(6, 14):
        train(again, other)
    plain = grower.export()
    unsharded = unsharded_names(model) if distributed.is_initialized() else []
    return {
        "unsharded": unsharded,
        "tensors": whole(model),
        "resumed": whole(again),
        "ops": [decision.op for decision in grower.trace],
        "outputs": model(X).detach(),
        "exported": plain(X).detach(),
    }


def reject_sharded_models() -> dict[str, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of what it imports

    plain = sharded(make_model())
    mesh = distributed.init_device_mesh("cpu", (1, n_ranks()), mesh_dim_names=("a", "b"))
    flat = fully_shard(make_model(), mesh=mesh)
    slotted = make_model()
    add_slots(slotted, SLOTS, X[:2], growth_config=GROWTH)
    slots(slotted).germinate("blocks.0", "mlp_small")
    for block in slotted.blocks:  # type: ignore[union-attr]
        fully_shard(block)
    flattened = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))

    given = make_model()
    add_slots(given, SLOTS, X[:2], growth_config=GROWTH)
    sharded(given)
    wide = make_model()
    add_slots(wide, ["blocks.*.up>down"], X[:2])
    sharded(wide)
    average = nn.Module()
    average.module = make_model()
    zero = make_model()
    shared = ZeroRedundancyOptimizer(zero.parameters(), torch.optim.SGD, lr=0.1)

    def error_of(model: nn.Module, optimizer: Any = None, **options: Any) -> str:
        optimizer = optimizer or make_optimizer(model)
        return _error_of(lambda: esper.Grower(model, optimizer, epochs=2, **options))["error"]

    return {
        "no slots": error_of(plain),
        "add_slots": _error_of(lambda: add_slots(plain, ["blocks.0"], X[:2]))["error"],
        "mesh": error_of(flat),
        "slot": error_of(slotted),
        "units": error_of(wide),
        "FSDP1": error_of(flattened),
        "ema": error_of(given, ema=average),
        "optimizer": error_of(zero, shared),
    }
