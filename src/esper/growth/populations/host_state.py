"""The state of one host of a population, the same whichever form the population has.

Tensors go by ``host/<parameter or buffer>``, ``seed/<slot>/<...>`` and ``gate/<slot>/<...>``, as
they are called in a model whose slots are empty; the optimizer's by ``moments/<moment>/`` and that
name, and how many steps it has taken by ``steps/<part>``, where a part is ``host``,
``seed/<slot>`` or ``gate/<slot>``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class HostState:
    """Everything that the next epoch of a host depends on."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Plain values: the slots' lives, the batch order's generator, the losses seen."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a part by their names inside it."""
        prefix = f"{name}/"
        found = {k: v for k, v in self.tensors.items() if k.startswith(prefix)}
        return {key.removeprefix(prefix): value for key, value in found.items()}
