"""Lists of finished episodes: recent, best, worst or typical ones."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Literal, get_args

from esper.config.checks import NonNegativeInt, PositiveInt, check, require_choice
from esper.dashboard.views.values import Row, finite, gain
from esper.lifecycle.stages import Stage
from esper.telemetry import RunTelemetry

Order = Literal["recent", "best", "worst", "typical"]
ORDERS: tuple[Order, ...] = get_args(Order)

_MEASURED = ("ep_rew", "final_score", "no_growth_final_score", "schedule_final_score", "flops")
_COLUMNS = (
    *("env", "episode", "round", "step", "draw_seed", "ep_len", "n_epochs"),
    *("host_parameters", "seed_parameters", "was_truncated", *_MEASURED),
)
IN_PAIRS = "(env, episode) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:pairs))"
"""The condition that a row is of one of some episodes, given as JSON: ``[[env, episode], ...]``."""

_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM episodes"
"""The beginning of a query for the rows that :func:`_episodes` takes."""

# A NaN in one of these columns is text.
_GAIN = (
    "CASE WHEN typeof(final_score) = 'real' AND typeof(no_growth_final_score) = 'real' "
    "AND seed_parameters > 0 THEN final_score - no_growth_final_score END"
)
"""The gain over no growth of a host that kept a seed, otherwise NULL."""

_ORDERS: dict[Order, str] = {
    "recent": "seq DESC",
    "best": f"{_GAIN} DESC NULLS LAST, seed_parameters > 0 DESC, ep_rew DESC NULLS LAST, seq DESC",
    "worst": "ep_rew NULLS LAST, seq DESC",
    "typical": "abs(ep_rew - :median) NULLS LAST, seq DESC",
}


Episode = Row
"""Columns of an :class:`EpisodeRecord`, with gains and the number of seeds that were fossilized.

``gain`` and ``schedule_gain`` are the final score minus that of the same host with no growth and
with the fixed schedule. The seed is text: it has more digits than a JavaScript number.
"""


def episode_list(
    telemetry: RunTelemetry,
    *,
    order: Order,
    env: int | None = None,
    first_round: int | None = None,
    last_round: int | None = None,
    limit: int = 50,
    offset: int = 0,
) -> Row:
    """Return finished ``episodes`` in an order, later ones of equal ones first, and the ``total``.

    Args:
        telemetry: The run's telemetry.
        order: Latest first, best first, lowest return first, or nearest to the median return
            first. The best kept a seed and gained most over the same host with no growth or, where
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
    check("limit", limit, PositiveInt)
    check("offset", offset, NonNegativeInt)
    bounds = {"env = :env": env, "round >= :first": first_round, "round <= :last": last_round}
    where = " AND ".join(["1", *(one for one, value in bounds.items() if value is not None)])
    values: dict[str, Any] = {"env": env, "first": first_round, "last": last_round}
    with telemetry.snapshot():
        (total,) = telemetry.select(f"SELECT count(*) FROM episodes WHERE {where}", **values)[0]
        if order == "typical":
            values["median"] = _median_return(telemetry, where, values)
        values |= {"limit": limit, "offset": offset}
        sql = f"{_SELECT} WHERE {where} ORDER BY {by}"
        rows = telemetry.select(f"{sql} LIMIT :limit OFFSET :offset", **values)
        return {"order": order, "total": total, "episodes": _episodes(telemetry, rows)}


def ended_episode(telemetry: RunTelemetry, env: int, episode: int) -> Episode | None:
    """Return a finished episode, or None if it does not exist or has not ended."""
    sql = f"{_SELECT} WHERE env = :env AND episode = :episode"
    rows = telemetry.select(sql, env=env, episode=episode)
    return next(iter(_episodes(telemetry, rows)), None)


def last_episodes(telemetry: RunTelemetry) -> list[Episode]:
    """Return the last episode of each environment that has ended."""
    last = "SELECT max(seq) FROM episodes GROUP BY env"
    sql = f"{_SELECT} WHERE seq IN ({last})"
    return _episodes(telemetry, telemetry.select(sql))


def _episodes(telemetry: RunTelemetry, rows: list[tuple[Any, ...]]) -> list[Episode]:
    """Return rows as episodes, with the number of seeds that each fossilized."""
    pairs = json.dumps([row[:2] for row in rows])
    sql = f"SELECT env, episode FROM seed_events WHERE to_stage = :stage AND {IN_PAIRS}"
    n_grown = Counter(telemetry.select(sql, stage=Stage.FOSSILIZED.name.lower(), pairs=pairs))
    return [_episode(row, n_grown[row[:2]]) for row in rows]


def _episode(row: tuple[Any, ...], n_grown: int) -> Episode:
    found = dict(zip(_COLUMNS, row, strict=True))
    found |= {name: finite(found[name]) for name in _MEASURED}
    return found | {
        "draw_seed": str(found["draw_seed"]),
        "was_truncated": bool(found["was_truncated"]),
        "gain": gain(found["final_score"], found["no_growth_final_score"]),
        "schedule_gain": gain(found["final_score"], found["schedule_final_score"]),
        "n_grown": n_grown,
    }


def _median_return(telemetry: RunTelemetry, where: str, values: dict[str, Any]) -> float | None:
    """Return the median return of episodes, None without any."""
    chosen = f"FROM episodes WHERE {where} AND ep_rew IS NOT NULL"
    (n,) = telemetry.select(f"SELECT count(*) {chosen}", **values)[0]
    sql = f"SELECT ep_rew {chosen} ORDER BY ep_rew LIMIT :n_middle OFFSET :n_below"
    rows = telemetry.select(sql, **values, n_middle=2 - n % 2, n_below=max(0, n - 1) // 2)
    return sum(value for (value,) in rows) / len(rows) if rows else None
