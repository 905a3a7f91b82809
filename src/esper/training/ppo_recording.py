"""Recording ``PPO.learn`` as a run, which the dashboard shows live."""

from __future__ import annotations

import json
import math
import os
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from esper.config.learning import NetworkConfig
from esper.config.memory import used_memory
from esper.config.run import MAX_THREADS, PPO_TRAINING, RunConfig
from esper.config.toml import write_toml
from esper.errors import ConfigError, EsperError, RunError, StorageError, TelemetryError
from esper.simic.callbacks import MetricsReader
from esper.storage.files import write_atomic
from esper.storage.run_folder import RunFolder
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import EvaluationRecord, RoundRecord, RunRecord, UpdateRecord
from esper.telemetry.records import Record as TelemetryRecord
from esper.version import __version__

if TYPE_CHECKING:
    from esper.simic.agent import UpdateReport
    from esper.simic.algorithm import PPO
    from esper.simic.evaluation import Evaluated

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
KIND = "record"
"""What a folder of :class:`Record` is called among the folders of a model."""

BY_HEAD = ("approx_kl_by_head", "clip_fraction_by_head", "entropy_by_head")
"""Columns of an update's record that hold a number for each head."""

STATISTICS = (*_NUMBERS, *BY_HEAD)
"""Columns of an update's record that a rejected update has no values of."""


def update_record(round_number: int, n_updates: int, report: UpdateReport) -> UpdateRecord:
    """Return the record of a successful update."""
    values = asdict(report)
    columns: dict[str, Any] = {name: float(values[name]) for name in _NUMBERS}
    columns |= {name: json.dumps(values[name]) for name in BY_HEAD}
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


