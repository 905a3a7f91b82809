"""DistributedDataParallel around a model whose parameters are replaced.

It knows the parameters that its module had when it was made; gradients of others are not averaged.
So the user's own object is initialized again whenever the model has changed.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esper.errors import SlotError

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
