"""Models that ``torch.distributed.fsdp.fully_shard`` (FSDP2) has split among processes."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which each process holds a shard."""
    # Importing the module takes most of a second, and without it there are no such tensors.
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor that this process holds: of a shard, or of a sparse tensor."""
    if is_sharded(tensor):
        whole: Any = tensor
        return whole.to_local()
    return tensor.coalesce().values() if tensor.is_sparse else tensor
