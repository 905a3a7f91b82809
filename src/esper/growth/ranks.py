"""Processes that train copies of one model on different data.

With ``torch.distributed`` initialized, all ranks are taken to train the same model.
DistributedDataParallel knows the parameters that a model had when it was wrapped, so the user's own
object is initialized again whenever these have changed. Gradients of modules beside blocks are
averaged here; DistributedDataParallel ignores them, because
:class:`esper.growth.host_slots.HostSlots` tells it to.

Before the ranks act on a number they exchange it in a message of fixed size that says where each
of them is, over a process group of its own. Ranks that have lost step therefore raise the same
error instead of taking each other's numbers for something else.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from esper.errors import RanksDisagreeError, SlotError
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


_HOOKS = ("_hooks", "_with_kwargs", "_always_called")
"""How the names of a module's tables of hooks end."""


def require_rebuildable(model: nn.Module) -> None:
    """Reject DistributedDataParallel with options that it cannot be made again with.

    Raises:
        SlotError: Naming the option.
    """
    for wrapper in _parallel_wrappers(model):
        for name in ("mixed_precision", "_delay_all_reduce_params"):
            if getattr(wrapper, name, None):
                option = name.removeprefix("_").replace("_params", "_named_params")
                raise SlotError(
                    f"DistributedDataParallel was made with {option}, which does not work with a "
                    "model that grows; leave it out."
                )


def find_outdated(model: nn.Module) -> list[Any]:
    """Return the DistributedDataParallel wrappers that know other parameters than there are."""
    found: list[Any] = []
    for wrapper in _parallel_wrappers(model):
        ignored = set(getattr(wrapper.module, "_ddp_params_and_buffers_to_ignore", ()))
        named = wrapper.module.named_parameters()
        now = [id(parameter) for name, parameter in named if name not in ignored]
        if now != [id(parameter) for parameter in wrapper._module_parameters]:
            found.append(wrapper)
    return found


def initialize_again(wrapper: Any) -> None:
    """Let DistributedDataParallel know the present parameters; every process must call it.

    The object keeps its options, hooks and mode.
    """
    own = cast(dict[str, Any], vars(wrapper))
    initialize = cast(Any, DistributedDataParallel.__init__)
    options: dict[str, Any] = {
        name: own[name] for name in inspect.signature(initialize).parameters if name in own
    }
    if "device_mesh" in options:
        del options["process_group"]
    if not own.get("bucket_bytes_cap_default", True):
        options["bucket_cap_mb"] = wrapper.bucket_bytes_cap / 2**20
    tables = [name for name in own if name.endswith(_HOOKS) and isinstance(own[name], dict)]
    kept = {name: own[name] for name in tables}
    training, communication = wrapper.training, wrapper._comm_hooks
    initialize(wrapper, wrapper.module, **options)
    own.update(kept)
    wrapper.training = training
    for hook, state in communication:
        wrapper.register_comm_hook(state, hook)


def _parallel_wrappers(model: nn.Module) -> list[Any]:
    found: list[Any] = []
    while True:
        inner = vars(model).get("_modules", {})
        if isinstance(model, DistributedDataParallel):
            found.append(model)
            model = inner["module"]
        elif "_orig_mod" in inner:
            model = inner["_orig_mod"]
        else:
            return found


def on_wrapped(model: nn.Module, call: Callable[[nn.Module], None]) -> None:
    """Call a method with the DistributedDataParallel that a model is first called by, if any.

    A loop may wrap a model after it has been given to a Grower.
    """
    if not _parallel_wrappers(model):
        hook = _WrapperHook(weakref.WeakMethod(call))
        hook.handle = model.register_forward_pre_hook(hook)


class _WrapperHook:
    """Waits for a wrapper; in a copy of the model it waits for nothing."""

    handle: Any = None

    def __init__(self, call: weakref.WeakMethod[Callable[[nn.Module], None]] | None) -> None:
        self._call = call

    def __call__(self, *_: Any) -> None:
        wrapper: Any = cast(Any, DistributedDataParallel)._get_active_ddp_module()
        call = self._call and self._call()
        if wrapper is not None and call is not None:
            self.handle.remove()
            call(wrapper)

    def __deepcopy__(self, _: dict[int, Any]) -> _WrapperHook:
        return _WrapperHook(None)
