"""The governor: blocks updates that would break a host and rolls the host back."""

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

from esper.arrays import Floats
from esper.config.growth import GovernorConfig
from esper.errors import SlotError, TensorError
from esper.growth.blueprints import SeedForm
from esper.growth.host_slots import HostSlots, slots
from esper.growth.modules import named_modules
from esper.growth.optimizers import RATE_KEYS, require_optimizer
from esper.growth.slot_lives import SlotLife


class LossWatch:
    """Running mean and variance of the losses of N hosts.

    Early losses have equal weight; after that the average is exponential. A loss is an outlier if
    it exceeds the mean by many standard deviations, by a multiple of the mean and by a fixed floor.
    """

    def __init__(self, n_hosts: int, config: GovernorConfig) -> None:
        self.config = config
        self.count = np.zeros(n_hosts)
        self.mean = np.zeros(n_hosts)
        self.variance = np.zeros(n_hosts)

    def limits(self, hosts: Any = slice(None)) -> Floats:
        """Return the largest loss of each host that is not an outlier; infinite during warm-up."""
        mean, config = self.mean[hosts], self.config
        spread = config.outlier_deviations * np.sqrt(self.variance[hosts])
        rise = np.maximum(spread, (config.outlier_factor - 1.0) * np.abs(mean))
        rise = np.maximum(rise, config.outlier_floor)
        return np.where(self.count[hosts] >= config.warmup_losses, mean + rise, np.inf)

    def add(self, losses: Floats, hosts: Any = slice(None)) -> None:
        """Record one finite loss for each of some hosts."""
        weight = np.maximum(1.0 / (self.count[hosts] + 1.0), 1.0 - self.config.memory)
        change = losses - self.mean[hosts]
        self.mean[hosts] += weight * change
        self.variance[hosts] = (1.0 - weight) * (self.variance[hosts] + weight * change**2)
        self.count[hosts] += 1.0

    def forget(self, host: int = 0) -> None:
        """Forget a host's losses."""
        self.set_state([0.0, 0.0, 0.0], host)

    def describe(self, loss: float, host: int = 0) -> str:
        """Describe an outlier and the recent losses."""
        deviation = float(np.sqrt(self.variance[host]))
        return f"the loss is {loss:.4g}; recent losses were {self.mean[host]:.4g} ± {deviation:.2g}"

    def get_state(self, host: int = 0) -> list[float]:
        """Return the statistics of one host's losses."""
        return [float(self.count[host]), float(self.mean[host]), float(self.variance[host])]

    def set_state(self, state: list[float], host: int = 0) -> None:
        """Load what :meth:`get_state` returned."""
        self.count[host], self.mean[host], self.variance[host] = state


@dataclass(frozen=True)
class GovernorReport:
    """Why the governor rolled a host back, and which seeds it pruned."""

    reason: str
    pruned: tuple[str, ...]
    """Slots whose uncommitted seed was removed."""


@dataclass(frozen=True)
class _SlotSnapshot:
    """The contents of a slot."""

    life: SlotLife
    seed: nn.Module | None
    gate: nn.Module | None
    form: SeedForm


@dataclass(frozen=True)
class _Snapshot:
    """The state of a host, its optimizer and its slots."""

    parameters: list[tuple[nn.Parameter, Tensor]]
    """Each parameter with a copy of its value."""
    buffers: list[tuple[nn.Module, str, Tensor, Tensor]]
    """Module, name, tensor and copy of each buffer; a module may replace the tensor."""
    groups: list[tuple[list[nn.Parameter], dict[str, Any]]]
    """The parameters and settings of each of the optimizer's groups."""
    moments: dict[Tensor, dict[str, Any]]
    slots: dict[str, _SlotSnapshot]
    n_germinated: int


