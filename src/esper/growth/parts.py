"""The parts of a host in their order, as a picture of it shows them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from esper.growth.host_slots import slots
from esper.growth.modules import named_modules


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """A layer that has parameters, or a slot."""

    name: str
    kind: str
    """The layer's class, or ``"slot"``."""
    parameters: int
    """Parameters of the layer itself."""
    slot: str | None
    """The slot's name; None if it is a layer."""


def host_parts(host: nn.Module) -> list[HostPart]:
    """Return the layers with parameters of a host, each slot after what it is around.

    The order is that in which modules were made, which is that of the computation in most models.
    A slot is placed after the last layer of the module that it is named after.
    """
    grown = {
        id(module)
        for slot in slots(host).values()
        if slot.seed is not None
        for module in slot.seed.modules()
    }
    parts = [
        HostPart(name=name, kind=type(module).__name__, parameters=n_own, slot=None)
        for name, module in named_modules(host).items()
        if id(module) not in grown
        and (n_own := sum(p.numel() for p in module.parameters(recurse=False)))
    ]
    for slot in slots(host):
        inside = [k for k, part in enumerate(parts) if _is_inside(part, slot)]
        place = inside[-1] + 1 if inside else len(parts)
        parts.insert(place, HostPart(name=slot, kind="slot", parameters=0, slot=slot))
    return parts


def _is_inside(part: HostPart, module: str) -> bool:
    return part.name == module or part.name.startswith(f"{module}.")
