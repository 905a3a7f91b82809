"""How a run is and how it learned, in sentences that follow from its numbers."""

from __future__ import annotations

from esper.formatting import (
    duration,
    listed,
    many,
    memory,
    number,
    signed_points,
    whole,
)
from esper.reports.run_report.values import RunValues
from esper.reports.views import Evaluation, Health

NAMED_ROUNDS = 5
"""Rounds that a sentence names, at most."""

_STATES = {
    "done": "The run is done",
    "running": "The run is still going on; this is what it had recorded when the report was made",
    "interrupted": "The run was interrupted and can be gone on with",
    "failed": "The run failed",
    "killed": "The run was ended from outside and can be gone on with",
}


def state_sentence(run: RunValues) -> str:
    """Return how the run is and how far it came."""
    headline = run["headline"]
    done = f"{many(headline['rounds_done'], 'round')} of {whole(headline['rounds'])}"
    told = f"{_STATES.get(run['state'], 'The run is ' + run['state'])}: {done}, "
    told += f"{whole(headline['env_steps'])} epochs of hosts"
    if headline["seconds"]:
        told += f", in {duration(headline['seconds'])} of training"
    ended = run["overview"]["sessions"][-1:]
    if run["state"] == "failed" and ended and ended[0]["message"]:
        told += f" ({ended[0]['message'].rstrip('.')})"
    return f"{told}."


def learning_sentences(run: RunValues) -> tuple[str, ...]:
    """Return how the controller did on held-out hosts while it learned."""
    trials = [
        one for one in run["evaluations"] if one["arm"] == "learned" and one["purpose"] == "tuning"
    ]
    if not trials:
        return ("The controller has not been tried on held-out hosts yet.",)
    first, last = trials[0], trials[-1]
    best = next((one for one in reversed(trials) if one["is_best"]), last)
    told = f"On {many(last['n_episodes'], 'held-out host')}, the same each time, the controller's "
    told += f"return was {_return(first)} after round {first['round']}"
    if last is not first:
        told += f" and {_return(last)} after round {last['round']}"
    if best not in (first, last):
        told += f"; the best was {_return(best)} after round {best['round']}, which is kept"
    return (f"{told}.", *_about_fixed(run, trials), *_about_gain(run, best))


def health_sentences(run: RunValues) -> tuple[str, ...]:
    """Return what went wrong, and how fast the run was."""
    health, n_updates = run["health"], run["metrics"]["rounds_done"]
    told = [
        _about_updates(health, n_updates),
        _about_governor(health),
        _about_actions(health, run["headline"]["env_steps"]),
    ]
    speeds = [value for value in health["throughput"]["values"] if value is not None]
    if speeds:
        told.append(f"It did {whole(sorted(speeds)[len(speeds) // 2])} epochs of hosts a second, ")
        told[-1] += "the middle one of all rounds."
    sizes = [value for value in health["memory"]["values"] if value is not None]
    if sizes:
        told.append(f"The process took at most {memory(max(sizes))} of memory.")
    sessions = run["overview"]["sessions"]
    if len(sessions) > 1:
        told.append(f"{len(sessions)} processes worked on it, one after another.")
    return tuple(told)


def _return(trial: Evaluation) -> str:
    return number(trial["ep_rew_mean"])


def _about_fixed(run: RunValues, trials: list[Evaluation]) -> list[str]:
    fixed = run["headline"]["fixed_return"]
    if fixed is None:
        return []
    passed = [
        one["round"]
        for one in trials
        if one["ep_rew_mean"] is not None and one["ep_rew_mean"] > fixed
    ]
    when = f"passed it first after round {passed[0]}" if passed else "has not passed it"
    return [f"The fixed schedule's return on them is {fixed:.3f}; the controller {when}."]


def _about_gain(run: RunValues, best: Evaluation) -> list[str]:
    headline = run["headline"]
    gain, score = headline["accuracy_gain"], headline["best_score"]
    if gain is None or score is None:
        return []
    told = f"Its hosts scored {score:.3f} there after round {best['round']}, "
    told += f"{signed_points(gain)} against the same hosts left alone"
    if headline["flops"] is not None:
        told += f", with {headline['flops']:.2f} of the reference run's FLOPs"
    if headline["seed_parameters"] is not None:
        told += f" and {whole(headline['seed_parameters'])} parameters grown"
    return [f"{told}. The trials chose which controller is kept, so this flatters it a little."]


def _about_updates(health: Health, n_updates: int) -> str:
    refused, stops = health["refused_updates"], health["early_stops"]["total"]
    told = f"Of {many(n_updates, 'update')} none was refused"
    if refused:
        # The view tells the newest first.
        rounds = [str(one["round"]) for one in refused[::-1]]
        named = listed(rounds[:NAMED_ROUNDS]) + (", ..." if len(rounds) > NAMED_ROUNDS else "")
        told = f"Of {many(n_updates, 'update')} {len(refused)} {_were(len(refused))} refused "
        told += f"because a number was not finite (rounds: {named})"
    return f"{told}; {stops or 'none'} ended early because the policy had moved far enough."


def _about_governor(health: Health) -> str:
    governor = health["governor"]
    if not governor["total"]:
        return "The governor never had to put a host back."
    told = f"The governor put a host back {many(governor['total'], 'time')}"
    if governor["last"]:
        newest = governor["last"][0]
        told += f", the last time in round {newest['round']} because {newest['reason'].rstrip('.')}"
    return f"{told}."


def _about_actions(health: Health, n_steps: int) -> str:
    illegal, refused = health["illegal"], health["refused_by_gates"]
    told = f"{many(illegal, 'action')} {_were(illegal)}" if illegal else "No action was"
    gates = (
        f"gates refused {whole(refused)} of {whole(n_steps)}" if refused else "gates refused none"
    )
    return f"{told} illegal in the state of its host; {gates}."


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
