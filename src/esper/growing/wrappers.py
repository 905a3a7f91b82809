"""The wrappers of a model that have to follow when parameters in it are replaced.

DistributedDataParallel knows the parameters that its module had when it was made: gradients of
others are silently not averaged. ``torch.compile`` follows by itself, but a copy of a model is not
compiled.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esper.errors import GrowerError
from esper.growth.modules import named_modules

_HOOKS = ("_hooks", "_with_kwargs", "_always_called")
"""How the names of a module's tables of hooks end."""


def require_rebuildable(model: nn.Module) -> None:
    """Reject DistributedDataParallel with options that it cannot be made again with.

    Raises:
        GrowerError: Naming the option.
    """
    for wrapper in _parallel_wrappers(model):
        for name in ("mixed_precision", "_delay_all_reduce_params"):
            if getattr(wrapper, name, None):
                option = name.removeprefix("_").replace("_params", "_named_params")
                raise GrowerError(
                    f"DistributedDataParallel was made with {option}, which does not work with a "
                    "model that grows; leave it out."
                )


def rebuild_parallel(model: nn.Module) -> None:
    """Let DistributedDataParallel around or in a model's wrappers know its present parameters.

    Every process must call it. The user's own object is initialized anew, with its options, hooks
    and mode.
    """
    for wrapper in _parallel_wrappers(model):
        ignored = set(getattr(wrapper.module, "_ddp_params_and_buffers_to_ignore", ()))
        named = wrapper.module.named_parameters()
        now = [id(parameter) for name, parameter in named if name not in ignored]
        if now != [id(parameter) for parameter in wrapper._module_parameters]:
            _initialize_again(wrapper)


def _initialize_again(wrapper: Any) -> None:
    own: dict[str, Any] = vars(wrapper)
    initialize: Any = DistributedDataParallel.__init__
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


def compiled_like(given: nn.Module, model: nn.Module) -> nn.Module:
    """Return a copy of the model that ``given`` wraps, compiled as that is; else the copy itself.

    What is compiled in place, by ``module.compile()``, is compiled so in the copy.
    """
    wrappers: list[Any] = []
    while "_orig_mod" in (inner := vars(given).get("_modules", {})):
        wrappers.append(given)
        given = inner["_orig_mod"]
    own: dict[str, Any] = dict(named_modules(model))
    for name, module in named_modules(given).items():
        compiled: Any = vars(module).get("_compiled_call_impl")
        context = compiled and inspect.getclosurevars(compiled).nonlocals.get("self")
        if context is not None and name in own:
            own[name]._compiled_call_impl = context(own[name]._call_impl)
    for wrapper in reversed(wrappers):
        model = wrapper.dynamo_ctx(model)
    return model
