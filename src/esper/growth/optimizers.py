"""Keeping an optimizer in step with a model whose parameters come and go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from esper.config.checks import require_number
from esper.errors import SlotError
from esper.growth.host_slots import slots

RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""The entries of a parameter group that are learning rates, schedulers' notes included."""

SCHEDULER_RATES = ("base_lrs", "_last_lr", "min_lrs", "max_lrs")
SCHEDULER_LISTS = (*SCHEDULER_RATES, "lr_lambdas", "base_momentums", "max_momentums")
"""What schedulers keep as one entry for each parameter group; the first are learning rates."""


class OptimizerKeeper:
    """Keeps any ``torch.optim`` optimizer in step with a model's slots, by itself.

    A seed's parameters join when it germinates, in the group of the block's parameters or, if seeds
    have a learning rate of their own, in a group beside it with the same settings. When a seed is
    pruned its parameters leave with their state. When it is fossilized they move to the block's
    group, their moments untouched. Parameters that have nothing to do with a slot are left alone.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        seed_lr_factor: float = 1.0,
        schedulers: Iterable[Any] = (),
    ) -> None:
        """Start keeping ``optimizer`` in step.

        Args:
            model: A model with slots.
            optimizer: Made from the model's parameters.
            seed_lr_factor: Learning rate of a seed that is not committed, relative to the host's.
            schedulers: Learning-rate schedulers made before this; later ones need not be named.
        """
        require_number("seed_lr_factor", seed_lr_factor, above=0.0)
        require_optimizer(optimizer, model)
        self.optimizer = optimizer
        self.slots = slots(model)
        self._n_host_groups = len(optimizer.param_groups)
        self._has_seed_groups = seed_lr_factor != 1.0
        if self._has_seed_groups:
            self._add_seed_groups(seed_lr_factor, list(schedulers))
        self._joined: dict[str, list[nn.Parameter]] = {name: [] for name in self.slots}
        self.sync()
        self.slots.listeners.append(self.sync)

    def sync(self) -> None:
        """Let new parameters join and removed ones leave; called whenever the slots change."""
        for name, slot in self.slots.items():
            wanted = slot.seed_parameters()
            kept = {id(parameter) for parameter in wanted}
            for parameter in self._joined[name]:
                if id(parameter) not in kept:
                    self._remove(parameter)
            if wanted:
                index = self._group_of(slot.block)
                is_committed = name not in self.slots.growing_parameters()
                for parameter in wanted:
                    self._put(parameter, index if is_committed else self._seed_group(index))
            self._joined[name] = wanted

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state by the names of the model's parameters.

        ``optimizer.state_dict()`` goes by their order, which growing changes.
        """
        names = {id(p): name for name, p in self.slots.model.named_parameters()}
        return {
            "state": {names[id(p)]: dict(s) for p, s in self.optimizer.state.items()},
            "groups": [
                {k: v for k, v in group.items() if k != "params"}
                for group in self.optimizer.param_groups
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of an optimizer of a model with the same seeds."""
        parameters = dict(self.slots.model.named_parameters())
        unknown = sorted(set(state["state"]) - set(parameters))
        if unknown or len(state["groups"]) != len(self.optimizer.param_groups):
            raise SlotError(
                f"the state belongs to another optimizer: {len(state['groups'])} groups in place "
                f"of {len(self.optimizer.param_groups)}, unknown parameters {unknown}."
            )
        for group, settings in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group.update(settings)
        self.optimizer.state.clear()
        for name, values in state["state"].items():
            copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
            self.optimizer.state[parameters[name]] = copied

    def close(self) -> None:
        """Stop following the model's slots."""
        self.slots.listeners.remove(self.sync)

    def _add_seed_groups(self, factor: float, schedulers: Sequence[Any]) -> None:
        for group in list(self.optimizer.param_groups):
            settings = {key: value for key, value in group.items() if key != "params"}
            for key in RATE_KEYS:
                if key in settings:
                    settings[key] = settings[key] * factor
            self.optimizer.add_param_group({"params": [], **settings})
        for scheduler in _with_inner(schedulers):
            for name in SCHEDULER_LISTS:
                values = cast(list[Any], vars(scheduler).get(name) or [])
                if len(values) == self._n_host_groups:
                    share = factor if name in SCHEDULER_RATES else 1.0
                    values.extend([_scaled(value, share) for value in values])

    def _seed_group(self, index: int) -> int:
        return index + self._n_host_groups if self._has_seed_groups else index

    def _group_of(self, block: nn.Module) -> int:
        """Return the host group that holds the block's parameters; the first if none does."""
        wanted = {id(parameter) for parameter in block.parameters()}
        for index, group in enumerate(self.optimizer.param_groups[: self._n_host_groups]):
            if any(id(parameter) in wanted for parameter in group["params"]):
                return index
        return 0

    def _put(self, parameter: nn.Parameter, index: int) -> None:
        groups = self.optimizer.param_groups
        for position, group in enumerate(groups):
            if any(member is parameter for member in group["params"]):
                if position == index:
                    return
                _drop(group["params"], parameter)
        groups[index]["params"].append(parameter)

    def _remove(self, parameter: nn.Parameter) -> None:
        for group in self.optimizer.param_groups:
            _drop(group["params"], parameter)
        self.optimizer.state.pop(parameter, None)


def find_leftovers(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return what an optimizer holds that the model has not, in words; empty if nothing."""
    present = {id(parameter) for parameter in model.parameters()}
    leftovers = [
        f"group {index} holds a parameter of shape {list(parameter.shape)} that left the model"
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) not in present
    ]
    leftovers += [
        f"there is state for a parameter of shape {list(parameter.shape)} that left the model"
        for parameter in optimizer.state
        if isinstance(parameter, Tensor) and id(parameter) not in present
    ]
    return leftovers


def _with_inner(schedulers: Sequence[Any]) -> list[Any]:
    """Return schedulers with those that they drive in turn."""
    inner = [_with_inner(getattr(scheduler, "_schedulers", ())) for scheduler in schedulers]
    return [*schedulers, *(one for group in inner for one in group)]


def _scaled(value: Any, factor: float) -> Any:
    return value * factor if isinstance(value, (int, float)) and factor != 1.0 else value


def _drop(parameters: list[nn.Parameter], parameter: nn.Parameter) -> None:
    """Remove a parameter by identity; tensors compare by value."""
    parameters[:] = [member for member in parameters if member is not parameter]


def require_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer that holds none of the model's parameters, or cannot lose any."""
    if isinstance(optimizer, LBFGS):
        raise SlotError("LBFGS cannot follow a model that grows; use another of torch.optim.")
    present = {id(parameter) for parameter in model.parameters()}
    members = [member for group in optimizer.param_groups for member in group["params"]]
    if not any(id(member) in present for member in members):
        raise SlotError(
            f"the {type(optimizer).__name__} holds no parameter of this {type(model).__name__}; "
            "make it from model.parameters()."
        )
