"""The tables of a report, built from the report's values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from esper.evidence.text import Table
from esper.formatting import UNKNOWN, number, share, span, whole
from esper.reports.run_report.values import RunValues
from esper.reports.views import ComparisonView, EpisodeDetail, Learned, Points, Step
from esper.reports.views.carried_out import CarriedOut
from esper.reports.views.comparison import IntervalValues
from esper.statistics import mean_interval
from esper.training.comparison import LABELS

T = TypeVar("T")

N_ROUNDS = 8
"""Rounds shown of a run, evenly spaced."""
N_EVALUATIONS = 24
"""Evaluations shown of a run, evenly spaced."""
N_BLUEPRINTS = 8
"""Most frequent blueprints shown."""
MIN_RUNS = 3
"""Fewest runs for which an interval over runs is shown."""

_METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "rollout/ep_rew_mean": ("return", number),
    "growth/score": ("score", number),
    "growth/flops": ("FLOPs", lambda value: number(value, 2)),
    "growth/seed_parameters": ("parameters grown", whole),
    "train/approx_kl": ("KL", number),
    "train/entropy/op": ("entropy of op", lambda value: number(value, 2)),
    "train/value_loss": ("value loss", number),
    "train/policy_gradient_loss": ("policy loss", number),
    "train/explained_variance": ("explained variance", lambda value: number(value, 2)),
    "time/fps": ("host-epochs/s", whole),
}


def learning_table(run: RunValues) -> Table:
    """Return the metrics of evenly spaced rounds."""
    series = run["metrics"]["series"]
    rounds = series.get("time/iterations", _NO_POINTS)["rounds"]
    known = {name: _by_round(series[name]) for name in _METRICS if name in series}
    rows = [
        (str(one), *(_METRICS[name][1](values.get(one)) for name, values in known.items()))
        for one in spread(rounds, N_ROUNDS)
    ]
    headers = ("round", *(_METRICS[name][0] for name in known))
    return Table(headers=headers, rows=tuple(rows), n_left=0)


def evaluations_table(run: RunValues) -> Table:
    """Return the evaluations on held-out hosts during training, always including the best."""
    trials = [one for one in run["evaluations"] if one["purpose"] == "tuning"]
    learned = [one for one in trials if one["arm"] == "learned"]
    best = [one for one in learned if one["is_best"]][-1:]
    shown = {id(one) for one in (*spread(learned, N_EVALUATIONS), *best)}
    rows = [
        (
            str(one["round"]),
            one["arm"],
            number(one["ep_rew_mean"]),
            number(one["score_mean"]),
            number(one["flops_mean"], 2),
            whole(one["seed_parameters_mean"]),
            "best so far" if one["is_best"] and one["arm"] == "learned" else "",
        )
        for one in trials
        if one["arm"] != "learned" or id(one) in shown
    ]
    headers = ("round", "controller", "return", "score", "FLOPs", "parameters grown", "")
    return Table(headers=headers, rows=tuple(rows), n_left=2)


def returns_table(runs: Sequence[RunValues]) -> Table:
    """Return the returns on held-out hosts by round, one column per run."""
    by_run = [
        _by_round(run["metrics"]["series"].get("eval/mean_reward", _NO_POINTS)) for run in runs
    ]
    rounds = spread(sorted({one for known in by_run for one in known}), N_EVALUATIONS)
    rows = tuple((str(one), *(number(known.get(one)) for known in by_run)) for one in rounds)
    return Table(headers=("round", *(run["name"] for run in runs)), rows=rows, n_left=0)


def spread(values: Sequence[T], count: int) -> list[T]:
    """Return at most ``count`` values, evenly spaced from the first to the last."""
    if len(values) <= count:
        return list(values)
    return [values[round((len(values) - 1) * place / (count - 1))] for place in range(count)]


def ops_table(learned: Learned) -> Table:
    """Return the mean number of each op in an episode, one row per part of training."""
    parts = learned["parts"]
    names = list(dict.fromkeys(op for part in parts for op in part["ops"]))
    rows = [
        (
            span(part["first_round"], part["last_round"]),
            whole(part["n_episodes"]),
            number(part["mean_return"]),
            number(part["mean_score"]),
            *(number(part["ops"].get(op), 2) for op in names),
        )
        for part in parts
    ]
    shown = (op.replace("_", " ") for op in names)
    return Table(headers=("", "episodes", "return", "score", *shown), rows=tuple(rows))


def carried_out_table(found: CarriedOut) -> Table:
    """Return how often each op was chosen and what became of it, as shares of steps."""
    columns = ("chosen", "done", "refused", "illegal")
    n_steps = found["n_steps"]
    rows = [
        (one["op"].replace("_", " "), *(share(one[name] / n_steps) for name in columns))
        for one in found["ops"]
    ]
    headers = ("op", "chosen", "carried out", "refused by a gate", "illegal")
    return Table(headers=headers, rows=tuple(rows))


def timing_table(learned: Learned) -> Table:
    """Return when seeds are germinated and episodes finished, one row per part of training."""
    rows = [
        (
            span(part["first_round"], part["last_round"]),
            epoch_by(part["germination_epochs"], 0.5),
            epoch_by(part["germination_epochs"], 0.9),
            share(sum(part["finish_epochs"].values()) / part["n_episodes"]),
            epoch_by(part["finish_epochs"], 0.5),
        )
        for part in learned["parts"]
        if part["n_episodes"]
    ]
    headers = (
        "",
        "half of the seeds germinated by epoch",
        "90% by epoch",
        "episodes finished early",
        "half of them by epoch",
    )
    return Table(headers=headers, rows=tuple(rows))


def epoch_by(counts: Mapping[int, int], wanted: float) -> str:
    """Return the first epoch by which a share of all counted events has happened."""
    total, passed = sum(counts.values()), 0
    for epoch in sorted(counts):
        passed += counts[epoch]
        if passed >= wanted * total:
            return str(epoch)
    return UNKNOWN


def blueprints_table(learned: Learned) -> Table:
    """Return each blueprint's share of seeds germinated and kept, in the first and last part."""
    parts = [part for part in learned["parts"] if part["n_episodes"]]
    if not parts:
        return Table(headers=("blueprint",), rows=())
    ends = [parts[0], parts[-1]] if len(parts) > 1 else [parts[-1]]
    last = ends[-1]
    names = sorted(
        {name for part in ends for name in (*part["blueprints"], *part["committed"])},
        key=lambda name: (-last["blueprints"].get(name, 0.0), name),
    )
    rows = [
        (
            name,
            *(share(part["blueprints"].get(name, 0.0)) for part in ends),
            *(share(part["committed"].get(name, 0.0)) for part in ends),
        )
        for name in names[:N_BLUEPRINTS]
    ]
    when = [span(part["first_round"], part["last_round"]) for part in ends]
    headers = (
        "blueprint",
        *(f"germinated, {one}" for one in when),
        *(f"kept, {one}" for one in when),
    )
    return Table(headers=headers, rows=tuple(rows))


