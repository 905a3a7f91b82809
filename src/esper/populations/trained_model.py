"""The one place where torch takes a step: a model with slots, its optimizers and its governor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from esper.config.checks import PositiveFloat, PositiveInt, check
from esper.errors import TensorError
from esper.growth.governor import Governor, GovernorReport
from esper.growth.host_slots import Slot, slots
from esper.growth.modules import parameters_of
from esper.growth.optimizers import OptimizerKeeper
from esper.lifecycle.stages import Stage
from esper.populations.tally import EpochTally


class TrainedModel:
    """A model with slots that is trained: a host of a task, or the user's own model.

    Losses and gradients are checked, parameters updated, and the epoch is summed up.
    """

    governor: Governor
    """Watches the training once there is something to train."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        scaler: GradScaler | None = None,
    ) -> None:
        """Let optimizers follow the slots of a model."""
        self.model, self.optimizers, self.scaler = model, optimizers, scaler
        self.slots = slots(model)
        self.keeper = OptimizerKeeper(model, optimizers)
        self.tally: EpochTally
        """What the epoch comes to so far ..."""
        self.number = 0
        """... with this number of the model in it."""
        self._growing: list[tuple[int, Slot]] = []
        self._n_micro = 0
        self._max_grad_norm: float | None = None

    def start_epoch(self, tally: EpochTally, number: int = 0) -> None:
        """Start to add up another epoch of the model of this number."""
        self.tally, self.number = tally, number
        tally.start([number])
        self.note_growing()

    def step(
        self, loss: Tensor, accumulate: int = 1, max_grad_norm: float | None = None
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
            report = self.update()
        self._n_micro = 0
        return report

    def flush(self) -> None:
        """Update the parameters by batches that did not fill the last update."""
        if self._n_micro:
            self.update(is_synced=False)
            self._n_micro = 0

    def check_loss(self, loss: Tensor | float) -> GovernorReport | None:
        """Roll the model back if a loss is bad."""
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise TensorError(f"loss has shape {list(loss.shape)}; it must be a scalar.")
        report = self.governor.check_loss(loss)
        if report is None:
            self.tally.add_loss(self.number, self.governor.loss)
        return self.note(report)

    def check_gradients(self, *, is_synced: bool = True) -> GovernorReport | None:
        """Average the gradients of seeds over all ranks, and roll back if one is not finite."""
        report = self.governor.check_gradients(
            is_synced=is_synced, may_overflow=self.scaler is not None
        )
        norm = self.governor.gradient_norm
        if report is None and math.isfinite(norm):
            norms = [0.0] * len(self.slots)
            for number, slot in self._growing:
                norms[number] = slot.gradient_norm()
            self.tally.add_norms(self.number, norm, norms)
        return self.note(report)

    def note(self, report: GovernorReport | None) -> GovernorReport | None:
        """Note whether the model was rolled back."""
        if report is not None:
            self.note_growing()
        return report

    def note_growing(self) -> None:
        """Note the slots with an uncommitted seed; looking for them takes long in every step."""
        numbered = enumerate(self.slots.values())
        self._growing = [(number, slot) for number, slot in numbered if slot.life.is_growing]

    def update(self, *, is_synced: bool = True) -> GovernorReport | None:
        """Check the gradients and update the parameters."""
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
        is_apart = [slot for _, slot in self._growing if slot.stage == Stage.TRAINING]
        apart = [slot.seed_parameters() for slot in is_apart]
        isolated = {id(parameter) for part in apart for parameter in part}
        return [[p for p in parameters_of(self.model) if id(p) not in isolated], *apart]


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
