"""The tables of a report: what charts and timelines show, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from esper.evidence.text import Table
from esper.formatting import UNKNOWN, number, share, span, whole
from esper.reports.run_report.values import RunValues
from esper.reports.views import EpisodeDetail, Learned, Points, Step

T = TypeVar("T")

N_POINTS = 8
"""Rounds that are shown of a run, evenly spread."""
N_TRIALS = 24
"""Trials that are shown of a run, evenly spread."""
N_BLUEPRINTS = 8
"""Blueprints that have a row."""

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
    "time/fps": ("epochs of hosts/s", whole),
}


def learning_table(run: RunValues) -> Table:
    """Return the metrics of a few rounds, from the first to the last."""
    series = run["metrics"]["series"]
    rounds = series.get("time/iterations", _NOTHING)["rounds"]
    known = {name: _by_round(series[name]) for name in _METRICS if name in series}
    rows = [
        (
            str(one),
            *(
                shown(known[name].get(one))
                for name, (_, shown) in _METRICS.items()
                if name in known
            ),
        )
        for one in spread(rounds, N_POINTS)
    ]
    headers = ("round", *(heading for name, (heading, _) in _METRICS.items() if name in known))
    return Table(headers=headers, rows=tuple(rows), n_left=0)


def trials_table(run: RunValues) -> Table:
    """Return how the controller did in trials on held-out hosts, after others before them.

    Of many trials some are shown, evenly spread, and the best.
    """
    trials = [one for one in run["evaluations"] if one["purpose"] == "tuning"]
    learned = [one for one in trials if one["arm"] == "learned"]
    best = [one for one in learned if one["is_best"]][-1:]
    shown = {id(one) for one in (*spread(learned, N_TRIALS), *best)}
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


def spread(values: Sequence[T], count: int) -> list[T]:
    """Return so many of some values, evenly spread from the first to the last, or all of them."""
    if len(values) <= count:
        return list(values)
    return [values[round((len(values) - 1) * place / (count - 1))] for place in range(count)]


def ops_table(learned: Learned) -> Table:
    """Return how often each op is done in an episode, by part of training."""
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


def blueprints_table(learned: Learned) -> Table:
    """Return each blueprint's share of germinations and of seeds kept, first and last part."""
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
    """Return an episode step by step."""
    rows = [
        (
            _epoch(step, before),
            decision_words(step),
            slots_words(step, detail["slots"]),
            number(step["score"]),
            number(step["flops"], 2),
            number(step["reward"]),
        )
        for before, step in zip([None, *detail["steps"]], detail["steps"], strict=False)
    ]
    headers = ("epoch", "decision", "slots after it", "score", "FLOPs", "reward")
    return Table(headers=headers, rows=tuple(rows), n_left=3)


def decision_words(step: Step) -> str:
    """Return what was decided in a few words, and why it was not done."""
    told = step["op"].replace("_", " ")
    if step["blueprint"] is not None:
        told += f" {step['blueprint']}"
    if step["slot"] is not None:
        told += f" in {step['slot']}"
    if step["is_illegal"]:
        return f"{told} (not legal, so it waited)"
    return told if step["refusal"] is None else f"{told} (refused: {step['refusal']})"


def slots_words(step: Step, names: Sequence[str]) -> str:
    """Return the slots that have a seed, or had one, each with blueprint, stage and alpha."""
    told = [
        f"{name}: {slot['blueprint'] or 'a seed'} {slot['stage']} {number(slot['alpha'], 2)}"
        for name, slot in zip(names, step["slots"], strict=False)
        if slot["stage"] != "dormant"
    ]
    return "; ".join(told) or UNKNOWN


def _epoch(step: Step, before: Step | None) -> str:
    """Return a step's epoch; an end trains none, and the one before would look like a second."""
    is_end = before is not None and before["epoch"] == step["epoch"]
    return "end" if is_end else str(step["epoch"])


_NOTHING: Points = {"rounds": [], "values": []}


def _by_round(points: Points) -> dict[int, float | None]:
    return dict(zip(points["rounds"], points["values"], strict=True))
