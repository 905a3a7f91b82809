"""The run as a whole: names, settings, sessions, headline numbers, metrics, evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, TypedDict, cast

from esper.config.growth import RewardForm
from esper.config.run import RunConfig
from esper.config.toml import read_toml
from esper.reports.views.presets import PresetView, nearest_preset
from esper.reports.views.thinning import kept_points, rounded
from esper.reports.views.values import finite, gain
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
    slots, blueprints, ops = map(_names, (run.slots, run.blueprints, run.ops))
    return Names(
        slots=slots,
        blueprints=blueprints,
        heads=_names(run.heads),
        ops=ops,
        choices=(
            {"slot": slots, "blueprint": blueprints, "op": ops}
            if run.choices is None
            else _lists(run.choices)
        ),
        reads=_lists(run.reads),
    )


def _names(text: str) -> list[str]:
    return [str(name) for name in json.loads(text)]


def _lists(text: str | None) -> dict[str, list[str]]:
    read: dict[str, list[str]] = {} if text is None else json.loads(text)
    return {key: [str(name) for name in names] for key, names in read.items()}


def settings_of(run: RunRecord) -> RunConfig:
    """Return the run's settings.

    Raises:
        ConfigError: If this version of Esper does not know one of them.
    """
    return _read_settings(run.config)


@lru_cache(maxsize=64)
def _read_settings(text: str) -> RunConfig:
    return read_toml(text, source="the run's record")


class Session(TypedDict):
    """One process that worked on a run."""

    pid: int
    started_at: str
    ended_at: str | None
    outcome: str | None
    message: str | None
    first_round: int
    threads: int
    torch_version: str
    python_version: str
    esper_version: str
    platform: str


class HostPart(TypedDict):
    """A layer or a slot of the task's widest host."""

    first_env: int
    """The first environment whose hosts have this part."""
    name: str
    kind: str
    parameters: int
    slot: str | None


class Overview(TypedDict):
    """A run's names, settings and sessions; None where not recorded yet."""

    task: str | None
    slots: list[str]
    blueprints: list[str]
    heads: list[str]
    ops: list[str]
    choices: dict[str, list[str]]
    reads: dict[str, list[str]]
    host: list[HostPart] | None
    config_toml: str | None
    preset: PresetView | None
    """None for a record of PPO or of the user's own training, which no preset describes."""
    created_at: str | None
    esper_version: str | None
    sessions: list[Session]
    n_envs: int | None
    n_steps: int | None
    """Steps of each environment in a round."""
    n_epochs: int | None
    kl_limit: float | None
    reward: RewardForm | None
    """What the returns of training are relative to; see `esper.environment.rewards`."""
    learns: bool | None
    """Whether a policy learns in the run; not in a record of the user's own training."""
    grows: bool | None
    """Whether hosts are grown in the run; not in a record of PPO on another environment."""


def sessions_of(telemetry: RunTelemetry) -> list[Session]:
    """Return the sessions of a run, oldest first."""
    return [cast(Session, asdict(session)) for session in telemetry.sessions()]


def overview(telemetry: RunTelemetry) -> Overview:
    """Return a run's names, settings and sessions."""
    with telemetry.snapshot():
        run, sessions = run_of(telemetry), sessions_of(telemetry)
    names = names_of(run)
    settings = None if run is None else settings_of(run)
    learns = None if settings is None else not settings.is_own_training
    grows = None if settings is None else not settings.is_ppo_training
    kl_limit = math.inf if settings is None else settings.ppo.kl_limit
    return {
        "task": None if run is None else run.task,
        "slots": names.slots,
        "blueprints": names.blueprints,
        "heads": names.heads,
        "ops": names.ops,
        "choices": names.choices,
        "reads": names.reads,
        "host": None if run is None or run.host is None else json.loads(run.host),
        "config_toml": None if run is None else run.config,
        "preset": nearest_preset(run.config) if run and learns and grows else None,
        "created_at": None if run is None else run.created_at,
        "esper_version": None if run is None else run.esper_version,
        "sessions": sessions,
        "n_envs": None if settings is None else settings.envs,
        "n_steps": None if settings is None else settings.n_steps,
        "n_epochs": None if settings is None else settings.budget.n_epochs,
        "kl_limit": kl_limit if math.isfinite(kl_limit) else None,
        "reward": None if settings is None else settings.rewards.reward,
        "learns": learns,
        "grows": grows,
    }


class Headline(TypedDict):
    """A run in a few numbers; None where unknown."""

    task: str | None
    task_options: dict[str, Any]
    rounds_done: int
    rounds: int | None
    env_steps: int
    steps_per_second: float | None
    seconds: float
    refused_share: float | None
    """Share of all steps whose action a gate refused."""
    illegal_share: float | None
    """Share of all steps whose action was illegal in the host's state."""
    is_final: bool
    """Whether results are those of the comparison at the end, on the test split; before it, those
    of the evaluation that selected the best controller."""
    last_return: float | None
    """The mean return of the last round in which episodes ended."""
    best_return: float | None
    fixed_return: float | None
    accuracy_gain: float | None
    """The score minus that of the same hosts left alone."""
    best_score: float | None
    static_score: float | None
    host_parameters: float | None
    seed_parameters: float | None
    flops: float | None
    position: int


