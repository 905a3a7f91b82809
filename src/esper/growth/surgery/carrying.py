"""Optimizers and moving averages that follow a model whose tensors were replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.errors import SurgeryError, type_of
from esper.growth.surgery.edits import Edits, Replacement


def as_list(given: Any, kind: type, name: str) -> list[Any]:
    """Return an argument that may be one object, several or None as a list.

    Raises:
        SurgeryError: If one is of another type.
    """
    if given is None:
        return []
    items = cast(Sequence[Any], given if isinstance(given, (list, tuple)) else [given])
    for item in items:
        if not isinstance(item, kind):
            raise SurgeryError(f"{name} is {type_of(item)}; it must be a {kind.__name__}.")
    return list(items)


def carry_optimizers(edits: Edits, optimizers: Sequence[Optimizer]) -> None:
    """Put new parameters where the old ones were, with their state; new entries have none.

    A parameter of a copied block joins the group of the one that it is a copy of.
    """
    for optimizer in optimizers:
        groups = optimizer.param_groups
        before = [list(group["params"]) for group in groups]
        state = dict(optimizer.state)

        def restore(
            optimizer: Optimizer = optimizer,
            before: list[list[Tensor]] = before,
            state: dict[Tensor, Any] = state,
        ) -> None:
            for group, members in zip(optimizer.param_groups, before, strict=True):
                group["params"][:] = members
            optimizer.state.clear()
            optimizer.state.update(state)

        edits.on_undo(restore)
        for each in edits.replaced:
            for group in groups:
                _carry(optimizer, group["params"], each)
        for dropped in edits.dropped:
            optimizer.state.pop(dropped, None)
            for group in groups:
                group["params"][:] = [p for p in group["params"] if p is not dropped]
        for group in groups:
            _sort_new(group["params"], edits)


def _carry(optimizer: Optimizer, members: list[Tensor], change: Replacement) -> None:
    for index, member in enumerate(members):
        if member is change.old:
            members[index] = change.new
            if member in optimizer.state:
                optimizer.state[change.new] = _padded(optimizer.state.pop(member), change)
        elif member is change.like and not _is_in(change.new, members):
            members.append(change.new)


def _sort_new(members: list[Tensor], edits: Edits) -> None:
    """Put the model's parameters in its order, as in an optimizer that is built for it now.

    Optimizers number parameters by their order, so a saved state fits then.
    """
    if not any(each.old is None and _is_in(each.new, members) for each in edits.replaced):
        return
    order = {id(parameter): k for k, parameter in enumerate(edits.model.parameters())}
    places = [index for index, member in enumerate(members) if id(member) in order]
    own = sorted((members[index] for index in places), key=lambda member: order[id(member)])
    for index, member in zip(places, own, strict=True):
        members[index] = member


def _is_in(tensor: Tensor, members: Sequence[Tensor]) -> bool:
    return any(member is tensor for member in members)


def _padded(state: dict[str, Any], change: Replacement) -> dict[str, Any]:
    """Return the optimizer's state of a parameter with zeros for its new entries.

    A state that has neither the parameter's shape nor one number cannot follow and starts anew.
    """
    found: dict[str, Any] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.numel() == 1:
            found[name] = value
        elif value.shape == change.old.shape:  # pyright: ignore[reportOptionalMemberAccess]
            found[name] = change.carry(value)
        else:
            return {}
    return found


def own_module(average: nn.Module) -> nn.Module:
    """Return the model inside ``torch.optim.swa_utils.AveragedModel``, or the module itself."""
    inner = average.__dict__.get("_modules", {}).get("module")
    is_wrapper = isinstance(average, torch.optim.swa_utils.AveragedModel)
    return inner if is_wrapper and inner is not None else average
