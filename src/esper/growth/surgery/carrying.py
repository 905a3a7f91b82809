"""Optimizers and moving averages that follow a model whose tensors were replaced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.errors import EsperError, type_of
from esper.growth.surgery.edits import Edits, Replacement


def as_list(given: Any, kind: type, name: str, error: type[EsperError]) -> list[Any]:
    """Return an argument that may be one object, several or None as a list.

    Raises:
        EsperError: Of the given class, if one is of another type.
    """
    if given is None:
        return []
    items = cast(Sequence[Any], given if isinstance(given, (list, tuple)) else [given])
    for item in items:
        if not isinstance(item, kind):
            raise error(f"{name} is {type_of(item)}; it must be of class {kind.__name__}.")
    return list(items)


def carry_optimizers(edits: Edits, optimizers: Sequence[Optimizer]) -> list[str]:
    """Put new parameters where the old ones were, with their state; new entries have none.

    A parameter of a copied block joins the group of its original.

    Returns:
        What to say about states that could not be carried.
    """
    notes: list[str] = []
    for optimizer in optimizers:
        lost: list[str] = []
        lists: list[list[Tensor]] = [group["params"] for group in optimizer.param_groups]
        edits.on_undo(
            partial(_restore, optimizer, [list(own) for own in lists], {**optimizer.state})
        )
        homes = {id(member): own for own in lists for member in own}
        for each in edits.replaced:
            if each.old is not None and (own := homes.get(id(each.old))) is not None:
                _put(own, each.old, each.new)
                if state := optimizer.state.pop(each.old, None):
                    optimizer.state[each.new] = _padded(state, each)
                    if not optimizer.state[each.new]:
                        lost.append(each.name)
            elif (own := homes.get(id(each.like))) is not None and id(each.new) not in homes:
                own.append(each.new)
            else:
                continue
            homes[id(each.new)] = own
        for dropped in edits.dropped:
            optimizer.state.pop(dropped, None)
            if (own := homes.get(id(dropped))) is not None:
                own[:] = [member for member in own if member is not dropped]
        if any(each.old is None for each in edits.replaced):
            for own in lists:
                _sort(own, edits.model)
        if lost:
            notes.append(
                f"{type(optimizer).__name__} starts anew for {shortened(lost)}, because the state "
                "that it keeps of them does not have their shape."
            )
    return notes


def shortened(names: Sequence[str]) -> str:
    """Return the first two names, and how many more there are."""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _restore(
    optimizer: Optimizer, before: Sequence[list[Tensor]], state: dict[Tensor, Any]
) -> None:
    for group, members in zip(optimizer.param_groups, before, strict=True):
        group["params"][:] = members
    optimizer.state.clear()
    optimizer.state.update(state)


def _put(members: list[Tensor], old: Tensor, new: Tensor) -> None:
    """Replace a tensor in a list by identity, because tensors compare by value."""
    members[next(k for k, member in enumerate(members) if member is old)] = new


def _sort(members: list[Tensor], model: nn.Module) -> None:
    """Put a model's parameters in its order, as in an optimizer that is built for it now.

    Optimizers number parameters by their order, so a saved state fits then.
    """
    order = {id(parameter): k for k, parameter in enumerate(model.parameters())}
    places = [index for index, member in enumerate(members) if id(member) in order]
    own = sorted((members[index] for index in places), key=lambda member: order[id(member)])
    for index, member in zip(places, own, strict=True):
        members[index] = member


def _padded(state: dict[str, Any], change: Replacement) -> dict[str, Any]:
    """Return the optimizer's state of a parameter with zeros for its new entries.

    A state that has neither the parameter's shape nor one number cannot follow and is reset.
    """
    found: dict[str, Any] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            found[name] = value
        elif change.old is not None and value.shape == change.old.shape:
            found[name] = change.carry(value)
        elif value.numel() == 1:
            found[name] = value
        else:
            return {}
    return found


def own_module(average: nn.Module) -> nn.Module:
    """Return the model inside ``torch.optim.swa_utils.AveragedModel``, or the module itself."""
    inner = average.__dict__.get("_modules", {}).get("module")
    is_wrapper = isinstance(average, torch.optim.swa_utils.AveragedModel)
    return inner if is_wrapper and inner is not None else average
