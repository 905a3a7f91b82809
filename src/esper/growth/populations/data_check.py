"""Whether a host's data fit the design of its population."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from esper.errors import ConfigError
from esper.growth.dry_run import evaluation_mode
from esper.growth.populations.host_data import HostSpec
from esper.growth.populations.objective import CrossEntropy, Objective


class DataCheck:
    """Tries a design on data, once for each kind of data."""

    def __init__(self, template: nn.Module, objective: Objective) -> None:
        self.template = template
        self.objective = objective
        self._known: set[tuple[Any, ...]] = set()

    def require_fit(self, host: int, spec: HostSpec) -> None:
        """Refuse data that the design cannot be run on.

        Raises:
            ConfigError: If it cannot; the message names the host.
        """
        inputs, targets = spec.data.split("train")
        kind = _kind_of(inputs, targets)
        if kind in self._known:
            return
        try:
            with torch.no_grad(), evaluation_mode(self.template):
                outputs = self.template(inputs[:2])
                if isinstance(self.objective, CrossEntropy):
                    self.objective.require_classes(outputs.shape[-1], targets)
                self.objective.losses(outputs, targets[:2])
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"the data of host {host} do not fit the model: {reason}") from error
        self._known.add(kind)


def _kind_of(inputs: Tensor, targets: Tensor) -> tuple[Any, ...]:
    """Return all that decides whether a model can be run on data."""
    kind: list[Any] = [inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype]
    for numbers in (inputs[:2], targets):
        if not numbers.is_floating_point() and numbers.numel():
            kind += [number.item() for number in torch.aminmax(numbers)]
    return tuple(kind)
