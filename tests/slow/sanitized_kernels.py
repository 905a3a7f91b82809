"""Calls of kernels built with sanitizers; a script of test_sanitizers.

sanitized_kernels.py KERNELS N_THREADS TEST_FILE ...
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor


class SanitizedKernels:
    """Finds the kernels in another folder than the rest of the package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[str] = []

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        path = self.folder / f"{name}.so"
        if not path.exists():
            return None
        self.found.append(name)
        return spec_from_file_location(name, path)


def odd(*shape: int, offset: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor that ends where its block of memory ends, ``offset`` elements into it."""
    size = offset + torch.Size(shape).numel()
    return torch.rand(size).to(dtype)[offset:].view(shape)


def check_advantages() -> None:
    from esper.simic.agent import advantages

    kernel: Any = advantages._kernel  # type: ignore[attr-defined]
    shapes, kinds = ((1, 1), (1, 9), (3, 7), (5, 129), (17, 33)), (torch.float32, torch.float64)
    for variant in range(len(kernel.variants())):
        kernel.choose(variant)
        for (n, t), offset, dtype, is_turned in product(shapes, (0, 1, 3), kinds, (False, True)):
            size = (t, n) if is_turned else (n, t)
            tensors = [odd(*size, offset=offset, dtype=dtype) for _ in range(3)]
            flags = [odd(*size, offset=offset) > 0.8 for _ in range(2)]
            if is_turned:
                tensors, flags = [x.t() for x in tensors], [x.t() for x in flags]
            advantages.estimate_advantages(
                *tensors, terminated=flags[0], truncated=flags[1], gamma=0.9, gae_lambda=0.8
            )


if __name__ == "__main__":
    kernels, n_threads, tests = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    finder = SanitizedKernels(kernels)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    for name in ("populations.vector_hosts", "simic.agent.advantages"):
        import_module(f"esper.{name}")
    import_module("esper.simic.policy.distribution")
    assert len(finder.found) == len(list(kernels.glob("*.so"))), finder.found
    torch.set_num_threads(n_threads)
    check_advantages()
    torch.set_num_threads = lambda _: None  # the tests' conftest asks for one thread
    settings.register_profile("sanitized", deadline=None, max_examples=20, derandomize=True)
    options = ["-q", "-x", "--hypothesis-profile=sanitized"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported above
    sys.exit(pytest.main([*options, *tests]))
