"""Recording a training loop of the user's own as a run, which the dashboard shows."""

from __future__ import annotations

import math
import os
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from esper.config.growth import Budget
from esper.config.memory import used_memory
from esper.config.run import MAX_THREADS, OWN_TRAINING, RunConfig
from esper.environment.rewards import REWARD_TERMS
from esper.errors import EsperError, RunError, StorageError, TelemetryError
from esper.formatting import many
from esper.growing.decisions import Decision, Trace
from esper.growing.own_episode import OwnEpisode
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, choice_names
from esper.lifecycle.slot_arrays import SlotArrays
from esper.storage.run_folder import RunFolder
from esper.tamiyo.controllers.learned import choice_probabilities
from esper.telemetry import TelemetryWarning, TelemetryWriter, open_run
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    Record,
    RoundRecord,
    SeedEventRecord,
    StepRecord,
)
from esper.training.records import run_record
from esper.training.step_records import log_probability, pack_choices, seed_events

UNKNOWN_CHOICE = -1
"""The choice of a head in an epoch before which the controller was not asked."""

_UNKNOWN_TERMS: dict[str, Any] = dict.fromkeys(REWARD_TERMS, math.nan)
"""Reward terms that are always 0 here."""

_PLACE = {"env": 0, "episode": 0}
"""A run of the user's own has one host and one episode."""


