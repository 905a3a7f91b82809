"""One size of a model in a race of sizes: plain training, and the best epoch so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from esper.config.growth import GovernorConfig
from esper.growing.batches import Batch, Batches
from esper.growing.measuring import require_finite_batch
from esper.growing.objectives import Evaluation, Objective
from esper.growing.training_loop import PER_BATCH, backward, step_scheduler
from esper.growth.governor import LossWatch
from esper.growth.modules import count_parameters, named_tensors
from esper.growth.optimizers import copied_state
from esper.storage.checkpoint_folder import typed


@dataclass(frozen=True, kw_only=True)
class LaneEpoch:
    """An epoch of a lane."""

    train_loss: float
    """The mean loss of its batches; NaN if all were bad."""
    found: Evaluation
    """What validation found after it."""


@dataclass(frozen=True)
class _Snapshot:
    """A state that a lane goes back to when an update breaks it."""

    tensors: dict[str, Tensor]
    optimizer: dict[str, Any]


class Lane:
    """A size of the model in training: the given one, or a wider twin.

    A batch is trained as in a plain loop. When a loss is not finite or far outside its range, the
    lane goes back to the end of the last epoch; the learning rate does not.
    """

    def __init__(
        self,
        factor: int,
        model: nn.Module,
        module: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        objective: Objective,
        *,
        sample_flops: float,
        batch_flops: float,
    ) -> None:
        """Start a lane.

        Args:
            factor: How many times as wide as the given model it is.
            model: What is trained, compiled or not.
            module: The plain module inside.
            optimizer: Its optimizer.
            scheduler: The scheduler of that.
            objective: The loss and the metric.
            sample_flops: FLOPs of training on one sample.
            batch_flops: FLOPs of training on a batch.
        """
        self.factor, self.model, self.module = factor, model, module
        self.sample_flops, self.batch_flops = sample_flops, batch_flops
        self.epochs: list[LaneEpoch] = []
        self.problems: list[str] = []
        """Why it was rolled back, for each epoch in which it was."""
        self.n_samples = 0
        """Samples trained on, those of every epoch counted."""
        self.kept_epoch = 0
        """The epoch with the best metric; 0 before the first."""
        self.is_cut = False
        """Whether its last epoch ended before the last batch."""
        self.optimizer, self._scheduler, self._objective = optimizer, scheduler, objective
        self._kept: dict[str, Tensor] = {}
        self._watch, self._validation = (LossWatch(1, GovernorConfig()) for _ in range(2))
        self._losses: list[float] = []
        self._n_problems = 0
        self._good = self._snapshot()

    @property
    def name(self) -> str:
        """Its name, such as ``x4``."""
        return f"x{self.factor}"

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return count_parameters(self.module)

    @property
    def flops(self) -> float:
        """FLOPs of training so far."""
        return self.n_samples * self.sample_flops

    @property
    def best(self) -> Evaluation:
        """What validation found after the best epoch."""
        return self.epochs[self.kept_epoch - 1].found

    def train(self, batch: Batch, number: int, source: str) -> None:
        """Train on a batch, the one of this number in an epoch of the data of a name."""
        loss = backward(self.model, self._objective, batch)
        value = loss.item()
        self.n_samples += batch.size
        problem = self._watch.judge(value)
        if problem is not None:
            if not self.epochs:
                require_finite_batch(batch, number, source)
            self._roll_back(problem)
            return
        self._watch.add_one(value)
        self._losses.append(value)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if isinstance(self._scheduler, PER_BATCH):
            step_scheduler(self._scheduler)

    def end_epoch(self, validation: Batches) -> None:
        """Validate after an epoch, keep the model if it is the best, and step the scheduler."""
        found = self._objective.evaluate(self.model, validation)
        problem = self._find_problem(found)
        if problem is not None:
            self._roll_back(problem)
            found = self._objective.evaluate(self.model, validation)
        else:
            self._validation.add_one(found.loss)
            self._good = self._snapshot()
        losses = self._losses
        mean = sum(losses) / len(losses) if losses else math.nan
        is_first = not self.kept_epoch
        if is_first or self._objective.is_better(found.value, self.best.value):
            tensors = named_tensors(self.module)
            self._kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self.kept_epoch = len(self.epochs) + 1
        self.epochs.append(LaneEpoch(train_loss=mean, found=found))
        self._losses, self._n_problems = [], len(self.problems)
        if self._scheduler is not None and not isinstance(self._scheduler, PER_BATCH):
            is_plateau = isinstance(self._scheduler, ReduceLROnPlateau)
            step_scheduler(self._scheduler, *([found.loss] if is_plateau else []))

    @torch.no_grad()
    def rebuild(self) -> nn.Module:
        """Return the model of the best epoch, a plain module."""
        model = copy.deepcopy(self.module)
        for name, tensor in named_tensors(model).items():
            tensor.copy_(self._kept[name])
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next epoch depends on."""
        return {
            "tensors": {n: t.detach().clone() for n, t in named_tensors(self.module).items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "watches": [self._watch.get_state(), self._validation.get_state()],
            "epochs": [[each.train_loss, asdict(each.found)] for each in self.epochs],
            "kept": self._kept,
            "kept_epoch": self.kept_epoch,
            "n_samples": self.n_samples,
            "problems": self.problems,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, on a lane made like that one."""
        for name, tensor in named_tensors(self.module).items():
            tensor.copy_(state["tensors"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        for watch, own in zip((self._watch, self._validation), state["watches"], strict=True):
            watch.set_state(own)
        self.epochs = [
            LaneEpoch(train_loss=typed(loss, float), found=Evaluation.read(found))
            for loss, found in state["epochs"]
        ]
        kept: int = typed(state["kept_epoch"], int)
        self.kept_epoch = range(len(self.epochs) + 1)[kept]
        self._kept = {
            name: torch.empty_like(tensor).copy_(state["kept"][name])
            for name, tensor in named_tensors(self.module).items()
            if self.kept_epoch
        }
        self.n_samples = typed(state["n_samples"], int)
        self.problems = [typed(problem, str) for problem in state["problems"]]
        self._n_problems = len(self.problems)
        self._good = self._snapshot()

    def _find_problem(self, found: Evaluation) -> str | None:
        """Return why the model is not to be trusted after an epoch; None if it is."""
        if self._validation.count[0] == 0.0 and not math.isfinite(found.loss):
            tensors = named_tensors(self.module).items()
            bad = [name for name, tensor in tensors if not bool(tensor.isfinite().all())]
            return f"{bad[0]} is not finite" if bad else None
        problem = self._validation.judge(found.loss)
        return problem and problem.replace("the loss", "the validation loss", 1)

    def _snapshot(self) -> _Snapshot:
        tensors = named_tensors(self.module)
        return _Snapshot(
            {name: tensor.detach().clone() for name, tensor in tensors.items()},
            copied_state(self.optimizer.state_dict()["state"]),
        )

    @torch.no_grad()
    def _roll_back(self, problem: str) -> None:
        for name, tensor in named_tensors(self.module).items():
            tensor.copy_(self._good.tensors[name])
        now = self.optimizer.state_dict()
        now["state"] = copied_state(self._good.optimizer)
        self.optimizer.load_state_dict(now)
        self.optimizer.zero_grad()
        self._watch.on_rollback()
        self._validation.on_rollback()
        if len(self.problems) == self._n_problems:
            self.problems.append(problem)
