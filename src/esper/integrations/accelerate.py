"""Growth in a loop with Accelerate: a Grower that steps, saves and logs through an Accelerator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from esper.errors import ConfigError, GrowerError
from esper.growing.decisions import Decision
from esper.growing.grower import Grower
from esper.growth.governor import GovernorReport
from esper.growth.host_slots import unwrapped
from esper.integrations.adapters import (
    GrowerOptions,
    full_precision,
    import_library,
    metrics_of,
    require_options,
)
from esper.integrations.grown_states import GrownState

import_library("accelerate", "accelerate")

_UNSUPPORTED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP", "XLA")


class AcceleratedGrower(Grower):
    """A Grower of a model and an optimizer that an ``Accelerator`` has prepared.

    .. code-block:: python

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        grower = AcceleratedGrower(accelerator, model, optimizer, epochs=30)
        for epoch in range(grower.epoch, 30):
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = loss_fn(model(x), y)
                    accelerator.backward(loss)
                    grower.step(loss)
            print(grower.end_epoch(val_loss=..., score=...))
            accelerator.save_state(folder)
        model = grower.export()

    ``accelerator.save_state`` saves it too. To resume, create everything again, including the
    AcceleratedGrower, and call ``accelerator.load_state`` before the first step.
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        epochs: int,
        scheduler: Any = None,
        **options: Unpack[GrowerOptions],
    ) -> None:
        """Start growing a model.

        Args:
            accelerator: The ``Accelerator``.
            model: The model that it prepared.
            optimizer: The optimizer that it prepared, or several.
            epochs: Epochs that will be trained.
            scheduler: The learning-rate scheduler that it prepared, or several.
            options: Further options of :class:`esper.Grower`: ``controller``, ``at``,
                ``sample_input``, ``price``, ``ema`` and ``seed``.
        """
        require_options(options)
        kind = accelerator.distributed_type.name
        if kind in _UNSUPPORTED:
            raise ConfigError(
                f"distributed_type is {kind}; AcceleratedGrower works with one device and with "
                "DistributedDataParallel."
            )
        self._accelerator = accelerator
        prepared = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._prepared: list[Any] = prepared
        plain: list[Optimizer] = [getattr(each, "optimizer", each) for each in prepared]
        with full_precision(unwrapped(model)):
            super().__init__(
                model,
                plain,
                epochs=epochs,
                scheduler=scheduler,
                scaler=accelerator.scaler,
                **options,
            )
        self._state = GrownState(unwrapped(model))
        self._state.is_waiting = True
        for each in plain:
            each.register_load_state_dict_pre_hook(self._leave_optimizer)
        accelerator.register_load_state_pre_hook(self._require_new)
        accelerator.register_for_checkpointing(self)

    def step(
        self, loss: Tensor, *, accumulate: int = 1, max_grad_norm: float | None = None
    ) -> GovernorReport | None:
        """Check a loss and its gradients and, if gradients are not accumulated, update.

        Call it after ``accelerator.backward(loss)``.

        Args:
            loss: The loss of the batch.
            accumulate: Must be 1; ``Accelerator(gradient_accumulation_steps=...)`` decides.
            max_grad_norm: Clip the norm of all gradients before the update.

        Returns:
            None; or a report if the model was rolled back to its last good state instead.
        """
        if accumulate != 1:
            raise ConfigError(
                f"accumulate is {accumulate}; give gradient_accumulation_steps to the Accelerator."
            )
        self._state.is_waiting = False
        with full_precision(self._state.model):  # the first step finds the slots
            report = self.check_loss(loss)
        if report is not None or not self._accelerator.sync_gradients:
            return report
        if self.scaler is not None:
            for optimizer in self._prepared:
                self._accelerator.unscale_gradients(optimizer)
        report = self.check_gradients()
        if report is None:
            if max_grad_norm is not None:
                self._accelerator.clip_grad_norm_(self.model.parameters(), max_grad_norm)
            self.commit()
        for optimizer in self._prepared:
            optimizer.step()
            optimizer.zero_grad()
        return report

    def end_epoch(
        self,
        *,
        train_loss: float | None = None,
        val_loss: float | None = None,
        score: float | None = None,
        validate: Callable[[], float] | None = None,
        log_step: int | None = None,
    ) -> Decision:
        """End an epoch, as :meth:`esper.Grower.end_epoch` does, and log it to the trackers.

        Metrics are logged at ``log_step``; None for the number of epochs.
        """
        decision = super().end_epoch(
            train_loss=train_loss, val_loss=val_loss, score=score, validate=validate
        )
        step = self.epoch if log_step is None else log_step
        self._accelerator.log(metrics_of(decision), step=step)
        return decision

    def state_dict(self, *, weights: bool = False) -> dict[str, Any]:
        """Return the state, by default without the weights, which the accelerator saves."""
        return super().state_dict(weights=weights)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the weights that the accelerator has loaded."""
        self._state.is_waiting = False
        super().load_state_dict({**state, "model": self._state.take_weights()})

    def _require_new(self, _: Any, folder: Any) -> None:
        if not self._state.is_waiting:
            raise GrowerError(
                f"{folder} cannot be loaded after {self.epoch} epochs of training; make the model, "
                "the optimizer, the Accelerator and the AcceleratedGrower again first."
            )

    def _leave_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> Any:
        """Ignore the state in order if the state by name follows."""
        return optimizer.state_dict() if self._state.has_weights else None
