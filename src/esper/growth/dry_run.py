"""Running a model with hooks to record what its modules are called with and what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import DataLoader, Dataset

from esper.errors import EsperError, summarize_error, type_of
from esper.growth.modules import named_modules, uncompiled
from esper.modes import evaluation_mode


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    versions: dict[int | str, int]
    """Version counter of each tensor argument before the call, to detect in-place changes."""

    def tensors(self) -> dict[int | str, Tensor]:
        """Return the tensors among the arguments, by position or keyword."""
        arguments: dict[int | str, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        return {key: value for key, value in arguments.items() if isinstance(value, Tensor)}


SampleInput = Tensor | Sequence[Any] | Mapping[str, Any]
"""Input of a model: a tensor, several arguments, or keyword arguments by name."""


def arguments_of(sample_input: Any) -> dict[Any, Any]:
    """Return the arguments of a model by position or, for a mapping, by name."""
    if isinstance(sample_input, Mapping):
        return dict(cast(Mapping[str, Any], sample_input))
    is_several = isinstance(sample_input, (tuple, list))
    return dict(enumerate(cast(Sequence[Any], sample_input) if is_several else (sample_input,)))


def call_model(model: nn.Module, sample_input: SampleInput) -> Any:
    """Call a model with a tensor, a tuple of arguments or a mapping of keyword arguments.

    What ``torch.compile`` has compiled of it runs uncompiled, so that hooks see every call.
    """
    with uncompiled():
        if isinstance(sample_input, Mapping):
            return model(**sample_input)
        if isinstance(sample_input, (tuple, list)):
            return model(*sample_input)  # pyright: ignore[reportUnknownArgumentType]
        return model(sample_input)


def require_runnable(model: object, error: type[EsperError]) -> None:
    """Reject what does not run in Python with dense weights: it cannot be watched or changed.

    Raises:
        EsperError: Of the given class, if it is not a module or is scripted, or if weights are
            sparse, quantized or without memory.
    """
    if not isinstance(model, nn.Module):
        raise error(f"model is {type_of(model)}; it must be a torch.nn.Module.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise error("model is scripted (TorchScript); pass the module that it was made from.")
    quantized = [n for n, m in named_modules(model).items() if ".quantized." in type(m).__module__]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise error(
                f"{name} is on the meta device; load the model's weights first (model.to_empty, "
                "then load_state_dict)."
            )
        if tensor.layout is not torch.strided:
            raise error(f"{name} is sparse; use a dense tensor.")
        is_weight = isinstance(tensor, nn.Parameter)
        if is_weight and not (tensor.is_floating_point() or tensor.is_complex()):
            quantized.append(name)
    if quantized:
        raise error(
            f"{quantized[0]} is quantized; change the original model and quantize the result."
        )


def require_batch(sample_input: Any, error: type[EsperError]) -> None:
    """Reject what is not one batch of a model's input.

    Raises:
        EsperError: Of the given class.
    """
    if sample_input is None or isinstance(sample_input, (DataLoader, Dataset, Iterator)):
        given = "missing" if sample_input is None else type_of(cast(Any, sample_input))
        raise error(
            f"sample_input is {given}; give one batch that the model can be called with: a "
            "tensor, a tuple of arguments or a mapping of keyword arguments."
        )
    for value in arguments_of(sample_input).values():
        if isinstance(value, Tensor) and 0 in value.shape:
            raise error(
                f"sample_input has shape {list(value.shape)}; it needs at least one sample."
            )


def why_it_fails(model: nn.Module, sample_input: Any, error: Exception) -> str:
    """Return why a model fails on its input, for a message; targets and arrays are named."""
    is_named = isinstance(sample_input, Mapping)
    values = list(arguments_of(sample_input).values())
    if any(isinstance(value, np.ndarray) for value in values):
        return "it has a numpy array; give a tensor, as from torch.from_numpy"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        inspect.signature(model.forward).bind(*([] if is_named else values))
    except TypeError:
        taken = inspect.signature(model.forward).parameters.values()
        n_taken = sum(parameter.kind in kinds for parameter in taken)
        if not is_named and len(values) > n_taken:
            return (
                f"it has {len(values)} arguments, but forward takes {n_taken}; give only the "
                "inputs, without targets"
            )
    return summarize_error(error)


def as_sample(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a model in the form that :func:`esper.add_slots` takes."""
    if args and kwargs:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    return kwargs or args


