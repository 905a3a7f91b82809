"""The cost of a model: its parameters and its FLOPs.

FLOPs are counted by torch's own counter, which covers matrix products, convolutions and attention
and counts a multiply-add as two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import flop_counter

from esper.growth.dry_run import SampleInput, batch_size_of, call_model, tensors_in
from esper.growth.host_slots import Slot, own_slots, slots
from esper.growth.modules import count_parameters
from esper.growth.sharding import reshard
from esper.modes import evaluation_mode


@dataclass(frozen=True)
class Footprint:
    """Parameters and FLOPs of a model in its current state."""

    host_parameters: int
    """Parameters outside seeds; those of fossils are the host's."""
    seed_parameters: dict[str, int]
    """Parameters of each seed that is not part of the model yet, by slot."""
    forward_flops: int
    """FLOPs of one forward pass of the sample, including seeds."""
    training_step_flops: int
    """FLOPs of one forward and backward pass of the sample, including seeds."""

    @property
    def parameters(self) -> int:
        """Total number of parameters."""
        return self.host_parameters + sum(self.seed_parameters.values())

    def __repr__(self) -> str:
        seeds = "".join(f", {n:,} of them in {slot}" for slot, n in self.seed_parameters.items())
        return (
            f"Footprint({self.parameters:,} parameters{seeds}; {self.forward_flops:,} FLOPs "
            f"forward, {self.training_step_flops:,} with backward)"
        )


CPU_ATTENTION: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda *shapes, **_: flop_counter.sdpa_flop_count(*shapes[:3])
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *shapes, **_: flop_counter.sdpa_backward_flop_count(*shapes[:4])
    ),
}
"""FLOPs of attention on CPUs, which torch's counter knows on GPUs alone."""


def make_flop_counter() -> flop_counter.FlopCounterMode:
    """Return torch's counter, as a context, which also counts attention on CPUs."""
    return flop_counter.FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)


def count_flops(work: Callable[[], Any]) -> int:
    """Return the FLOPs of calling ``work``."""
    with make_flop_counter() as counter:
        work()
    return counter.get_total_flops()


def footprint(model: nn.Module, sample_input: SampleInput) -> Footprint:
    """Return the parameters and FLOPs of a model on a sample input; the model is not changed.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> measured = esper.footprint(model, torch.randn(1, 4))
        >>> measured.host_parameters, measured.forward_flops
        (67, 112)
    """
    grown: Mapping[str, Slot] = own_slots(model) or {}
    seeds = {name: slot.count_live() for name, slot in grown.items() if slot.life.has_seed}
    return Footprint(
        host_parameters=count_parameters(model) - sum(seeds.values()),
        seed_parameters=seeds,
        forward_flops=forward_flops(model, sample_input),
        training_step_flops=training_step_flops(model, sample_input),
    )


def forward_flops(model: nn.Module, sample_input: SampleInput) -> int:
    """Return the FLOPs of a forward pass without gradients."""
    with evaluation_mode(model), torch.no_grad():
        return count_flops(lambda: call_model(model, sample_input))


def training_step_flops(model: nn.Module, sample_input: SampleInput) -> int:
    """Return the FLOPs of a forward and a backward pass; the model is not changed.

    The FLOPs of the loss itself are not counted.
    """
    reshard(model)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def work() -> None:
        outputs = tensors_in(call_model(model, sample_input))
        total = sum((output.float().sum() for output in outputs), start=torch.zeros(()))
        if total.requires_grad:
            total.backward()

    # torch.autograd.grad would not touch .grad, but the counter does not cover it everywhere.
    kept = [parameter.grad for parameter in learning]
    try:
        for parameter in learning:
            parameter.grad = None
        with evaluation_mode(model), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            return count_flops(work)
    finally:
        for parameter, gradient in zip(learning, kept, strict=True):
            parameter.grad = gradient


class TrainingMeter:
    """The FLOPs of training a model, counted again only when its slots have changed."""

    def __init__(self, model: nn.Module, sample_input: SampleInput) -> None:
        self.model = model
        self._sample = sample_input
        self._counted: tuple[Any, float] | None = None

    def training_flops(self) -> float:
        """Return the FLOPs of training the model as it is on one sample."""
        key = [
            (life.stage, life.blueprint, life.style, life.alpha > 0.0, life.fossils)
            for _, life in slots(self.model).lives.items()
        ]
        if self._counted is None or self._counted[0] != key:
            flops = training_step_flops(self.model, self._sample)
            self._counted = key, flops / batch_size_of(self._sample)
        return self._counted[1]