class Recording:
    """Writes what happens in a training to the folder of a run.

    A round is an epoch. A step is a decision, the epoch that follows it, and the model after that
    epoch. The final score is that of the last epoch. There are no rewards and no updates of a
    policy: these are unknown, or not there.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, *, epoch: int, is_new: bool) -> None:
        """Start to record; see :func:`start_recording`."""
        self.folder = folder
        self._config = config
        self._first_seconds = time.monotonic()
        self._stack = ExitStack()
        self._slots: SlotArrays | None = None
        """The slots after the last epoch; None before the first."""
        self._probabilities: dict[str, list[float | None]] = {}
        self._last: tuple[int, Decision] | None = None
        """The last step, and the decision after it."""
        self._ops = Counter[str]()
        with ExitStack() as stack:
            stack.enter_context(folder.locked())
            position = 0 if is_new else self._read(epoch)
            self._writer = stack.enter_context(TelemetryWriter(folder.telemetry_file))
            if not is_new:
                self._writer.rewind(position)
            self._writer.start_session(
                first_round=epoch + 1,
                threads=torch.get_num_threads(),
                torch_version=torch.__version__,
                message=None if is_new else f"Continued after epoch {epoch}.",
            )
            self._stack = stack.pop_all()
        self._finalizer = weakref.finalize(self, _interrupt, self._writer, self._stack, os.getpid())

    @property
    def is_open(self) -> bool:
        """Whether epochs are still recorded."""
        return self._finalizer.alive

    def note_decision(self, episode: OwnEpisode, decision: Decision) -> None:
        """Keep how likely the choices of a decision were, until its epoch is recorded."""
        asked = bool(decision.choices)
        self._probabilities = choice_probabilities(episode.controller) if asked else {}

    def add_epoch(
        self,
        episode: OwnEpisode,
        trace: Trace,
        slots: SlotArrays,
        problems: Sequence[str],
        learning_rate: float,
    ) -> None:
        """Record an epoch; on failure, warn and stop recording instead of stopping the training.

        Args:
            episode: The controller, the model and its slots.
            trace: All decisions, the last of them after this epoch.
            slots: The slots after the epoch, before that decision was carried out.
            problems: Why the governor rolled the model back, if it did.
            learning_rate: That of the epoch.
        """
        if not self.is_open:
            return
        with self._surviving():
            after = trace[-1]
            before = trace[-2] if len(trace) > 1 else None
            if self._slots is None:
                self._slots = SlotArrays.blank(*slots.stage.shape)
                if not self._writer.describes_run():
                    host, name = episode.hosts.model, self.folder.name
                    self._writer.write(run_record(self._config, episode.slot_config, host, name))
            at = {"round": after.epoch, "step": after.epoch, **_PLACE}
            seed = {"draw_seed": self._config.seed}
            records: list[Record] = [self._step_record(episode, at, before, after, slots)]
            events = seed_events(np.array([after.epoch]), [episode.slot_config], self._slots, slots)
            records += [SeedEventRecord(**at, **seed, **values) for _, values in events]
            records += [
                GovernorRecord(**at, **seed, epoch=after.epoch, reason=reason)
                for reason in problems
            ]
            self._slots, self._last = slots, (after.epoch, after)
            self._ops[before.op if before is not None else "wait"] += 1
            self.note_decision(episode, after)
            if after.op == "finish":  # a step of its own, which trains no epoch
                self._last = (after.epoch + 1, after)
                self._ops["finish"] += 1
                records.append(
                    self._step_record(episode, at | {"step": after.epoch + 1}, after, after, slots)
                )
            if after.should_stop:
                records.append(self._episode_record(was_truncated=False))
            records.append(self._round_record(before, after, len(problems), learning_rate))
            self._writer.write_many(records)
            self._writer.flush()
            if after.should_stop:
                self._end()

    @contextmanager
    def _surviving(self) -> Generator[None]:
        """Stop recording, with a warning, if it fails inside the context."""
        try:
            yield
        except (TelemetryError, StorageError) as error:
            self._finalizer()
            warnings.warn(
                f"the training continues unrecorded: {error}", TelemetryWarning, stacklevel=4
            )

    def close(self) -> None:
        """End the episode after the last recorded epoch and stop recording."""
        if not self.is_open:
            return
        if self._last is not None:
            self._writer.write(self._episode_record(was_truncated=True))
        self._end()

    def _read(self, epoch: int) -> int:
        """Read what was recorded up to an epoch; return the number of the epoch's last row."""
        with open_run(self.folder.path) as telemetry:
            rows = telemetry.select("SELECT seq FROM rounds WHERE round = :epoch", epoch=epoch)
            if not rows:
                last = telemetry.last(RoundRecord)
                raise RunError(
                    f"{self.folder.path} records {many(0 if last is None else last.round, 'epoch')}"
                    f", but this Grower has trained for {epoch}; choose another folder."
                )
            steps = [one for one in telemetry.rows(StepRecord, **_PLACE) if one.epoch <= epoch]
        self._slots = SlotArrays.from_text(steps[-1].slots)
        self._ops = Counter(Op(one.op_done).name.lower() for one in steps)
        return rows[0][0]

    def _step_record(
        self,
        episode: OwnEpisode,
        at: dict[str, int],
        before: Decision | None,
        after: Decision,
        slots: SlotArrays,
    ) -> StepRecord:
        """Return the record of a decision and of the epoch that followed it."""
        asked = before is not None and before.choices
        choices = dict.fromkeys(HEAD_NAMES, UNKNOWN_CHOICE) | {"op": int(Op.WAIT)}
        done = Op.WAIT
        packed, log_prob = None, math.nan
        if before is not None and asked:
            choices = dict(zip(HEAD_NAMES, before.choices, strict=True))
            done = Op[before.op.upper()]
            if self._probabilities:
                sizes = {h: len(names) for h, names in choice_names(episode.slot_config).items()}
                packed = pack_choices(self._probabilities, sizes)
                log_prob = log_probability(self._probabilities, choices)
        return StepRecord(
            **at,
            **choices,
            epoch=after.epoch,
            op_done=int(done),
            is_illegal=False,
            refusal=before.why if before is not None and done != choices["op"] else None,
            reward=math.nan,
            **_UNKNOWN_TERMS,
            score=after.score,
            flops=after.flops,
            value=math.nan if before is None or before.value is None else before.value,
            log_prob=log_prob,
            slots=slots.as_text()[0],
            probabilities=packed,
        )

    def _round_record(
        self, before: Decision | None, after: Decision, n_restored: int, learning_rate: float
    ) -> RoundRecord:
        now = time.monotonic()
        seconds, self._first_seconds = now - self._first_seconds, now
        is_over = after.should_stop
        ops: dict[str, Any] = {f"op_{op.name.lower()}": None for op in Op}
        if is_over:
            ops = {f"op_{op.name.lower()}": float(self._ops[op.name.lower()]) for op in Op}
        was_refused = before is not None and before.choices and _was_refused(before)
        return RoundRecord(
            round=after.epoch,
            env_steps=after.epoch,
            n_episodes=int(is_over),
            ep_rew_mean=None,
            ep_len_mean=None,
            score_mean=after.score,
            no_growth_score=None,
            flops_mean=after.flops,
            host_parameters_mean=float(after.parameters - after.seed_parameters),
            seed_parameters_mean=float(after.seed_parameters),
            **ops,
            n_illegal=0,
            n_refused=int(bool(was_refused)),
            n_restored=n_restored,
            learning_rate=learning_rate,
            ent_coef=math.nan,
            seconds=seconds,
            steps_per_second=1.0 / max(seconds, 1e-9),
            seconds_by_part="{}",
            rss_bytes=used_memory(),
            workers=None,
            workers_restarted=None,
            seconds_waited=None,
        )

    def _episode_record(self, *, was_truncated: bool) -> EpisodeRecord:
        assert self._last is not None, "an epoch is recorded"
        step, last = self._last
        return EpisodeRecord(
            round=last.epoch,
            step=step,
            **_PLACE,
            draw_seed=self._config.seed,
            ep_rew=math.nan,
            ep_len=step,
            **_UNKNOWN_TERMS,
            final_score=last.score,
            flops=last.flops,
            n_epochs=last.epoch,
            host_parameters=last.parameters - last.seed_parameters,
            seed_parameters=last.seed_parameters,
            was_truncated=was_truncated,
            title=None,
            facts=None,
            slot_names=None,
            budget_epochs=self._config.budget.n_epochs,
            flop_price=self._config.budget.flop_price,
            no_growth_scores=None,
            no_growth_final_score=None,
            schedule_scores=None,
            schedule_final_score=None,
        )

    def _end(self) -> None:
        self._writer.end_session("done")
        self._finalizer.detach()
        self._stack.close()


