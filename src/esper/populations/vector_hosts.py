"""Training and evaluating many hosts at a time with the compiled kernel.

Shapes: K = hosts that are computed, N = all hosts, T = steps of the longest epoch, S = slots.

The kernel works in the memory of the hosts' own tensors. Hosts without a program, and all hosts if
the kernel was not built, are computed by torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Floats
from esper.config.growth import OPTIMIZERS
from esper.growth.governor import LossWatch
from esper.growth.modules import parameters_of
from esper.populations.host import Host
from esper.populations.host_data import (
    NO_ABLATION,
    SPLITS,
    Ablation,
    CrossEntropy,
    HostData,
    Objective,
    Split,
    SquaredError,
)
from esper.populations.tally import EpochTally
from esper.populations.vector_programs import Program

try:
    from esper.populations import _vector_hosts as _kernel
except ImportError:
    _kernel = None

MAX_SAMPLES = 256
"""Largest batch size that the kernel supports."""

_JOB_FIELDS = (
    *("plan", "inputs", "targets", "numbers", "n_batches", "batch", "n_columns"),
    *("losses", "squares", "alphas", "memory", "steps", "rule"),
)
_JOBS = np.dtype([(name, np.int64) for name in _JOB_FIELDS] + [("rate", np.float64)])
_RULE = np.dtype(
    [(name, np.int64) for name in ("kind", "objective")]
    + [(name, np.float64) for name in ("weight_decay", "momentum", "beta1", "beta2", "eps")]
)
_TRAIN, _EVALUATE = 0, 1


class VectorHosts:
    """The hosts of a population as jobs of the kernel."""

    def __init__(self, hosts: list[Host], alphas: Floats) -> None:
        """Follow hosts, whose entries may be replaced, and their slots' alphas, ``[N, S]``."""
        self._hosts, self._alphas = hosts, alphas
        self._jobs = np.zeros((2, len(hosts)), _JOBS)
        """What is always the same, by what is done; without a plan if the kernel cannot do it."""
        self._is_known = np.zeros((2, len(hosts)), np.bool_)
        self._step_flops = np.zeros(len(hosts))
        """FLOPs of a step of training."""
        self._samples: list[list[Tensor]] = [[] for _ in hosts]
        """The samples of all splits, contiguous in memory."""
        self._at = np.zeros((len(SPLITS), 3, len(hosts)), np.int64)
        """Address of inputs, address of targets and number of samples, by split."""
        self._rules: list[NDArray[Any] | None] = [None] * len(hosts)
        self._reasons: list[str | None] = [None] * len(hosts)
        """Why the kernel cannot compute a host, whatever grows in it."""

    def replace(self, host: int) -> None:
        """Take note of a host that is new or was replaced."""
        held = self._hosts[host]
        held.on_change = lambda: self.forget(host)
        self.forget(host)
        data, config = held.spec.data, held.config
        objective = find_objective(held.objective, data)
        self._reasons[host] = _find_reason(held, objective)
        kind, numbers = OPTIMIZERS.index(config.optimizer), (config.weight_decay, config.momentum)
        rule = (kind, objective or 0, *numbers, config.beta1, config.beta2, config.adam_eps)
        self._rules[host] = np.array([rule], _RULE)
        self._samples[host].clear()
        for index, split in enumerate(SPLITS):
            if split == "final" and data.final_inputs is None:
                continue
            inputs, targets = (tensor.contiguous() for tensor in data.split(split))
            self._samples[host] += (inputs, targets)
            self._at[index, :, host] = inputs.data_ptr(), targets.data_ptr(), len(inputs)

    def forget(self, host: int) -> None:
        """Drop the jobs of a host that has changed."""
        self._is_known[:, host] = False

    def explain(self, host: int) -> str | None:
        """Return why the kernel cannot train a host as it is; None if it does."""
        reason = "the kernel was not built" if _kernel is None else self._reasons[host]
        program = self._hosts[host].program(None)
        return program if reason is None and isinstance(program, str) else reason

    def can_train(self, hosts: list[int]) -> NDArray[np.bool_]:
        """Return which hosts the kernel can train as they are, ``[K]``."""
        return self._can(_TRAIN, hosts)

    def can_evaluate(self, hosts: list[int], ablation: Ablation) -> NDArray[np.bool_]:
        """Return which hosts the kernel can evaluate as they are, ``[K]``."""
        found = self._can(_EVALUATE, hosts)
        if ablation != NO_ABLATION:
            for index in np.flatnonzero(found).tolist():
                found[index] = isinstance(self._hosts[hosts[index]].program(ablation), Program)
        return found

    def _can(self, what: int, hosts: list[int]) -> NDArray[np.bool_]:
        is_known = self._is_known[what, hosts]
        for index in np.flatnonzero(~is_known).tolist():
            self._describe(what, hosts[index])
        return self._jobs["plan"][what, hosts] != 0

    def _describe(self, what: int, host: int) -> None:
        """Write what all jobs of a host have in common."""
        held, rule = self._hosts[host], self._rules[host]
        self._is_known[what, host] = True
        self._jobs[what, host] = 0
        program = held.program(None if what == _TRAIN else NO_ABLATION)
        is_possible = _kernel is not None and self._reasons[host] is None
        if not is_possible or isinstance(program, str):
            return
        assert rule is not None, "the host was taken note of"
        memory, job = held.lay_out(), np.zeros(1, _JOBS)
        job["plan"], job["memory"], job["steps"] = (
            program.address,
            memory.address,
            memory.steps_address,
        )
        job["batch"], job["n_columns"] = held.order.batch_size, 1 + self._alphas.shape[1]
        job["alphas"] = self._alphas.ctypes.data + host * self._alphas.strides[0]
        job["rule"], job["rate"] = rule.ctypes.data, held.learning_rate
        self._jobs[what, host] = job[0]
        self._step_flops[host] = held.order.batch_size * held.flops(None)

    def train(self, hosts: list[int], watch: LossWatch, tally: EpochTally) -> None:
        """Train hosts that the kernel can train for one epoch and record every step."""
        orders = [self._hosts[host].order for host in hosts]
        lengths = np.array([order.n_batches for order in orders])
        batches = [order.draw_epoch().reshape(-1) for order in orders]
        numbers = np.concatenate(batches)
        # Each step, then the last batch again after the last step, then whether all is finite.
        losses = np.full((len(hosts), lengths.max() + 2), np.nan)
        squares = np.zeros((len(hosts), lengths.max(), 1 + self._alphas.shape[1]))
        jobs = self._jobs[_TRAIN, hosts]
        sizes = np.array([len(batch) for batch in batches])
        jobs["numbers"] = numbers.ctypes.data + 8 * (np.cumsum(sizes) - sizes)
        jobs["inputs"], jobs["targets"] = self._at[0, :2, hosts].T
        jobs["n_batches"] = lengths
        jobs["losses"], jobs["squares"] = _addresses(losses), _addresses(squares)
        self._run(_TRAIN, hosts, jobs)
        for host, n_steps in zip(hosts, lengths.tolist(), strict=True):
            for counter in self._hosts[host].counters:
                counter += n_steps
        indices = np.array(hosts)
        tally.record_epoch(watch, indices, lengths, losses, np.sqrt(squares), self._step_flops)

    def evaluate(self, hosts: list[int], split: Split, ablation: Ablation) -> tuple[Floats, Floats]:
        """Return the mean loss and metric of hosts ``[K]`` with some seeds left out."""
        jobs = self._jobs[_EVALUATE, hosts]
        if ablation != NO_ABLATION:
            programs = [self._hosts[host].program(ablation) for host in hosts]
            jobs["plan"] = [own.address for own in programs if isinstance(own, Program)]
        jobs["inputs"], jobs["targets"], sizes = self._at[SPLITS.index(split), :, hosts].T
        # All samples of a host, starting with its first.
        numbers, totals = np.zeros(1, np.int64), np.zeros((len(hosts), 2))
        jobs["numbers"], jobs["n_batches"] = numbers.ctypes.data, sizes
        jobs["losses"] = _addresses(totals)
        self._run(_EVALUATE, hosts, jobs)
        return totals[:, 0] / sizes, totals[:, 1] / sizes

    def _run(self, what: int, hosts: list[int], jobs: NDArray[Any]) -> None:
        """Run jobs, those of each precision together."""
        assert _kernel is not None
        is_double = np.array([self._hosts[host].is_double for host in hosts])
        for flag in (False, True):
            own = jobs if (is_double == flag).all() else jobs[is_double == flag]
            if (is_double == flag).any():
                n_threads = torch.get_num_threads()
                _kernel.run(what, flag, n_threads, len(own), own.ctypes.data)


def _find_reason(held: Host, objective: int | None) -> str | None:
    """Return why the kernel cannot compute a host, whatever grows in it; None if it can."""
    inputs, parameters = held.spec.data.train_inputs, parameters_of(held.model)
    if inputs.ndim not in (2, 4) or inputs.dtype not in (torch.float32, torch.float64):
        return "samples are neither vectors nor images of floating point numbers"
    if objective is None:
        return "the kernel does not have the objective"
    if any(parameter.dtype != inputs.dtype for parameter in parameters):
        return "samples and parameters have several dtypes"
    if held.order.batch_size > MAX_SAMPLES:
        return f"batches have more than {MAX_SAMPLES} samples"
    return None


def find_objective(objective: Objective, data: HostData) -> int | None:
    """Return the kernel's number of an objective; None if it cannot compute it for the targets."""
    targets, kind = data.train_targets, type(objective)
    if kind is CrossEntropy and targets.ndim == 1 and targets.dtype == torch.int64:
        return 0
    if kind is SquaredError and targets.ndim <= 2 and targets.dtype == data.train_inputs.dtype:
        return 1
    return None


def _addresses(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the address of each entry along the first axis of an array."""
    return array.ctypes.data + array.strides[0] * np.arange(len(array))
