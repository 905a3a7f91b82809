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

from esper.arrays import Floats
from esper.config.growth import GovernorConfig
from esper.errors import SlotError, TensorError
from esper.growth.blueprints import SeedForm
from esper.growth.host_slots import HostSlots, slots
from esper.growth.modules import named_modules
from esper.growth.optimizers import RATE_KEYS, require_optimizer
from esper.growth.slot_lives import SlotLife


class LossWatch:
    """The running mean and spread of the losses of N hosts, each watched by itself.

    Early losses are averaged evenly, later ones with a memory that fades. A loss is an outlier if
    it is many deviations *and* several times the mean above the mean; only rises count, and small
    ones never.
    """

    def __init__(self, n_hosts: int, config: GovernorConfig) -> None:
        self.config = config
        self.count = np.zeros(n_hosts)
        self.mean = np.zeros(n_hosts)
        self.variance = np.zeros(n_hosts)

    def limits(self, hosts: Any = slice(None)) -> Floats:
        """Return the loss beyond which each of some hosts is an outlier, if it is warm yet."""
        mean, config = self.mean[hosts], self.config
        spread = config.outlier_deviations * np.sqrt(self.variance[hosts])
        rise = np.maximum(spread, (config.outlier_factor - 1.0) * np.abs(mean))
        rise = np.maximum(rise, config.outlier_floor)
        return np.where(self.count[hosts] >= config.warmup_losses, mean + rise, np.inf)

    def add(self, losses: Floats, hosts: Any = slice(None)) -> None:
        """Take in one finite loss for each of some hosts."""
        weight = np.maximum(1.0 / (self.count[hosts] + 1.0), 1.0 - self.config.memory)
        change = losses - self.mean[hosts]
        self.mean[hosts] += weight * change
        self.variance[hosts] = (1.0 - weight) * (self.variance[hosts] + weight * change**2)
        self.count[hosts] += 1.0

    def forget(self, host: int = 0) -> None:
        """Know nothing of a host's losses any more."""
        self.set_state([0.0, 0.0, 0.0], host)

    def describe(self, loss: float, host: int = 0) -> str:
        """Return in words why a loss is an outlier."""
        deviation = float(np.sqrt(self.variance[host]))
        return f"the loss is {loss:.4g}; recent ones were {self.mean[host]:.4g} ± {deviation:.2g}"

    def get_state(self, host: int = 0) -> list[float]:
        """Return what is known of one host's losses."""
        return [float(self.count[host]), float(self.mean[host]), float(self.variance[host])]

    def set_state(self, state: list[float], host: int = 0) -> None:
        """Take over what :meth:`get_state` returned."""
        self.count[host], self.mean[host], self.variance[host] = state


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

    parameters: list[tuple[nn.Parameter, Tensor]]
    """Each parameter with a copy of its value."""
    buffers: list[tuple[nn.Module, str, Tensor, Tensor]]
    """Each buffer by its module and name: modules may put another tensor in its place."""
    groups: list[tuple[list[nn.Parameter], dict[str, Any]]]
    """The members and settings of each of the optimizer's groups."""
    moments: dict[Tensor, dict[str, Any]]
    planted: dict[str, _Planted]
    n_germinated: int


