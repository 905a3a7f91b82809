"""Between the models of hosts and the form-neutral state of a population's host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from esper.config.population import PopulationConfig
from esper.errors import ConfigError
from esper.growth.blueprints.widen import WidenSeed
from esper.growth.gradmax import maximise_gradient
from esper.growth.host_slots import HostSlots, slots
from esper.growth.populations.corners import Shape, shapes_of
from esper.growth.populations.host_state import HostState

if TYPE_CHECKING:
    from esper.growth.populations.population import Population


def moment_names(config: PopulationConfig) -> tuple[str, ...]:
    """Return what an optimizer remembers of each parameter, under torch's names."""
    if config.optimizer == "sgd":
        return ("momentum_buffer",) if config.momentum else ()
    return ("exp_avg", "exp_avg_sq")


def make_optimizer(model: nn.Module, config: PopulationConfig, learning_rate: float) -> Optimizer:
    """Return the optimizer of one host."""
    parameters = list(model.parameters())
    decay = config.weight_decay
    if config.optimizer == "sgd":
        return SGD(parameters, learning_rate, momentum=config.momentum, weight_decay=decay)
    betas = (config.beta1, config.beta2)
    kind = Adam if config.optimizer == "adam" else AdamW
    return kind(parameters, learning_rate, betas=betas, eps=config.adam_eps, weight_decay=decay)


def start_with_gradmax(model: nn.Module, slot: str, population: Population, host: int) -> None:
    """Start a widening seed where its gradient on the host's first samples is largest."""
    if not isinstance(slots(model)[slot].seed, WidenSeed):
        return
    model.train()
    n = population.config.batch_size
    inputs, targets = (part[:n] for part in population.specs[host].data.split("train"))
    objective = population.objective
    maximise_gradient(model, slot, lambda: objective.losses(model(inputs), targets).mean())


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def parts_of(host_slots: HostSlots, own: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a host (``own``), of each seed and of each gate, by part and name."""
    parts = {"host": own}
    for name, slot in host_slots.items():
        for kind, module in (("seed", slot.seed), ("gate", slot.gate)):
            if module is not None:
                parts[f"{kind}/{name}"] = tensors_of(module)
    return parts


def load_model(model: nn.Module, state: HostState) -> None:
    """Give a fresh host the lives, seeds and tensors of a state.

    Raises:
        ConfigError: If the state is that of a host with other slots or tensors.
    """
    host_slots, own = slots(model), tensors_of(model)
    if state.facts["lives"].keys() != host_slots.keys():
        raise ConfigError(
            f"the state has the slots {', '.join(state.facts['lives'])}; the host has "
            f"{', '.join(host_slots)}. Load a state of the same design."
        )
    host_slots.lives.load_json(state.facts["lives"])
    host_slots.n_germinated = state.facts["n_germinated"]
    host_slots.replant()
    parts = parts_of(host_slots, own).items()
    tensors = {f"{part}/{name}": t for part, named in parts for name, t in named.items()}
    _require_tensors(shapes_of(tensors), shapes_of(state.tensors))
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(state.tensors[name])


def _require_tensors(wanted: Mapping[str, Shape], given: Mapping[str, Shape]) -> None:
    """Refuse the tensors of a state that are not a host's, or of other shapes."""
    hint = "Load a state of hosts of the same sizes."
    for name, shape in wanted.items():
        if name not in given:
            raise ConfigError(f"the state has no tensor {name}; it has shape {list(shape)}. {hint}")
    for name, shape in given.items():
        kind, _, rest = name.partition("/")
        if kind == "steps":
            continue
        own = wanted.get(rest.partition("/")[2] if kind == "moments" else name)
        if own is None:
            raise ConfigError(f"the state has a tensor {name}, which the host has not. {hint}")
        if own != shape:
            raise ConfigError(
                f"the state's {name} has shape {list(shape)}; the host's has {list(own)}. {hint}"
            )
