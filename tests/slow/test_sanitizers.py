"""The C kernels run without a report of the address and undefined-behaviour sanitizers.

Each kernel is built with the sanitizers into a folder of its own and replaces the one in use, while
the kernel's own tests and calls with odd sizes, strides and offsets run in another process.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.slow import sanitized_kernels

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/simic/policy/test_draw.py",
    "tests/populations/test_vector_hosts.py",
    "tests/populations/test_regression.py",
)
N_THREADS = (1, 3)
FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-omit-frame-pointer",
    "-fPIC",
    "-g",
    "-O1",
    "-std=gnu11",
    "-Wno-psabi",
)


def _library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True)
    return found.stdout.strip()


def _can_sanitize() -> bool:
    return shutil.which("gcc") is not None and Path(_library("libasan.so")).is_absolute()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build all kernels with sanitizers; return the folder, in which names are those of modules."""
    folder = tmp_path_factory.mktemp("kernels")
    sources = sorted((ROOT / "src").rglob("*.c"))
    assert len(sources) == 2
    include = sysconfig.get_paths()["include"]
    for source in sources:
        module = ".".join(source.relative_to(ROOT / "src").with_suffix("").parts)
        target = ("-o", folder / f"{module}.so", "-lm", "-lpthread")
        subprocess.run(["gcc", "-shared", *FLAGS, f"-I{include}", source, *target], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not _can_sanitize(), reason="gcc with libasan builds the kernels")
def test_kernels_make_no_invalid_access(kernels: Path) -> None:
    for n_threads in N_THREADS:  # in one test, because the kernels take a minute or two to build
        require_clean_run(kernels, n_threads)


def require_clean_run(kernels: Path, n_threads: int) -> None:
    done = subprocess.run(
        [sys.executable, sanitized_kernels.__file__, kernels, str(n_threads), *TESTS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": str(n_threads),
            "LD_PRELOAD": f"{_library('libasan.so')} {_library('libstdc++.so.6')}",
            "ASAN_OPTIONS": "detect_leaks=0,halt_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1,halt_on_error=1",
            "PYTHONMALLOC": "malloc",
        },
    )
    told = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, told
    assert "runtime error:" not in told
    assert "AddressSanitizer" not in told
