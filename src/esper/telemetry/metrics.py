"""What is shown of a run under the names that users of Stable-Baselines3 know.

A metric belongs to a round. ``<op>``, ``<head>`` and ``<arm>`` in a name stand for an op, a head of
the action, and a controller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from esper.telemetry.records import EvaluationRecord, Record, RoundRecord, UpdateRecord

METRICS: dict[str, str] = {
    "rollout/ep_rew_mean": "Mean sum of rewards of the episodes that ended in the round.",
    "rollout/ep_len_mean": "Mean steps of the episodes that ended in the round.",
    "time/fps": "Steps of environments per second, over the round.",
    "time/iterations": "Rounds done.",
    "time/total_timesteps": "Steps of environments so far.",
    "train/approx_kl": (
        "How far the update moved the policy from the one that collected the steps: a mean over "
        "the heads and steps that mattered."
    ),
    "train/approx_kl/<head>": "The same for one head, over the steps at which it mattered.",
    "train/joint_kl": "The same for whole actions: summed over heads, a mean over steps.",
    "train/clip_fraction": "Share of the probability ratios that left the clip range.",
    "train/clip_fraction/<head>": "The same for one head.",
    "train/entropy_loss": "Minus the entropy of an action; nearer to 0 is more decided.",
    "train/entropy/<head>": "Entropy of one head where it could have mattered; 0 is decided.",
    "train/explained_variance": (
        "Share of the returns' variance that the critic foresaw; 1 is perfect, 0 is no better "
        "than a constant, below 0 is worse."
    ),
    "train/gradient_norm": "Norm of the gradient before clipping, a mean over gradient steps.",
    "train/learning_rate": "Learning rate of the round's update.",
    "train/ent_coef": "Weight of the entropy in the round's update.",
    "train/policy_gradient_loss": "The clipped surrogate; what the policy's gradient is taken of.",
    "train/value_loss": "Squared error of the critic, in squared deviations of the return.",
    "train/n_updates": "Updates so far that were not refused.",
    "train/early_stop": "1 if the divergence ended the update before its last epoch, else 0.",
    "train/refused": "1 if the update was undone because a number was not finite, else 0.",
    "eval/mean_reward": "Mean sum of rewards of the learned controller on held-out draws.",
    "eval/fixed_reward": (
        "The same of the fixed schedule, which is tried once, before the first round."
    ),
    "eval/score": "Mean final score of the hosts that the learned controller grew there.",
    "eval/flops": "Mean computing spent there, as a share of the reference host's.",
    "final/<arm>/mean_reward": "Mean sum of rewards of one controller in the last comparison.",
    "final/<arm>/score": "Mean final score of its hosts.",
    "final/<arm>/flops": "Mean computing it spent, as a share of the reference host's.",
    "growth/score": "Mean final score of the hosts whose episodes ended in the round.",
    "growth/static_score": (
        "Mean final score of held-out hosts left alone, the same in every round."
    ),
    "growth/host_parameters": "Mean parameters of these hosts as they began.",
    "growth/seed_parameters": "Mean parameters of the seeds that were committed to them.",
    "growth/flops": "Mean computing spent on them, as a share of the reference host's.",
    "growth/illegal": "Steps of the round whose action the host's state did not allow.",
    "growth/refused": "Steps of the round whose action a gate refused.",
    "growth/restored": "Hosts that the governor put back in the round.",
    "ops/<op>": "How often the op was done per episode that ended in the round.",
}
"""Every metric's name, and what it is."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric over a run."""

    rounds: list[int]
    """The rounds that have it."""
    values: list[float]
    """Its value in each of them."""


Metrics = dict[str, Series]
"""Series by the names of metrics."""


Measured = RoundRecord | UpdateRecord | EvaluationRecord
"""Records that metrics come from."""


def is_measured(record: Record) -> TypeGuard[Measured]:
    """Return whether metrics come from a record."""
    return isinstance(record, Measured)


def metrics_of(record: Record) -> dict[str, float]:
    """Return the metrics that a record gives, by name; those that it does not know are left out."""
    match record:
        case RoundRecord():
            found = _of_round(record)
        case UpdateRecord():
            found = _of_update(record)
        case EvaluationRecord():
            found = _of_evaluation(record)
        case _:
            return {}
    return {name: float(value) for name, value in found.items() if value is not None}


def collect_metrics(stream: Callable[[type[Any]], Iterator[Any]]) -> Metrics:
    """Return all metrics of a run, given what gives the records of a type in order."""
    series: Metrics = {}
    for kind in (RoundRecord, UpdateRecord, EvaluationRecord):
        for record in stream(kind):
            for name, value in metrics_of(record).items():
                one = series.get(name)
                if one is None:
                    one = series[name] = Series(rounds=[], values=[])
                one.rounds.append(record.round)
                one.values.append(value)
    return series


def _of_round(record: RoundRecord) -> dict[str, float | None]:
    ops = [one.name for one in fields(record) if one.name.startswith("op_")]
    return {
        "rollout/ep_rew_mean": record.ep_rew_mean,
        "rollout/ep_len_mean": record.ep_len_mean,
        "time/fps": record.steps_per_second,
        "time/iterations": record.round,
        "time/total_timesteps": record.env_steps,
        "train/learning_rate": record.learning_rate,
        "train/ent_coef": record.ent_coef,
        "growth/score": record.score_mean,
        "growth/static_score": record.static_score,
        "growth/host_parameters": record.host_parameters_mean,
        "growth/seed_parameters": record.seed_parameters_mean,
        "growth/flops": record.flops_mean,
        "growth/illegal": record.n_illegal,
        "growth/refused": record.n_refused,
        "growth/restored": record.n_restored,
        **{f"ops/{name.removeprefix('op_')}": getattr(record, name) for name in ops},
    }


def _of_update(record: UpdateRecord) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        "train/approx_kl": record.approx_kl,
        "train/joint_kl": record.joint_kl,
        "train/clip_fraction": record.clip_fraction,
        "train/entropy_loss": None if record.entropy is None else -record.entropy,
        "train/explained_variance": record.explained_variance,
        "train/gradient_norm": record.gradient_norm,
        "train/policy_gradient_loss": record.policy_loss,
        "train/value_loss": record.value_loss,
        "train/n_updates": record.n_updates,
        "train/early_stop": record.stopped_early,
        "train/refused": record.was_refused,
    }
    by_head = {
        "approx_kl": record.approx_kl_by_head,
        "clip_fraction": record.clip_fraction_by_head,
        "entropy": record.entropy_by_head,
    }
    for name, text in by_head.items():
        found |= {f"train/{name}/{head}": value for head, value in json.loads(text).items()}
    return found


def _of_evaluation(record: EvaluationRecord) -> dict[str, float | None]:
    if record.purpose == "final":
        group = f"final/{record.arm}"
    elif record.arm == "learned" and record.purpose == "tuning":
        group = "eval"
    else:
        return {}
    fixed = {"eval/fixed_reward": record.fixed_reward} if group == "eval" else {}
    return fixed | {
        f"{group}/mean_reward": record.ep_rew_mean,
        f"{group}/score": record.score_mean,
        f"{group}/flops": record.flops_mean,
    }