class Record(MetricsReader):
    """Records training in the folder of a run, which ``esper dashboard`` shows live.

    A round is a rollout and the update after it. :class:`Evaluate` among the callbacks adds its
    results. ``esper show``, ``esper report`` and ``esper.load_run`` read the folder too. If it can
    no longer be written, a warning says so and training continues.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Choose where to record.

        Args:
            folder: The run's folder; by default a new one in ``runs``, named after the environment
                and the time. To continue a record, resume the model and name the same folder.

        Raises:
            ConfigError: If the folder is not a path.
        """
        if folder is not None and not isinstance(cast(Any, folder), (str, os.PathLike)):
            raise ConfigError(f"folder is {folder!r}; it must be a path.")
        self.folder: Path | None = None if folder is None else Path(folder)
        """Where it records; None before training starts, if no folder was named."""
        self._stack = ExitStack()
        self._writer: TelemetryWriter | None = None
        self._round = 0
        self._best = -math.inf
        self._is_interrupted = False

    def on_start(self, model: PPO) -> None:
        """Create the folder, or continue the record of this model in it.

        Raises:
            RunError: If the folder holds another run, or not the steps before.
            StorageError: If it cannot be written.
        """
        self._is_interrupted = False
        self._round, self._best = 0, -math.inf
        steps = model.n_envs * model.n_steps
        n_left = -(-(model.total_timesteps - model.num_timesteps) // steps)
        config, position, is_new = _config_of(model, n_left), 0, True
        with ExitStack() as stack:
            if self.folder is not None and RunFolder(self.folder).holds_run:
                folder, is_new = RunFolder(self.folder), False
                stack.enter_context(folder.locked())
                position = self._read(model, folder)
                config = replace(config, rounds=self._round + n_left)
                write_atomic(folder.config_file, write_toml(config))
            else:
                folder = RunFolder.create(self.folder, config)
                stack.enter_context(folder.locked())
            self.folder = folder.path
            model.folders.add((KIND, folder.path.resolve()))
            writer = stack.enter_context(TelemetryWriter(folder.telemetry_file))
            writer.rewind(position)
            writer.start_session(
                first_round=self._round + 1,
                threads=torch.get_num_threads(),
                torch_version=torch.__version__,
                message=None if is_new else f"Continued after round {self._round}.",
            )
            writer.write(_run_record(model, config, folder.name))
            writer.flush()
            self._writer, self._stack = writer, stack.pop_all()

    def on_update_end(self, model: PPO) -> None:
        """Record the rollout, the update, and the evaluation if there was one."""
        if self._writer is None:
            return
        self._round += 1
        assert model.last_update is not None, "an update has ended"
        records: list[TelemetryRecord] = [
            _round_record(model, self._round),
            update_record(self._round, self._round, model.last_update),
        ]
        if model.last_evaluation is not None:
            result = model.last_evaluation
            records.append(_evaluation_record(result, self._round, self._best))
            self._best = max(self._best, result.mean)
        try:
            self._writer.write_many(records)
            self._writer.flush()
        except (TelemetryError, StorageError) as error:
            self._close()
            model.warn(f"training continues unrecorded: {error}")

    def on_interrupt(self, model: PPO) -> None:
        """Remember why training ends."""
        self._is_interrupted = True

    def on_end(self, model: PPO) -> None:
        """Record how training ended, and close the folder."""
        if self._writer is None:
            return
        outcome = "done" if model.is_done else "failed"
        with suppress(EsperError):
            self._writer.end_session("interrupted" if self._is_interrupted else outcome)
        self._close()

    def _close(self) -> None:
        self._writer = None
        with suppress(EsperError):
            self._stack.close()

    def _read(self, model: PPO, folder: RunFolder) -> int:
        """Read what was recorded of this model before; return the number of the last row."""
        known = folder.read_config()
        is_own = (KIND, folder.path.resolve()) in model.folders
        if not known.is_ppo_training or not (is_own or model.resumed_from):
            raise RunError(
                f"{folder.path} holds another run ({known.task}); choose another folder, or "
                "continue it with PPO.resume(folder of its checkpoints)."
            )
        # Of a rollout that was interrupted in this process, steps are counted but not recorded.
        sign = "<=" if is_own else "="
        with open_run(folder.path) as telemetry:
            rows = telemetry.select(
                f"SELECT max(round) FROM rounds WHERE env_steps {sign} :steps",
                steps=model.num_timesteps,
            )
            if rows[0][0] is None and not is_own:
                raise RunError(
                    f"{folder.path} does not record {model.num_timesteps:,} environment steps, "
                    "after which this model continues; choose another folder."
                )
            self._round = int(rows[0][0] or 0)
            last = [
                telemetry.select(f"SELECT max(seq) FROM {name} WHERE round <= {self._round}")[0][0]
                for name in ("rounds", "updates", "evaluations")
            ]
            best = telemetry.select(
                f"SELECT max(ep_rew_mean) FROM evaluations WHERE round <= {self._round}"
            )
        self._best = -math.inf if best[0][0] is None else best[0][0]
        return max(one or 0 for one in last)


_DEFAULT_NETWORK = NetworkConfig()


def _config_of(model: PPO, rounds: int) -> RunConfig:
    """Return the settings under which training is recorded."""
    settings = model.settings()
    return RunConfig(
        task=f"{PPO_TRAINING}{model.env_name}",
        task_options={
            "policy": settings["policy"],
            "normalize_rewards": settings["normalize_rewards"],
            **{
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in asdict(model.network).items()
                if value != getattr(_DEFAULT_NETWORK, name)
            },
        },
        rounds=max(1, rounds),
        envs=model.n_envs,
        n_steps=model.n_steps,
        seed=model.seed,
        threads=min(torch.get_num_threads(), MAX_THREADS),
        ppo=model.config,
    )


def _run_record(model: PPO, config: RunConfig, name: str) -> RunRecord:
    return RunRecord(
        name=name,
        task=config.task,
        config=write_toml(config),
        slots="[]",
        blueprints="[]",
        heads=json.dumps(list(model.agent.spec.names)),
        ops="[]",
        esper_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        choices="{}",
        reads="{}",
        host=None,
    )


def _round_record(model: PPO, number: int) -> RoundRecord:
    """Return the record of a rollout; what only growth has is None."""
    speed = model.metrics["time/fps"]
    episodes = model.last_episodes
    nothing: dict[str, Any] = dict.fromkeys(
        one for one, kind in RoundRecord.__annotations__.items() if "None" in str(kind)
    )
    values: dict[str, Any] = {
        "round": number,
        "env_steps": model.num_timesteps,
        "n_episodes": len(episodes.returns),
        "n_illegal": 0,
        "n_refused": 0,
        "n_restored": 0,
        "learning_rate": model.config.learning_rate,
        "ent_coef": model.config.ent_coef,
        "seconds": model.n_envs * model.n_steps / speed,
        "steps_per_second": speed,
        "seconds_by_part": json.dumps(model.last_seconds),
        "rss_bytes": used_memory(),
    }
    if episodes.returns:
        values["ep_rew_mean"] = float(np.mean(episodes.returns))
        values["ep_len_mean"] = float(np.mean(episodes.lengths))
    return RoundRecord(**nothing | values)


def _evaluation_record(result: Evaluated, number: int, best: float) -> EvaluationRecord:
    """Return the record of an evaluation; what only growth has is NaN."""
    return EvaluationRecord(
        round=number,
        arm="learned",
        purpose="tuning",
        split="evaluation",
        n_episodes=len(result.returns),
        ep_rew_mean=result.mean,
        score_mean=math.nan,
        flops_mean=math.nan,
        n_epochs_mean=math.nan,
        host_parameters_mean=math.nan,
        seed_parameters_mean=math.nan,
        ops="{}",
        is_best=result.mean > best,
        fixed_reward=None,
        seconds=0.0,
    )
