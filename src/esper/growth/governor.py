"""The governor: blocks updates that would break a host and rolls the host back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.arrays import Floats
from esper.config.growth import GovernorConfig
from esper.errors import SlotError, TensorError
from esper.growth.host_slots import HostSlots, slots, unwrapped
from esper.growth.modules import named_modules, named_parameters, parameters_of
from esper.growth.optimizers import RATE_KEYS, as_optimizers, copied_state, reset_state
from esper.growth.ranks import (
    Call,
    Ranks,
    find_outdated,
    initialize_again,
    on_wrapped,
    require_rebuildable,
)
from esper.growth.seed_slot import SeedParts
from esper.growth.sharding import find_mesh, is_sharded, local_values, reshard, total_norm
from esper.growth.slot_states import SlotLife
from esper.growth.surgery.edits import Edits

MAX_WIDENINGS = 50
"""Largest exponent of the factor that widens the bound of outliers, which keeps it finite."""


class LossWatch:
    """Running mean and variance of the losses of N hosts, and which losses are outliers.

    Early losses have equal weight; after that the average is exponential. A loss is an outlier if
    it exceeds the mean by many standard deviations, by a multiple of the mean and by a fixed floor.

    While little is known, for the first losses and for those after a rollback, which may lead to a
    state with a higher loss, the bound also allows for a multiple of what the untrained host lost.
    Each further outlier in a row multiplies that again, so that a permanent change of the loss
    level is not blocked forever.
    """

    N_STATISTICS: ClassVar[int] = 6
    """Numbers in the state of one host."""

    def __init__(self, n_hosts: int, config: GovernorConfig) -> None:
        self.config = config
        self.count = np.zeros(n_hosts)
        self.mean = np.zeros(n_hosts)
        self.variance = np.zeros(n_hosts)
        self.first = np.full(n_hosts, config.untrained_loss)
        """Magnitude of the first loss."""
        self.n_calm = np.zeros(n_hosts)
        """Losses since the start or the last rollback."""
        self.n_outliers = np.zeros(n_hosts)
        """Outliers since the last good loss."""

    def limits(self, hosts: Any = slice(None)) -> Floats:
        """Return the largest loss of each host that is not an outlier."""
        mean, config = self.mean[hosts], self.config
        rise = self._rise(mean, self.variance[hosts])
        is_new = self.n_calm[hosts] < config.warmup_losses
        # A rollback makes a host new, so hosts with outliers are among these.
        if not np.any(is_new):
            return mean + rise
        n_widenings = np.clip(self.n_outliers[hosts], 1.0, MAX_WIDENINGS)
        wide = np.maximum(self.first[hosts], config.outlier_floor)
        wide = wide * config.warmup_factor**n_widenings
        return mean + np.where(is_new, np.maximum(rise, wide), rise)

    def is_usual(self, loss: float, host: int = 0) -> bool:
        """Return whether a loss is within the narrowest bound, given that there were others."""
        if not self.count.item(host):
            return False
        mean = self.mean.item(host)
        return loss <= mean + self._rise(mean, self.variance.item(host), max, math.sqrt)

    def _rise(
        self, mean: Any, variance: Any, largest: Any = np.maximum, root: Any = np.sqrt
    ) -> Any:
        """Return how far above the mean the bound is once it is at its narrowest."""
        config = self.config
        spread = config.outlier_deviations * root(variance)
        rise = largest(spread, (config.outlier_factor - 1.0) * abs(mean))
        return largest(rise, config.outlier_floor)

    def add(self, losses: Floats, hosts: Any = slice(None)) -> None:
        """Record one good loss for each of some hosts."""
        count = self.count[hosts]
        if not np.all(count):
            self.first[hosts] = np.where(count == 0.0, np.abs(losses), self.first[hosts])
        self._add(losses, hosts, count, self.mean[hosts], self.variance[hosts], np.maximum)

    def add_one(self, loss: float, host: int = 0) -> None:
        """Record a good loss of one host; the same as :meth:`add`, without arrays."""
        count = self.count.item(host)
        if not count:
            self.first[host] = abs(loss)
        self._add(loss, host, count, self.mean.item(host), self.variance.item(host), max)

    def _add(
        self, losses: Any, hosts: Any, count: Any, mean: Any, variance: Any, largest: Any
    ) -> None:
        weight = largest(1.0 / (count + 1.0), 1.0 - self.config.memory)
        change = losses - mean
        self.mean[hosts] = mean + weight * change
        self.variance[hosts] = (1.0 - weight) * (variance + weight * (change * change))
        self.count[hosts] = count + 1.0
        self.n_calm[hosts] += 1.0
        self.n_outliers[hosts] = 0.0

    def judge(self, loss: float, host: int = 0) -> str | None:
        """Return why a loss is bad, or None if it is not; outliers widen the bound."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.is_usual(loss, host):
            return None
        limit = float(self.limits(host))
        if loss <= limit:
            return None
        self.n_outliers[host] += 1.0
        if not self.count[host]:
            return f"the loss is {loss:.4g}; an untrained model may lose {limit:.4g}"
        deviation = float(np.sqrt(self.variance[host]))
        return f"the loss is {loss:.4g}; recent losses were {self.mean[host]:.4g} ± {deviation:.2g}"

    def on_rollback(self, host: int = 0) -> None:
        """Widen the bound of a host, whose loss may be that of an earlier time."""
        self.n_calm[host] = 0.0

    def forget(self, host: int = 0) -> None:
        """Forget a host that was replaced."""
        self.set_state([0.0, 0.0, 0.0, self.config.untrained_loss, 0.0, 0.0], host)

    def of_host(self, host: int) -> LossWatch:
        """Return the statistics of one host alone, which are these, not a copy."""
        own = LossWatch(1, self.config)
        own.count, own.mean, own.variance, own.first, own.n_calm, own.n_outliers = (
            values[host : host + 1] for values in self._statistics()
        )
        return own

    def get_state(self, host: int = 0) -> list[float]:
        """Return the statistics of one host's losses."""
        return [float(values[host]) for values in self._statistics()]

    def set_state(self, state: list[float], host: int = 0) -> None:
        """Load what :meth:`get_state` returned."""
        for values, value in zip(self._statistics(), state, strict=True):
            values[host] = value

    def _statistics(self) -> tuple[Floats, ...]:
        own = self.count, self.mean, self.variance
        return (*own, self.first, self.n_calm, self.n_outliers)


