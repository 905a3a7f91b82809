"""The training loop: collect a rollout, update the policy, evaluate it, save."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.errors import NonFiniteError, RolloutError, TrainingError, WorkerError
from esper.results.arms import NO_GROWTH
from esper.simic.schedules import interpolate
from esper.stopwatch import Stopwatch
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.state import State
from esper.tasks import Task
from esper.telemetry.records import NoticeRecord, Record, UpdateRecord
from esper.training.expectations import learn_gains
from esper.training.host_runs import HostRuns
from esper.training.lessons import teach
from esper.training.output import RecordOutput
from esper.training.ppo_recording import update_record
from esper.training.records import (
    evaluation_record,
    refused_record,
    round_record,
    run_record,
)
from esper.training.setup import N_FACT_DRAWS, make_agent, make_run_task, task_facts
from esper.training.shards import ShardedRollout, join_tallies, plan_shards
from esper.training.signals import Stopped, StopRequest
from esper.training.state import RunParts
from esper.training.trials import Trials, make_fixed, make_learned, make_named
from esper.training.worker_pool import OnShare, Pool

MAX_REFUSALS = 3
"""Updates in a row that may be rejected before a run fails."""


def rates_of(config: RunConfig, round_number: int) -> dict[str, float]:
    """Return ``learning_rate`` and ``ent_coef`` in a round, from 1."""
    progress = min(1.0, (round_number - 1) / max(1, config.rounds - 1))
    schedule, ppo = config.schedule, config.ppo
    rate, bonus = ppo.learning_rate, ppo.ent_coef
    rate_end, bonus_end = schedule.learning_rate_end * rate, schedule.ent_coef_end * bonus
    return {
        "learning_rate": interpolate(schedule.learning_rate, rate, rate_end, progress),
        "ent_coef": interpolate(schedule.ent_coef, bonus, bonus_end, progress),
    }


class Trainer:
    """Trains the policy of a run, from its current state to the end.

    Saving changes nothing, so an interrupted and resumed run equals an uninterrupted one.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        task: Task | None = None,
        output: RecordOutput,
        checkpoints: CheckpointFolder,
        stop: StopRequest,
        name: str = "run",
        pool: Pool | None = None,
    ) -> None:
        """Make all parts of a run, at its start.

        Args:
            config: Settings of the run.
            task: Task of the run; made from the settings by default.
            output: Receives the records.
            checkpoints: Stores the checkpoints.
            stop: Checked before every step.
            name: Name of the run.
            pool: Computes what can be computed side by side; this process by default.
        """
        self.config, self.stop, self._name = config, stop, name
        self._output, self._checkpoints = output, checkpoints
        self.task = make_run_task(config) if task is None else task
        self.pool = pool or Pool()
        self.pool.start()
        shards = plan_shards(config)
        rollout = ShardedRollout(self.pool, shards, self.task, check=stop.check)
        # One host, or some that were drawn, to describe them.
        n_hosts = N_FACT_DRAWS if self.task.draws_designs else 1
        self._sample = GrowthVectorEnv(self.task, n_hosts)
        slot_config = self._sample.slot_config
        agent = make_agent(config, slot_config)
        self.parts = RunParts(
            config,
            agent,
            rollout,
            growth=self.task.growth,
            slot_config=slot_config,
            task_facts=task_facts(self.task),
        )
        self._send_weights()
        self.stopwatch = Stopwatch()
        self._trials = Trials(config, self.task, stop, pool=self.pool)
        self._saved_at: tuple[int, int, str] | None = None

    def describe_forms(self) -> str | None:
        """Return a sentence about hosts that train more slowly than compiled ones, if any do."""
        return self._sample.growth.hosts.describe_forms()

    def load(self, state: State) -> None:
        """Continue from a checkpoint."""
        self.parts.load(state)
        self._send_weights()
        self._saved_at = self._position
        if self.parts.progress.phase != "starting" and not self._output.writer.describes_run():
            self._describe_run()  # the earlier telemetry was lost

    def run(self) -> None:
        """Train to the end, saving on the way.

        Raises:
            Stopped: If a stop was requested; the run is saved.
            TrainingError: If too many updates in a row were rejected; the run is saved.
            WorkerError: If workers die again and again; the run is saved.
            StorageError: If the disk is full or fails; the last checkpoint is intact.
        """
        progress = self.parts.progress
        try:
            if progress.phase == "starting":
                self.save()  # so that the run can be resumed from the very start
                self._begin()
            while progress.phase != "done":
                if progress.phase == "collecting":
                    self._run_round()
                else:
                    self._evaluate()
        except (Stopped, WorkerError):
            self.save()
            raise
        self.save()

    def save(self) -> None:
        """Save everything the next step depends on, after flushing the telemetry."""
        if self._saved_at == self._position:
            return
        progress = self.parts.progress
        with self.stopwatch.measure("telemetry"):
            self._output.writer.flush()
        with self.stopwatch.measure("checkpoint"):
            progress.telemetry_position = self._output.writer.position
            self._checkpoints.save(self.parts.save(), step=progress.step)
        self._saved_at = self._position

    @property
    def _position(self) -> tuple[int, int, str]:
        # The round is part of it, because an update changes the state between two steps.
        progress = self.parts.progress
        return progress.step, progress.round, progress.phase

    def _begin(self) -> None:
        """Record the run, and evaluate no growth and the fixed schedule."""
        self._describe_run()
        progress = self.parts.progress
        run = partial(self._trials.run, partial(make_named, NO_GROWTH))
        plain = self._run_baseline(NO_GROWTH, run)
        progress.no_growth_score = float(plain.score.mean())
        progress.fixed_return = float(self._run_baseline("fixed", self._run_fixed).returns.mean())
        progress.phase = "collecting"
        if self.config.first_policy == "taught":
            self._teach()
            progress.phase = "evaluating"
        self.parts.buffer.reset()

    def _teach(self) -> None:
        """Let the policy learn from hosts that schedules have grown."""
        n_hosts = self.config.lesson_hosts
        show = self._output.on_share(arm="lessons", purpose="lessons", n_hosts=n_hosts)
        teach(self.config, self.task, self.parts.policy, show, self.stop.check)
        self._send_weights()

    def _describe_run(self) -> None:
        # With draws of designs, every episode has another host.
        host = None if self.task.draws_designs else self.task.make_host(0)
        self._write(run_record(self.config, self.parts.slot_config, host, self._name))

    def _run_baseline(self, arm: str, run: Callable[[OnShare], HostRuns]) -> HostRuns:
        """Run and record a trial before the first round."""
        results, seconds = self._run_trial(arm, run)
        self._write(evaluation_record(results, round_number=0, arm=arm, seconds=seconds))
        return results

    def _run_fixed(self, show: OnShare) -> HostRuns:
        """Choose when the fixed schedule stops, and run it."""
        stop = self._trials.find_stop(lambda share: show(share / 2))
        self.parts.progress.fixed_stop = stop
        make = partial(make_fixed, stop)
        return self._trials.run(make, lambda share: show(0.5 + share / 2))

    def _run_round(self) -> None:
        """Fill the rest of the buffer, update the policy and record the round."""
        parts, progress, start = self.parts, self.parts.progress, perf_counter()
        self.stopwatch.seconds.clear()
        first = progress.step
        while not parts.buffer.is_full:
            self.stop.check()
            self._step()
            if progress.step % self.config.checkpoints.save_freq == 0:
                self.save()
        rates = rates_of(self.config, progress.round + 1)
        update = self._update(rates)
        progress.round += 1
        assert parts.tally is not None, "the rollout is complete"
        record = round_record(
            parts.tally,
            round_number=progress.round,
            env_steps=progress.step * self.config.envs,
            no_growth_score=progress.no_growth_score,
            rates=rates,
            seconds=perf_counter() - start,
            seconds_by_part=self.stopwatch.seconds,
            n_steps=(progress.step - first) * self.config.envs,
            workers=None if self.pool.is_local else self.pool.status(),
        )
        self._write(update, record)
        parts.tally = None
        parts.buffer.reset()
        is_due = progress.round % self.config.evaluation.eval_freq == 0
        if is_due or progress.round == self.config.rounds:
            progress.phase = "evaluating"
        self._require_updates()

    def _step(self) -> None:
        """Take one step of all environments, or some if others take them, and record them."""
        parts, progress = self.parts, self.parts.progress
        room = parts.buffer.room
        save_freq = self.config.checkpoints.save_freq
        until_save = save_freq - progress.step % save_freq
        n_steps = parts.rollout.chunk_steps(min(room, until_save))
        chunks = parts.rollout.collect(n_steps, parts.position, is_last=n_steps == room)
        parts.buffer.extend([chunk.steps for chunk in chunks])
        progress.step += n_steps
        if n_steps == room:
            parts.tally = join_tallies(chunks)
        for chunk in chunks:
            for part, seconds in chunk.seconds.items():
                self.stopwatch.add(part, seconds)
        with self.stopwatch.measure("telemetry"):
            for number in range(n_steps):
                self._output.write([one for chunk in chunks for one in chunk.records[number]])

    def _update(self, rates: dict[str, float]) -> UpdateRecord:
        """Update the policy; roll it back if the update gives a number that is not finite."""
        parts, progress = self.parts, self.parts.progress
        agent, number = parts.agent, progress.round + 1
        with self.stopwatch.measure("update"):
            agent.set_rates(**rates)
            before = agent.state_dict()
            try:
                report = agent.update(parts.buffer)
                self._require_finite_policy()
            except (NonFiniteError, RolloutError) as error:
                agent.load_state_dict(before)
                progress.refusals_in_a_row += 1
                return refused_record(number, progress.n_updates, str(error))
            parts.policy.learn_observations(parts.buffer.flat("observations"))
            self._send_weights()
        progress.refusals_in_a_row = 0
        progress.n_updates += 1
        return update_record(number, progress.n_updates, report)

    def _require_finite_policy(self) -> None:
        """Check that weights, and outputs on the rollout, are finite after the last step."""
        policy, buffer = self.parts.policy, self.parts.buffer
        is_finite = all(bool(torch.isfinite(weight).all()) for weight in policy.parameters())
        seen = buffer.flat("observations"), buffer.flat("hidden_states")
        if not is_finite or not policy.is_finite(*seen):
            raise NonFiniteError(
                "the policy is not finite after the update's last gradient step; "
                "learning_rate is too high."
            )

    def _require_updates(self) -> None:
        """Fail if too many updates in a row were rejected."""
        progress = self.parts.progress
        if progress.refusals_in_a_row < MAX_REFUSALS:
            return
        message = (
            f"{MAX_REFUSALS} updates in a row were rejected because a number was not finite, the "
            f"last in round {progress.round}; the policy was rolled back. Lower "
            f"ppo.learning_rate (now {self.config.ppo.learning_rate:g}) or ppo.max_grad_norm. The "
            "updates table of the telemetry has the reasons."
        )
        self._write(NoticeRecord(round=progress.round, kind="failed", message=message))
        self.save()
        raise TrainingError(message)

    def _evaluate(self) -> None:
        """Evaluate the policy on held-out hosts; keep it if it is the best so far."""
        parts, progress, config = self.parts, self.parts.progress, self.config.evaluation
        self.stop.check()
        learned = partial(make_learned, self.config, parts.policy.state_dict())
        results, seconds = self._run_trial("learned", partial(self._trials.run, learned))
        mean = float(results.returns.mean())
        best = progress.best_return
        is_best = best is None or mean > best + config.min_improvement
        assert math.isfinite(mean), "scores are clipped, also those of diverged hosts"
        progress.evaluations_since_best += 1
        if is_best:
            progress.best_return, progress.best_round = mean, progress.round
            progress.evaluations_since_best = 0
            parts.keep_best()
        self._write(
            evaluation_record(
                results,
                round_number=progress.round,
                arm="learned",
                is_best=is_best,
                fixed_reward=progress.fixed_return,
                seconds=seconds,
            )
        )
        self._compare_with_fixed(mean)
        is_over = self._is_over()
        if is_over and self.config.rewards.reward == "scheduled":
            parts.best_policy = learn_gains(self.config, self.task, parts.best_policy)
            parts.best_returns = {"return_mean": 0.0, "return_std": 1.0}
        progress.phase = "done" if is_over else "collecting"
        if is_best:
            self.save()  # so that the new best controller can be used at once

    def _compare_with_fixed(self, mean: float) -> None:
        """Record a notice when an evaluation beats the fixed schedule for the first time."""
        progress = self.parts.progress
        fixed = progress.fixed_return
        assert fixed is not None, "the schedule runs before the first round"
        if progress.passed_round is not None or mean <= fixed:
            return
        progress.passed_round = progress.round
        message = (
            f"first mean return above the fixed schedule's ({mean:.3f} over {fixed:.3f}), "
            "no interval"
        )
        self._write(NoticeRecord(round=progress.round, kind="fixed schedule", message=message))

    def _is_over(self) -> bool:
        """Return whether all rounds are done or patience has run out."""
        progress, patience = self.parts.progress, self.config.evaluation.patience
        if progress.round >= self.config.rounds:
            return True
        if patience is None or progress.evaluations_since_best < patience:
            return False
        message = (
            f"stopped after round {progress.round} of {self.config.rounds}: {patience} evaluations "
            f"were no better than that after round {progress.best_round}"
        )
        self._write(NoticeRecord(round=progress.round, kind="early stop", message=message))
        return True

    def _send_weights(self) -> None:
        """Let the hosts of the next steps be grown by the policy as it is now."""
        self.parts.rollout.set_weights(self.parts.agent.weights())

    def _run_trial(self, arm: str, run: Callable[[OnShare], HostRuns]) -> tuple[HostRuns, float]:
        """Return the results of a trial on the hosts of evaluations, and the seconds it took."""
        start, n_hosts = perf_counter(), self._trials.n_hosts
        results = run(self._output.on_share(arm=arm, purpose="tuning", n_hosts=n_hosts))
        return results, perf_counter() - start

    def _write(self, *records: Record) -> None:
        with self.stopwatch.measure("telemetry"):
            self._output.write(records)
