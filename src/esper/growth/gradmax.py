"""GradMax: initializing new hidden units so that they learn fast.

Shapes: ``N`` new units, ``F`` incoming weights of each.

While the outgoing weights of new units are zero, their incoming weights do not affect the model's
output, but they determine how fast the units learn. They are chosen here to maximize the norm of
the loss's gradient with respect to the outgoing weights, on one batch.

Reference: Evci et al. (2022), "GradMax: Growing Neural Networks using Gradient Information". The
paper sets the incoming weights to zero and finds the outgoing ones by singular value decomposition.
With the roles swapped the activation matters, so the solution is refined by the generalized power
method (Journée et al., 2010): each iterate has the orthonormal rows closest to the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call  # pyright: ignore[reportUnknownVariableType]

from esper.config.checks import require_int
from esper.errors import NonFiniteError, SlotError
from esper.growth.blending import effective_change
from esper.growth.blueprints.widening import WidenSeed
from esper.growth.dry_run import Call
from esper.growth.host_slots import slots
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.stages import Stage


@dataclass(frozen=True)
class GradMaxReport:
    """Norm of the loss's gradient with respect to the outgoing weights, before and after."""

    norm_before: float
    norm_after: float


@dataclass(frozen=True)
class _Pass:
    """One call of the block: the seed's input, and the loss's gradient at the seed's output."""

    x: Tensor
    output_gradient: Tensor


def maximise_gradient(
    model: nn.Module, slot: str, loss: Callable[[], Tensor], *, n_iterations: int = 10
) -> GradMaxReport:
    """Choose the incoming weights of a new widening seed so that its outgoing weights learn fast.

    The rows of the seed's first layer become orthogonal (in groups of ``F`` if there are more units
    than incoming weights), with the average norm of the current rows, and its bias becomes zero.
    The current weights stay if nothing better is found. The rest of the model does not change.

    Args:
        model: A model with slots.
        slot: A slot that holds a new ``widen`` seed, germinated or training.
        loss: Computes the model's loss on one batch.
        n_iterations: Power method steps from each starting point.

    Raises:
        SlotError: If the slot holds no such seed, the seed has already been trained, or the loss
            does not depend on the block.
        NonFiniteError: If the loss's gradient at the block is not finite.

    Examples:
        >>> host, x = esper.make_host(esper.MLPHostConfig()), torch.randn(32, 64)
        >>> outcome = esper.slots(host).germinate("blocks.0", "widen_small")
        >>> report = esper.maximise_gradient(host, "blocks.0", lambda: host(x).square().mean())
        >>> report.norm_after >= report.norm_before
        True
    """
    require_int("n_iterations", n_iterations, least=0)
    place, seed = _require_new_units(model, slot)
    with _restored(model), torch.enable_grad():
        passes = _record_passes(place, loss)
        seed.train()
        current = _outgoing_gradient(seed, passes, seed.first.weight, seed.first.bias)
        before = current.square().sum().item()
        best, weight = before, None
        for start in _starts(seed, passes):
            value, found = _ascend(seed, passes, start, n_iterations)
            if value > best:
                best, weight = value, found
    if weight is not None:
        with torch.no_grad():
            seed.second.weight.zero_()
            seed.first.weight.copy_(weight)
            if seed.first.bias is not None:
                seed.first.bias.zero_()
    return GradMaxReport(norm_before=before**0.5, norm_after=best**0.5)


def _require_new_units(model: nn.Module, slot: str) -> tuple[SeedSlot, WidenSeed]:
    place = slots(model)[slot]
    seed = place.seed
    if not isinstance(seed, WidenSeed):
        holds = "no seed" if seed is None else f"a {place.life.blueprint!r} seed"
        kind = "block" if place.site.pair is None else "pair of layers"
        raise SlotError(
            f"slot {slot!r} holds {holds} on a {kind}; maximise_gradient needs a widen seed on a "
            "block."
        )
    is_blended = place.life.alpha > 0.0
    if is_blended or place.stage not in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING):
        raise SlotError(
            f"the seed in slot {slot!r} is {place.stage.name.lower()} at alpha "
            f"{place.life.alpha:.3g}; call maximise_gradient while it is germinated or training."
        )
    if not seed.is_new:
        raise SlotError(
            f"the seed in slot {slot!r} has already been trained; call maximise_gradient before "
            "its first update."
        )
    return place, seed


@contextmanager
def _restored(model: nn.Module) -> Generator[None]:
    """Restore every module's mode, every buffer and torch's generators on exit."""
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modes
        for name, buffer in module.named_buffers(recurse=False)
    ]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for module, name, buffer, value in buffers:
                    setattr(module, name, buffer.copy_(value))