def own_training_config(model: nn.Module, controller: str, budget: Budget, seed: int) -> RunConfig:
    """Return the settings under which a training of the user's own is recorded."""
    return RunConfig(
        task=OWN_TRAINING,
        task_options={"model": type(model).__name__, "controller": controller},
        rounds=budget.n_epochs,
        envs=1,
        n_steps=1,
        seed=seed,
        threads=min(torch.get_num_threads(), MAX_THREADS),
        budget=budget,
    )


def start_recording(
    path: str | os.PathLike[str] | None, config: RunConfig, *, epoch: int
) -> Recording:
    """Create the folder of a run and record in it, or continue a record after an epoch.

    Raises:
        RunError: If the folder holds another run, or not the epochs before.
        StorageError: If it cannot be written.
    """
    if path is None or not RunFolder(path).holds_run:
        folder = RunFolder.create(path, config)
        try:
            return Recording(folder, config, epoch=epoch, is_new=True)
        except EsperError:
            folder.discard()
            raise
    folder = RunFolder(Path(path))
    known = folder.read_config()
    if not known.is_own_training or known.rounds != config.rounds:
        what = f"{known.task}, {many(known.rounds, 'round')}"
        raise RunError(
            f"{folder.path} holds another run ({what}), not a record of "
            f"{many(config.rounds, 'epoch')} of your own training; choose another folder."
        )
    if epoch == 0:
        raise RunError(
            f"{folder.path} holds the record of a training, but this Grower has not trained yet; "
            "load its state to continue the record, or choose another folder."
        )
    return Recording(folder, config, epoch=epoch, is_new=False)


def _interrupt(writer: TelemetryWriter, stack: ExitStack, pid: int) -> None:
    """Close a record whose process or Grower ends before the training does."""
    if os.getpid() != pid:
        return  # a copy of the process, such as a worker of a DataLoader
    with suppress(EsperError):
        writer.end_session("interrupted", "The training ended before its last epoch.")
    with suppress(EsperError):
        stack.close()


def _was_refused(decision: Decision) -> bool:
    return Op[decision.op.upper()] != decision.choices[-1]
