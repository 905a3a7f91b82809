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
from esper.growth.host_slots import own_slots, slots
from esper.growth.modules import count_parameters
from esper.growth.seed_slot import SeedSlot
from esper.growth.sharding import reshard
from esper.modes import evaluation_mode


@dataclass(frozen=True)
class Footprint:
    """Parameters and FLOPs of a model in its current state."""

    host_parameters: int
    """Parameters outside seeds; those of fossils are the host's."""
    seed_parameters: dict[str, int]
    """Parameters of each seed, by slot."""
    forward_flops: int
    """FLOPs of one forward pass of the sample, including seeds."""
    training_step_flops: int
    """FLOPs of one forward and backward pass of the sample, including seeds."""
    seed_forward_flops: dict[str, int]
    """Share of each seed in ``forward_flops``, by slot."""

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


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return flop_counter.sdpa_flop_count(query, key, value)


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return flop_counter.sdpa_backward_flop_count(grad, query, key, value)


CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
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
    grown: Mapping[str, SeedSlot] = own_slots(model) or {}
    total = count_parameters(model)
    seeds: dict[str, int] = {}
    seed_flops: dict[str, int] = {}
    forward = forward_flops(model, sample_input)
    for name, slot in grown.items():
        if slot.seed is None:
            continue
        seeds[name] = count_parameters(slot.seed) + count_parameters(slot.gate)
        with slot.switched_off():
            seed_flops[name] = forward - forward_flops(model, sample_input)
    return Footprint(
        host_parameters=total - sum(seeds.values()),
        seed_parameters=seeds,
        forward_flops=forward,
        training_step_flops=training_step_flops(model, sample_input),
        seed_forward_flops=seed_flops,
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
    """Adds up the FLOPs of a model's training.

    FLOPs per sample are counted again only when the slots have changed.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> meter = esper.TrainingMeter(model, x)
        >>> meter.add_training(100)  # samples
        >>> meter.total_flops
        27200.0
    """

    def __init__(self, model: nn.Module, sample_input: SampleInput) -> None:
        self.model = model
        self.total_flops = 0.0
        self._sample = sample_input
        self._counted: tuple[Any, float, float] | None = None

    def __repr__(self) -> str:
        return f"TrainingMeter({self.total_flops:,.0f} FLOPs)"

    def add_training(self, n_samples: int) -> None:
        """Add the FLOPs of training on ``n_samples`` samples."""
        self.total_flops += n_samples * self._per_sample()[1]

    def add_evaluation(self, n_samples: int) -> None:
        """Add the FLOPs of evaluating ``n_samples`` samples."""
        self.total_flops += n_samples * self._per_sample()[0]

    def training_flops(self) -> float:
        """Return the FLOPs of training the model as it is on one sample."""
        return self._per_sample()[1]

    def _per_sample(self) -> tuple[float, float]:
        lives = slots(self.model).lives.items()
        key = [
            (life.stage, life.blueprint, life.style, life.alpha > 0.0, life.fossils)
            for _, life in lives
        ]
        if self._counted is None or self._counted[0] != key:
            n = batch_size_of(self._sample)
            forward = forward_flops(self.model, self._sample) / n
            step = training_step_flops(self.model, self._sample) / n
            self._counted = (key, forward, step)
        return self._counted[1], self._counted[2]
