"""Keeping optimizers in sync with a model that grows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from esper.errors import EsperError, SlotError
from esper.growth.host_slots import slots
from esper.growth.modules import named_parameters, parameters_of
from esper.growth.seed_slot import SeedSlot
from esper.growth.surgery.carrying import as_list, carry_optimizers
from esper.growth.surgery.edits import Edits

RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Entries of a parameter group that hold learning rates, including those set by schedulers."""

MUON = "Muon"
"""The optimizer that takes matrices alone; PyTorch has it since 2.9."""

SHARDED_OPTIMIZER = "ZeroRedundancyOptimizer"
"""The optimizer that shares out the parameters that it starts with among processes."""


class ParameterKind(Enum):
    """What a parameter is, which decides its group where groups differ by kind."""

    MATRIX = "matrix"
    """A weight with two axes or more."""
    BIAS = "bias"
    NORM = "norm"
    """A scale or shift of a norm, or any other vector."""

    @classmethod
    def of(cls, name: str, parameter: Tensor) -> ParameterKind:
        """Return the kind of a parameter, by its name in its module and its shape."""
        if parameter.ndim >= 2:
            return cls.MATRIX
        return cls.BIAS if name.endswith("bias") and parameter.ndim == 1 else cls.NORM


@dataclass(frozen=True, eq=False)
class _Group:
    """A parameter group of one of the optimizers."""

    optimizer: Optimizer
    index: int
    """Its number among the groups of the optimizer."""

    @property
    def settings(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.index]

    @property
    def members(self) -> list[nn.Parameter]:
        return self.settings["params"]

    def takes(self, parameter: Tensor) -> bool:
        """Return whether the optimizer can update a parameter of this shape."""
        return parameter.ndim == 2 or not _is_muon(self.optimizer)


