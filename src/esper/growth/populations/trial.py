"""Trying whether a module computes the same when many hosts are stacked.

The trial is made in double precision with weights and inputs drawn at random, so that it does not
depend on what a model happens to start with, in training and in evaluation mode, with gradients.
"""

from __future__ import annotations

import copy
from itertools import product

import torch
from torch import Tensor, nn

from esper.growth.populations.corners import cut_corner, find_misfit, shapes_of
from esper.growth.populations.host_models import tensors_of
from esper.growth.populations.rows import ActiveRows, Row, RowStore
from esper.growth.populations.stacked_layers import MAP_RANK
from esper.growth.populations.stacking import stack_inputs, stack_module

HOST_COUNTS = (2, 1)
"""Hosts that are computed together. One alone is laid out in memory as several are not."""

SCALE = 0.3
TOLERANCE = 1e-6


def find_difference(
    template: nn.Module, sample: Tensor, design: nn.Module | None = None
) -> str | None:
    """Return how a module differs from its stacked form, or None if it does not.

    Args:
        template: One host's module; stays as it is.
        sample: A few samples in the form that it takes, for their shape; whole numbers are used.
        design: A module of the same structure with larger tensors, to be stacked in its place: the
            module's own are the corners of its tensors, and no gradient may leave them.
    """
    generator = torch.Generator().manual_seed(0)
    wide = template if design is None else design
    misfit = find_misfit(shapes_of(tensors_of(template)), shapes_of(tensors_of(wide)))
    if misfit is not None:
        return misfit
    for is_training, n_hosts in product((True, False), HOST_COUNTS):
        hosts = [_drawn(template, generator).train(is_training) for _ in range(n_hosts)]
        inputs = _draw_inputs(sample, n_hosts, generator)
        try:
            problem = _compare(hosts, inputs, copy.deepcopy(wide).double().train(is_training))
        except Exception as error:
            lines = str(error).splitlines() or [""]
            problem = f"it does not work with more axes ({type(error).__name__}: {lines[0]})"
        if problem is not None:
            return problem
    return None


def _compare(hosts: list[nn.Module], inputs: Tensor, design: nn.Module) -> str | None:
    store, rows = RowStore(design, ()), ActiveRows()
    store.put({index: Row.of_module(host) for index, host in enumerate(hosts)})
    stacked = stack_module(design, rows, {}).train(design.training)
    rows.select(store, slice(None), needs_grad=True)
    expected = [host(x) for host, x in zip(hosts, inputs, strict=True)]
    if not all(isinstance(output, Tensor) for output in expected):
        return "it does not return a tensor"
    wanted, outputs = torch.stack(expected), stacked(stack_inputs(inputs))
    if outputs.ndim == MAP_RANK:
        outputs = outputs.permute(0, 4, 1, 2, 3)
    problem = _find_gap("it", outputs, wanted)
    if problem is not None or not wanted.requires_grad:
        return problem
    weights = torch.rand(
        wanted.shape, dtype=wanted.dtype, generator=torch.Generator().manual_seed(1)
    )
    (wanted * weights).sum().backward()
    (outputs * weights).sum().backward()
    for name, parameter in hosts[0].named_parameters():
        if parameter.grad is None:
            return f"{name} has no part in its output"
    return _compare_gradients(hosts, store, rows) or _compare_buffers(hosts[0], store)


def _compare_gradients(hosts: list[nn.Module], store: RowStore, rows: ActiveRows) -> str | None:
    assert rows.leaf is not None
    assert rows.leaf.grad is not None
    marks = {name: torch.ones_like(p) for name, p in hosts[0].named_parameters()}
    if rows.leaf.grad[:, store.flatten(marks) == 0].any():
        return "units that it does not have would learn"
    wanted = torch.stack([_flat_gradient(host, store) for host in hosts])
    return _find_gap("its gradient", rows.leaf.grad, wanted)


def _compare_buffers(host: nn.Module, store: RowStore) -> str | None:
    for name, buffer in host.named_buffers():
        own = cut_corner(store.buffers[name][0], tuple(buffer.shape))
        problem = _find_gap(f"its {name}", own.double(), buffer.double())
        if problem is not None:
            return problem
    return None


def _find_gap(what: str, given: Tensor, wanted: Tensor) -> str | None:
    if given.shape != wanted.shape:
        return f"{what} has shape {list(given.shape)} in place of {list(wanted.shape)}"
    gap = (given - wanted).abs().max().item() if wanted.numel() else 0.0
    scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
    return None if gap <= TOLERANCE * scale else f"{what} differs by {gap:.2g}"


def _flat_gradient(host: nn.Module, store: RowStore) -> Tensor:
    """Return a host's gradient in the form of a row, zero where it has no parameters."""
    gradients = {name: p.grad for name, p in host.named_parameters() if p.grad is not None}
    return store.flatten(gradients)


def _drawn(template: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy with other weights, and with other statistics in its norms."""
    host = copy.deepcopy(template).double()
    with torch.no_grad():
        for parameter in host.parameters():
            parameter += SCALE * torch.randn(parameter.shape, generator=generator)
        for buffer in host.buffers():
            if buffer.is_floating_point():
                buffer += torch.rand(buffer.shape, generator=generator)
    return host


def _draw_inputs(sample: Tensor, n_hosts: int, generator: torch.Generator) -> Tensor:
    """Return other samples for each host, ``[hosts, samples, ...]``."""
    shape = (n_hosts, *sample.shape)
    if sample.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.stack([sample.roll(index, 0) for index in range(n_hosts)])
