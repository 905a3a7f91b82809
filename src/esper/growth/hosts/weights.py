"""Drawing the weights of a host anew."""

from __future__ import annotations

from torch import nn


def draw_weights(module: nn.Module) -> None:
    """Draw all weights of a host from torch's default generator, in the order of its layers."""
    draw = getattr(module, "reset_parameters", None)
    if draw is not None:
        draw()
        return
    for child in module.children():
        draw_weights(child)
