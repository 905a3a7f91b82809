"""The run as a whole: names, settings, sessions, headline numbers, metrics."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, TypedDict

from esper.config.run import RunConfig
from esper.config.toml import read_toml
from esper.dashboard.views.values import Row, finite, gain, kept_points, rounded
from esper.invocation import nearest_preset, training_command
from esper.telemetry import RunTelemetry
from esper.telemetry.records import EvaluationRecord, RoundRecord, RunRecord


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names behind the indices in a run's records; empty where not recorded."""

    slots: list[str]
    """In the order of the slot head."""
    blueprints: list[str]
    """In the order of the blueprint head."""
    heads: list[str]
    """The action heads, in order."""
    ops: list[str]
    """In the order of the op head."""
    choices: dict[str, list[str]]
    """The named choices of each head."""
    reads: dict[str, list[str]]
    """The heads that each op reads."""


def run_of(telemetry: RunTelemetry) -> RunRecord | None:
    """Return the run's record, or None before it is written."""
    return telemetry.last(RunRecord)


def names_of(run: RunRecord | None) -> Names:
    """Return the names in a run's record."""
    if run is None:
        return Names(slots=[], blueprints=[], heads=[], ops=[], choices={}, reads={})
    return Names(**{one.name: json.loads(getattr(run, one.name)) for one in fields(Names)})


def settings_of(run: RunRecord) -> RunConfig:
    """Return the run's settings.

    Raises:
        ConfigError: If this version of Esper does not know one of them.
    """
    return _read_settings(run.config)


@lru_cache(maxsize=64)
def _read_settings(text: str) -> RunConfig:
    return read_toml(text, source="the run's record")


def overview(telemetry: RunTelemetry) -> Row:
    """Return a run's names, settings and sessions (oldest first); None where not recorded yet.

    ``n_steps`` are those of each environment in a round, and ``reward`` is what the returns of
    training are relative to; see :mod:`esper.environment.rewards`. ``learns`` is false in a record
    of the user's own training, and ``grows`` in one of PPO on another environment. No preset
    describes either.
    """
    with telemetry.snapshot():
        run, sessions = run_of(telemetry), telemetry.sessions()
    found: Row = dict.fromkeys(
        (
            *("task", "host", "config_toml", "preset", "created_at", "esper_version", "n_envs"),
            *("n_steps", "n_epochs", "kl_limit", "reward", "learns", "grows"),
        )
    )
    found |= asdict(names_of(run)) | {"sessions": [asdict(session) for session in sessions]}
    if run is None:
        return found
    settings = settings_of(run)
    learns, grows = not settings.is_own_training, not settings.is_ppo_training
    return found | {
        "task": run.task,
        "host": json.loads(run.host or "null"),
        "config_toml": run.config,
        "preset": _preset_of(run.config) if learns and grows else None,
        "created_at": run.created_at,
        "esper_version": run.esper_version,
        "n_envs": settings.envs,
        "n_steps": settings.n_steps,
        "n_epochs": settings.budget.n_epochs,
        "kl_limit": finite(settings.ppo.kl_limit),
        "reward": settings.rewards.reward,
        "learns": learns,
        "grows": grows,
    }


@lru_cache(maxsize=64)
def _preset_of(text: str) -> Row:
    """Return the preset nearest to settings: its name, what differs, and the command."""
    config = _read_settings(text)
    name, differs = nearest_preset(config)
    return {"name": name, "differs": differs, "command": training_command(config)}


NO_HEADLINE: Row = dict.fromkeys(
    (
        *("task", "task_options", "rounds_done", "rounds", "env_steps", "steps_per_second"),
        *("seconds", "refused_share", "illegal_share", "is_final", "last_return", "best_return"),
        *("fixed_return", "score_gain", "no_growth_score", "host_parameters"),
        *("seed_parameters", "flops", "position"),
    )
)
"""The headline of a run without records."""