def is_call_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether arguments are those of a model's own ``forward``, with a tensor among them.

    Lightning calls a module that it trains in parallel with the arguments of ``training_step``.
    """
    try:
        inspect.signature(type(model).forward).bind(model, *args, **kwargs)
    except TypeError:
        return False
    return any(isinstance(value, Tensor) for value in (*args, *kwargs.values()))


def first_samples(whole: Any, n: int = 2) -> Any:
    """Return the first samples of a batch; the whole batch if its tensors differ in length."""
    if isinstance(whole, Tensor):
        return whole[:n].detach().clone()
    given = arguments_of(whole)
    sizes = {len(value) for value in given.values() if isinstance(value, Tensor) and value.ndim}
    if len(sizes) == 1:
        for key, value in given.items():
            if isinstance(value, Tensor) and value.ndim:
                given[key] = value[:n].detach().clone()
    return given if isinstance(whole, Mapping) else tuple(given.values())


def batch_size_of(sample_input: Any) -> int:
    """Return the batch size of a model's input: the length of its first tensor."""
    values = arguments_of(sample_input).values()
    return len(next(value for value in values if isinstance(value, Tensor)))


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module],
    *,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
) -> Generator[None]:
    """Call functions around each call of the named modules, inside the context.

    Args:
        modules: The modules by name.
        before: A function of the name, the module and its arguments (``args, kwargs``).
        after: One that gets the output too; what it returns, unless None, replaces the output.
    """
    with ExitStack() as stack:
        for name, module in modules.items():
            if before is not None:
                hook = partial(before, name)
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            if after is not None:
                hook = partial(after, name)
                stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


@contextmanager
def recorded_calls(modules: Mapping[str, nn.Module]) -> Generator[dict[str, list[Call]]]:
    """Record every call of the named modules inside the context."""
    calls: dict[str, list[Call]] = {name: [] for name in modules}
    versions: dict[str, list[dict[int | str, int]]] = {name: [] for name in modules}

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = Call(args, kwargs, None, {}).tensors()
        # Inference-mode tensors have no version counter.
        counts = {key: -1 if t.is_inference() else t._version for key, t in tensors.items()}
        versions[name].append(counts)

    def after(name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls[name].append(Call(args, kwargs, output, versions[name].pop()))

    with hooked(modules, before=before, after=after):
        yield calls


def record_calls(
    model: nn.Module, modules: Mapping[str, nn.Module], sample_input: Any
) -> dict[str, list[Call]]:
    """Run a model in evaluation mode with gradients and return the calls of the named modules."""
    with (
        evaluation_mode(model),
        recorded_calls(modules) as calls,
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
    ):
        call_model(model, sample_input)
    return calls


def count_inference_calls(
    model: nn.Module, modules: Mapping[str, nn.Module], sample_input: Any
) -> dict[str, int]:
    """Run a model in evaluation mode without gradients and count the named modules' calls.

    The hook is global, because torch's encoder layers take their fast path only if their modules
    have no hooks.
    """
    names = {module: name for name, module in modules.items()}
    counts = dict.fromkeys(modules, 0)

    def count(module: nn.Module, _: Any, __: Any) -> None:
        if module in names:
            counts[names[module]] += 1

    handle = register_module_forward_hook(count)
    try:
        with evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            call_model(model, sample_input)
    finally:
        handle.remove()
    return counts


def tensors_in(value: Any) -> list[Tensor]:
    """Return the floating-point tensors in a model's output."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [t for part in value.values() for t in tensors_in(part)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in tensors_in(part)]  # pyright: ignore[reportUnknownVariableType]
    return []
