"""Every metric of a record has a documented name, and series follow the rounds."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from esper.telemetry import METRICS, metrics_of
from esper.telemetry.records import (
    RECORD_TYPES,
    EvaluationRecord,
    RoundRecord,
    UpdateRecord,
)
from tests.telemetry.samples import example, notice, written

BY_HEAD = json.dumps({"op": 0.5, "slot": 0.25})
UPDATE = example(
    UpdateRecord,
    round=3,
    entropy=2.5,
    approx_kl_by_head=BY_HEAD,
    clip_fraction_by_head=BY_HEAD,
    entropy_by_head=BY_HEAD,
    stopped_early=True,
    was_refused=False,
)
TUNING = example(EvaluationRecord, round=4, arm="learned", purpose="tuning", ep_rew_mean=0.75)
FINAL = example(EvaluationRecord, round=9, arm="random", purpose="final", score_mean=0.5)


def explained(name: str) -> list[str]:
    """Return the documented names that match a metric's name."""
    patterns = {
        key: re.sub(r"<\w+>", r"[^/]+", re.escape(key).replace(r"\<", "<")) for key in METRICS
    }
    return [key for key, pattern in patterns.items() if re.fullmatch(pattern, name)]


def test_every_metric_is_documented_exactly_once() -> None:
    records = [example(RoundRecord), UPDATE, TUNING, FINAL]
    names = [name for record in records for name in metrics_of(record)]
    assert len(set(names)) == len(names)
    assert all(len(explained(name)) == 1 for name in names)
    assert {key for name in names for key in explained(name)} == set(METRICS)


def test_an_update_worked_by_hand() -> None:
    metrics = metrics_of(UPDATE)
    assert metrics["train/entropy_loss"] == -2.5
    assert metrics["train/early_stop"] == 1.0
    assert metrics["train/refused"] == 0.0
    assert metrics["train/entropy/slot"] == 0.25
    assert metrics["train/approx_kl"] == UPDATE.approx_kl
    assert metrics["train/policy_gradient_loss"] == UPDATE.policy_loss
    assert all(type(value) is float for value in metrics.values())


def test_ops_and_rounds_have_their_names() -> None:
    record = example(RoundRecord, op_germinate=1.5, ep_rew_mean=0.25, steps_per_second=900.0)
    metrics = metrics_of(record)
    assert metrics["ops/germinate"] == 1.5
    assert metrics["rollout/ep_rew_mean"] == 0.25
    assert metrics["time/fps"] == 900.0
    assert metrics["time/total_timesteps"] == record.env_steps
    assert sum(name.startswith("ops/") for name in metrics) == 7


def test_missing_values_are_omitted_and_nan_is_kept() -> None:
    metrics = metrics_of(example(RoundRecord, ep_rew_mean=None, score_mean=math.nan))
    assert "rollout/ep_rew_mean" not in metrics
    assert math.isnan(metrics["growth/score"])
    refused = example(
        UpdateRecord, entropy=None, approx_kl=None, was_refused=True, approx_kl_by_head="{}"
    )
    assert not {"train/entropy_loss", "train/approx_kl"} & set(metrics_of(refused))
    assert metrics_of(refused)["train/refused"] == 1.0


def test_baselines_have_metrics_only_in_the_final_comparison() -> None:
    assert metrics_of(TUNING)["eval/mean_reward"] == 0.75
    assert metrics_of(FINAL)["final/random/score"] == 0.5
    assert metrics_of(example(EvaluationRecord, arm="no-growth", purpose="tuning")) == {}


def test_other_records_have_no_metrics() -> None:
    measured = (RoundRecord, UpdateRecord, EvaluationRecord)
    assert not any(metrics_of(example(kind)) for kind in RECORD_TYPES if kind not in measured)


def test_metrics_of_a_run_are_rounds_and_values(tmp_path: Path) -> None:
    rows = [example(RoundRecord, round=n, ep_rew_mean=None if n == 2 else n / 4) for n in (1, 2, 3)]
    with written(tmp_path, [*rows, notice(1), UPDATE, TUNING]) as telemetry:
        metrics = telemetry.metrics()
    assert metrics["rollout/ep_rew_mean"].rounds == [1, 3]
    assert metrics["rollout/ep_rew_mean"].values == [0.25, 0.75]
    assert metrics["time/iterations"].values == [1.0, 2.0, 3.0]
    assert (metrics["eval/mean_reward"].rounds, metrics["train/joint_kl"].rounds) == ([4], [3])
