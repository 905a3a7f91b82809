"""Sharing hosts out among tasks that are grown side by side."""

from __future__ import annotations

from collections.abc import Sequence


def share_out(n_hosts: int, shares: Sequence[float], *, least: int = 1) -> list[int]:
    """Return how many of the hosts each task has: its share, and the first what is left.

    Args:
        n_hosts: Of all tasks. If that is too few for ``least`` of each, there are more in all.
        shares: Of all tasks but the first, below 1 together.
        least: Hosts that each task has at least.
    """
    wanted = [n_hosts * (1.0 - sum(shares)), *(n_hosts * share for share in shares)]
    counts = [least] * len(wanted)
    for _ in range(n_hosts - sum(counts)):
        lacking = [wish - count for wish, count in zip(wanted, counts, strict=True)]
        counts[lacking.index(max(lacking))] += 1
    return counts
