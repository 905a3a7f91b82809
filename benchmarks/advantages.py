"""Advantages of a rollout, ``estimate_advantages``, against peers and a loop over single steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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

LOOP_SHAPE = (128, 150)
LONGEST_LOOP_SECONDS = 20.0

STEP_LOOP = "loop over single steps"


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
    calls |= estimates
    timings = time_side_by_side(calls, effort)
    return [row for name in ours for row in _rows(timings, name, (n_envs, n_steps), missing)]


def _rows(
    timings: Timings, ours: str, shape: tuple[int, int], missing: dict[str, str]
) -> list[Row]:
    faster = partial(compare, timings, ours, group=GROUP, kind=Ratio.SPEEDUP)
    peers = [faster(name, is_detail=True) for name in PEERS if name in timings]
    rows: list[Row] = []
    if peers:
        nearest = min(peers, key=lambda row: row.ratio.median if row.ratio else 0.0)
        rows += [faster(row.other, is_detail=row is not nearest) for row in peers]
    loop_limit = 100.0 if shape == LOOP_SHAPE else None
    if STEP_LOOP in timings:
        rows.append(faster(STEP_LOOP, limit=loop_limit))
    gone = partial(missing_row, timings, ours, group=GROUP, kind=Ratio.SPEEDUP)
    for name, why in missing.items():
        rows.append(gone(name, limit=loop_limit if name == STEP_LOOP else None, note=why))
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
