"""Loading host states into models, and counting the FLOPs of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from esper.config.growth import PopulationConfig
from esper.errors import ConfigError
from esper.growth.blueprints import find_blueprint
from esper.growth.blueprints.deepening import BlockCopy
from esper.growth.blueprints.widening import PairSeed
from esper.growth.footprint import count_flops, forward_flops, training_step_flops
from esper.growth.host_slots import HostSlots, slots
from esper.growth.modules import count_parameters, named_tensors
from esper.growth.residual_blocks import BlockCall, record_blocks
from esper.growth.seed_slot import AbsorbedSeed, SeedSlot, slot_size
from esper.growth.sites import SlotSize
from esper.growth.slot_states import Fossil, Neighbours, SlotLife, SlotStates
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from esper.populations.host_data import NO_ABLATION, Ablation, HostState
from esper.populations.rows import Shape, shapes_of
from esper.populations.stacking import KnownKinds, kind_of

_counts = KnownKinds()


def moment_names(config: PopulationConfig) -> tuple[str, ...]:
    """Return torch's names of the optimizer's state for each parameter."""
    if config.optimizer == "sgd":
        return ("momentum_buffer",) if config.momentum else ()
    return ("exp_avg", "exp_avg_sq")


def make_optimizer(
    model: nn.Module, config: PopulationConfig, learning_rate: float, *, fused: bool = False
) -> Optimizer:
    """Return the optimizer of one host; a fused one is faster and differs in the last digits."""
    parameters = list(model.parameters())
    decay, is_fused = config.weight_decay, fused or None
    if config.optimizer == "sgd":
        return SGD(
            parameters, learning_rate, momentum=config.momentum, weight_decay=decay, fused=is_fused
        )
    betas = (config.beta1, config.beta2)
    kind = Adam if config.optimizer == "adam" else AdamW
    return kind(
        parameters,
        learning_rate,
        betas=betas,
        eps=config.adam_eps,
        weight_decay=decay,
        fused=is_fused,
    )


def parts_of(host_slots: HostSlots, own: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a host (``own``), each seed and each gate, by part and name.

    All parameters of a part have been updated equally often, so links are apart from their seed.
    """
    parts = {"host": own}
    for name, slot in host_slots.items():
        for number, held in enumerate([*slot.absorbed, slot]):
            fossil = None if held is slot else number
            for kind, tensors in _seed_parts(held).items():
                parts[part_name(kind, name, fossil)] = tensors
    return parts


def _seed_parts(held: SeedSlot | AbsorbedSeed) -> dict[str, dict[str, Tensor]]:
    modules = {"seed": held.seed, "gate": held.gate}
    parts = {kind: named_tensors(m) for kind, m in modules.items() if m is not None}
    if isinstance(held.seed, PairSeed):
        parts["links"] = named_tensors(held.seed.links)
        for name in parts["links"]:
            del parts["seed"][f"links.{name}"]
    return parts


def part_name(kind: str, slot: str, fossil: int | None) -> str:
    """Return the name of the part of a host state that holds a seed, its links or its gate.

    ``fossil`` is the number of the fossil in its slot; None for the seed that grows there.
    """
    return f"{kind}/{slot}" if fossil is None else f"fossil/{fossil}/{kind}/{slot}"


def load_model(model: nn.Module, state: HostState) -> None:
    """Load a state into a new host: lives, seeds and tensors.

    Raises:
        ConfigError: If the state belongs to a host with other slots or tensors.
    """
    host_slots, own = slots(model), named_tensors(model)
    if state.facts["lives"].keys() != host_slots.keys():
        raise ConfigError(
            f"the state has slots {', '.join(state.facts['lives'])}, but the host has "
            f"{', '.join(host_slots)}; load a state of the same design."
        )
    host_slots.lives.load_json(state.facts["lives"])
    host_slots.n_germinated = state.facts["n_germinated"]
    host_slots.rebuild_seeds()
    parts = parts_of(host_slots, own).items()
    tensors = {f"{part}/{name}": t for part, named in parts for name, t in named.items()}
    _require_tensors(shapes_of(tensors), shapes_of(state.tensors))
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(state.tensors[name])