class OptimizerKeeper:
    """Automatically keeps ``torch.optim`` optimizers in sync with a model's slots.

    When the model's own layers grow, their new parameters take the places of the old ones, with
    their state; new entries have none. A copy of a block joins the groups of the parameters that it
    copies.

    When a module germinates beside a block, each of its parameters joins a group of the block: the
    group of the block's parameters of the same kind (matrix, bias or norm), so that settings such
    as weight decay stay with the kind. If the block has none of the kind, the group is the one
    where most of the model's other parameters of that kind are. When a seed is pruned, its
    parameters and their optimizer state are removed; when it is fossilized, they stay. Other
    parameters are never touched.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> keeper = esper.OptimizerKeeper(model, optimizer)
        >>> outcome = esper.slots(model).germinate("0>2", "widen_large")
        >>> [list(p.shape) for p in optimizer.param_groups[0]["params"]]
        [[16, 4], [16], [3, 16], [3]]
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        """Start following the model's slots.

        Args:
            model: A model with slots.
            optimizer: The optimizer of the model's parameters, or several that share them.
        """
        self.optimizers = as_optimizers(optimizer, model)
        require_vectors(self.optimizers)
        self.slots = slots(model)
        self._groups = [
            _Group(each, index)
            for each in self.optimizers
            for index in range(len(each.param_groups))
        ]
        self._beside = {n: slot for n, slot in self.slots.items() if isinstance(slot, SeedSlot)}
        self._joined: dict[str, list[nn.Parameter]] = {n: [] for n in self._beside}
        """What has grown in each slot and is in a group."""
        self.sync()
        self.slots.listeners.append(self.sync)
        self.slots.edit_listeners.append(self._carry)

    def sync(self) -> None:
        """Add new parameters and drop removed ones; called whenever the slots change."""
        names: dict[int, str] = {}
        for name, slot in self._beside.items():
            wanted = slot.grown_parameters()
            kept, known = set(map(id, wanted)), set(map(id, self._joined[name]))
            for parameter in self._joined[name]:
                if id(parameter) not in kept:
                    self._remove(parameter)
            new = [parameter for parameter in wanted if id(parameter) not in known]
            if new:
                names = names or {id(p): n for n, p in named_parameters(self.slots.model).items()}
                home = parameters_of(slot.block)
                for parameter in new:
                    self._join(parameter, home, names)
            self._joined[name] = wanted

    def _carry(self, edits: Edits) -> None:
        carry_optimizers(edits, self.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizers' state, keyed by parameter name.

        ``optimizer.state_dict()`` is keyed by parameter order, which growth changes.
        """
        names = {id(p): name for name, p in self.slots.model.named_parameters()}
        return {
            "state": {
                names[id(p)]: copied_state(s)
                for each in self.optimizers
                for p, s in each.state.items()
            },
            "groups": [
                copied_state({key: v for key, v in group.settings.items() if key != "params"})
                for group in self._groups
            ],
            "kinds": [type(each).__name__ for each in self.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the optimizers' state of a model with the same seeds."""
        kinds = [type(each).__name__ for each in self.optimizers]
        if state["kinds"] != kinds:
            raise SlotError(
                f"the state belongs to {', '.join(state['kinds'])}, but the model is trained by "
                f"{', '.join(kinds)}; make the same optimizers."
            )
        parameters = dict(self.slots.model.named_parameters())
        unknown = sorted(set(state["state"]) - set(parameters))
        groups = self._groups
        if unknown or len(state["groups"]) != len(groups):
            raise SlotError(
                f"the state belongs to another optimizer: it has {len(state['groups'])} parameter "
                f"groups instead of {len(groups)}, and the parameters {unknown} do not exist here."
            )
        for group, settings in zip(groups, state["groups"], strict=True):
            group.settings.update(settings)
        for each in self.optimizers:
            each.state.clear()
        owners = {id(p): group.optimizer for group in groups for p in group.members}
        for name, values in state["state"].items():
            parameter = parameters[name]
            owner = owners.get(id(parameter), self.optimizers[0])
            owner.state[parameter] = copied_state(values)

    def _home_of(
        self, parameter: nn.Parameter, home: Sequence[nn.Parameter], names: dict[int, str]
    ) -> int:
        """Return the number of the group that a new parameter belongs to."""
        kind = ParameterKind.of(names.get(id(parameter), ""), parameter)
        wanted = {id(p) for p in home if ParameterKind.of(names.get(id(p), ""), p) is kind}
        able = [i for i, group in enumerate(self._groups) if group.takes(parameter)]
        for index in able:
            if any(id(member) in wanted for member in self._groups[index].members):
                return index
        grown = {id(p) for p in self.slots.grown_parameters()}
        counts = [
            sum(
                ParameterKind.of(names.get(id(p), ""), p) is kind
                for p in self._groups[index].members
                if id(p) not in grown
            )
            for index in able
        ]
        if max(counts) > 0:
            return able[counts.index(max(counts))]
        own = {id(p) for p in home}
        for index in able:
            if any(id(member) in own for member in self._groups[index].members):
                return index
        return able[0]

    def _join(
        self, parameter: nn.Parameter, home: Sequence[nn.Parameter], names: dict[int, str]
    ) -> None:
        """Add a new parameter to its group, unless a rollback has put it back."""
        if not any(member is parameter for group in self._groups for member in group.members):
            self._groups[self._home_of(parameter, home, names)].members.append(parameter)

    def _remove(self, parameter: nn.Parameter) -> None:
        for group in self._groups:
            _drop(group.members, parameter)
        for each in self.optimizers:
            each.state.pop(parameter, None)


def _drop(parameters: list[nn.Parameter], parameter: nn.Parameter) -> None:
    """Remove a parameter by identity, because tensors compare by value."""
    parameters[:] = [member for member in parameters if member is not parameter]


def copied_state(state: Any) -> Any:
    """Return a copy of an optimizer's state, in which tensors may be nested in lists."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: copied_state(value) for key, value in cast(dict[Any, Any], state).items()}
    if type(state) in (list, tuple):
        return type(state)(copied_state(value) for value in cast(list[Any], state))
    return copy.deepcopy(state)


def reset_state(optimizers: Sequence[Optimizer]) -> None:
    """Set the state of all parameters to zero, and remove what zero may not be the start of."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            plain = (parameter.shape, torch.Size())
            if all(isinstance(value, Tensor) and value.shape in plain for value in state.values()):
                for value in state.values():
                    value.zero_()
            else:
                state.clear()


def use_fused_kernels(optimizer: Optimizer) -> None:
    """Let an optimizer of torch update all parameters on the CPU in one call each, if it may.

    It is faster for small models, and differs in the last digits. Groups for which the user has
    chosen how they are updated stay as they are.
    """
    if type(optimizer) not in (AdamW, Adam, SGD):
        return
    for group in optimizer.param_groups:
        own: list[Tensor] = group["params"]
        is_free = group.get("fused") is None and group.get("foreach") is None
        is_plain = not (group.get("capturable") or group.get("differentiable"))
        is_on_cpu = all(p.device.type == "cpu" and p.is_floating_point() for p in own)
        is_number = not isinstance(group["lr"], Tensor)
        if is_free and is_plain and is_on_cpu and is_number:
            group["fused"] = True


def as_optimizers(
    optimizer: Optimizer | Sequence[Optimizer], model: nn.Module
) -> tuple[Optimizer, ...]:
    """Return the optimizers of a model; raise if there is none.

    Raises:
        SlotError: If one has no parameter of the model, or cannot follow others.
    """
    found = listed_optimizers(optimizer, model, SlotError)
    if not found:
        raise SlotError("optimizer is empty; give a torch.optim optimizer or a list of them.")
    return found


def listed_optimizers(
    optimizer: object, model: nn.Module, error: type[EsperError]
) -> tuple[Optimizer, ...]:
    """Return an argument that may be one optimizer, several or None.

    Raises:
        EsperError: Of the given class, if one has no parameter of the model, or keeps all that it
            was made with.
    """
    found = as_list(optimizer, Optimizer, "optimizer", error)
    present = {id(parameter) for parameter in parameters_of(model)}
    for each in found:
        kind = type(each).__name__
        if isinstance(each, LBFGS) or kind == SHARDED_OPTIMIZER:
            raise error(
                f"{kind} does not support growing models; use another torch.optim optimizer."
            )
        members = [member for group in each.param_groups for member in group["params"]]
        if not any(id(member) in present for member in members):
            raise error(
                f"optimizer {kind} has no parameter of this {type(model).__name__}; give the one "
                "that trains it, made from model.parameters()."
            )
    return tuple(found)


def _is_muon(optimizer: Optimizer) -> bool:
    return type(optimizer).__name__ == MUON


def require_vectors(optimizers: Sequence[Optimizer]) -> None:
    """Raise if no optimizer can update the biases, norms and convolutions that seeds may have."""
    if all(map(_is_muon, optimizers)):
        raise SlotError(
            f"the optimizer is {MUON}, which takes matrices alone, but seeds also have biases, "
            "norms or convolutions; give a list with a second optimizer for these, such as AdamW."
        )