def _record_passes(place: SeedSlot, loss: Callable[[], Tensor]) -> list[_Pass]:
    """Compute the loss once and return the calls of the slot."""
    recorded: list[tuple[Tensor, Tensor]] = []
    key = place.site.input_key
    assert key is not None, "a widen seed reads the block's input"

    def record(_: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        recorded.append((Call(args, kwargs, None, {}).tensors()[key].detach().clone(), leaf))
        return leaf.clone()  # an in-place operation may follow the block

    # The seed reads and changes the output of the block with its fossils.
    handle = place.register_forward_hook(record, with_kwargs=True)
    try:
        with place.switched_off():
            value = loss()
    finally:
        handle.remove()
    if not recorded or value.numel() != 1 or not value.requires_grad:
        raise SlotError(
            f"the loss does not depend on the block of slot {place.name!r}; it must call this "
            "model with gradients enabled and return a scalar."
        )
    outputs = [y for _, y in recorded]
    grads = torch.autograd.grad(value.sum(), outputs, allow_unused=True, materialize_grads=True)
    passes = [
        _Pass(x, _seed_output_gradient(place, y, grad))
        for (x, y), grad in zip(recorded, grads, strict=True)
    ]
    if not all(bool(torch.isfinite(each.output_gradient).all()) for each in passes):
        raise NonFiniteError(
            f"the gradient of the loss at slot {place.name!r} is not finite; use another batch."
        )
    return passes


def _seed_output_gradient(place: SeedSlot, y: Tensor, grad: Tensor) -> Tensor:
    """Return the loss's gradient with respect to the seed's output, which is zero now."""
    assert isinstance(place.seed, WidenSeed)
    dtype = place.seed.first.weight.dtype
    y, grad = y.detach().to(dtype), grad.to(dtype)
    delta = torch.zeros_like(y, requires_grad=True)
    gate = None if place.gate is None else place.gate(y).detach()
    change = effective_change(place.life.style, y, delta, gate)
    return torch.autograd.grad(change, delta, grad)[0]


def _outgoing_gradient(
    seed: WidenSeed, passes: list[_Pass], weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return the gradient with respect to the outgoing weights, ``[N, ...]``, for these incoming.

    A bias of None means zero. The result is differentiable with respect to ``weight``.
    """
    outgoing = torch.zeros_like(seed.second.weight, requires_grad=True)
    weights = {"first.weight": weight, "second.weight": outgoing}
    if seed.first.bias is not None:
        weights["first.bias"] = torch.zeros_like(seed.first.bias) if bias is None else bias
    total = torch.zeros_like(outgoing)
    for each in passes:
        change = functional_call(seed, weights, (each.x.to(weight.dtype),))
        grad = torch.autograd.grad(change, outgoing, each.output_gradient, create_graph=True)[0]
        total = total + grad
    return total.transpose(0, 1).flatten(1)


def _starts(seed: WidenSeed, passes: list[_Pass]) -> Generator[Tensor]:
    """Yield starting weights: the current ones and, for linear layers, the optimum for a seed
    without an activation.
    """
    current = seed.first.weight.detach()
    length = _row_norms(current).mean()
    yield length * _orthonormal_rows(current)
    if current.ndim == 2:
        product = sum(
            each.output_gradient.flatten(0, -2).T @ each.x.to(current.dtype).flatten(0, -2)
            for each in passes
        )
        assert isinstance(product, Tensor)
        basis = _decompose(product, full_matrices=True)[1].to(current.dtype)
        yield length * basis[torch.arange(len(current)) % len(basis)]


def _ascend(
    seed: WidenSeed, passes: list[_Pass], weight: Tensor, n_iterations: int
) -> tuple[float, Tensor]:
    """Return the largest squared norm among the power method's iterates, and its weights."""
    length = _row_norms(weight)[0]
    best, best_weight = -1.0, weight
    for iteration in range(n_iterations + 1):
        # Units are independent of one another, so each takes the better of its two signs.
        norms = [_row_norms(_outgoing_gradient(seed, passes, w)) for w in (weight, -weight)]
        is_worse = (norms[0] < norms[1]).view(-1, *[1] * (weight.ndim - 1))
        weight = torch.where(is_worse, -weight, weight).detach().requires_grad_()
        squared_norm = _outgoing_gradient(seed, passes, weight).square().sum()
        if squared_norm.item() > best:
            best, best_weight = squared_norm.item(), weight.detach()
        if iteration < n_iterations:
            (uphill,) = torch.autograd.grad(squared_norm, weight)
            weight = length * _orthonormal_rows(uphill)
    return best, best_weight


def _orthonormal_rows(weight: Tensor) -> Tensor:
    """Return the closest weights with orthonormal rows, in groups of at most ``F`` rows."""
    rows = weight.flatten(1)
    groups: list[Tensor] = []
    for first in range(0, len(rows), rows.shape[1]):
        group = rows[first : first + rows.shape[1]]
        left, right = _decompose(group, full_matrices=False)
        groups.append(left @ right)
    return torch.cat(groups).to(weight.dtype).view_as(weight)


def _decompose(matrix: Tensor, *, full_matrices: bool) -> tuple[Tensor, Tensor]:
    """Return the left singular vectors as columns and the right singular vectors as rows."""
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    left, _, right = cast(Any, torch.linalg.svd(matrix, full_matrices=full_matrices))
    return left, right


def _row_norms(weight: Tensor) -> Tensor:
    return weight.detach().flatten(1).square().sum(1).sqrt()
