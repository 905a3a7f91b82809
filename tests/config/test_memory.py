"""Large blocks of memory are returned to the system when they are freed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from esper.config.memory import LARGE_BLOCK, return_large_blocks
from esper.environment import vector_env


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (OSError, ValueError):
        return False


needs_glibc = pytest.mark.skipif(not _is_glibc(), reason="only glibc has this limit")

# Frees a block, so that glibc would raise its limit, then allocates another with a small one above.
COUNT = """
import ctypes, sys
from esper.config.memory import LARGE_BLOCK, return_large_blocks

class Usage(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Usage
print(return_large_blocks() if sys.argv[1] == "set" else None)
libc.free(libc.malloc(2 * LARGE_BLOCK))
before = libc.mallinfo2().hblkhd
libc.malloc(LARGE_BLOCK + 1)
print(libc.mallinfo2().hblkhd - before)
"""


def count_mapped_bytes(argument: str, **environment: str) -> tuple[str, int]:
    """Return what setting the limit returned, and the bytes of a large block beside the heap."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, argument],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    told, n_bytes = done.stdout.split()
    return told, int(n_bytes)


@needs_glibc
def test_a_large_block_is_apart_from_the_heap_even_after_one_was_freed() -> None:
    assert count_mapped_bytes("leave") == ("None", 0)
    told, n_bytes = count_mapped_bytes("set")
    assert told == "True"
    assert n_bytes > LARGE_BLOCK


@needs_glibc
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432"),
    ],
)
def test_a_limit_in_the_environment_is_left_alone(name: str, value: str) -> None:
    assert count_mapped_bytes("set", **{name: value}) == ("False", 0)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def confstr(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", confstr)
    assert return_large_blocks.__wrapped__() is False


def test_environments_set_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(vector_env, "return_large_blocks", lambda: calls.append(True))
    vector_env.GrowthVectorEnv("spirals", 1)
    assert calls == [True]