def episode_table(detail: EpisodeDetail) -> Table:
    """Return the steps of an episode."""
    rows: list[tuple[str, ...]] = []
    last_epoch = None
    for step in detail["steps"]:
        # Finishing trains no epoch, so it would repeat the number of the one before.
        epoch = "end" if step["epoch"] == last_epoch else str(step["epoch"])
        last_epoch = step["epoch"]
        rows.append(
            (
                epoch,
                decision_text(step),
                slots_text(step, detail["slots"]),
                number(step["score"]),
                number(step["flops"], 2),
                number(step["reward"]),
            )
        )
    headers = ("epoch", "decision", "slots afterwards", "score", "FLOPs", "reward")
    return Table(headers=headers, rows=tuple(rows), n_left=3)


def decision_text(step: Step) -> str:
    """Return a decision as text, with the reason if it was rejected."""
    text = step["op"].replace("_", " ")
    if step["blueprint"] is not None:
        text += f" {step['blueprint']}"
    if step["slot"] is not None:
        text += f" in {step['slot']}"
    if step["is_illegal"]:
        return f"{text} (illegal, waited instead)"
    return text if step["refusal"] is None else f"{text} (rejected: {step['refusal']})"


def slots_text(step: Step, names: Sequence[str]) -> str:
    """Return blueprint, stage and alpha of each slot that is not dormant."""
    slots = [
        f"{name}: {slot['blueprint'] or 'a seed'} {slot['stage']} {number(slot['alpha'], 2)}"
        for name, slot in zip(names, step["slots"], strict=False)
        if slot["stage"] != "dormant"
    ]
    return "; ".join(slots) or UNKNOWN


def comparison_table(view: ComparisonView) -> Table:
    """Return a row for each controller in the comparison at the end of a run."""
    differences = {one["against"]: one["ep_rew"] for one in view["differences"]}
    rows = [
        (
            LABELS.get(arm["name"], arm["name"]),
            interval_text(arm["ep_rew"], signed=False),
            interval_text(differences[arm["name"]]) if arm["name"] in differences else "",
            number(arm["score"]["mean"]),
            number(arm["flops"], 2),
            number(arm["n_epochs"], 1),
            _added_share(arm["seed_parameters"], arm["host_parameters"]),
            "" if arm["grown_share"] is None else share(arm["grown_share"]),
        )
        for arm in view["arms"]
    ]
    headers = (
        "controller",
        "return",
        "learned minus this",
        "score",
        "FLOPs",
        "epochs",
        "added",
        "hosts grown",
    )
    return Table(headers=headers, rows=tuple(rows))