class Governor:
    """Watches the training of one model.

    Call :meth:`step` instead of ``loss.backward(); optimizer.step()``, and :meth:`end_epoch` after
    each epoch. A loss, gradient or parameter that is not finite, or a loss far outside its recent
    range, rolls the model, its optimizer and its slots back to the last good state, bit for bit,
    and then prunes uncommitted seeds. Learning rates are not rolled back.

    A snapshot of the last good state is kept. It is taken at the end of each epoch and after each
    growth action.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: GovernorConfig | None = None
    ) -> None:
        require_optimizer(optimizer, model)
        self.model = model
        self.optimizer = optimizer
        self.slots: HostSlots = slots(model)
        self.watch = LossWatch(1, config or GovernorConfig())
        self.gradient_norm = 0.0
        """Gradient norm of the last step, over all parameters."""
        self._snapshot = self._take_snapshot()
        self.slots.action_listeners.append(self.keep_if_finite)

    def step(
        self, loss: Tensor, *, before_update: Callable[[], object] | None = None
    ) -> GovernorReport | None:
        """Run the backward pass and update the parameters, or roll the model back.

        Args:
            loss: The loss of the current batch; gradients are computed here.
            before_update: Called between the backward pass and the update, for example to clip
                gradients.

        Returns:
            None after an update; a report if the model was rolled back instead.

        Raises:
            TensorError: If the loss is not a scalar that requires gradients.
        """
        if loss.numel() != 1 or not loss.requires_grad:
            raise TensorError(
                f"loss has shape {list(loss.shape)} and requires_grad={loss.requires_grad}; it "
                "must be a scalar that depends on trainable parameters."
            )
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
        """Take a snapshot, or roll the model back if a parameter or buffer is not finite."""
        report = self.check_parameters()
        if report is None:
            self.keep()
        return report

    def check_parameters(self) -> GovernorReport | None:
        """Roll the model back if a parameter or buffer has become non-finite."""
        problem = self._find_tensor_problem()
        return None if problem is None else self.restore(problem)

    def keep(self) -> None:
        """Take a snapshot of the current state, replacing the previous one."""
        self._require_seeds()
        self._snapshot = self._take_snapshot()

    def keep_if_finite(self) -> None:
        """Take a snapshot if all parameters and buffers are finite; called after growth actions."""
        if self._find_tensor_problem() is None:
            self.keep()

    def restore(self, reason: str) -> GovernorReport:
        """Roll back to the last snapshot, then prune the uncommitted seeds.

        Loss statistics are reset, so that a permanent change of the loss level is not blocked
        forever.
        """
        self._load_snapshot(self._snapshot)
        pruned = tuple(self.slots.abandon_growing())
        self.watch.forget()
        self.keep()
        return GovernorReport(reason, pruned)

    def _require_seeds(self) -> None:
        members = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for name, parameters in self.slots.growing_parameters().items():
            if any(id(parameter) not in members for parameter in parameters):
                raise SlotError(
                    f"the optimizer does not have the parameters of the seed in slot {name!r}, so "
                    "the seed would never train; create an OptimizerKeeper(model, optimizer) first."
                )

    def _find_loss_problem(self, loss: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        return self.watch.describe(loss) if loss > self.watch.limits()[0] else None

    def _find_gradient_problem(self) -> str | None:
        found = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        gradients = [(n, g.coalesce().values() if g.is_sparse else g) for n, g in found]
        if not gradients:
            return None
        self.gradient_norm = get_total_norm([gradient for _, gradient in gradients]).item()
        if math.isfinite(self.gradient_norm):
            return None
        bad = [name for name, gradient in gradients if not bool(torch.isfinite(gradient).all())]
        return f"the gradient of {bad[0] if bad else 'the model'} is not finite"

    def _find_tensor_problem(self) -> str | None:
        """Return which tensor is non-finite where the last snapshot was finite."""
        known: dict[Any, Tensor] = {id(p): value for p, value in self._snapshot.parameters}
        known |= {(id(m), name): value for m, name, _, value in self._snapshot.buffers}
        tensors = [(name, id(p), p) for name, p in self.model.named_parameters()]
        tensors += [(name, key, buffer) for name, key, buffer in _named_buffers(self.model)]
        for name, key, tensor in tensors:
            if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
                continue
            before = known.get(key)
            # Infinite entries that the snapshot has too, such as an attention mask, are fine.
            if before is None or before.shape != tensor.shape:
                return f"{name} is not finite"
            if bool((torch.isfinite(before) & ~torch.isfinite(tensor)).any()):
                return f"{name} is not finite"
        return None

    def _take_snapshot(self) -> _Snapshot:
        return _Snapshot(
            parameters=[(p, p.detach().clone()) for p in self.model.parameters()],
            buffers=[
                (module, name, buffer, buffer.detach().clone())
                for module in self.model.modules()
                for name, buffer in module.named_buffers(recurse=False)
            ],
            groups=[
                (list(group["params"]), {k: v for k, v in group.items() if k != "params"})
                for group in self.optimizer.param_groups
            ],
            moments={p: _copied(state) for p, state in self.optimizer.state.items()},
            slots={
                name: _SlotSnapshot(replace(slot.life), slot.seed, slot.gate, slot.form)
                for name, slot in self.slots.items()
            },
            n_germinated=self.slots.n_germinated,
        )

    def _load_snapshot(self, snapshot: _Snapshot) -> None:
        for name, slot in snapshot.slots.items():
            self.slots.restore_slot(name, slot.life, slot.seed, slot.gate, slot.form)
        self.slots.n_germinated = snapshot.n_germinated
        with torch.no_grad():
            for parameter, value in snapshot.parameters:
                parameter.copy_(value)
            for module, name, buffer, value in snapshot.buffers:
                setattr(module, name, buffer.copy_(value))
        for parameter in self.model.parameters():
            parameter.grad = None
        self._load_optimizer(snapshot)

    def _load_optimizer(self, snapshot: _Snapshot) -> None:
        groups = self.optimizer.param_groups
        for group, (members, settings) in zip(groups, snapshot.groups, strict=False):
            group.update({k: v for k, v in settings.items() if k not in RATE_KEYS})
            group["params"] = list(members)
        for group in groups[len(snapshot.groups) :]:  # added after the snapshot
            group["params"] = []
        self.optimizer.state.clear()
        for parameter, state in snapshot.moments.items():
            self.optimizer.state[parameter] = _copied(state)


def _named_buffers(model: nn.Module) -> list[tuple[str, tuple[int, str], Tensor]]:
    """Return the full name, the snapshot key and the tensor of each buffer."""
    return [
        (f"{prefix}.{name}".lstrip("."), (id(module), name), buffer)
        for prefix, module in named_modules(model).items()
        for name, buffer in module.named_buffers(recurse=False)
    ]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in state.items()}
