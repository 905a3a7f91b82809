"""Modes in which modules run: training or evaluation, one thread or several."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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

SMALL_STEP = 2e8
"""FLOPs of a training step below which several threads are slower than one, or on an idle machine
at most a third faster; on a busy one they are several times slower."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def suitable_threads(work: nn.Module | float) -> Generator[None]:
    """Do small work on one thread, because more would wait for each other.

    A number of threads that the user has chosen is left as it is, as far as it can be told from
    PyTorch's default.

    Args:
        work: A network, which is small by its parameters, or the FLOPs of a training step.
    """
    if isinstance(work, nn.Module):
        is_small = sum(parameter.numel() for parameter in work.parameters()) < SMALL_NETWORK
    else:
        is_small = work < SMALL_STEP
    n_threads = torch.get_num_threads()
    if not is_small or _are_threads_chosen(n_threads):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def _are_threads_chosen(n_threads: int) -> bool:
    """Return whether the user has set a number of threads, by a variable or by a call."""
    is_variable_set = any(os.environ.get(name) for name in THREAD_VARIABLES)
    return is_variable_set or n_threads not in default_threads()


def default_threads() -> set[int]:
    """Return the numbers of threads that PyTorch may start with: processors, or their cores."""
    if hasattr(os, "sched_getaffinity"):
        processors = os.sched_getaffinity(0)
    else:
        processors = set(range(os.cpu_count() or 1))
    cores = {_core_of(processor) for processor in processors}
    return {len(processors), len(cores)}


def _core_of(processor: int) -> str:
    """Return what tells the core of a processor from others; hyperthreads share one."""
    topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    try:
        return topology.read_text()
    except OSError:
        return str(processor)