def _require_tensors(wanted: Mapping[str, Shape], given: Mapping[str, Shape]) -> None:
    """Raise if the tensors of a state do not match a host's in name and shape."""
    hint = "load a state of hosts of the same size."
    for name, shape in wanted.items():
        if name not in given:
            raise ConfigError(f"the state has no tensor {name} {list(shape)}; {hint}")
    for name, shape in given.items():
        kind, _, rest = name.partition("/")
        if kind == "steps":
            continue
        own = wanted.get(rest.partition("/")[2] if kind == "moments" else name)
        if own is None:
            raise ConfigError(f"the state has a tensor {name}, but the host does not; {hint}")
        if own != shape:
            raise ConfigError(
                f"{name} has shape {list(shape)} in the state, but {list(own)} in the host; {hint}"
            )


@dataclass(frozen=True)
class SeedWork:
    """FLOPs of a seed for one sample, and its size."""

    forward: float
    isolated: float
    """Training step in which no gradient flows into the host."""
    blended: float
    """Training step in which gradients flow into the host."""
    parameters: int
    """Number of its parameters, those of its gate included."""


class CostTable:
    """FLOPs per sample of hosts of one size."""

    def __init__(self, host: nn.Module, sample: Tensor, *, like: CostTable | None = None) -> None:
        """Count the FLOPs of a host with empty slots on a few samples.

        The counts of seeds are shared with the table of a host that is ``like`` it in its slots.
        """
        self.host_forward = forward_flops(host, sample) / len(sample)
        self.host_training = training_step_flops(host, sample) / len(sample)
        self.host_parameters = count_parameters(host)
        """Number of parameters of the host without seeds."""
        self.slot_sizes: tuple[SlotSize, ...] = tuple(map(slot_size, slots(host).values()))
        """The size of each slot."""
        self._sites = {site.name: site for site in slots(host).sites}
        # Not the host's own, because its fossils would change what is counted.
        self._lives = SlotStates(slots(host).slot_config, slots(host).lives.growth_config)
        places = slots(host).items()
        self._blocks = {name: p.block for name, p in places if p.site.identity is not None}
        self._calls = record_blocks(host, self._blocks, sample)
        self._count_copy = cache(self._count_seed)
        """Counts seeds that are copies of a block, which are as large as this host's own."""
        self._count = self._count_copy
        if like is not None and like._sites == self._sites:
            self._count = like._count

    def seed_work(
        self, slot: str, blueprint: str, is_gated: bool, units: int = 0, neighbours: Neighbours = ()
    ) -> SeedWork:
        """Return the FLOPs and the size of a seed, including its gate.

        They depend on the hidden units that fossils added to the block before it and, on a pair, on
        the units of other pairs that it reads or feeds.
        """
        if find_blueprint(blueprint).copies_block:
            return self._count_copy(slot, blueprint, is_gated, 0, ())
        return self._count(slot, blueprint, is_gated, units, neighbours)

    def fossil_parameters(self, slot: str, life: SlotLife) -> int:
        """Return the number of parameters of all fossils of a slot."""
        return sum(work.parameters for work in self._fossil_work(slot, life))

    def training_flops(self, lives: SlotStates) -> float:
        """Return the FLOPs of training a host in this state on one sample."""
        total = self.host_training
        for name, life in lives.items():
            total += sum(work.blended for work in self._fossil_work(name, life))
            if life.stage == Stage.TRAINING:
                total += self._work(name, life).isolated
            elif life.affects_output:
                total += self._work(name, life).blended
        return total

    def evaluation_flops(self, lives: SlotStates, ablation: Ablation = NO_ABLATION) -> float:
        """Return the FLOPs of evaluating a host in this state on one sample."""
        total = self.host_forward
        for name, life in lives.items():
            total += sum(work.forward for work in self._fossil_work(name, life))
            if not ablation.excludes(name, life):
                total += self._work(name, life).forward
        return total

    def _work(self, slot: str, life: SlotLife) -> SeedWork:
        return self.seed_work(slot, life.blueprint, _is_gated(life), life.units, life.connections)

    def _fossil_work(self, slot: str, life: SlotLife) -> list[SeedWork]:
        before = accumulate((fossil.units for fossil in life.fossils), initial=0)
        return [
            self.seed_work(slot, fossil.blueprint, _is_gated(fossil), units, fossil.connections)
            for fossil, units in zip(life.fossils, before, strict=False)
        ]

    def _count_seed(
        self, slot: str, blueprint: str, is_gated: bool, units: int, neighbours: Neighbours
    ) -> SeedWork:
        """Count the FLOPs and parameters of a blueprint's seed by building one."""
        limit = self._lives.growth_config.max_widening
        site = self._sites[slot].limited(limit).widened(units)
        if site.pair is not None:
            pairs = [(self._sites[name].pair, count) for name, count in neighbours]
            site = site.beside((pair, count) for pair, count in pairs if pair is not None)
        place = SeedSlot(site, self._blocks.get(slot, nn.Identity()), self._lives)
        style = BlendStyle.LEARNED_GATE if is_gated else BlendStyle.ADD_LINEAR
        with torch.random.fork_rng(devices=[]):
            place.plant(blueprint, style)
        shape = place.seed_input_shape

        def work(needs_grad: bool | None) -> float:
            modules = [(place.seed, shape), (place.gate, site.output_shape)]
            if isinstance(place.seed, BlockCopy):
                call = self._calls[slot]
                assert isinstance(call, BlockCall), "the arguments of the block can be copied"
                modules[0] = (_CalledCopy(place.seed, call), tuple(call.output.shape))
            pairs = [(module, size) for module, size in modules if module is not None]
            return sum(_count(module, size, needs_grad) / size[0] for module, size in pairs)

        n_parameters = sum(parameter.numel() for parameter in place.seed_parameters())
        return SeedWork(work(None), work(False), work(True), n_parameters)


