"""The end of a run: the learned controller beside simple ones, on hosts that decided nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from esper.errors import StorageError
from esper.reports.comparison import LEARNED, OTHERS, ArmResults, Comparison, compare_arms
from esper.runs.folder import RunFolder
from esper.simic.environment import GrowthVectorEnv
from esper.simic.evaluation import EpisodeResults
from esper.simic.training import RecordOutput, Trainer
from esper.simic.training.fixed_schedule import make_fixed
from esper.simic.training.output import TrialProgress
from esper.simic.training.progress import Progress
from esper.simic.training.round_records import evaluation_record
from esper.simic.training.trials import (
    count_hosts,
    run_final_trials,
    task_place,
    trial_parts,
)
from esper.tamiyo import Controller, LearnedController, make_controller
from esper.telemetry.records import NoticeRecord
from esper.whole_files import write_whole


def conclude(trainer: Trainer, folder: RunFolder, output: RecordOutput) -> Comparison:
    """Compare the best policy of a run with simple controllers; keep and return the comparison."""
    progress, config = trainer.parts.progress, trainer.config
    n_hosts = count_hosts(trial_parts(trainer.task, config.evaluation.n_final_episodes))
    message = (
        f"comparing the controller of round {progress.best_round} with {', '.join(OTHERS)} "
        f"on {n_hosts} held-out hosts"
    )
    output.write([NoticeRecord(round=progress.round, kind="comparison", message=message)])
    results: dict[str, ArmResults] = {}
    actions: NDArray[np.int64] | None = None
    for arm in (LEARNED, *OTHERS):
        start = perf_counter()
        found, taken = run_final_trials(
            config,
            trainer.task,
            _maker(trainer, arm),
            trainer.stop,
            on_share=_teller(output, n_hosts, arm),
        )
        record = evaluation_record(
            found,
            round_number=progress.round,
            arm=arm,
            purpose="final",
            seconds=perf_counter() - start,
        )
        output.write([record])
        results[arm] = as_arm(found)
        actions = taken if arm == LEARNED else actions
    comparison = compare_arms(results, actions=actions)
    sentences = (*comparison.sentences, _about_trials(progress))
    comparison = replace(comparison, sentences=sentences)
    try:
        write_whole(folder.summary_file, json.dumps(comparison.to_json(), indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"{folder.summary_file} cannot be written: {error}") from error
    return comparison


def _about_trials(progress: Progress) -> str:
    """Say whether the trials on the way did better than the fixed schedule, and since when."""
    schedule = f"the fixed schedule's return ({progress.fixed_return:.3f})"
    if progress.passed_round is None:
        return f"Held-out trials did not pass {schedule}."
    return f"Held-out trials first passed {schedule} after round {progress.passed_round}."


def _teller(output: RecordOutput, n_hosts: int, arm: str) -> Callable[[float], None]:
    """Return what tells those who watch how far the trial of a controller is."""
    trial = TrialProgress(
        arm=arm,
        purpose="final",
        n_hosts=n_hosts,
        share=0.0,
        number=1 + (LEARNED, *OTHERS).index(arm),
        n_trials=1 + len(OTHERS),
    )
    return lambda share: output.show_trial(replace(trial, share=share))


def as_arm(results: EpisodeResults) -> ArmResults:
    """Return what a comparison needs of an evaluation's results."""
    return ArmResults(
        returns=results.returns,
        scores=results.scores,
        flops=results.flops,
        n_epochs=results.n_epochs.astype(np.float64),
        host_parameters=results.host_parameters.astype(np.float64),
        seed_parameters=results.seed_parameters.astype(np.float64),
    )


def _maker(trainer: Trainer, arm: str) -> Callable[[GrowthVectorEnv], Controller]:
    if arm == "fixed":
        task, stops = trainer.task, trainer.parts.progress.fixed_stops
        return lambda envs: make_fixed(envs, stops[task_place(task, envs.task)])
    if arm != LEARNED:
        return lambda envs: make_controller(arm, envs.layout)
    policy = trainer.parts.policy
    policy.load_state_dict(trainer.parts.best_policy)
    deterministic = trainer.config.evaluation.deterministic
    return lambda _: LearnedController(policy, deterministic=deterministic)
