"""The sequential form of a population: hosts are trained one after another. Works for any model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from esper.arrays import Floats
from esper.errors import UnsupportedHostError, blame_user_code
from esper.growth.governor import Governor, GovernorReport
from esper.growth.host_slots import HostSlots, slots
from esper.growth.modules import named_tensors, seeded, unchanged_buffers
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.ranks import Ranks
from esper.growth.slot_states import Outcome, SlotStates
from esper.lifecycle.factored_actions import GrowthAction
from esper.populations.host_data import (
    Ablation,
    HostSpec,
    HostState,
    Objective,
    Split,
    sample_means,
)
from esper.populations.host_models import load_model, make_optimizer, moment_names, parts_of
from esper.populations.population import EpochReport, Population

EVALUATION_BATCH = 512


class _Host:
    """One host with its optimizer and governor."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, population: Population) -> None:
        self.model = model
        self.optimizer = optimizer
        self.slots = slots(model)
        self.tensors = named_tensors(model)
        """Parameters and buffers of the host itself, by their names in a host without seeds."""
        OptimizerKeeper(model, optimizer, seed_lr_factor=population.config.seed_lr_factor)
        self.governor = Governor(model, optimizer, ranks=Ranks())


class SequentialPopulation(Population):
    """Hosts trained one after another, each by ``torch.optim`` and its own governor."""

    def _prepare(self) -> None:
        self._hosts = [self._make_host(h, self._build_model(h)) for h in range(self.n_hosts)]

    def train_epoch(self) -> EpochReport:
        """Train every unfinished host for one epoch and advance its slots."""
        report = EpochReport.blank(self.n_hosts, self.slot_config.max_slots)
        for host in range(self.n_hosts):
            if not self.is_finished[host]:
                self._train_host(host, report)
        return report

    def _evaluate(
        self, hosts: list[int], split: Split, ablation: Ablation
    ) -> tuple[Floats, Floats]:
        results = np.array([self._evaluate_host(host, split, ablation) for host in hosts])
        return results[:, 0], results[:, 1]

    def lives(self, host: int) -> SlotStates:
        """Return the lives of a host's slots."""
        return self._hosts[host].slots.lives

    def _act(self, host: int, action: GrowthAction) -> Outcome:
        return self._hosts[host].slots.apply(action)

    def _set_germinated(self, host: int, count: int) -> None:
        self._hosts[host].slots.n_germinated = count

    def _commit(self, host: int, slot: str) -> None:
        held = self._hosts[host]
        held.slots.commit_start(slot)
        held.governor.keep_if_finite()

    def _absorb(self, host: int, slot: str) -> None:
        held = self._hosts[host]
        held.slots.lives.absorb(slot, held.slots)
        held.governor.keep_if_finite()

    def model(self, host: int) -> nn.Module:
        """Return a copy of a host as a separate model with its slots and seeds."""
        return copy.deepcopy(self._hosts[host].model)

    def end_growth(self, host: int, *, keep: bool) -> None:
        """Commit the blended seeds of a host, or remove them; remove those that are not blended."""
        self._require_hosts([host])
        self._hosts[host].slots.end_growth(keep=keep)
        self._hosts[host].governor.keep_if_finite()

    def restart(self, host: int, spec: HostSpec) -> None:
        """Replace a host by a new one with its own data and seed."""
        self._require_spec(host, spec)
        model = self._register(host, self.build_host(spec), spec)
        self._replace_spec(host, spec)
        self._hosts[host] = self._make_host(host, model)

    def get_state(self, host: int) -> HostState:
        """Return everything that the next epoch of a host depends on."""
        held = self._hosts[host]
        state = HostState({}, self._shared_facts(host))
        state.facts["lives"] = held.slots.lives.to_json()
        state.facts["n_germinated"] = held.slots.n_germinated
        state.facts["losses"] = held.governor.watch.get_state()
        for part, tensors in parts_of(held.slots, held.tensors).items():
            for name, tensor in tensors.items():
                state.tensors[f"{part}/{name}"] = tensor.detach().clone()
                for moment, value in held.optimizer.state.get(tensor, {}).items():
                    if moment == "step":
                        state.tensors[f"steps/{part}"] = value.detach().clone()
                    elif value is not None:
                        state.tensors[f"moments/{moment}/{part}/{name}"] = value.detach().clone()
        return state

    def _set_state(self, host: int, state: HostState) -> None:
        held = self._hosts[host] = self._make_host(host, self._build_model(host))
        self._load_shared_facts(host, state.facts)
        load_model(held.model, state)
        for part, tensors in parts_of(held.slots, held.tensors).items():
            step = state.tensors.get(f"steps/{part}")
            for name, tensor in tensors.items():
                moments: dict[str, Any] = {} if step is None else {"step": step.clone()}
                for moment in moment_names(self.config):
                    value = state.tensors.get(f"moments/{moment}/{part}/{name}")
                    if value is not None:
                        moments[moment] = value.clone()
                if isinstance(tensor, nn.Parameter) and moments:
                    held.optimizer.state[tensor] = moments
        held.governor.watch.set_state(state.facts["losses"])
        held.governor.keep()

    def _make_host(self, host: int, model: nn.Module) -> _Host:
        self._follow(host, slots(model).lives)
        optimizer = make_optimizer(model, self.config, self.learning_rate(host))
        return _Host(model, optimizer, self)

    def _train_host(self, host: int, report: EpochReport) -> None:
        held, order = self._hosts[host], self.orders[host]
        inputs, targets = self.specs[host].data.split("train")
        cost = order.batch_size * self.costs_of(host).training_flops(held.slots.lives)
        held.model.train()
        losses: list[float] = []
        norms: list[float] = []
        seed_norms = np.zeros(self.slot_config.max_slots)
        intervention: GovernorReport | None = None
        batches = torch.from_numpy(order.draw_epoch())
        with seeded(order.noise_seed):
            for batch in batches:
                held.optimizer.zero_grad()
                outputs = self._run_model(host, inputs[batch])
                loss = self.objective.losses(outputs, targets[batch]).mean()
                report.flops[host] += cost
                intervention = held.governor.step(loss)
                if intervention is not None:
                    break
                losses.append(loss.item())
                norms.append(held.governor.gradient_norm)
                seed_norms += _seed_gradient_norms(held.slots)
            if intervention is None:
                last = inputs[batches[-1]], targets[batches[-1]]
                intervention = held.governor.check_loss(self._loss(host, *last))
        if intervention is None:
            intervention = held.governor.check_parameters()
        held.slots.tick()
        held.governor.keep()
        report.losses[host] = np.mean(losses) if losses else np.nan
        report.gradient_norms[host] = np.mean(norms) if norms else np.nan
        report.seed_gradient_norms[host] = seed_norms / max(1, len(norms))
        mean = report.gradient_norms[host]
        report.gradient_noise[host] = np.std(norms) / mean if norms and mean else mean
        if intervention is not None:
            report.interventions[host] = intervention

    def _loss(self, host: int, inputs: Tensor, targets: Tensor) -> float:
        """Return the loss of a host in training mode, whose buffers do not change."""
        with torch.no_grad(), unchanged_buffers(self._hosts[host].model):
            return self.objective.losses(self._run_model(host, inputs), targets).mean().item()

    def _run_model(self, host: int, inputs: Tensor) -> Tensor:
        try:
            return self._hosts[host].model(inputs)
        except Exception as error:
            blame_user_code(
                UnsupportedHostError,
                error,
                f"host {host}",
                f"on inputs of shape {list(inputs.shape)}; fix its forward().",
            )

    def _evaluate_host(self, host: int, split: Split, ablation: Ablation) -> tuple[float, float]:
        held = self._hosts[host]
        held.model.eval()
        with torch.no_grad(), held.slots.without(ablation.excludes):
            run = partial(self._run_model, host)
            return evaluate(run, self.objective, *self.specs[host].data.split(split))


def evaluate(
    run: Callable[[Tensor], Tensor], objective: Objective, inputs: Tensor, targets: Tensor
) -> tuple[float, float]:
    """Return the mean loss and the mean metric of what computes outputs, batch by batch."""
    totals, n = [0.0, 0.0], len(inputs)
    for start in range(0, n, EVALUATION_BATCH):
        batch = slice(start, start + EVALUATION_BATCH)
        outputs = run(inputs[batch])
        for index, measure in enumerate((objective.losses, objective.metrics)):
            totals[index] += sample_means(measure(outputs, targets[batch])).sum().item()
    return totals[0] / n, totals[1] / n


def _seed_gradient_norms(host_slots: HostSlots) -> NDArray[np.float64]:
    """Return the gradient norm of each slot's seed, including its gate; zero without a seed."""
    norms = np.zeros(len(host_slots))
    for index, slot in enumerate(host_slots.values()):
        grads = [p.grad for p in slot.seed_parameters() if p.grad is not None]
        if grads:
            norms[index] = get_total_norm(grads).item()
    return norms