def _is_gated(seed: SlotLife | Fossil) -> bool:
    return seed.style == BlendStyle.LEARNED_GATE


class _CalledCopy(nn.Module):
    """A copy of a block as a module of one tensor, with the block's other arguments."""

    def __init__(self, copy: BlockCopy, call: BlockCall) -> None:
        super().__init__()
        self.copy, self.call = copy, call

    def forward(self, x: Tensor) -> Tensor:
        """Return the copy's output."""
        return self.call.run(self.copy.block, self.copy.input_key, x)


def _count(module: nn.Module, shape: tuple[int, ...], needs_grad: bool | None) -> int:
    """Return the FLOPs of a module's forward pass (None), or of forward and backward passes.

    With ``needs_grad`` the backward pass includes the gradient of the input. Modules of one kind
    are counted once, except copies of blocks, whose arguments cannot be compared.
    """
    if isinstance(module, _CalledCopy):
        return _count_anew(module, shape, needs_grad)
    key = kind_of(module), shape, needs_grad
    return _counts.find(key, lambda: _count_anew(module, shape, needs_grad))


def _count_anew(module: nn.Module, shape: tuple[int, ...], needs_grad: bool | None) -> int:
    dtype = next((parameter.dtype for parameter in module.parameters()), None)
    x = torch.zeros(shape, dtype=dtype, requires_grad=bool(needs_grad))
    if needs_grad is None:
        with torch.no_grad():
            return count_flops(lambda: module(x))
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    wanted = [*learning, *([x] if needs_grad else [])]

    def step() -> None:
        # The counter misses the gradient of an input that is a leaf.
        output = module(x * 1.0)
        if output.requires_grad:
            torch.autograd.grad(output.sum(), wanted, allow_unused=True)

    return count_flops(step)
