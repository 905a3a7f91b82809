"""What telemetry keeps of a run, a round, its update and an evaluation."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from torch import nn

from esper.config.run import RunConfig
from esper.config.toml import write_toml
from esper.growth.parts import host_parts
from esper.lifecycle.factored_actions import HEAD_NAMES, HEADS_READ_BY, Op, choice_names
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.agent import UpdateReport
from esper.simic.evaluation import EpisodeResults
from esper.simic.training.tally import RoundTally
from esper.telemetry.records import EvaluationRecord, RoundRecord, RunRecord, UpdateRecord
from esper.version import __version__


@dataclass(frozen=True)
class RoundTiming:
    """What the clock and the process said of a round."""

    seconds: float
    seconds_by_part: dict[str, float]
    n_steps: int
    """Steps that this process took of it; in a resumed run others may have been taken before."""

    def columns(self) -> dict[str, Any]:
        """Return the columns of a round's record that are about time and memory."""
        parts = {part: round(seconds, 6) for part, seconds in self.seconds_by_part.items()}
        return {
            "seconds": self.seconds,
            "steps_per_second": self.n_steps / max(self.seconds, 1e-9),
            "seconds_by_part": json.dumps(parts),
            "rss_bytes": used_memory(),
        }


def used_memory() -> int:
    """Return the bytes of memory that this process holds, or has held at most."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


_NUMBERS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "joint_kl",
    "clip_fraction",
    "explained_variance",
    "gradient_norm",
)
_BY_HEAD = ("approx_kl_by_head", "clip_fraction_by_head", "entropy_by_head")


def run_record(
    config: RunConfig, slot_config: SlotConfig, hosts: Mapping[int, nn.Module], name: str
) -> RunRecord:
    """Return the record of what a run is.

    Args:
        config: What decides the run.
        slot_config: The slots of its hosts.
        hosts: A host of each kind, by the first environment that has such hosts.
        name: What the run is called.
    """
    reads = {
        op.name.lower(): sorted(heads, key=HEAD_NAMES.index) for op, heads in HEADS_READ_BY.items()
    }
    return RunRecord(
        name=name,
        task=config.task,
        config=write_toml(config),
        slots=json.dumps(list(slot_config.slot_ids)),
        blueprints=json.dumps(list(slot_config.blueprints)),
        heads=json.dumps(list(HEAD_NAMES)),
        ops=json.dumps([op.name.lower() for op in Op]),
        esper_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        choices=json.dumps(choice_names(slot_config)),
        reads=json.dumps(reads),
        host=json.dumps(
            [
                {"first_env": first, **asdict(part)}
                for first, host in hosts.items()
                for part in host_parts(host)
            ]
        ),
    )


def update_record(round_number: int, n_updates: int, report: UpdateReport) -> UpdateRecord:
    """Return the record of an update that was done."""
    values = asdict(report)
    columns: dict[str, Any] = {name: float(values[name]) for name in _NUMBERS}
    columns |= {name: json.dumps(values[name]) for name in _BY_HEAD}
    return UpdateRecord(
        round=round_number,
        n_updates=n_updates,
        **columns,
        epochs_run=report.epochs_run,
        gradient_steps=report.gradient_steps,
        stopped_early=report.stopped_early,
        was_refused=False,
        refusal=None,
    )


def refused_record(round_number: int, n_updates: int, refusal: str) -> UpdateRecord:
    """Return the record of an update that was refused, and why."""
    columns: dict[str, Any] = dict.fromkeys((*_NUMBERS, *_BY_HEAD))
    columns.update(dict.fromkeys(_BY_HEAD, "{}"))
    return UpdateRecord(
        round=round_number,
        n_updates=n_updates,
        **columns,
        epochs_run=0,
        gradient_steps=0,
        stopped_early=False,
        was_refused=True,
        refusal=refusal,
    )


def tally_columns(tally: RoundTally) -> dict[str, Any]:
    """Return the columns of a round's record that are about its episodes."""
    return {
        "n_episodes": int(tally.n_episodes),
        "ep_rew_mean": tally.mean("ep_rew"),
        "ep_len_mean": tally.mean("ep_len"),
        "score_mean": tally.mean_score,
        "flops_mean": tally.mean("flops"),
        "host_parameters_mean": tally.mean("host_parameters"),
        "seed_parameters_mean": tally.mean("seed_parameters"),
        **{f"op_{op.name.lower()}": n for op, n in tally.ops_per_episode().items()},
        "n_illegal": int(tally.n_illegal),
        "n_refused": int(tally.n_refused),
        "n_restored": int(tally.n_restored),
    }


def evaluation_record(
    results: EpisodeResults,
    *,
    round_number: int,
    arm: str,
    purpose: Literal["tuning", "final"],
    is_best: bool = False,
    fixed_reward: float | None = None,
    seconds: float,
) -> EvaluationRecord:
    """Return the record of an evaluation; the one at the end is on the test split."""
    ops = results.op_counts.mean(0)
    return EvaluationRecord(
        round=round_number,
        arm=arm,
        purpose=purpose,
        split="test" if purpose == "final" else "validation",
        n_episodes=len(results.returns),
        ep_rew_mean=float(results.returns.mean()),
        score_mean=float(results.scores.mean()),
        flops_mean=float(results.flops.mean()),
        n_epochs_mean=float(results.n_epochs.mean()),
        host_parameters_mean=float(results.host_parameters.mean()),
        seed_parameters_mean=float(results.seed_parameters.mean()),
        ops=json.dumps({op.name.lower(): float(ops[op]) for op in Op}),
        is_best=is_best,
        fixed_reward=fixed_reward,
        seconds=seconds,
    )


def round_record(
    tally: RoundTally,
    *,
    round_number: int,
    env_steps: int,
    static_score: float | None,
    rates: dict[str, float],
    timing: RoundTiming,
) -> RoundRecord:
    """Return the record of a round whose update is done."""
    return RoundRecord(
        round=round_number,
        env_steps=env_steps,
        static_score=static_score,
        **tally_columns(tally),
        **rates,
        **timing.columns(),
    )
