"""Seeds that have no stacked form, computed host by host inside a stacked population."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from esper.growth.populations.rows import ActiveRows
from esper.growth.populations.stacked_layers import MAP_RANK


class LoopedModule(nn.Module):
    """Any module of one tensor, computed for each active row by itself."""

    def __init__(self, rows: ActiveRows, template: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.template: dict[str, Any] = {"module": template}  # its own weights are not used

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of each host's module on its own samples."""
        module = self.template["module"].train(self.training)
        samples = x.permute(0, 4, 1, 2, 3) if x.ndim == MAP_RANK else x
        tensors = {**self.rows.parameters, **self.rows.buffers}
        outputs = [
            functional_call(module, {name: t[index] for name, t in tensors.items()}, (own,))
            for index, own in enumerate(samples)
        ]
        y = torch.stack(outputs)
        return y.permute(0, 2, 3, 4, 1) if y.ndim == MAP_RANK else y
