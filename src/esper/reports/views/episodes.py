"""Lists of finished episodes: recent, best, worst or typical ones."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, TypedDict, get_args

from esper.config.checks import require_choice, require_int
from esper.lifecycle.stages import Stage
from esper.reports.views.values import finite, gain
from esper.telemetry import RunTelemetry
from esper.telemetry.records import EpisodeRecord

Order = Literal["recent", "best", "worst", "typical"]
ORDERS: tuple[Order, ...] = get_args(Order)

_COLUMNS = (
    "env, episode, round, step, draw_seed, ep_rew, ep_len, final_score, flops, n_epochs, "
    "host_parameters, seed_parameters, was_truncated"
)

# A NaN in one of these columns is text.
_GAIN = (
    "CASE WHEN typeof(final_score) = 'real' AND typeof({alone}) = 'real' AND seed_parameters > 0 "
    "THEN final_score - {alone} END"
)
"""The gain over being left alone of a host that kept a seed, otherwise NULL."""

_ORDERS: dict[Order, str] = {
    "recent": "seq DESC",
    "best": f"{_GAIN} DESC NULLS LAST, seed_parameters > 0 DESC, ep_rew DESC NULLS LAST, seq DESC",
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
    """Text, because it has more digits than a JavaScript number."""
    ep_rew: float | None
    ep_len: int
    final_score: float | None
    alone_final_score: float | None
    """Final score of the same host left alone, if recorded."""
    gain: float | None
    """The final score minus that."""
    schedule_final_score: float | None
    """Final score of the same host grown by the fixed schedule, if recorded."""
    schedule_gain: float | None
    """The final score minus that."""
    flops: float | None
    n_epochs: int
    host_parameters: int
    seed_parameters: int
    was_truncated: bool
    n_grown: int
    """Seeds that were fossilized."""


class EpisodeList(TypedDict):
    """Some episodes, and how many there are in total."""

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
    """Return finished episodes in an order; among equal ones, later ones come first.

    Args:
        telemetry: The run's telemetry.
        order: Latest first, best first, lowest return first, or nearest to the median return
            first. The best kept a seed and gained most over the same host left alone or, where
            that is not recorded, have the highest return; hosts that kept none come last.
        env: Only episodes of this environment.
        first_round: Only episodes that ended in this round or later.
        last_round: Only episodes that ended in this round or earlier.
        limit: The largest number of episodes to return.
        offset: The number of episodes to skip.

    Raises:
        ConfigError: If the order is unknown, or a number is too small.
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
        by = by.format(alone=telemetry.column_sql(EpisodeRecord, "alone_final_score"))
        sql = f"{_select_sql(telemetry)} WHERE {where} ORDER BY {by}"
        rows = telemetry.select(f"{sql} LIMIT :limit OFFSET :offset", **values)
        return {"total": total, "episodes": _episodes(telemetry, rows)}


def ended_episode(telemetry: RunTelemetry, env: int, episode: int) -> Episode | None:
    """Return a finished episode, or None if it does not exist or has not ended."""
    sql = f"{_select_sql(telemetry)} WHERE env = :env AND episode = :episode"
    rows = telemetry.select(sql, env=env, episode=episode)
    return next(iter(_episodes(telemetry, rows)), None)


def last_episodes(telemetry: RunTelemetry) -> list[Episode]:
    """Return the last episode of each environment that has ended."""
    last = "SELECT max(seq) FROM episodes GROUP BY env"
    sql = f"{_select_sql(telemetry)} WHERE seq IN ({last})"
    return _episodes(telemetry, telemetry.select(sql))


def _select_sql(telemetry: RunTelemetry) -> str:
    """Return the beginning of a query for the rows that :func:`_episodes` takes."""
    rivals = ("alone_final_score", "schedule_final_score")
    columns = [telemetry.column_sql(EpisodeRecord, name) for name in rivals]
    return f"SELECT {_COLUMNS}, {', '.join(columns)} FROM episodes"


def _episodes(telemetry: RunTelemetry, rows: list[tuple[Any, ...]]) -> list[Episode]:
    """Return rows as episodes, with the number of seeds that each fossilized."""
    pairs = ", ".join(f"({env}, {episode})" for env, episode, *_ in rows)
    sql = (
        "SELECT env, episode FROM seed_events WHERE to_stage = :stage "
        # SQLite does not use the index for a plain list of VALUES.
        f"AND (env, episode) IN (SELECT * FROM (VALUES {pairs}))"
    )
    n_grown = Counter(telemetry.select(sql, stage=Stage.FOSSILIZED.name.lower()) if rows else ())
    return [_episode(row, n_grown[row[:2]]) for row in rows]


def _episode(row: tuple[Any, ...], n_grown: int) -> Episode:
    env, episode, round_, step, draw_seed, ep_rew, ep_len, score, flops, *others = row
    n_epochs, host_parameters, seed_parameters, was_truncated, alone, schedule = others
    own, left_alone, scheduled = finite(score), finite(alone), finite(schedule)
    return {
        "env": env,
        "episode": episode,
        "round": round_,
        "step": step,
        "draw_seed": str(draw_seed),
        "ep_rew": finite(ep_rew),
        "ep_len": ep_len,
        "final_score": own,
        "alone_final_score": left_alone,
        "gain": gain(own, left_alone),
        "schedule_final_score": scheduled,
        "schedule_gain": gain(own, scheduled),
        "flops": finite(flops),
        "n_epochs": n_epochs,
        "host_parameters": host_parameters,
        "seed_parameters": seed_parameters,
        "was_truncated": bool(was_truncated),
        "n_grown": n_grown,
    }


def _median_return(telemetry: RunTelemetry, where: str, values: dict[str, Any]) -> float | None:
    """Return the median return of episodes, None without any."""
    chosen = f"FROM episodes WHERE {where} AND ep_rew IS NOT NULL"
    (n,) = telemetry.select(f"SELECT count(*) {chosen}", **values)[0]
    sql = f"SELECT ep_rew {chosen} ORDER BY ep_rew LIMIT :n_middle OFFSET :n_below"
    rows = telemetry.select(sql, **values, n_middle=2 - n % 2, n_below=max(0, n - 1) // 2)
    return sum(value for (value,) in rows) / len(rows) if rows else None
