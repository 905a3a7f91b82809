"""Processes that train copies of one model on different data.

With ``torch.distributed`` initialized, all ranks are taken to train the same model.
DistributedDataParallel knows the parameters that a model had when it was wrapped, so gradients of
seeds are averaged here; it ignores them if the model is wrapped later, because
:class:`esper.growth.host_slots.HostSlots` tells it to.

Before the ranks act on a number they exchange it in a message of fixed size that says where each
of them is, over a process group of its own. Ranks that have lost step therefore raise the same
error instead of taking each other's numbers for something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from esper.errors import RanksDisagreeError
from esper.growth.sharding import is_sharded

MESSAGE_SIZE = 24
"""Numbers in a message, the call and the number of the exchange among them."""

SAME = 1e-9
"""Numbers of two ranks that differ by no more than this share are the same."""


class Call(IntEnum):
    """What a rank is doing when it exchanges numbers with the others."""

    START = 0
    CHECK_LOSS = 1
    CHECK_GRADIENTS = 2
    CHECK_PARAMETERS = 3
    GROWTH_ACTION = 4
    END_EPOCH = 5
    VALIDATE = 6
    DECIDE = 7

    def __str__(self) -> str:
        return self.name.lower()


class Ranks:
    """The processes of a distributed training; nothing happens if there is only one."""

    def __init__(self, model: nn.Module | None = None) -> None:
        """Find the processes that train a model; without a model, only this one."""
        is_parallel = distributed.is_available() and distributed.is_initialized()
        self.number, self.count = 0, 1
        self.device = torch.device("cpu")
        self._group: Any = None
        self._n_exchanges = 0
        if model is None or not is_parallel or distributed.get_world_size() == 1:
            return
        self.device = next(iter(model.parameters())).device
        self._group = _make_group(model, self.device)
        self.number = distributed.get_rank(self._group)
        self.count = distributed.get_world_size(self._group)

    def exchange(self, call: Call, values: Sequence[float]) -> list[list[float]]:
        """Return the values of all ranks, rank 0 first.

        Raises:
            RanksDisagreeError: On every rank, if they are not all in the same call.
        """
        if self.count == 1:
            return [list(values)]
        self._n_exchanges += 1
        head = [float(call), float(self._n_exchanges), float(len(values))]
        padding = [0.0] * (MESSAGE_SIZE - len(head) - len(values))
        own = torch.tensor([*head, *values, *padding], dtype=torch.float64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.count)]
        try:
            distributed.all_gather(found, own, group=self._group)
        except RuntimeError as error:
            raise RanksDisagreeError(
                f"rank {self.number} is in {call}, but the others are not "
                f"({' '.join(str(error).split())}); they have failed, or do not make the same "
                "calls as often, for example because they have another number of batches."
            ) from error
        rows = [cast(list[float], tensor.tolist()) for tensor in found]
        for rank, row in enumerate(rows):
            if row[:3] != rows[0][:3]:
                raise RanksDisagreeError(
                    f"rank {rank} is in {Call(int(row[0]))} while rank 0 is in "
                    f"{Call(int(rows[0][0]))}; all ranks must make the same calls, as often."
                )
        return [row[3 : 3 + len(values)] for row in rows]

    def mean(self, call: Call, values: Sequence[float | None]) -> list[float | None]:
        """Return the mean of each value over the ranks that have it; NaN if one of them has NaN."""
        if self.count == 1:
            return list(values)
        sent = [0.0 if value is None else float(value) for value in values]
        rows = self.exchange(call, [*sent, *(float(value is not None) for value in values)])
        found: list[float | None] = []
        for index in range(len(values)):
            given = [row[index] for row in rows if row[len(values) + index]]
            found.append(sum(given) / len(given) if given else None)
        return found

    def from_first(self, call: Call, values: Sequence[int]) -> list[int]:
        """Return the values of rank 0."""
        return [int(value) for value in self.exchange(call, values)[0]]

    def text_from_first(self, call: Call, text: str) -> str:
        """Return the text of rank 0."""
        if self.count == 1:
            return text
        data = bytearray(text.encode())
        (size,) = self.from_first(call, [len(data)])
        data = data if self.number == 0 else bytearray(size)
        sent = torch.frombuffer(data, dtype=torch.uint8).to(self.device)
        self.copy_from_first([sent])
        return bytes(cast(list[int], sent.tolist())).decode()

    def require_same(self, call: Call, what: str, numbers: Sequence[float], advice: str) -> None:
        """Raise on every rank if numbers of some rank are not those of rank 0, up to rounding.

        Raises:
            RanksDisagreeError: Naming the ranks that differ.
        """
        rows = self.exchange(call, numbers)
        others = [
            str(rank)
            for rank, row in enumerate(rows)
            if not all(
                math.isclose(own, first, rel_tol=SAME)
                for own, first in zip(row, rows[0], strict=True)
            )
        ]
        if others:
            raise RanksDisagreeError(
                f"the {what} of rank {', '.join(others)} differs from that of rank 0; {advice}."
            )

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of parameters that no wrapper averages.

        A rank without a gradient counts as one of zeros, unless no rank has one.
        """
        own = [p for p in parameters if p.requires_grad and not is_sharded(p)]
        if self.count == 1 or not own:
            return
        has_gradient = torch.tensor(
            [p.grad is not None for p in own], dtype=torch.uint8, device=self.device
        )
        distributed.all_reduce(has_gradient, distributed.ReduceOp.MAX, group=self._group)
        gradients: list[Tensor] = []
        for parameter, is_used in zip(own, cast(list[int], has_gradient.tolist()), strict=True):
            if is_used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for dtype in sorted({gradient.dtype for gradient in gradients}, key=str):
            self._average([gradient for gradient in gradients if gradient.dtype is dtype])

    def _average(self, tensors: list[Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat, group=self._group)
        flat /= self.count
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0; parameters that are sharded stay as they are."""
        if self.count == 1:
            return
        source = distributed.get_global_rank(self._group, 0)
        for tensor in tensors:
            if not is_sharded(tensor):
                values = tensor.detach().contiguous()
                distributed.broadcast(values, src=source, group=self._group)
                if values.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(values)


def _make_group(model: nn.Module, device: torch.device) -> Any:
    """Return a new process group with the ranks that train a model.

    It has the timeout of theirs, which ``new_group`` would not give it.
    """
    parent: Any = distributed.group.WORLD
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            parent = cast(Any, module.process_group)
    options = getattr(parent._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None)
    if parent is distributed.group.WORLD:
        return distributed.new_group(timeout=timeout)
    ranks = distributed.get_process_group_ranks(parent)
    return distributed.new_group(ranks, timeout=timeout, use_local_synchronization=True)
