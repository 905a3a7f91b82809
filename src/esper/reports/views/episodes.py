"""Lists of episodes: the last, the best, the worst, and those like most."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

from esper.config.checks import require_choice, require_int
from esper.lifecycle.stages import Stage
from esper.reports.views.finding import first_number
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import SeedEventRecord

Order = Literal["recent", "best", "worst", "typical"]
ORDERS: tuple[Order, ...] = get_args(Order)

_COLUMNS = (
    "env, episode, round, step, draw_seed, ep_rew, ep_len, final_score, flops, n_epochs, "
    "host_parameters, seed_parameters, was_truncated"
)

_ORDERS: dict[Order, str] = {
    "recent": "seq DESC",
    "best": "ep_rew DESC NULLS LAST, seq DESC",
    "worst": "ep_rew NULLS LAST, seq DESC",
    "typical": "abs(ep_rew - :median) NULLS LAST, seq DESC",
}


class Episode(TypedDict):
    """How an episode ended."""

    env: int
    episode: int
    round: int
    step: int
    draw_seed: str
    """A text, since it has more digits than a number of JavaScript."""
    ep_rew: float | None
    ep_len: int
    final_score: float | None
    flops: float | None
    n_epochs: int
    host_parameters: int
    seed_parameters: int
    was_truncated: bool
    n_grown: int
    """Seeds that were fossilized."""


class EpisodeList(TypedDict):
    """Some episodes, and how many there are to choose from."""

    total: int
    episodes: list[Episode]


def episode_list(
    telemetry: RunTelemetry,
    *,
    order: Order,
    env: int | None = None,
    first_round: int | None = None,
    last_round: int | None = None,
    limit: int = 50,
    offset: int = 0,
) -> EpisodeList:
    """Return episodes that ended, in an order; of equal ones the later comes first.

    Args:
        telemetry: Of the run.
        order: The last first, the highest or lowest return first, or that nearest to the median.
        env: Only those of an environment.
        first_round: Only those that ended in this round or later.
        last_round: Only those that ended in this round or earlier.
        limit: How many, at most.
        offset: How many to leave out before.

    Raises:
        ConfigError: If the order is not one of these, or a number is too small.
    """
    by = _ORDERS[require_choice("order", order, ORDERS)]
    require_int("limit", limit, least=1)
    require_int("offset", offset, least=0)
    bounds = {"env = :env": env, "round >= :first": first_round, "round <= :last": last_round}
    where = " AND ".join(["1", *(one for one, value in bounds.items() if value is not None)])
    values: dict[str, Any] = {"env": env, "first": first_round, "last": last_round}
    with telemetry.snapshot():
        (total,) = telemetry.select(f"SELECT count(*) FROM episodes WHERE {where}", **values)[0]
        if order == "typical":
            values["median"] = _median_return(telemetry, where, values)
        values |= {"limit": limit, "offset": offset}
        sql = f"SELECT seq, {_COLUMNS} FROM episodes WHERE {where} ORDER BY {by}"
        rows = telemetry.select(f"{sql} LIMIT :limit OFFSET :offset", **values)
        return {"total": total, "episodes": [_episode(telemetry, row) for row in rows]}


def ended_episode(telemetry: RunTelemetry, env: int, episode: int) -> Episode | None:
    """Return an episode that ended, or None if there is none of these numbers."""
    sql = f"SELECT seq, {_COLUMNS} FROM episodes WHERE env = :env AND episode = :episode"
    rows = telemetry.select(sql, env=env, episode=episode)
    return _episode(telemetry, rows[0]) if rows else None


def _episode(telemetry: RunTelemetry, row: tuple[Any, ...]) -> Episode:
    seq, env, episode, round_, step, draw_seed, ep_rew, ep_len, score, flops, *others = row
    n_epochs, host_parameters, seed_parameters, was_truncated = others
    return {
        "env": env,
        "episode": episode,
        "round": round_,
        "step": step,
        "draw_seed": str(draw_seed),
        "ep_rew": finite(ep_rew),
        "ep_len": ep_len,
        "final_score": finite(score),
        "flops": finite(flops),
        "n_epochs": n_epochs,
        "host_parameters": host_parameters,
        "seed_parameters": seed_parameters,
        "was_truncated": bool(was_truncated),
        "n_grown": _count_grown(telemetry, env, first_step=step - ep_len + 1, end=seq),
    }


def _count_grown(telemetry: RunTelemetry, env: int, *, first_step: int, end: int) -> int:
    """Return how many seeds an episode fossilized, whose last row has the number ``end``."""
    start = first_number(telemetry, SeedEventRecord, "step", first_step)
    sql = (
        "SELECT count(*) FROM seed_events WHERE seq >= :start AND seq < :end AND env = :env "
        "AND to_stage = :stage"
    )
    stage = Stage.FOSSILIZED.name.lower()
    return telemetry.select(sql, start=start, end=end, env=env, stage=stage)[0][0]


def _median_return(telemetry: RunTelemetry, where: str, values: dict[str, Any]) -> float | None:
    """Return the median return of the episodes that have one; None without any."""
    chosen = f"FROM episodes WHERE {where} AND ep_rew IS NOT NULL"
    (n,) = telemetry.select(f"SELECT count(*) {chosen}", **values)[0]
    sql = f"SELECT ep_rew {chosen} ORDER BY ep_rew LIMIT :n_middle OFFSET :n_below"
    rows = telemetry.select(sql, **values, n_middle=2 - n % 2, n_below=max(0, n - 1) // 2)
    return sum(value for (value,) in rows) / len(rows) if rows else None
