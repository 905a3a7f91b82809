"""The governor: stops an update that would ruin a host, and takes the host back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from esper.config.growth import GovernorConfig
from esper.growth.blueprints import SeedForm
from esper.growth.host_slots import HostSlots, slots
from esper.growth.loss_watch import LossWatch
from esper.growth.slot_lives import SlotLife


@dataclass(frozen=True)
class GovernorReport:
    """Why the governor stepped in, and what it did."""

    reason: str
    pruned: tuple[str, ...]
    """Slots whose growing seed was removed."""


@dataclass(frozen=True)
class _Planted:
    """What stood in a slot."""

    life: SlotLife
    seed: nn.Module | None
    gate: nn.Module | None
    form: SeedForm


@dataclass(frozen=True)
class _Snapshot:
    """One state of a host: copies of its tensors, and who stood where."""

    tensors: list[tuple[Tensor, Tensor]]
    """Each parameter and buffer with a copy of its value."""
    groups: list[tuple[list[nn.Parameter], dict[str, Any]]]
    """The members and settings of each of the optimizer's groups."""
    moments: dict[Tensor, dict[str, Any]]
    planted: dict[str, _Planted]
    n_germinated: int
    losses: list[float]


class Governor:
    """Watches one model's training.

    Call :meth:`step` in place of ``loss.backward(); optimizer.step()`` and :meth:`end_epoch` after
    each epoch. A loss, gradient or parameter that is not finite, or a loss far outside its recent
    range, takes the model, its optimizer and its slots back to their state at the last good end of
    an epoch, bit for bit; then what was growing is pruned. One copy of the state is kept.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: GovernorConfig | None = None
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.slots: HostSlots = slots(model)
        self.watch = LossWatch(1, config or GovernorConfig())
        self.gradient_norm = 0.0
        """Norm of the whole gradient at the last step."""
        self._snapshot = self._take_snapshot()

    def step(
        self, loss: Tensor, *, before_update: Callable[[], object] | None = None
    ) -> GovernorReport | None:
        """Take one step of learning, or refuse it and restore the model.

        Args:
            loss: The loss of the present batch; its gradients are computed here.
            before_update: Called between the backward pass and the update, to clip gradients say.

        Returns:
            None if all is well; otherwise why the step was not taken.
        """
        value = loss.item()
        problem = self._find_loss_problem(value)
        if problem is None:
            loss.backward()
            problem = self._find_gradient_problem()
        if problem is not None:
            return self.restore(problem)
        if before_update is not None:
            before_update()
        self.watch.add(np.array([value]))
        self.optimizer.step()
        return None

    def end_epoch(self) -> GovernorReport | None:
        """Remember the present state as good; if a parameter is not finite, restore instead."""
        report = self.check_parameters()
        if report is None:
            self.keep()
        return report

    def check_parameters(self) -> GovernorReport | None:
        """Restore the last good state if a parameter or buffer is not finite."""
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return self.restore(f"{name} is not finite")
        return None

    def keep(self) -> None:
        """Remember the present state as good, in place of the one before."""
        self._snapshot = self._take_snapshot()

    def restore(self, reason: str) -> GovernorReport:
        """Go back to the last good state, then prune what was growing in it."""
        self._put_back(self._snapshot)
        pruned = tuple(self.slots.abandon_growing())
        self.keep()
        return GovernorReport(reason, pruned)

    def _find_loss_problem(self, loss: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        return self.watch.describe(loss) if loss > self.watch.limits()[0] else None

    def _find_gradient_problem(self) -> str | None:
        gradients = [(n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        if not gradients:
            return None
        self.gradient_norm = get_total_norm([gradient for _, gradient in gradients]).item()
        if math.isfinite(self.gradient_norm):
            return None
        bad = [name for name, gradient in gradients if not bool(torch.isfinite(gradient).all())]
        return f"the gradient of {bad[0] if bad else 'the model'} is not finite"

    def _take_snapshot(self) -> _Snapshot:
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return _Snapshot(
            tensors=[(tensor, tensor.detach().clone()) for tensor in tensors],
            groups=[
                (list(group["params"]), {k: v for k, v in group.items() if k != "params"})
                for group in self.optimizer.param_groups
            ],
            moments={p: _copied(state) for p, state in self.optimizer.state.items()},
            planted={
                name: _Planted(replace(slot.life), slot.seed, slot.gate, slot.form)
                for name, slot in self.slots.items()
            },
            n_germinated=self.slots.n_germinated,
            losses=self.watch.get_state(),
        )

    def _put_back(self, snapshot: _Snapshot) -> None:
        for name, planted in snapshot.planted.items():
            self.slots.put_back(name, planted.life, planted.seed, planted.gate, planted.form)
        self.slots.n_germinated = snapshot.n_germinated
        with torch.no_grad():
            for tensor, value in snapshot.tensors:
                tensor.copy_(value)
        for parameter in self.model.parameters():
            parameter.grad = None
        for group, (members, settings) in zip(
            self.optimizer.param_groups, snapshot.groups, strict=True
        ):
            group.update(settings)
            group["params"] = list(members)
        self.optimizer.state.clear()
        for parameter, state in snapshot.moments.items():
            self.optimizer.state[parameter] = _copied(state)
        self.watch.set_state(snapshot.losses)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in state.items()}