def headline(telemetry: RunTelemetry) -> Headline:
    """Return a run's progress, and the result of its best controller on held-out hosts.

    The best controller is the one in the run's best checkpoint. Of the user's own training,
    parameters and FLOPs are the model's.
    """
    with telemetry.snapshot():
        run, last = run_of(telemetry), telemetry.last(RoundRecord)
        sums = "total(seconds), total(n_refused), total(n_illegal)"
        seconds, n_refused, n_illegal = telemetry.select(f"SELECT {sums} FROM rounds")[0]
        returns = telemetry.select(
            "SELECT ep_rew_mean FROM rounds WHERE ep_rew_mean IS NOT NULL ORDER BY seq DESC LIMIT 1"
        )
        results = _final_results(telemetry)
        is_final = all(results)
        if not is_final:
            results = _tuning_results(telemetry)
        position = telemetry.position
    best, static, fixed = results
    settings = None if run is None else settings_of(run)
    # Nothing is learned in the user's own training: its model is the one that counts.
    sized = last if settings is not None and settings.is_own_training else best
    best_score = None if best is None else finite(best.score_mean)
    static_score = None if static is None else finite(static.score_mean)
    return {
        "task": None if run is None else run.task,
        "task_options": {} if settings is None else dict(settings.task_options),
        "rounds_done": 0 if last is None else last.round,
        "rounds": None if settings is None else settings.rounds,
        "env_steps": 0 if last is None else last.env_steps,
        "steps_per_second": None if last is None else finite(last.steps_per_second),
        "seconds": finite(seconds) or 0.0,
        "refused_share": None if last is None else n_refused / last.env_steps,
        "illegal_share": None if last is None else n_illegal / last.env_steps,
        "is_final": is_final,
        "last_return": finite(returns[0][0]) if returns else None,
        "best_return": None if best is None else finite(best.ep_rew_mean),
        "fixed_return": None if fixed is None else finite(fixed.ep_rew_mean),
        "accuracy_gain": gain(best_score, static_score),
        "best_score": best_score,
        "static_score": static_score,
        "host_parameters": None if sized is None else finite(sized.host_parameters_mean),
        "seed_parameters": None if sized is None else finite(sized.seed_parameters_mean),
        "flops": None if sized is None else finite(sized.flops_mean),
        "position": position,
    }


_Results = tuple[EvaluationRecord | None, EvaluationRecord | None, EvaluationRecord | None]
"""The learned controller, hosts left alone and the fixed schedule on the same hosts."""


def _final_results(telemetry: RunTelemetry) -> _Results:
    """Return the comparison at the end."""
    last = "purpose = 'final' AND arm = '{}' ORDER BY seq DESC"
    learned, wait, fixed = (
        _evaluation(telemetry, last.format(arm)) for arm in ("learned", "wait", "fixed")
    )
    return learned, wait, fixed


def _tuning_results(telemetry: RunTelemetry) -> _Results:
    """Return the evaluation that selected the best controller so far, and its baselines."""
    return (
        _evaluation(
            telemetry, "purpose = 'tuning' AND arm = 'learned' AND is_best ORDER BY seq DESC"
        ),
        _evaluation(telemetry, "purpose = 'tuning' AND arm = 'wait' ORDER BY seq"),
        _evaluation(telemetry, "purpose = 'tuning' AND arm = 'fixed' ORDER BY seq"),
    )


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


class MetricSeries(TypedDict):
    """Metrics by name, and the number of finished rounds."""

    rounds_done: int
    is_thinned: bool
    """Whether points were left out."""
    series: dict[str, Points]


def metric_series(
    telemetry: RunTelemetry,
    after: int = 0,
    *,
    until: int | None = None,
    most_points: int | None = None,
    without: Collection[str] = (),
) -> MetricSeries:
    """Return metrics by the names in docs/reference/metrics.md.

    A round's evaluation is recorded after the round itself, so a client that follows a run should
    ask again for the last round it has.

    Args:
        telemetry: The run's telemetry.
        after: Only rounds after this one; -1 includes evaluations before the first round.
        until: Only rounds up to this one; None for all.
        most_points: Longer series are thinned to about this number of points, the highest and
            lowest among them; None for all points.
        without: Metrics to leave out.
    """
    with telemetry.snapshot():
        last = telemetry.last(RoundRecord)
        metrics = telemetry.metrics_since(after + 1, until, without=without)
    longest = max((len(one.rounds) for one in metrics.values()), default=0)
    return {
        "rounds_done": 0 if last is None else last.round,
        "is_thinned": most_points is not None and longest > most_points,
        "series": {
            name: points_of(one.rounds, one.values, most_points) for name, one in metrics.items()
        },
    }


def points_of(rounds: Sequence[int], values: Sequence[Any], most_points: int | None) -> Points:
    """Return a series, thinned to at most about so many points; None for all of them."""
    if most_points is None or len(values) <= most_points:
        return {"rounds": list(rounds), "values": [finite(value) for value in values]}
    kept = kept_points(values, most_points)
    return {
        "rounds": [rounds[index] for index in kept],
        "values": [rounded(finite(values[index])) for index in kept],
    }


class Evaluation(TypedDict):
    """The result of one controller in one evaluation."""

    round: int
    arm: str
    purpose: str
    split: str
    n_episodes: int
    ep_rew_mean: float | None
    score_mean: float | None
    flops_mean: float | None
    host_parameters_mean: float | None
    seed_parameters_mean: float | None
    is_best: bool


def evaluations(telemetry: RunTelemetry) -> list[Evaluation]:
    """Return every evaluation of a run, in order."""
    return [
        {
            "round": one.round,
            "arm": one.arm,
            "purpose": one.purpose,
            "split": one.split,
            "n_episodes": one.n_episodes,
            "ep_rew_mean": finite(one.ep_rew_mean),
            "score_mean": finite(one.score_mean),
            "flops_mean": finite(one.flops_mean),
            "host_parameters_mean": finite(one.host_parameters_mean),
            "seed_parameters_mean": finite(one.seed_parameters_mean),
            "is_best": one.is_best,
        }
        for one in telemetry.rows(EvaluationRecord)
    ]
