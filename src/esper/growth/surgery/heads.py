"""Recognizing attention heads by where a query, a key or a value arrives.

With heads of ``size`` entries, one entry of a query reaches all entries of its head in what the
output layer reads, one of a key those of all heads that share it, and one of a value one entry of
each of these. The rows of queries, keys and values may be in layers of their own, one after another
in one layer, or head by head in one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from esper.growth.surgery.places import Heads

Reach = Callable[[str, int], frozenset[int]]
"""Returns where a row of a layer arrives in what the output layer reads."""


@dataclass(frozen=True)
class HeadLayout:
    """Where the heads of an attention layer are in the layers that write them."""

    heads: Heads
    units: int
    """Number of key-value heads."""
    starts: Mapping[str, tuple[tuple[int, int], ...]]
    """For each layer, where rows of the first unit start, and how many there are of each."""


def find_head_layout(n_read: int, sizes: Mapping[str, int], reach: Reach) -> HeadLayout | None:
    """Return the layout of heads, or None if the layers do not write any.

    Args:
        n_read: Entries that the output layer reads.
        sizes: Rows of each layer that writes to it.
        reach: Where rows arrive.
    """
    first = {name: reach(name, 0) for name in sizes}
    blocks = [len(found) for found in first.values() if _is_block(found) and len(found) > 1]
    if not blocks:
        return None
    size = min(blocks)
    if n_read % size or any(rows % size for rows in sizes.values()):
        return None
    layout = _fused(n_read, sizes, size, reach) if len(sizes) == 1 else _apart(n_read, sizes, size)
    if layout is None:
        return None
    # The last row belongs to the last unit.
    width = layout.heads.per_unit * size
    last = set(range(n_read - width, n_read))
    for name, rows in sizes.items():
        found = reach(name, rows - 1)
        if not found or not found <= last:
            return None
    return layout


def _apart(n_read: int, sizes: Mapping[str, int], size: int) -> HeadLayout | None:
    """Return the layout of queries, keys and values that have layers of their own."""
    n_heads, units = n_read // size, min(sizes.values()) // size
    if len(sizes) != 3 or n_heads % units or any(rows % units for rows in sizes.values()):
        return None
    starts = {name: ((0, rows // units),) for name, rows in sizes.items()}
    return HeadLayout(Heads(n_heads // units, size), units, starts)


def _fused(n_read: int, sizes: Mapping[str, int], size: int, reach: Reach) -> HeadLayout | None:
    """Return the layout of queries, keys and values in one layer."""
    ((name, rows),) = sizes.items()
    n_heads, n_all = n_read // size, rows // size
    units = (n_all - n_heads) // 2
    if units < 1 or n_heads + 2 * units != n_all or n_heads % units:
        return None
    heads = Heads(n_heads // units, size)
    # Head by head, the keys of the first unit follow its queries; else the next unit's queries do.
    n_queries = heads.per_unit * size
    if units > 1 and reach(name, n_queries) <= set(range(n_queries)):
        return HeadLayout(heads, units, {name: ((0, n_queries + 2 * size),)})
    starts = (
        (0, n_queries),
        (n_heads * size, size),
        ((n_heads + units) * size, size),
    )
    return HeadLayout(heads, units, {name: starts})


def _is_block(found: frozenset[int]) -> bool:
    return sorted(found) == list(range(len(found)))
