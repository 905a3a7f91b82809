"""Starting new hidden units where the loss pulls at them hardest.

Shapes: ``N`` new units, ``F`` weights that lead into one of them.

While the weights that lead out of new units are zero, the weights that lead in change nothing of
what the model computes, but they decide how fast the units learn. They are chosen here to maximise
the norm of the loss's gradient with respect to the outgoing weights, for one batch.

Reference: Evci et al. (2022), "GradMax: Growing Neural Networks using Gradient Information". There
the incoming weights are zero and the outgoing ones are found by a singular value decomposition;
with the roles exchanged the activation takes part, and the generalised power method (Journée et
al., 2010) goes on from there: the next weights are the orthonormal rows nearest to the gradient.
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
    """Norm of the loss's gradient with respect to the new units' outgoing weights."""

    norm_before: float
    norm_after: float


@dataclass(frozen=True)
class _Pass:
    """One call of the block: what its seed would read, and the loss's gradient at its output."""

    x: Tensor
    pull: Tensor


def maximise_gradient(
    model: nn.Module, slot: str, loss: Callable[[], Tensor], *, n_iterations: int = 10
) -> GradMaxReport:
    """Choose the incoming weights of a new widening seed so that its outgoing weights learn fast.

    The rows of the seed's first layer become orthogonal (in groups, if there are more units than
    weights leading into one), each as long as its rows were on average, and its bias zero. If none
    that is found beats the weights that are there, those stay. Nothing else of the model changes.

    Args:
        model: A model with slots.
        slot: The slot whose seed is a ``widen`` blueprint's, germinated or training.
        loss: Computes the model's loss on one batch.
        n_iterations: Steps of the power method from each start.

    Raises:
        SlotError: If the slot has no such seed, the seed has learned already, or the loss does not
            depend on the block.
        NonFiniteError: If the loss's gradient at the block is not finite.
    """
    require_int("n_iterations", n_iterations, least=0)
    place, seed = _require_new_units(model, slot)
    with _left_as_it_was(model), torch.enable_grad():
        passes = _observe(place, loss)
        seed.train()
        given = _outgoing_gradient(seed, passes, seed.first.weight, seed.first.bias)
        before = given.square().sum().item()
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
        raise SlotError(f"slot {slot!r} holds {holds}; a gradient is maximised for widen seeds.")
    counts = place.life.alpha > 0.0
    if counts or place.stage not in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING):
        raise SlotError(
            f"the seed of slot {slot!r} is {place.stage.name.lower()}; its gradient can be "
            "maximised while it is germinated or training, before it counts."
        )
    if not seed.is_new:
        raise SlotError(
            f"the seed of slot {slot!r} has learned already; its gradient can be maximised before "
            "its first step."
        )
    return place, seed


@contextmanager
def _left_as_it_was(model: nn.Module) -> Generator[None]:
    """Restore every module's mode, every buffer and torch's generators afterwards."""
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


def _observe(place: SeedSlot, loss: Callable[[], Tensor]) -> list[_Pass]:
    """Compute the loss once and return what passes through the slot's block."""
    seen: list[tuple[Tensor, Tensor]] = []
    key = place.site.input_key
    assert key is not None, "a widen seed reads the block's input"

    def look(_: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        seen.append((Call(args, kwargs, None, {}).tensors()[key].detach().clone(), leaf))
        return leaf.clone()  # what follows a block may work in place

    handle = place.block.register_forward_hook(look, with_kwargs=True)
    try:
        with place.switched_off():
            value = loss()
    finally:
        handle.remove()
    if not seen or value.numel() != 1 or not value.requires_grad:
        raise SlotError(
            f"the loss does not depend on the block of slot {place.name!r}; it must call this "
            "model, with gradients, and return one number."
        )
    outputs = [y for _, y in seen]
    grads = torch.autograd.grad(value.sum(), outputs, allow_unused=True, materialize_grads=True)
    passes = [_Pass(x, _pull(place, y, g)) for (x, y), g in zip(seen, grads, strict=True)]
    if not all(bool(torch.isfinite(each.pull).all()) for each in passes):
        raise NonFiniteError(
            f"the gradient of the loss at slot {place.name!r} is not finite; give another batch."
        )
    return passes


def _pull(place: SeedSlot, y: Tensor, grad: Tensor) -> Tensor:
    """Return the loss's gradient with respect to what the seed gives, which is zero now."""
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
    """Return the gradient with respect to the outgoing weights, ``[N, ...]``, given the incoming.

    No bias means zero. The gradient can be differentiated with respect to ``weight``.
    """
    outgoing = torch.zeros_like(seed.second.weight, requires_grad=True)
    weights = {"first.weight": weight, "second.weight": outgoing}
    if seed.first.bias is not None:
        weights["first.bias"] = torch.zeros_like(seed.first.bias) if bias is None else bias
    total = torch.zeros_like(outgoing)
    for each in passes:
        change = functional_call(seed, weights, (each.x.to(weight.dtype),))
        total = total + torch.autograd.grad(change, outgoing, each.pull, create_graph=True)[0]
    return total.transpose(0, 1).flatten(1)


def _starts(seed: WidenSeed, passes: list[_Pass]) -> Generator[Tensor]:
    """Give the weights from which to ascend: those there and, for linear layers, the best of a
    seed without an activation.
    """
    given = seed.first.weight.detach()
    length = _row_norms(given).mean()
    yield length * _orthonormal_rows(given)
    if given.ndim == 2:
        product = sum(
            each.pull.flatten(0, -2).T @ each.x.to(given.dtype).flatten(0, -2) for each in passes
        )
        assert isinstance(product, Tensor)
        basis = _decompose(product, full_matrices=True)[1].to(given.dtype)
        yield length * basis[torch.arange(len(given)) % len(basis)]


def _ascend(
    seed: WidenSeed, passes: list[_Pass], weight: Tensor, n_iterations: int
) -> tuple[float, Tensor]:
    """Return the best squared norm of the power method's iterates, and the weights that give it."""
    length = _row_norms(weight)[0]
    best, best_weight = -1.0, weight
    for iteration in range(n_iterations + 1):
        # Units do not depend on one another, so each takes the better of its two signs.
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
    """Return the nearest weights whose rows are orthonormal, in groups of at most ``F`` rows."""
    rows = weight.flatten(1)
    groups: list[Tensor] = []
    for first in range(0, len(rows), rows.shape[1]):
        group = rows[first : first + rows.shape[1]]
        left, right = _decompose(group, full_matrices=False)
        groups.append(left @ right)
    return torch.cat(groups).to(weight.dtype).view_as(weight)


def _decompose(matrix: Tensor, *, full_matrices: bool) -> tuple[Tensor, Tensor]:
    """Return the left singular vectors as columns and the right ones as rows."""
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    left, _, right = cast(Any, torch.linalg.svd(matrix, full_matrices=full_matrices))
    return left, right


def _row_norms(weight: Tensor) -> Tensor:
    return weight.detach().flatten(1).square().sum(1).sqrt()
