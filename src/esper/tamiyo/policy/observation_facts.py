"""What is known of hosts and slots, and the features that are made of it.

Shapes: N = hosts, S = slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.lifecycle.factored_actions import STYLES, Op
from esper.lifecycle.stages import Stage

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SCORE_STEP = 0.05
"""A change of the score that counts as 1 before it is squashed."""

STYLE_NAMES = tuple(f"style_{style.name.lower()}" for style in STYLES)
OP_NAMES = tuple(f"did_{op.name.lower()}" for op in Op)
STAGE_NAMES = tuple(f"is_{stage.name.lower()}" for stage in Stage)

TENSOR_KINDS = ("feature_map", "sequence", "vector")
"""The kinds of tensor that slots sit on, in the order of their numbers."""

KIND_NAMES = tuple(f"on_{kind}" for kind in TENSOR_KINDS)

HOST_FEATURES: dict[str, tuple[float, str]] = {
    "progress": (0.0, "epochs done, as a share of the budget's"),
    "train_loss": (0.0, "x / (1 + x) of the training loss over that of guessing"),
    "validation_loss": (0.0, "x / (1 + x) of the validation loss over that of guessing"),
    "loss_gap": (-1.0, "squashed validation loss minus training loss, over that of guessing"),
    "loss_trend": (-1.0, "squashed fall of the validation loss in the last epoch, in tenths"),
    "score": (-1.0, "validation score (accuracy, or the share of bits saved)"),
    "score_trend": (-1.0, "squashed rise of the score in the last epoch, in steps of 0.05"),
    "score_trend_slow": (-1.0, "the same over the last four epochs"),
    "below_best": (-1.0, "the same from the best score so far; 0 at the best"),
    "gradient_norm": (-1.0, "norm of the gradient, by logarithm from 1e-4 to 1e2"),
    "gradient_trend": (-1.0, "squashed change of the logarithm of that norm in the last epoch"),
    "flops_used": (0.0, "x / (1 + x) of the FLOPs spent over those of a reference run"),
    "parameters_added": (0.0, "x / (1 + x) of the seeds' parameters over the host's"),
    "was_restored": (0.0, "1 if the governor stepped in in the last epoch"),
    "was_refused": (0.0, "1 if a gate turned the last action into a wait"),
    **dict.fromkeys(OP_NAMES, (0.0, "1 if it was the last op")),
    "task_classes": (-1.0, "classes, by logarithm from 2 to 1,000"),
    "task_samples": (-1.0, "training samples, by logarithm from 10 to 100,000"),
    "task_learning_rate": (-1.0, "learning rate, by logarithm from 1e-5 to 1"),
    "task_host_size": (-1.0, "parameters of the host, by logarithm from 100 to 1e8"),
    "task_slots": (-1.0, "slots of the host, by logarithm from 1 to 64"),
    "task_epochs": (-1.0, "epochs of the budget, by logarithm from 1 to 1,000"),
    "task_flop_price": (0.0, "x / (1 + x) of ten times the price of a reference run"),
}
"""Each feature of a host: its least value (the greatest is 1) and what it means."""

SLOT_FEATURES: dict[str, tuple[float, str]] = {
    **dict.fromkeys(STAGE_NAMES, (0.0, "1 in this stage")),
    "age": (0.0, "epochs since the seed germinated, as a share of the budget's, at most 1"),
    "stage_age": (0.0, "x / (1 + x) of the epochs in this stage over 3"),
    "alpha": (0.0, "how strongly the seed counts"),
    "alpha_target": (0.0, "where alpha goes, or will go on its first ramp"),
    "alpha_at_rest": (0.0, "1 if alpha is not on its way"),
    "ramp_left": (0.0, "epochs until alpha is at rest, over 8, at most 1"),
    "curve": (0.0, "the curve of the ramp: 0 linear to 1 sigmoid sharp"),
    **dict.fromkeys(STYLE_NAMES, (0.0, "1 if the seed is blended like this")),
    "contribution": (-1.0, "squashed score with the seed minus without, in steps of 0.05"),
    "is_measured": (0.0, "1 if the contribution was measured in the last epoch"),
    "parameter_share": (0.0, "x / (1 + x) of the seed's parameters over the host's"),
    "gradient_health": (-1.0, "norm of the seed's gradient over the host's, from 1e-3 to 1e1"),
    "position": (0.0, "0 for the host's first slot to 1 for its last; 0 for a single one"),
    **dict.fromkeys(KIND_NAMES, (0.0, "1 if this is what passes here")),
    "width": (-1.0, "channels or features that pass here, by logarithm from 1 to 4,096"),
    "hidden": (-1.0, "hidden units of the host's block, the same; -1 if there are none known"),
    "blueprint": (0.0, "1 + number of the blueprint, over how many there are; 0 without a seed"),
}
"""Each feature of a slot: its least value (the greatest is 1) and what it means."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostFacts:
    """What is known of each host, ``[N]``, in its own units."""

    epoch: Integers
    n_epochs: Integers
    train_loss: Floats
    """Of the last epoch; NaN before the first."""
    validation_loss: Floats
    previous_validation_loss: Floats
    """One epoch before; NaN if there was none."""
    score: Floats
    previous_score: Floats
    older_score: Floats
    """Four epochs before, or the first."""
    best_score: Floats
    gradient_norm: Floats
    previous_gradient_norm: Floats
    flops_used: Floats
    """As a share of a reference run's."""
    was_restored: Flags
    was_refused: Flags
    last_op: Integers
    """-1 before the first action."""
    n_classes: Integers
    n_samples: Integers
    learning_rate: Floats
    n_parameters: Integers
    flop_price: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotFacts:
    """What is known of each slot of each host, ``[N, S]``, in its own units."""

    stage: Integers
    age_epochs: Integers
    stage_epochs: Integers
    alpha: Floats
    alpha_target: Floats
    alpha_at_rest: Flags
    ramp_epochs_left: Integers
    curve: Integers
    style: Integers
    contribution: Floats
    """Score with the seed minus without; the last that was measured, 0 if never."""
    is_measured: Flags
    parameters: Integers
    """Of the seed; 0 without one."""
    gradient_norm: Floats
    blueprint: Integers
    """-1 without a seed."""
    kind: Integers
    """The number of what passes there in :data:`TENSOR_KINDS`."""
    width: Integers
    """Channels or features of the block's output."""
    hidden: Integers
    """Units between the block's two layers; 0 if they were not recognised."""