@dataclass(frozen=True)
class GovernorReport:
    """Why the governor rolled a host back, and which seeds it pruned."""

    reason: str
    pruned: tuple[str, ...]
    """Slots whose uncommitted seed was removed."""


@dataclass(frozen=True)
class _Snapshot:
    """The state of a host, its optimizer and its slots."""

    parameters: list[tuple[nn.Parameter, Tensor, bool]]
    """Each parameter, a copy of its value, and whether it requires gradients."""
    buffers: list[tuple[nn.Module, str, Tensor, Tensor]]
    """Module, name, tensor and copy of each buffer; a module may replace the tensor."""
    groups: list[list[tuple[list[nn.Parameter], dict[str, Any]]]]
    """The parameters and settings of each group of each optimizer."""
    moments: list[dict[Tensor, dict[str, Any]]]
    """The state of each parameter, for each optimizer."""
    slots: dict[str, tuple[SlotLife, SeedParts | None]]
    n_germinated: int
    n_edits: int
    """Changes of the model's own layers that had been made, of those that can be undone."""


class Governor:
    """Watches the training of one model.

    Call :meth:`step` instead of ``loss.backward(); optimizer.step()``, and :meth:`end_epoch` after
    each epoch. A loss, gradient or parameter that is not finite, or a loss far outside its range,
    rolls the model, its optimizers and its slots back to the last good state, bit for bit, and then
    prunes uncommitted seeds. Learning rates are not rolled back. If the first update from a good
    state fails twice in a row, its optimizers' state is at fault, and is set to zero.

    A loop that updates the parameters itself calls the parts of :meth:`step`: :meth:`check_loss`
    for each loss, :meth:`check_gradients` after the backward passes, and :meth:`commit` with the
    update. A check that returns a report has rolled the model back; the update is skipped then.

    A snapshot is taken at the end of each epoch and after each growth action. It is known to be
    good once a loss has been seen on it; until then the good one before it is kept too, and a
    rollback leads to that one: growth actions since are undone.

    With several processes, each loss is the mean of theirs, all of them roll back if one has to,
    and the model, seeds included, starts on all of them as on rank 0. Gradients of what was grown
    are averaged in :meth:`check_gradients`, the others by DistributedDataParallel.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> governor = esper.Governor(model, optimizer)
        >>> report = governor.step(model(x).square().mean())
        >>> report = governor.step(model(x).sum() * float("nan"))  # rolled back
        >>> all(parameter.isfinite().all() for parameter in model.parameters())
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        config: GovernorConfig | None = None,
        *,
        ranks: Ranks | None = None,
    ) -> None:
        """Start watching.

        Args:
            model: A model with slots.
            optimizer: The optimizer of its parameters, or several that share them.
            config: What counts as an outlier.
            ranks: The processes that train the model; None for all, if torch.distributed is
                initialized.
        """
        self.optimizers = as_optimizers(optimizer, model)
        self.ranks = Ranks(model) if ranks is None else ranks
        require_rebuildable(model)
        self._wrapper = model
        if self.ranks.count > 1:
            on_wrapped(model, self._set_wrapper)
        model = unwrapped(model)
        self.model = model
        self.slots: HostSlots = slots(model)
        self.slots.require_free_blocks()
        self.watch = LossWatch(1, config or GovernorConfig())
        self.validation = LossWatch(1, config or GovernorConfig())
        """The validation losses after epochs."""
        self.gradient_norm = 0.0
        """Gradient norm of the last step, over all parameters."""
        self.loss = math.nan
        """The last loss that was checked, the mean over all processes."""
        self.slots.journal = []
        self._require_same_structure(Call.START)
        self.ranks.copy_from_first((*model.parameters(), *model.buffers()))
        self._latest: _Snapshot = self._take_snapshot()
        self._good: _Snapshot = self._latest
        """The last snapshot, and the last one whose loss was good."""
        self._is_proven = True
        """Whether the parameters are those of a good state; the given one is taken as good."""
        self._seen: list[float] = []
        """Good losses since the last update."""
        self._n_updates = 0
        """Updates since the good state."""
        self._failed_at_once = False
        """Whether the last rollback, in this epoch, followed the first update from that state."""
        self._on_change()
        self.slots.listeners.append(self._on_change)
        self.slots.action_listeners.append(self._on_action)

    def step(self, loss: Tensor) -> GovernorReport | None:
        """Run the backward pass and update the parameters, or roll the model back.

        Args:
            loss: The loss of the current batch; gradients are computed here.

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
        report = self.check_loss(loss)
        if report is None:
            loss.backward()
            report = self.check_gradients()
        if report is not None:
            return report
        self.commit()
        for optimizer in self.optimizers:
            optimizer.step()
        return None

    def end_epoch(self, loss: float | None = None) -> GovernorReport | None:
        """Take a snapshot, or roll the model back if a parameter or buffer is not finite.

        Args:
            loss: A loss of the model after the last update, comparable with those of
                :meth:`step`, if you have one. A good one makes the snapshot a good state at once;
                a bad one rolls the model back now instead of in the next step.
        """
        report = self.check_parameters()
        if report is None and loss is not None:
            report = self.check_loss(float(loss))
        if report is None:
            self.keep()
        return report

    def check_parameters(self) -> GovernorReport | None:
        """Roll the model back if a parameter or buffer has become non-finite.

        With several processes, all get the buffers of rank 0.
        """
        self.ranks.copy_from_first(self.model.buffers())
        problem = self._find_tensor_problem()
        if problem is not None:
            return self.restore(problem)
        self.require_same_values()
        return None

    def check_loss(self, loss: Tensor | float) -> GovernorReport | None:
        """Roll the model back if a loss of its current state is bad; else the state is good."""
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        (mean,) = self.ranks.mean(Call.CHECK_LOSS, [value])
        self.loss = value = cast(float, mean)
        problem = self.watch.judge(value)
        if problem is not None:
            return self.restore(problem)
        self._seen.append(value)
        self._is_proven = True
        return None

    def check_validation(self, loss: float | None) -> GovernorReport | None:
        """Judge the state after an epoch by its validation loss, if there is one.

        A usual loss makes the state good. A loss that is far outside the range of earlier ones, or
        not finite although these were, rolls the model back. Anything between leaves it to the
        next training loss whether the state is good. All processes must give the same loss.
        """
        if loss is None or (self.validation.count[0] == 0.0 and not math.isfinite(loss)):
            return None
        is_usual = self.validation.is_usual(loss)
        problem = self.validation.judge(loss)
        if problem is not None:
            return self.restore(problem.replace("the loss", "the validation loss", 1))
        self.validation.add_one(loss)
        self._is_proven |= is_usual
        return None

    def check_gradients(
        self, *, is_synced: bool = True, may_overflow: bool = False
    ) -> GovernorReport | None:
        """Roll the model back if a gradient is not finite.

        Args:
            is_synced: Whether DistributedDataParallel has averaged the gradients that it knows;
                not after ``no_sync()``.
            may_overflow: Whether a gradient scaler is in use: it skips the update and lowers its
                scale if a gradient is not finite, and nothing has to be rolled back.
        """
        self.average_gradients(is_synced=is_synced)
        problem = self._find_gradient_problem()
        return None if problem is None or may_overflow else self.restore(problem)

    def average_gradients(self, *, is_synced: bool = True) -> None:
        """Average the gradients of what was grown over all processes; or all gradients."""
        if self.ranks.count > 1:
            self.ranks.average_gradients(
                self.slots.grown_parameters() if is_synced else self.model.parameters()
            )

    def commit(self) -> None:
        """Note that the parameters are updated, after the losses and gradients were good."""
        self._make_good()
        for value in self._seen:
            self.watch.add_one(value)
        self._seen.clear()
        self._is_proven = False
        self._n_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what the next verdicts depend on: the statistics of the losses.

        Take it after :meth:`keep` of a good state, to which a rollback would lead.
        """
        return {"losses": self.watch.get_state(), "validation": self.validation.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; the model as it is now is the good state."""
        self.watch.set_state(state["losses"])
        self.validation.set_state(state["validation"])
        self.require_same_values()
        self.keep(is_good=True)

    def keep(self, *, is_good: bool = False) -> None:
        """Take a snapshot of the current state, which may be known to be good."""
        self._is_proven |= is_good
        reshard(self.model)
        self.require_seeds()
        self._seen.clear()
        self._failed_at_once = False
        self._latest = self._take_snapshot()
        if self._is_proven:
            self._make_good()

    def _make_good(self) -> None:
        """Let the last snapshot be the state that a rollback leads to."""
        if self._good is not self._latest:
            self._good, self._n_updates = self._latest, 0
            journal = cast(list[Edits], self.slots.journal)
            del journal[: self._good.n_edits]
            self._good = self._latest = replace(self._good, n_edits=0)

    def _on_change(self) -> None:
        """Note the parameters that the model has; looking for them takes long in every step."""
        self._parameters = parameters_of(self.model)
        self._is_sharded = find_mesh(self.model) is not None
        for wrapper in find_outdated(self._wrapper):
            self._require_same_structure(Call.GROWTH_ACTION)
            initialize_again(wrapper)

    def _set_wrapper(self, wrapper: nn.Module) -> None:
        require_rebuildable(wrapper)
        self._wrapper = wrapper
        self._on_change()  # the model may have grown, on resuming, since it was wrapped

    def _on_action(self) -> None:
        """Take a snapshot after a growth action, the same on all ranks, if all is finite."""
        self._require_same_structure(Call.GROWTH_ACTION)
        self.ranks.copy_from_first((*self.slots.grown_parameters(), *self.slots.grown_buffers()))
        if self._find_tensor_problem() is None:
            self.keep()

    def _require_same_structure(self, call: Call) -> None:
        if self.ranks.count > 1:
            advice = "every rank must build the same model and act on the same slots"
            digest = self.slots.digest()
            # In two numbers, because numbers that are close count as the same.
            self.ranks.require_same(call, "structure", divmod(digest, 1 << 24), advice)

    def require_same_values(self) -> None:
        """Raise on every rank if the structures or parameters of the ranks differ.

        Raises:
            RanksDisagreeError: Naming the ranks that differ from rank 0.
        """
        if self.ranks.count == 1:
            return
        self._require_same_structure(Call.CHECK_PARAMETERS)
        whole = [p.detach().double() for p in self.model.parameters() if not is_sharded(p)]
        size = sum(float(p.abs().sum()) for p in whole)
        # The size is added because a sum that cancels is a matter of rounding.
        sums = [sum(float(p.sum()) for p in whole) + 2.0 * size, size]
        advice = (
            "wrap the model in DistributedDataParallel, and clip gradients only by max_grad_norm "
            "of the Grower or after check_gradients()"
        )
        self.ranks.require_same(Call.CHECK_PARAMETERS, "parameters", sums, advice)

    def restore(self, reason: str) -> GovernorReport:
        """Roll back to the last good state, then prune the uncommitted seeds."""
        reshard(self.model)
        failed_at_once = self._n_updates == 1
        self._load_snapshot(self._good)
        if failed_at_once and self._failed_at_once:
            reset_state(self.optimizers)
        pruned = tuple(self.slots.abandon_growing())
        self.watch.on_rollback()
        self.keep(is_good=True)
        self._failed_at_once = failed_at_once
        return GovernorReport(reason, pruned)

    def require_seeds(self) -> None:
        """Raise if the optimizers lack parameters of a seed."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        members = {id(parameter) for group in groups for parameter in group["params"]}
        for name, parameters in self.slots.growing_parameters().items():
            if any(id(parameter) not in members for parameter in parameters):
                raise SlotError(
                    f"the optimizer does not have the parameters of the seed in slot {name!r}, so "
                    "the seed would never train; create an OptimizerKeeper(model, optimizer) first."
                )

    def _find_gradient_problem(self) -> str | None:
        if self._is_sharded:
            reshard(self.model)
        found = [p.grad for p in self._parameters if p.grad is not None]
        if self.ranks.count == 1 and not found:
            return None
        norm = total_norm(found)
        rows = self.ranks.exchange(Call.CHECK_GRADIENTS, [norm, _first_bad(found, norm)])
        self.gradient_norm = max(row[0] for row in rows)
        bad = [int(row[1]) for row in rows if row[1] >= 0]
        if math.isfinite(self.gradient_norm) and not bad:
            return None
        names = [name for name, p in self.model.named_parameters() if p.grad is not None]
        name = names[min(bad)] if bad and min(bad) < len(names) else "the model"
        return f"the gradient of {name} is not finite"

    def _find_tensor_problem(self) -> str | None:
        """Return which tensor is non-finite, on some rank, where the last snapshot was finite."""
        reshard(self.model)
        known: dict[Any, Tensor] = {id(p): value for p, value, _ in self._latest.parameters}
        known |= {(id(m), name): value for m, name, _, value in self._latest.buffers}
        tensors = [(name, id(p), p) for name, p in named_parameters(self.model).items()]
        tensors += [
            (f"{prefix}.{name}".lstrip("."), (id(module), name), buffer)
            for prefix, module in named_modules(self.model).items()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        bad = (
            index
            for index, (_, key, tensor) in enumerate(tensors)
            if _has_become_infinite(tensor, known.get(key))
        )
        if math.isfinite(total_norm(t for _, _, t in tensors if t.is_floating_point())):
            bad = iter(())
        rows = self.ranks.exchange(Call.CHECK_PARAMETERS, [next(bad, -1)])
        found = [int(row[0]) for row in rows if row[0] >= 0]
        return f"{tensors[min(found)][0]} is not finite" if found else None

    def _take_snapshot(self) -> _Snapshot:
        return _Snapshot(
            parameters=[
                (p, p.detach().clone(), p.requires_grad) for p in parameters_of(self.model)
            ],
            buffers=[
                (module, name, buffer, buffer.detach().clone())
                for module in self.model.modules()
                for name, buffer in module.named_buffers(recurse=False)
            ],
            groups=[
                [_copied_group(group) for group in optimizer.param_groups]
                for optimizer in self.optimizers
            ],
            moments=[
                {p: copied_state(state) for p, state in optimizer.state.items()}
                for optimizer in self.optimizers
            ],
            slots=self.slots.snapshot(),
            n_germinated=self.slots.n_germinated,
            n_edits=len(self.slots.journal or ()),
        )

    def _load_snapshot(self, snapshot: _Snapshot) -> None:
        self.slots.undo_to(snapshot.n_edits)
        for name, (life, parts) in snapshot.slots.items():
            self.slots.restore_slot(name, life, parts)
        self.slots.n_germinated = snapshot.n_germinated
        _load_tensors(snapshot)
        for parameter, _, requires_grad in snapshot.parameters:
            parameter.requires_grad_(requires_grad)
        for parameter in self.model.parameters():
            parameter.grad = None
        self._load_optimizers(snapshot)

    def _load_optimizers(self, snapshot: _Snapshot) -> None:
        for optimizer, groups, moments in zip(
            self.optimizers, snapshot.groups, snapshot.moments, strict=True
        ):
            current = optimizer.param_groups
            for group, (members, settings) in zip(current, groups, strict=False):
                kept = {key: v for key, v in settings.items() if key not in RATE_KEYS}
                group.update(copied_state(kept))
                group["params"] = list(members)
            for group in current[len(groups) :]:  # added after the snapshot
                group["params"] = []
            optimizer.state.clear()
            for parameter, state in moments.items():
                optimizer.state[parameter] = copied_state(state)


def _copied_group(group: dict[str, Any]) -> tuple[list[nn.Parameter], dict[str, Any]]:
    """Return the parameters of a group, and a copy of its settings."""
    settings = {key: value for key, value in group.items() if key != "params"}
    return list(group["params"]), copied_state(settings)


def _first_bad(found: list[Tensor], norm: float) -> int:
    """Return the index of the first gradient that is not finite; -1 for none."""
    if math.isfinite(norm):
        return -1
    checks = (bool(torch.isfinite(local_values(gradient)).all()) for gradient in found)
    return next((index for index, is_finite in enumerate(checks) if not is_finite), -1)


def _has_become_infinite(tensor: Tensor, before: Tensor | None) -> bool:
    """Return whether a tensor has an entry that is not finite, but was in an earlier copy."""
    if not tensor.is_floating_point():
        return False
    finite = torch.isfinite(local_values(tensor))
    if bool(finite.all()):
        return False
    # Infinite entries that the snapshot has too, such as an attention mask, are fine.
    if before is None or before.shape != tensor.shape:
        return True
    return bool((torch.isfinite(local_values(before)) & ~finite).any())


def _load_tensors(snapshot: _Snapshot) -> None:
    with torch.no_grad():
        for parameter, value, _ in snapshot.parameters:
            parameter.copy_(value)
        for module, name, buffer, value in snapshot.buffers:
            setattr(module, name, buffer.copy_(value))
