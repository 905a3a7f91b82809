"""The steps of a training: losses and gradients are checked, parameters updated."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from esper.config.checks import PositiveFloat, PositiveInt, check
from esper.errors import GrowerError, TensorError
from esper.growing.averages import AverageKeeper
from esper.growth.governor import Governor, GovernorReport
from esper.growth.host_slots import HostSlots
from esper.growth.modules import named_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.ranks import Ranks
from esper.lifecycle.stages import Stage
from esper.populations.tally import EpochTally


class Steps:
    """Checks and updates a model that grows, and sums up the epoch."""

    governor: Governor
    """Watches the training once the structure of the model is known."""
    keeper: OptimizerKeeper

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: GradScaler | None,
        averages: Sequence[AverageKeeper],
        ranks: Ranks,
    ) -> None:
        self._module, self.optimizers, self.scaler = module, optimizers, scaler
        self.averages, self._ranks = averages, ranks
        self.problems: list[str] = []
        """Why the governor rolled the model back in this epoch."""
        self.tally = EpochTally(1, 0)
        """What the epoch comes to so far."""
        self.first_loss: float | None = None
        """The first loss of all."""
        self._n_micro = 0
        self._max_grad_norm: float | None = None

    def follow(self, host_slots: HostSlots) -> None:
        """Let optimizers and averages follow the slots of the model."""
        self._slots = host_slots
        self.keeper = OptimizerKeeper(self._module, self.optimizers)
        for average in self.averages:
            average.follow(host_slots)
        host_slots.listeners.append(_weakly(self._note_structure))
        host_slots.action_listeners.append(_weakly(self.note_growing))
        self._note_structure()
        self.start_epoch()

    def start_epoch(self) -> None:
        """Start to add up another epoch."""
        self.problems, self.tally = [], EpochTally(1, len(self._slots))
        self.tally.start()

    @property
    def mean_loss(self) -> float | None:
        """The mean of the good losses of this epoch; None without any."""
        return float(self.tally.mean_losses()[0]) if self.tally.n_losses[0] else None

    def step(
        self, loss: Tensor, accumulate: int, max_grad_norm: float | None
    ) -> GovernorReport | None:
        """Check a loss and, in every call of a number, the gradients, and update the parameters."""
        if accumulate != 1:
            check("accumulate", accumulate, PositiveInt)
        if max_grad_norm is not None:
            check("max_grad_norm", max_grad_norm, PositiveFloat)
        report = self.check_loss(loss)
        if report is None:
            self._n_micro += 1
            self._max_grad_norm = max_grad_norm
            if self._n_micro % accumulate:
                return None
            report = self._update()
        self._n_micro = 0
        return report

    def flush(self) -> None:
        """Update the parameters by batches that did not fill the last update."""
        if self._n_micro:
            self._update(is_synced=False)
            self._n_micro = 0

    def check_loss(self, loss: Tensor | float) -> GovernorReport | None:
        """Roll the model back if a loss is bad."""
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise TensorError(f"loss has shape {list(loss.shape)}; it must be a scalar.")
        report = self.governor.check_loss(loss)
        if report is None:
            value = self.governor.loss
            self.tally.add_loss(0, value)
            self.first_loss = value if self.first_loss is None else self.first_loss
        return self.note(report)

    def check_gradients(self, *, is_synced: bool) -> GovernorReport | None:
        """Average the gradients of seeds over all ranks, and roll back if one is not finite."""
        report = self.governor.check_gradients(
            is_synced=is_synced, may_overflow=self.scaler is not None
        )
        norm = self.governor.gradient_norm
        if report is None and math.isfinite(norm):
            norms = [0.0] * len(self._slots)
            for number, slot in self.growing:
                norms[number] = slot.gradient_norm()
            self.tally.add_norms(0, norm, norms)
        return self.note(report)

    def note(self, report: GovernorReport | None) -> GovernorReport | None:
        """Note whether the model was rolled back."""
        if report is not None:
            self.problems.append(report.reason)
            self.note_growing()
            self.sync()
        return report

    def sync(self) -> None:
        """Give averages the structure and the alphas of the model."""
        for average in self.averages:
            average.sync()

    def note_growing(self) -> None:
        """Note the slots with an uncommitted seed; looking for them takes long in every step."""
        slots = enumerate(self._slots.values())
        self.growing = [(number, slot) for number, slot in slots if slot.life.is_growing]

    def require_unchanged(self) -> None:
        """Raise if parameters were replaced by hand, or the optimizers lost those of seeds."""
        now = named_parameters(self._module)
        for name, parameter in self._known.items():
            if now.get(name) is not parameter:
                raise GrowerError(
                    f"parameter {name!r} of the model was replaced while it grows; make a new "
                    "Grower after changing the model."
                )
        self.governor.require_seeds()

    def _note_structure(self) -> None:
        """Note which parameters there are, after some were added, removed or replaced."""
        self._known = named_parameters(self._module)
        self.note_growing()

    def _update(self, *, is_synced: bool = True) -> GovernorReport | None:
        if self._ranks.count == 1 and all(p.grad is None for p in self._known.values()):
            raise GrowerError(
                "no parameter has a gradient, so there is nothing to learn from; call "
                "loss.backward() before grower.step(loss)."
            )
        if self.scaler is not None:
            # Before the scaler looks for infinite gradients, so that all ranks see the same.
            self.governor.average_gradients(is_synced=is_synced)
            for optimizer in self.optimizers:
                _unscale(self.scaler, optimizer)
        report = self.check_gradients(is_synced=is_synced)
        if report is None:
            if self._max_grad_norm is not None:
                for parameters in self._clipped_together():
                    clip_grad_norm_(parameters, self._max_grad_norm)
            self.governor.commit()
            self._step_optimizers()
        return report

    def _step_optimizers(self) -> None:
        for optimizer in self.optimizers:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        for optimizer in self.optimizers:
            _drop_gradients(optimizer)

    def _clipped_together(self) -> list[list[nn.Parameter]]:
        """Return the parameters by whose gradients' norm each is clipped.

        A seed that trains in isolation is apart, because it must not change how the host learns.
        """
        apart = [slot.seed_parameters() for _, slot in self.growing if slot.stage == Stage.TRAINING]
        isolated = {id(parameter) for part in apart for parameter in part}
        return [[p for p in self._known.values() if id(p) not in isolated], *apart]


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method as long as its object lives, without keeping it."""
    known = weakref.WeakMethod(method)

    def call() -> None:
        found = known()
        if found is not None:
            found()

    return call


def _drop_gradients(optimizer: Optimizer) -> None:
    """Set gradients to None, without the profiling around torch's own method."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _unscale(scaler: Any, optimizer: Optimizer) -> None:
    """Undo the scaling of an optimizer's gradients, unless the loop has done so."""
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise
