"""Keeping an optimizer in sync with a model that grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from esper.config.checks import require_number
from esper.errors import SlotError
from esper.growth.host_slots import slots

RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Entries of a parameter group that hold learning rates, including those set by schedulers."""

SCHEDULER_RATES = ("base_lrs", "_last_lr", "min_lrs", "max_lrs")
SCHEDULER_LISTS = (*SCHEDULER_RATES, "lr_lambdas", "base_momentums", "max_momentums")
"""Scheduler attributes with one entry per parameter group; the first ones are learning rates."""


class OptimizerKeeper:
    """Automatically keeps any ``torch.optim`` optimizer in sync with a model's slots.

    When a seed germinates, its parameters join the parameter group of its block (those of a copied
    block the groups of the parameters they are copies of) or, if seeds have their own learning
    rate, a second group with otherwise the same settings. When it is pruned, its parameters and
    their optimizer state are removed. When it is fossilized, they move to the block's group and
    keep their state. Other parameters are never touched.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        seed_lr_factor: float = 1.0,
        schedulers: Iterable[Any] = (),
    ) -> None:
        """Start following the model's slots.

        Args:
            model: A model with slots.
            optimizer: An optimizer of the model's parameters.
            seed_lr_factor: Learning rate of uncommitted seeds, relative to the host's.
            schedulers: Existing learning-rate schedulers of the optimizer; those created later
                need not be passed.
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
        """Add new parameters and drop removed ones; called whenever the slots change."""
        growing = self.slots.growing_parameters()
        for name, slot in self.slots.items():
            wanted = slot.grown_parameters()
            kept = {id(parameter) for parameter in wanted}
            for parameter in self._joined[name]:
                if id(parameter) not in kept:
                    self._remove(parameter)
            uncommitted = {id(parameter) for parameter in growing.get(name, ())}
            for home, parameters in slot.parameter_homes() if wanted else ():
                index = self._group_of(home)
                for parameter in parameters:
                    is_growing = id(parameter) in uncommitted
                    self._move_to_group(parameter, self._seed_group(index) if is_growing else index)
            self._joined[name] = wanted

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, keyed by parameter name.

        ``optimizer.state_dict()`` is keyed by parameter order, which growth changes.
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
        """Load the optimizer state of a model with the same seeds."""
        parameters = dict(self.slots.model.named_parameters())
        unknown = sorted(set(state["state"]) - set(parameters))
        if unknown or len(state["groups"]) != len(self.optimizer.param_groups):
            raise SlotError(
                f"the state belongs to another optimizer: it has {len(state['groups'])} parameter "
                f"groups instead of {len(self.optimizer.param_groups)}, and the parameters "
                f"{unknown} do not exist here."
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
        for scheduler in _with_nested(schedulers):
            for name in SCHEDULER_LISTS:
                values = cast(list[Any], vars(scheduler).get(name) or [])
                if len(values) == self._n_host_groups:
                    share = factor if name in SCHEDULER_RATES else 1.0
                    values.extend([_scaled(value, share) for value in values])

    def _seed_group(self, index: int) -> int:
        return index + self._n_host_groups if self._has_seed_groups else index

    def _group_of(self, parameters: Iterable[nn.Parameter]) -> int:
        """Return the index of the first host group with one of these parameters, or 0."""
        wanted = {id(parameter) for parameter in parameters}
        for index, group in enumerate(self.optimizer.param_groups[: self._n_host_groups]):
            if any(id(parameter) in wanted for parameter in group["params"]):
                return index
        return 0

    def _move_to_group(self, parameter: nn.Parameter, index: int) -> None:
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


def _with_nested(schedulers: Sequence[Any]) -> list[Any]:
    """Return schedulers together with the schedulers inside them."""
    nested = [_with_nested(getattr(scheduler, "_schedulers", ())) for scheduler in schedulers]
    return [*schedulers, *chain.from_iterable(nested)]


def _scaled(value: Any, factor: float) -> Any:
    return value * factor if isinstance(value, (int, float)) and factor != 1.0 else value


def _drop(parameters: list[nn.Parameter], parameter: nn.Parameter) -> None:
    """Remove a parameter by identity, because tensors compare by value."""
    parameters[:] = [member for member in parameters if member is not parameter]


def require_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Raise if an optimizer has none of the model's parameters, or cannot drop any."""
    if isinstance(optimizer, LBFGS):
        raise SlotError("LBFGS does not support growing models; use another torch.optim optimizer.")
    present = {id(parameter) for parameter in model.parameters()}
    members = [member for group in optimizer.param_groups for member in group["params"]]
    if not any(id(member) in present for member in members):
        raise SlotError(
            f"the {type(optimizer).__name__} has no parameter of this {type(model).__name__}; "
            "create it from model.parameters()."
        )
