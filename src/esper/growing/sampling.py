"""The sample of a model's input by which a Grower finds its slots and counts its FLOPs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from esper.growth.dry_run import SampleInput, as_sample, batch_size_of, first_samples, is_call_of


class SampleCatcher:
    """Keeps the first samples of what a model is called with first, unless they are given."""

    def __init__(self, model: nn.Module, module: nn.Module, given: SampleInput | None) -> None:
        """Start to catch the input of a model, which may wrap the module that it runs."""
        self._module = module
        self._sample = None if given is None else first_samples(given)
        self.batch_size = 1 if given is None else batch_size_of(given)
        """Samples of a batch."""
        self._hook: Any = None
        if given is None:
            catch = _SampleHook(self._catch)
            self._hook = model.register_forward_pre_hook(catch, with_kwargs=True)

    def take(self) -> Any:
        """Return the sample, or None before the first batch; stop catching afterwards."""
        if self._hook is not None and self._sample is not None:
            self._hook.remove()
            self._hook = None
        return self._sample

    def _catch(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A tensor of inference mode, such as in a first validation, cannot be trained with.
        if (
            self._sample is None
            and not torch.is_inference_mode_enabled()
            and is_call_of(self._module, args, kwargs)
        ):
            whole = as_sample(self._module, args, kwargs)
            self.batch_size = batch_size_of(whole)
            self._sample = first_samples(whole)


class _SampleHook:
    """A hook that tells a catcher what its model is called with.

    A copy of the model gets one that does nothing, instead of a copy of the catcher.
    """

    def __init__(self, catch: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]) -> None:
        self._catch = weakref.WeakMethod(catch)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        catch = self._catch()
        if catch is not None:
            catch(module, args, kwargs)

    def __deepcopy__(self, _: dict[int, Any]) -> Callable[..., None]:
        return _do_nothing


def _do_nothing(*_: Any) -> None:
    """Do nothing before a model is called."""