def differences_table(view: ComparisonView) -> Table:
    """Return the difference of return to each controller, the strongest first."""
    found = sorted(view["differences"], key=lambda one: one["ep_rew"]["mean"] or 0.0)
    rows = [
        (LABELS.get(one["against"], one["against"]), interval_text(one["ep_rew"])) for one in found
    ]
    return Table(headers=("controller", "learned minus this"), rows=tuple(rows))


def interval_text(interval: IntervalValues, *, signed: bool = True) -> str:
    """Return a mean with its interval; differences are signed."""
    sign = "+" if signed else ""
    mean, low, high = interval["mean"], interval["low"], interval["high"]
    if mean is None or low is None or high is None:
        return number(mean)
    return f"{mean:{sign}z.3f} [{low:{sign}z.3f}, {high:{sign}z.3f}]"


def runs_table(runs: Sequence[RunValues]) -> Table:
    """Return a row for each run, and the mean if they differ only in their seeds."""
    rows = [
        (
            run["name"],
            run["state"],
            f"{run['headline']['rounds_done']} of {whole(run['headline']['rounds'])}",
            *(number(find(run)) for find in _RUN_COLUMNS.values()),
        )
        for run in runs
    ]
    if has_interval(runs):
        means = (_mean_text([find(run) for run in runs]) for find in _RUN_COLUMNS.values())
        rows.append((f"mean of {len(runs)} runs", "", "", *means))
    return Table(headers=("run", "state", "rounds", *_RUN_COLUMNS), rows=tuple(rows), n_left=2)


def return_minus(against: str) -> Callable[[RunValues], float | None]:
    """Return a function that gives a run's mean return minus that of another controller."""

    def find(run: RunValues) -> float | None:
        view = run["comparison"]
        for one in () if view is None else view["differences"]:
            if one["against"] == against:
                return one["ep_rew"]["mean"]
        return None

    return find


_RUN_COLUMNS: dict[str, Callable[[RunValues], float | None]] = {
    "return": lambda run: run["headline"]["best_return"],
    "return minus hosts left alone": return_minus("wait"),
    "return minus fixed schedule": return_minus("fixed"),
    "score": lambda run: run["headline"]["best_score"],
    "gain in score": lambda run: run["headline"]["accuracy_gain"],
    "FLOPs": lambda run: run["headline"]["flops"],
}


def settings_table(runs: Sequence[RunValues]) -> Table:
    """Return the settings that differ between runs, one column per run."""
    known = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for one in known for name in one)
    rows = [
        (name, *("" if one.get(name) is None else str(one[name]) for one in known))
        for name in names
        if len({repr(one.get(name)) for one in known}) > 1
    ]
    headers = ("setting", *(run["name"] for run in runs))
    return Table(headers=headers, rows=tuple(rows), n_left=len(headers))


_IRRELEVANT = ("seed", "threads", "checkpoints", "telemetry")
"""Settings that may differ between runs of one method."""


def is_one_method(runs: Sequence[RunValues]) -> bool:
    """Return whether runs differ only in their seed and in settings that don't affect results."""
    known = [
        {
            name: value
            for name, value in flat_settings(run).items()
            if name.split(".")[0] not in _IRRELEVANT
        }
        for run in runs
    ]
    return all(one == known[0] for one in known)


def has_interval(runs: Sequence[RunValues]) -> bool:
    """Return whether an interval over runs is meaningful."""
    return len(runs) >= MIN_RUNS and is_one_method(runs)


def flat_settings(run: RunValues) -> dict[str, Any]:
    """Return the settings of a run by dotted path."""
    return _flatten(tomllib.loads(run["overview"]["config_toml"] or ""))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flatten(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _mean_text(values: list[float | None]) -> str:
    """Return a mean with its interval, or nothing unless every run has the value."""
    known = [value for value in values if value is not None]
    return mean_interval(known).text(signed=False) if known and len(known) == len(values) else ""


def _added_share(seeds: float | None, host: float | None) -> str:
    return whole(seeds) if seeds is None or not host else f"{seeds / host:.0%}"


_NO_POINTS: Points = {"rounds": [], "values": []}


def _by_round(points: Points) -> dict[int, float | None]:
    return dict(zip(points["rounds"], points["values"], strict=True))