class Governor:
    """Watches one model's training.

    Call :meth:`step` in place of ``loss.backward(); optimizer.step()`` and :meth:`end_epoch` after
    each epoch. A loss, gradient or parameter that is not finite, or a loss far outside its recent
    range, takes the model, its optimizer and its slots back to their last good state, bit for bit;
    then what was growing is pruned. Learning rates stay where a scheduler has put them.

    The last good state is that of the end of the last epoch or, if the slots were acted on since,
    that after the action. One copy of it is kept.
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
        """Norm of the whole gradient at the last step."""
        self._snapshot = self._take_snapshot()
        self.slots.action_listeners.append(self.keep_if_finite)

    def step(
        self, loss: Tensor, *, before_update: Callable[[], object] | None = None
    ) -> GovernorReport | None:
        """Take one step of learning, or refuse it and restore the model.

        Args:
            loss: The loss of the present batch; its gradients are computed here.
            before_update: Called between the backward pass and the update, to clip gradients say.

        Returns:
            None if all is well; otherwise why the step was not taken.

        Raises:
            TensorError: If the loss is not one number with a gradient.
        """
        if loss.numel() != 1 or not loss.requires_grad:
            raise TensorError(
                f"the loss has shape {list(loss.shape)} and requires_grad {loss.requires_grad}; it "
                "must be one number that depends on what learns."
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
        """Remember the present state as good; if a parameter is not finite, restore instead."""
        report = self.check_parameters()
        if report is None:
            self.keep()
        return report

    def check_parameters(self) -> GovernorReport | None:
        """Restore the last good state if a parameter or buffer has become other than finite."""
        problem = self._find_tensor_problem()
        return None if problem is None else self.restore(problem)

    def keep(self) -> None:
        """Remember the present state as good, in place of the one before."""
        self._require_seeds()
        self._snapshot = self._take_snapshot()

    def keep_if_finite(self) -> None:
        """Remember the present state as good, after the slots were acted on, if it is finite."""
        if self._find_tensor_problem() is None:
            self.keep()

    def restore(self, reason: str) -> GovernorReport:
        """Go back to the last good state, then prune what was growing in it.

        What is known of recent losses is forgotten, so that a loss that has moved to another level
        for good is not refused forever.
        """
        self._put_back(self._snapshot)
        pruned = tuple(self.slots.abandon_growing())
        self.watch.forget()
        self.keep()
        return GovernorReport(reason, pruned)

    def _require_seeds(self) -> None:
        members = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for name, parameters in self.slots.growing_parameters().items():
            if any(id(parameter) not in members for parameter in parameters):
                raise SlotError(
                    f"the optimizer does not hold the seed in slot {name!r}, so it would never "
                    "learn; make an OptimizerKeeper(model, optimizer) first."
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
        """Return which tensor is not finite where it was when it was last good."""
        known: dict[Any, Tensor] = {id(p): value for p, value in self._snapshot.parameters}
        known |= {(id(m), name): value for m, name, _, value in self._snapshot.buffers}
        tensors = [(name, id(p), p) for name, p in self.model.named_parameters()]
        tensors += [(name, key, buffer) for name, key, buffer in _named_buffers(self.model)]
        for name, key, tensor in tensors:
            if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
                continue
            before = known.get(key)
            # A mask of minus infinity is as it should be.
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
            planted={
                name: _Planted(replace(slot.life), slot.seed, slot.gate, slot.form)
                for name, slot in self.slots.items()
            },
            n_germinated=self.slots.n_germinated,
        )

    def _put_back(self, snapshot: _Snapshot) -> None:
        for name, planted in snapshot.planted.items():
            self.slots.put_back(name, planted.life, planted.seed, planted.gate, planted.form)
        self.slots.n_germinated = snapshot.n_germinated
        with torch.no_grad():
            for parameter, value in snapshot.parameters:
                parameter.copy_(value)
            for module, name, buffer, value in snapshot.buffers:
                setattr(module, name, buffer.copy_(value))
        for parameter in self.model.parameters():
            parameter.grad = None
        self._put_back_optimizer(snapshot)

    def _put_back_optimizer(self, snapshot: _Snapshot) -> None:
        groups = self.optimizer.param_groups
        for group, (members, settings) in zip(groups, snapshot.groups, strict=False):
            group.update({k: v for k, v in settings.items() if k not in RATE_KEYS})
            group["params"] = list(members)
        for group in groups[len(snapshot.groups) :]:  # which came since
            group["params"] = []
        self.optimizer.state.clear()
        for parameter, state in snapshot.moments.items():
            self.optimizer.state[parameter] = _copied(state)


def _named_buffers(model: nn.Module) -> list[tuple[str, tuple[int, str], Tensor]]:
    """Return each buffer with its full name and with what it is known by in a snapshot."""
    return [
        (f"{prefix}.{name}".lstrip("."), (id(module), name), buffer)
        for prefix, module in named_modules(model).items()
        for name, buffer in module.named_buffers(recurse=False)
    ]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in state.items()}