def headline(telemetry: RunTelemetry) -> Row:
    """Return a run's progress, and the result of its best controller on held-out hosts.

    The best controller is the one in the run's best checkpoint. Results are final if they are those
    of the comparison at the end, on the test split; before it, they are those of the evaluation
    that selected the controller. Of the user's own training, parameters and FLOPs are the model's.
    ``refused_share`` and ``illegal_share`` are shares of all steps, ``last_return`` is the mean of
    the last round in which episodes ended, and ``score_gain`` the score minus that of the same
    hosts with no growth.
    """
    with telemetry.snapshot():
        run, last = run_of(telemetry), telemetry.last(RoundRecord)
        sums = "total(seconds), total(n_refused), total(n_illegal)"
        seconds, n_refused, n_illegal = telemetry.select(f"SELECT {sums} FROM rounds")[0]
        returns = telemetry.select(
            "SELECT ep_rew_mean FROM rounds WHERE ep_rew_mean IS NOT NULL ORDER BY seq DESC LIMIT 1"
        )
        (best, no_growth, fixed), is_final = _results(telemetry)
        position = telemetry.position
    no_growth_score = None if no_growth is None else finite(no_growth.score_mean)
    found: Row = NO_HEADLINE | {
        "task_options": {},
        "rounds_done": 0,
        "env_steps": 0,
        "seconds": finite(seconds) or 0.0,
        "is_final": is_final,
        "last_return": finite(returns[0][0]) if returns else None,
        "fixed_return": None if fixed is None else finite(fixed.ep_rew_mean),
        "no_growth_score": no_growth_score,
        "position": position,
    }
    sized = best
    if run is not None:
        settings = settings_of(run)
        options = dict(settings.task_options)
        found |= {"task": run.task, "task_options": options, "rounds": settings.rounds}
        if settings.is_own_training:
            sized = last  # nothing is learned: the user's model is shown
    if last is not None:
        found |= {
            "rounds_done": last.round,
            "env_steps": last.env_steps,
            "steps_per_second": finite(last.steps_per_second),
            "refused_share": n_refused / last.env_steps,
            "illegal_share": n_illegal / last.env_steps,
        }
    if best is not None:
        found["best_return"] = finite(best.ep_rew_mean)
        found["score_gain"] = gain(finite(best.score_mean), no_growth_score)
    if sized is not None:
        for name in ("host_parameters", "seed_parameters", "flops"):
            found[name] = finite(getattr(sized, f"{name}_mean"))
    return found


_Results = tuple[EvaluationRecord | None, EvaluationRecord | None, EvaluationRecord | None]
"""The learned controller, no growth and the fixed schedule on the same hosts."""


def _results(telemetry: RunTelemetry) -> tuple[_Results, bool]:
    """Return the comparison at the end, or before it the evaluation that selected the controller.

    Also returns whether it is the comparison at the end.
    """
    last = "purpose = 'final' AND arm = '{}' ORDER BY seq DESC"
    learned, plain, fixed = (
        _evaluation(telemetry, last.format(arm)) for arm in ("learned", "no-growth", "fixed")
    )
    if learned and plain and fixed:
        return (learned, plain, fixed), True
    tuning = "purpose = 'tuning' AND arm = "
    return (
        _evaluation(telemetry, f"{tuning} 'learned' AND is_best ORDER BY seq DESC"),
        _evaluation(telemetry, f"{tuning} 'no-growth' ORDER BY seq"),
        _evaluation(telemetry, f"{tuning} 'fixed' ORDER BY seq"),
    ), False


def _evaluation(telemetry: RunTelemetry, which: str) -> EvaluationRecord | None:
    """Return the first evaluation by a condition and an order."""
    sql = f"SELECT seq FROM evaluations WHERE {which} LIMIT 1"
    found = telemetry.select(sql)
    return telemetry.rows(EvaluationRecord, seq=found[0][0])[0] if found else None


class Points(TypedDict):
    """One metric: rounds and values, None where a value is not finite."""

    rounds: list[int]
    values: list[float | None]


WITHOUT_CHART = ("train/approx_kl/<head>", "train/clip_fraction/<head>")
"""Metrics that no chart shows; reading them takes as long as reading all others."""


def metric_series(
    telemetry: RunTelemetry,
    after: int = 0,
    *,
    until: int | None = None,
    max_points: int | None = None,
    without: Collection[str] = (),
) -> Row:
    """Return ``series`` by the names in docs/reference/metrics.md, and the number of rounds done.

    A round's evaluation is recorded after the round itself, so a client that follows a run should
    ask again for the last round it has.

    Args:
        telemetry: The run's telemetry.
        after: Only rounds after this one; -1 includes evaluations before the first round.
        until: Only rounds up to this one; None for all.
        max_points: Longer series are thinned to about this number of points, the highest and
            lowest among them; None for all points.
        without: Metrics to leave out.
    """
    with telemetry.snapshot():
        last = telemetry.last(RoundRecord)
        metrics = telemetry.metrics(after + 1, until, without=without)
    longest = max((len(one.rounds) for one in metrics.values()), default=0)
    return {
        "rounds_done": 0 if last is None else last.round,
        "is_thinned": max_points is not None and longest > max_points,
        "series": {
            name: points_of(one.rounds, one.values, max_points) for name, one in metrics.items()
        },
    }


def points_of(rounds: Sequence[int], values: Sequence[Any], max_points: int | None) -> Points:
    """Return a series, thinned to at most about so many points; None for all of them."""
    if max_points is None or len(values) <= max_points:
        return {"rounds": list(rounds), "values": [finite(value) for value in values]}
    kept = kept_points(values, max_points)
    return {
        "rounds": [rounds[index] for index in kept],
        "values": [rounded(finite(values[index])) for index in kept],
    }
