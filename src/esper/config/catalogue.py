"""What ships with Esper, by name. Lists of it need no PyTorch."""

from __future__ import annotations

from typing import NamedTuple

TASKS: dict[str, str] = {
    "digits": "8x8 handwritten digits, 1,000 for training; ships with Esper",
    "digits-family": "random tasks on digits: classes, noise, sizes and learning rates vary by "
    "episode",
    "text": "next-character prediction on a book that ships with Esper, or on any text file",
    "spirals": "two or three random spirals in the plane; milliseconds per epoch",
    "prior": "random problems for random hosts: teachers, sizes, noise, budgets and prices vary",
}
"""The summary of each task."""


class BlueprintFacts(NamedTuple):
    """What a list shows of a blueprint."""

    kinds: tuple[str, ...]
    """Kinds of block output that it fits."""
    form: str
    """``"serial"`` or ``"parallel"``."""
    summary: str


_MAP, _SEQUENCE, _VECTOR = "feature map", "sequence", "vector"
_ALL = (_MAP, _SEQUENCE, _VECTOR)

BLUEPRINTS: dict[str, BlueprintFacts] = {
    "noop": BlueprintFacts(_ALL, "serial", "changes nothing"),
    "norm": BlueprintFacts(_ALL, "serial", "normalized copy, scaled by channel"),
    "attention": BlueprintFacts((_MAP,), "serial", "squeeze-and-excitation: scales channels"),
    "depthwise": BlueprintFacts((_MAP,), "serial", "3x3 depthwise, then 1x1"),
    "bottleneck": BlueprintFacts((_MAP,), "serial", "1x1 down, 3x3, 1x1 up"),
    "conv_small": BlueprintFacts((_MAP,), "serial", "two 3x3, a quarter as wide between"),
    "conv_light": BlueprintFacts((_MAP,), "serial", "two 3x3, half as wide between"),
    "conv_heavy": BlueprintFacts((_MAP,), "serial", "two 3x3, as wide as the block between"),
    "lora_small": BlueprintFacts(
        (_SEQUENCE,), "parallel", "rank-4 linear map in parallel with the block"
    ),
    "lora_large": BlueprintFacts(
        (_SEQUENCE,), "parallel", "rank-16 linear map in parallel with the block"
    ),
    "mlp_small": BlueprintFacts(
        (_SEQUENCE, _VECTOR), "serial", "two linear layers, half as wide between"
    ),
    "mlp_large": BlueprintFacts(
        (_SEQUENCE, _VECTOR), "serial", "two linear layers, twice as wide between"
    ),
    "self_attention": BlueprintFacts((_SEQUENCE,), "serial", "causal self-attention"),
    "low_rank": BlueprintFacts(
        (_VECTOR,), "parallel", "linear map of an eighth of the rank, in parallel with the block"
    ),
    "widen_small": BlueprintFacts(_ALL, "parallel", "25% more hidden units"),
    "widen_medium": BlueprintFacts(_ALL, "parallel", "50% more hidden units"),
    "widen_large": BlueprintFacts(_ALL, "parallel", "100% more hidden units"),
    "widen_huge": BlueprintFacts(_ALL, "parallel", "300% more hidden units"),
    "deepen": BlueprintFacts(_ALL, "serial", "copy of a residual block, starting as the identity"),
}
"""The built-in blueprints, in the order of the blueprint head's choices."""

CONTROLLERS = ("no-growth", "random", "fixed", "heuristic", "progressive")
"""Controllers that follow simple rules."""

SHIPPED = "shipped"
"""What grows a network by default: a race of sizes for `esper.grow` on a model of the user's own,
the learned controller elsewhere."""

LEARNED = "learned"
"""The trained controller that ships with Esper."""
