"""The memory that this process uses."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def used_memory() -> int:
    """Return the memory in bytes that this process uses, or its peak where that is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()
