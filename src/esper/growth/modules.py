"""The modules and parameters of a model by name, with their types."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module inside a model once, by name; the model itself has the name ''."""
    return dict(cast(Any, model.named_modules()))


def module_names(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every (name, module) of a model; a module that has two names comes twice."""
    return list(cast(Any, model.named_modules(remove_duplicate=False)))


def named_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every (name, child) of a module; a child that has two names comes twice."""
    return [(name, child) for name, child in module_names(module) if name and "." not in name]


def count_parameters(module: nn.Module | None) -> int:
    """Return how many numbers a module can learn."""
    return 0 if module is None else sum(p.numel() for p in module.parameters())


@contextmanager
def seeded(number: int) -> Generator[None]:
    """Let whatever draws from torch's default generator draw from ``number`` while this lasts.

    Layers initialise themselves, and dropout draws, from that generator and no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        yield
