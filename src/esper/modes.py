"""Modes in which modules run: training or evaluation, one thread or several."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put every module in evaluation mode, then restore its own mode."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, flag in was_training.items():
            module.training = flag


SMALL_NETWORK = 500_000
"""Parameters below which one thread is faster than several."""


@contextmanager
def suitable_threads(network: nn.Module) -> Generator[None]:
    """Run a small network on one thread, because more would wait for each other."""
    n_threads = torch.get_num_threads()
    if sum(parameter.numel() for parameter in network.parameters()) < SMALL_NETWORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
