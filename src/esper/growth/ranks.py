"""Processes that train copies of one model on different data.

With ``torch.distributed`` initialized, all ranks are taken to train the same model.
DistributedDataParallel knows the parameters that a model had when it was wrapped, so gradients of
seeds are averaged here, and it is told to leave them alone if the model is wrapped later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from esper.errors import RanksDisagreeError


class Ranks:
    """The processes of a distributed training; nothing happens if there is only one."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Find the processes; ``device`` is that of the model, where they exchange numbers."""
        is_parallel = distributed.is_available() and distributed.is_initialized()
        self.number = distributed.get_rank() if is_parallel else 0
        self.count = distributed.get_world_size() if is_parallel else 1
        self.device = torch.device(device)

    def mean(self, values: Sequence[float]) -> list[float]:
        """Return the mean over the ranks of each value; NaN if a rank has NaN."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return [float(value) for value in total / self.count]

    def from_first(self, values: Sequence[int]) -> list[int]:
        """Return the values of rank 0."""
        if self.count == 1:
            return list(values)
        sent = torch.tensor(values, dtype=torch.int64, device=self.device)
        distributed.broadcast(sent, src=0)
        return [int(value) for value in sent]

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of parameters that no wrapper averages."""
        if self.count == 1:
            return
        gradients = [
            parameter.grad
            for parameter in parameters
            if parameter.grad is not None and not isinstance(parameter, DTensor)
        ]
        for dtype in sorted({gradient.dtype for gradient in gradients}, key=str):
            self._average([gradient for gradient in gradients if gradient.dtype is dtype])

    def _average(self, tensors: list[Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.count
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        if self.count > 1:
            for tensor in tensors:
                if not isinstance(tensor, DTensor):
                    distributed.broadcast(tensor, src=0)

    def require_same(self, what: str, digest: int) -> None:
        """Raise on every rank if the ranks do not all have the same number.

        Raises:
            RanksDisagreeError: Naming the ranks that differ from rank 0.
        """
        if self.count == 1:
            return
        own = torch.tensor([digest], dtype=torch.int64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.count)]
        distributed.all_gather(found, own)
        others = [rank for rank, value in enumerate(found) if value.item() != found[0].item()]
        if others:
            listed = ", ".join(map(str, others))
            raise RanksDisagreeError(
                f"{what} of rank {listed} differs from that of rank 0; every rank must build the "
                "same model with the same seed and call the same methods of the Grower."
            )
