"""Running a model once with hooks, to see which module is called with what and returns what."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    versions: dict[int | str, int]
    """How often each tensor among the arguments had been changed in place before the call."""

    def tensors(self) -> dict[int | str, Tensor]:
        """Return the tensors among the arguments, by position or keyword."""
        arguments: dict[int | str, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        return {key: value for key, value in arguments.items() if isinstance(value, Tensor)}


@contextmanager
def evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put every module in evaluation mode, and back into its own mode afterwards."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, flag in was_training.items():
            module.training = flag


def call_model(model: nn.Module, sample_input: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(sample_input, Mapping):
        return model(**sample_input)
    if isinstance(sample_input, (tuple, list)):
        return model(*sample_input)  # pyright: ignore[reportUnknownArgumentType]
    return model(sample_input)


def batch_size_of(sample_input: Any) -> int:
    """Return how many samples a model's input holds: the length of its first tensor."""
    values: Any = sample_input
    if isinstance(sample_input, Mapping):
        values = cast(Any, sample_input).values()
    if isinstance(values, Tensor):
        return len(values)
    return len(next(value for value in values if isinstance(value, Tensor)))


@contextmanager
def recorded_calls(modules: Mapping[str, nn.Module]) -> Generator[dict[str, list[Call]]]:
    """Record every call of the named modules while the context lasts."""
    calls: dict[str, list[Call]] = {name: [] for name in modules}
    versions: dict[str, list[dict[int | str, int]]] = {name: [] for name in modules}
    handles: list[Any] = []
    for name, module in modules.items():

        def before(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            tensors = Call(args, kwargs, None, {}).tensors()
            # Under inference mode tensors do not count their changes.
            counts = {key: -1 if t.is_inference() else t._version for key, t in tensors.items()}
            versions[name].append(counts)

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            calls[name].append(Call(args, kwargs, output, versions[name].pop()))

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def record_calls(
    model: nn.Module, modules: Mapping[str, nn.Module], sample_input: Any
) -> dict[str, list[Call]]:
    """Run the model with gradients in evaluation mode; return the calls of the named modules."""
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
    """Run the model without gradients in evaluation mode; count the named modules' calls.

    No hook hangs on the modules themselves: torch's encoder layers take their short cuts only if
    they see none.
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
    """Return the tensors in what a model returned."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [t for part in value.values() for t in tensors_in(part)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in tensors_in(part)]  # pyright: ignore[reportUnknownVariableType]
    return []
