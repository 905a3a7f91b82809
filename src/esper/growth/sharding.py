"""Models that ``torch.distributed.fsdp.fully_shard`` (FSDP2) has split among processes.

Importing FSDP takes most of a second, and without it nothing is sharded, so it is never imported
here before the user has done so.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import get_total_norm

from esper.errors import SlotError

_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
_STATE_KEYS = "__composable_api"
"""Attributes that FSDP2 adds to modules; the second is how their names begin."""


class _NoState:
    """Stands in a copy for what FSDP2 knows about a module."""


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which each process holds a shard."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor that this process holds: of a shard, or of a sparse tensor."""
    if is_sharded(tensor):
        return cast(Any, tensor).to_local()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def whole_values(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph, gathered if it is sharded; every process must call it."""
    return cast(Any, tensor.detach()).full_tensor() if is_sharded(tensor) else tensor.detach()


def total_norm(tensors: Iterable[Tensor]) -> float:
    """Return the norm of all tensors together; every process must call it if some are sharded."""
    found = list(tensors)
    kinds = {(tensor.device, tensor.dtype, tensor.layout) for tensor in found}
    has_shards = "torch.distributed.tensor" in sys.modules and any(map(is_sharded, found))
    if len(kinds) == 1 and found[0].layout is torch.strided and not has_shards:
        # What get_total_norm does, without a third of a millisecond around it.
        norms: list[Tensor] = cast(Any, torch)._foreach_norm(found)
        norm: Tensor = cast(Any, torch).linalg.vector_norm(torch.stack(norms))
        return float(norm.detach())
    kinds = (
        [local_values(tensor) for tensor in found if not is_sharded(tensor)],
        [tensor for tensor in found if is_sharded(tensor)],
    )
    return math.hypot(*(whole_values(get_total_norm(kind)).item() for kind in kinds if kind))


def find_mesh(module: nn.Module) -> Any:
    """Return the device mesh that parameters of a module are sharded on; None if none are."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return next((cast(Any, p).device_mesh for p in module.parameters() if is_sharded(p)), None)


def is_shard_root(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on a module itself."""
    return module in _sharded_modules(module)


def require_whole(model: nn.Module) -> None:
    """Reject a sharded model, in which places for slots cannot be found.

    Raises:
        SlotError: If the model is sharded.
    """
    if find_mesh(model) is not None:
        raise SlotError(
            f"this {type(model).__name__} is sharded and has no slots; call esper.add_slots before "
            "fully_shard."
        )


def shard(parts: Sequence[nn.Module], model: nn.Module) -> None:
    """Shard new parts of a model as the model is, each whenever its ``forward`` is called."""
    mesh = find_mesh(model)
    if mesh is None:
        return
    from torch.distributed.fsdp import fully_shard

    states = [module._get_fsdp_state() for module in _sharded_modules(model)]
    policy = next(filter(None, (getattr(state, "_mp_policy", None) for state in states)), None)
    options: dict[str, Any] = {} if policy is None else {"mp_policy": policy}
    for part in parts:
        if any(True for _ in part.parameters()) and find_mesh(part) is None:
            # A part that is added later is a root of its own, which would stay whole by default.
            fully_shard(part, mesh=mesh, reshard_after_forward=True, **options)


def reshard(model: nn.Module) -> None:
    """Split parameters again that are whole since a forward pass without a backward pass.

    While they are whole, the model has other parameters than its optimizer.
    """
    for module in _sharded_modules(model):
        module.reshard()


def gathered_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of a model that is not sharded; every process must call it."""
    memo = {} if memo is None else memo
    reshard(model)
    sharded = _sharded_modules(model)
    for parameter in model.parameters():
        if is_sharded(parameter) and id(parameter) not in memo:
            values = whole_values(parameter).clone()
            memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    kept: list[Any] = []  # as long as the memo knows them by their address
    for module in sharded:
        state = module._get_fsdp_state()
        memo[id(state)] = _NoState()
        kept.append(state)
    kinds: list[Any] = [type(module) for module in sharded]
    try:
        for module, kind in zip(sharded, kinds, strict=True):
            module.__class__ = kind.__bases__[1]  # FSDPModule comes first
        twin = copy.deepcopy(model, memo)
    finally:
        for module, kind in zip(sharded, kinds, strict=True):
            module.__class__ = kind
    for module in model.modules() if sharded else ():
        _forget_fsdp(memo.get(id(module), twin))
    return twin


def _sharded_modules(model: nn.Module) -> list[Any]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    # fully_shard makes a class for each kind of module that it shards.
    if fsdp is None or not fsdp.FSDPModule.__subclasses__():
        return []
    return [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]


def _forget_fsdp(module: nn.Module) -> None:
    """Remove the attributes and hooks of FSDP2 from a copied module."""
    own = module.__dict__
    for name in [key for key in own if key in _MARKS or key.startswith(_STATE_KEYS)]:
        del own[name]
    for name, hooks in own.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            table = cast(dict[int, Any], hooks)
            for key in [k for k, h in table.items() if isinstance(_owner_of(h), _NoState)]:
                del table[key]
                for flags in ("_with_kwargs", "_always_called"):
                    own.get(f"{name}{flags}", {}).pop(key, None)


def _owner_of(hook: Any) -> Any:
    return getattr(hook, "__self__", None)
