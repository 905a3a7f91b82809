"""Calls of kernels built with sanitizers; a script of test_sanitizers.

sanitized_kernels.py KERNELS N_THREADS TEST_FILE ...
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings


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


if __name__ == "__main__":
    kernels, n_threads, tests = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    finder = SanitizedKernels(kernels)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    for name in ("populations.vector_hosts", "simic.policy.distribution"):
        import_module(f"esper.{name}")
    assert len(finder.found) == len(list(kernels.glob("*.so"))), finder.found
    torch.set_num_threads(n_threads)
    torch.set_num_threads = lambda _: None  # the tests' conftest asks for one thread
    settings.register_profile("sanitized", deadline=None, max_examples=20, derandomize=True)
    options = ["-q", "-x", "--hypothesis-profile=sanitized"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported above
    sys.exit(pytest.main([*options, *tests]))
