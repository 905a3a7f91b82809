"""Advantages of a rollout, ``estimate_advantages``, against peers, a step loop and a plain copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from advantage_peers import (
    GAE_LAMBDA,
    GAMMA,
    PEERS,
    Estimate,
    Rollout,
    seconds_step_by_step,
    step_by_step,
)
from esper.simic.agent.advantages import estimate_advantages
from rows import Ratio, Row, compare, missing_row
from timing import Call, Effort, Timings, time_side_by_side

GROUP = "advantages"
SHAPES = ((4, 25), (16, 25), (16, 150), (128, 150), (1024, 128), (4096, 256))

BOUND_FROM = 16 * 150
"""Smallest number of entries with a target for the copy bound; below it a call is all overhead."""

LOOP_SHAPE = (128, 150)
LONGEST_LOOP_SECONDS = 20.0

# Three floats and two flags are read for each entry, and two floats written.
BYTES_PER_ENTRY = 3 * 4 + 2 * 1 + 2 * 4

STEP_LOOP = "loop over single steps"
CLONE = "clone() of the same bytes"
COPY = "copy_() of the same bytes"
HALF_COPY = "copy_() of half of them"


def run(effort: Effort) -> list[Row]:
    """Measure every shape."""
    rows: list[Row] = []
    for n_envs, n_steps in SHAPES:
        rows += _run_shape(n_envs, n_steps, effort)
    return rows


def _run_shape(n_envs: int, n_steps: int, effort: Effort) -> list[Row]:
    rollout = Rollout.random(n_envs, n_steps)
    shape = f"({n_envs}, {n_steps})"
    ours = {
        f"{shape} time-major": _ours(rollout, lambda stored: stored.t()),
        f"{shape} env-major": _ours(rollout, lambda stored: stored.t().contiguous()),
    }
    expected = next(iter(ours.values()))()
    calls: dict[str, Call] = dict(ours)
    missing: dict[str, str] = {}
    estimates: dict[str, Estimate] = {}
    for name, build in PEERS.items():
        try:
            estimates[name] = build(rollout)
        except ImportError as error:
            missing[name] = f"not installed ({error.name})"
    loop_seconds = seconds_step_by_step(rollout)
    if loop_seconds <= LONGEST_LOOP_SECONDS:
        estimates[STEP_LOOP] = step_by_step(rollout)
    else:
        missing[STEP_LOOP] = f"skipped: one run takes about {loop_seconds:.0f} s"
    for name, estimate in (ours | estimates).items():
        _require_agreement(name, estimate(), expected)
    calls |= estimates | _copies(n_envs * n_steps)
    timings = time_side_by_side(calls, effort)
    return [row for name in ours for row in _rows(timings, name, (n_envs, n_steps), missing)]


def _rows(
    timings: Timings, ours: str, shape: tuple[int, int], missing: dict[str, str]
) -> list[Row]:
    faster = partial(compare, timings, ours, group=GROUP, kind=Ratio.SPEEDUP)
    peers = [faster(name, limit=1.0, is_detail=True) for name in PEERS if name in timings]
    rows: list[Row] = []
    if peers:
        nearest = min(peers, key=lambda row: row.ratio.median if row.ratio else 0.0)
        rows += [faster(row.other, limit=1.0, is_detail=row is not nearest) for row in peers]
    loop_limit = 1000.0 if shape == LOOP_SHAPE else None
    if STEP_LOOP in timings:
        rows.append(faster(STEP_LOOP, limit=loop_limit))
    gone = partial(missing_row, timings, ours, group=GROUP, kind=Ratio.SPEEDUP)
    for name, why in missing.items():
        rows.append(gone(name, limit=loop_limit if name == STEP_LOOP else 1.0, note=why))
    cost = partial(compare, timings, ours, group=GROUP, kind=Ratio.COST)
    is_bounded = shape[0] * shape[1] >= BOUND_FROM
    rows.append(cost(CLONE, limit=3.0 if is_bounded else None))
    rows += [cost(COPY), cost(HALF_COPY, is_detail=True)]
    return rows


def _ours(rollout: Rollout, lay_out: Callable[[Tensor], Tensor]) -> Estimate:
    rewards, values = lay_out(rollout.rewards), lay_out(rollout.values)
    next_values = lay_out(rollout.next_values)
    terminated, truncated = lay_out(rollout.terminated), lay_out(rollout.truncated)
    return lambda: estimate_advantages(
        rewards,
        values,
        next_values,
        terminated=terminated,
        truncated=truncated,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
    )


def _copies(n_entries: int) -> dict[str, Call]:
    """Return the copies that serve as bounds; the last one copies half of the bytes."""
    source = torch.zeros(n_entries * BYTES_PER_ENTRY, dtype=torch.uint8)
    target = torch.empty_like(source)
    half = len(source) // 2
    first, second = source[:half], target[:half]
    return {
        CLONE: source.clone,
        COPY: lambda: target.copy_(source),
        HALF_COPY: lambda: second.copy_(first),
    }


def _require_agreement(
    name: str, result: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]
) -> None:
    """Raise if an estimate, ``[E, T]``, ``[T, E]`` or ``[E, T, 1]``, differs from ours."""
    for what, mine, theirs in zip(("advantages", "returns"), expected, result, strict=True):
        other = theirs.squeeze(-1) if theirs.ndim == 3 else theirs
        other = other if other.shape == mine.shape else other.t()
        error = float((other - mine).abs().max())
        if not error <= 1e-4:
            raise AssertionError(f"the {what} of {name!r} differ from ours by {error:g}")
