"""Memory: required, available and used amounts, and how the C library returns it."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from esper.errors import ConfigError

BYTES_PER_WEIGHT = 16.0
"""A trained weight: its value, its gradient and the two moments of Adam."""

LARGE_BLOCK = 4 * 2**20
"""Bytes of a block that is returned to the system when it is freed. With smaller ones, the page
faults of temporary tensors cost more: with 1 MB a tenth of a round."""

_M_MMAP_THRESHOLD = -3
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")


def require_memory(n_bytes: float, **settings: object) -> None:
    """Reject settings that need more memory than there is.

    Args:
        n_bytes: A lower bound of what they need.
        **settings: The settings that decide it, by name.

    Raises:
        ConfigError: If that much is not available, naming the settings and both amounts.
    """
    available = available_memory()
    if n_bytes > available:
        given = " and ".join(f"{name} is {value!r}" for name, value in settings.items())
        raise ConfigError(
            f"{given}; that needs at least {amount_of(n_bytes)} of memory, but only "
            f"{amount_of(available)} is available. Use a smaller value."
        )


@cache
def return_large_blocks() -> bool:
    """Have glibc return every large block to the system when it is freed; return whether it will.

    By default it raises its limit to the largest block that was ever freed. Later blocks of that
    size then come from the heap, where whatever is allocated between them keeps it from shrinking.
    Other C libraries, and a limit in the environment, are not changed.
    """
    chosen = os.environ.get("GLIBC_TUNABLES", "")
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "malloc.mmap_threshold" in chosen:
        return False
    try:
        is_glibc = bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (OSError, ValueError):
        return False
    return is_glibc and ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK) == 1


def available_memory() -> float:
    """Return how many bytes this process can still allocate; infinite if that is unknown."""
    found = [math.inf]
    with suppress(OSError, KeyError, ValueError):
        free = _kilobytes(_MEMINFO)
        found.append(1024.0 * (free["MemAvailable"] + free["SwapFree"]))
    if not _MEMINFO.exists():
        with suppress(OSError, ValueError):
            found.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    with suppress(OSError, ValueError):  # "max" stands for no limit
        maximum = int((_CGROUP / "memory.max").read_text())
        found.append(float(maximum - int((_CGROUP / "memory.current").read_text())))
    return max(0.0, min(*found, address_space()))


def address_space() -> float:
    """Return how many bytes of addresses the limit of this process leaves; infinite without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    used = 0
    with suppress(OSError, KeyError, ValueError):
        used = 1024 * _kilobytes(_STATUS)["VmSize"]
    return float(limit - used)


def amount_of(n_bytes: float) -> str:
    """Return a number of bytes in words, such as ``16.2 GB``."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes / 1e6:,.0f} MB"


def used_memory() -> int:
    """Return the memory in bytes that this process uses, or its peak where that is unknown."""
    with suppress(OSError, KeyError, ValueError):
        return 1024 * _kilobytes(_STATUS)["VmRSS"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _kilobytes(path: Path) -> dict[str, int]:
    """Return the amounts in a file of lines such as ``MemAvailable:  123 kB``."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1:] == ["kB"]}
