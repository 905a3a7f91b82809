"""Training and resuming runs: the folder, telemetry and signal handling around a trainer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Unpack

import torch

from esper.config.checks import names_code, require_trusted_task
from esper.config.run import TASK_OBJECT, RunConfig, RunSettings
from esper.config.toml import (
    DEFAULT_PRESET,
    SourcedConfig,
    load_sourced_preset,
    source_config,
    write_toml,
)
from esper.environment.options import find_task
from esper.errors import (
    ConfigError,
    DamagedTelemetryError,
    EsperError,
    StorageError,
    TrainingError,
    WorkerError,
)
from esper.progress import ShowProgress
from esper.results.arms import BASELINES, LEARNED, Arm
from esper.results.evidence import BestHost, Evidence, make_evidence
from esper.results.files import write_summary
from esper.results.sentences import AS_TAUGHT
from esper.storage.checkpoint_folder import CheckpointFolder, CheckpointWarning, Loaded
from esper.storage.files import read_file, read_sourced_file
from esper.storage.run_folder import RunFolder
from esper.tasks import Task
from esper.telemetry import TelemetryWarning, TelemetryWriter
from esper.telemetry.damage import set_aside
from esper.telemetry.records import NoticeRecord
from esper.telemetry.sinks import Sink, make_sink
from esper.training.host_runs import HostRuns, make_arm
from esper.training.host_trainer import MakeController
from esper.training.output import ActivityFile, RecordOutput, shown_run
from esper.training.records import evaluation_record
from esper.training.run import Run
from esper.training.setup import make_run_task, require_room, resolve_task
from esper.training.signals import Stopped, StopRequest, signals_ask
from esper.training.state import Progress, require_saved_config
from esper.training.trainer import Trainer
from esper.training.trials import (
    TRIAL_SEED,
    Trials,
    make_fixed,
    make_learned,
    make_named,
)
from esper.training.worker_pool import Pool
from esper.training.workers import describe_pool, make_pool


def conclude(trainer: Trainer, folder: RunFolder, output: RecordOutput) -> Evidence:
    """Compare the best policy of a run with baselines; save and return the results."""
    progress, config = trainer.parts.progress, trainer.config
    trials = Trials(config, trainer.task, trainer.stop, is_final=True, pool=trainer.pool)
    n_hosts = trials.n_hosts
    message = (
        f"comparing the controller of round {progress.best_round} with {', '.join(BASELINES)} "
        f"on {n_hosts} held-out hosts"
    )
    output.write([NoticeRecord(round=progress.round, kind="comparison", message=message)])
    arms: list[Arm] = []
    best: BestHost | None = None
    names = (LEARNED, *BASELINES)
    for number, arm in enumerate(names, 1):
        start, show = (
            perf_counter(),
            output.on_share(
                arm=arm, purpose="final", n_hosts=n_hosts, number=number, n_trials=len(names)
            ),
        )
        runs = trials.run(_controller_maker(trainer, arm), show)
        record = evaluation_record(
            runs,
            round_number=progress.round,
            arm=arm,
            purpose="final",
            seconds=perf_counter() - start,
        )
        output.write([record])
        arms.append(make_arm(arm, [runs]))
        best = find_best(runs) if arm == LEARNED else best
    evidence = make_evidence(
        arms,
        task=config.task,
        task_options=config.task_options,
        n_epochs=config.budget.n_epochs,
        price=None if trainer.task.draws_price else config.budget.flop_price,
        test_pool=trainer.task.shared_tests,
        seed=TRIAL_SEED,
        runs=("this one",),
        created="",  # a resumed run has the same summary as one that was never interrupted
        notes=_notes(progress),
        best_host=best,
    )
    try:
        write_summary(folder.summary_file, evidence)
    except OSError as error:
        raise StorageError(f"{folder.summary_file} cannot be written: {error}") from error
    return evidence


def find_best(runs: HostRuns) -> BestHost:
    """Return the episode with the highest return."""
    number = int(runs.returns.argmax())
    taken = runs.actions[number]
    return BestHost(number=number, actions=taken[taken[:, 0] >= 0].tolist())


def _notes(progress: Progress) -> tuple[str, ...]:
    """Return whether and since when the evaluations beat the fixed schedule, and if PPO did."""
    schedule = f"the fixed schedule's return ({progress.fixed_return:.3f})"
    found = f"Held-out trials did not pass {schedule}."
    if progress.passed_round is not None:
        found = f"Held-out trials first passed {schedule} after round {progress.passed_round}."
    return (found, AS_TAUGHT) if progress.best_round == 0 else (found,)


def _controller_maker(trainer: Trainer, arm: str) -> MakeController:
    if arm == "fixed":
        return partial(make_fixed, trainer.parts.progress.fixed_stop)
    if arm != LEARNED:
        return partial(make_named, arm)
    return partial(make_learned, trainer.config, trainer.parts.best_policy)


class RunInterrupted(KeyboardInterrupt):
    """Raised when a run was stopped on request; it is saved and can be resumed."""

    def __init__(self, run: Run) -> None:
        allowed = ", allow_code=True" if names_code(run.config.task) else ""
        command = f"esper.resume({str(run.path)!r}{allowed})"
        super().__init__(f"interrupted and saved; resume with {command}")
        self.run = run


def train(
    config: RunConfig | SourcedConfig | str | os.PathLike[str] | None = None,
    *,
    task: str | Task | None = None,
    preset: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    watchers: Sequence[Sink] = (),
    stop: StopRequest | None = None,
    allow_code: bool = False,
    workers: int | None = None,
    ray_address: str | None = None,
    progress: ShowProgress = "auto",
    **settings: Unpack[RunSettings],
) -> Run:
    """Train a controller from the first step to the final comparison.

    SIGINT and SIGTERM finish the step, save, and raise :class:`RunInterrupted`.

    Args:
        config: The settings, or a TOML file with them.
        task: Name of the task, or the task itself; its own budget applies unless another is given.
        preset: The name of a preset, in place of ``config``; ``"quick"`` if neither is given.
        run_dir: The folder of the run; by default a folder in ``runs`` named after task and time.
        watchers: Receive every record as it is made, or each step's number if they have a method
            ``watch_step``.
        stop: Another way to request a stop.
        allow_code: Whether a TOML file may name its task by ``module:function``; a task in
            ``settings`` always may.
        workers: Number of worker processes; 0 for this process alone. By default as many as there
            are cores or shards, if the run is large enough to gain. Results do not depend on it.
        ray_address: Address of a Ray cluster, instead of worker processes on this machine:
            ``"host:port"``, ``"auto"`` or ``"local"``.
        progress: Whether to show a bar; by default in terminals and notebooks.
        **settings: Settings to change, such as ``rounds=20`` or ``ppo={"learning_rate": 1e-3}``.

    Raises:
        ConfigError: If a setting is invalid.
        TaskError: If a file names code and that is not allowed.
        RunError: If the folder already contains a run.

    Examples:
        >>> run = esper.train(preset="quick", task="spirals", rounds=2)  # doctest: +SKIP
        >>> print(run.summary.sentences[0])  # doctest: +SKIP
    """
    if config is not None and preset is not None:
        raise ConfigError(f"both config and preset {preset!r} are given; pass only one of them.")
    own_task = None if isinstance(task, str) else task
    if own_task is not None:
        task = f"{TASK_OBJECT}{find_task(own_task, {}).name}"
    changes = dict(settings) if task is None else {**settings, "task": task}
    sourced = _find_settings(config, preset)
    if isinstance(config, (str, os.PathLike)) and task is None:
        named = sourced.config
        require_trusted_task(named.task, named.task_options, source=config, allow_code=allow_code)
    sourced = sourced.change(changes, "arguments")
    require_room(sourced.config)
    with _torch_defaults(sourced.config.threads):
        sourced, made = resolve_task(sourced, own_task)
    config = sourced.config
    folder = RunFolder.create(run_dir, config, write_toml(sourced))
    try:
        with (
            shown_run(progress, config) as shown,
            closing(make_pool(config, made, workers=workers, ray_address=ray_address)) as pool,
        ):
            all_watchers, stop = [*watchers, *shown], stop or StopRequest()
            return _run(folder, config, all_watchers, stop, made, pool, is_new=True)
    except StorageError:
        raise  # the run can be resumed once there is room on the disk
    except Exception:
        folder.discard()
        raise


def _find_settings(
    config: RunConfig | SourcedConfig | str | os.PathLike[str] | None, preset: str | None
) -> SourcedConfig:
    """Return the settings that a new run starts from, with their sources."""
    if isinstance(config, (str, os.PathLike)):
        return read_sourced_file(config)
    if isinstance(config, RunConfig):
        return source_config(config)
    return config or load_sourced_preset(preset or DEFAULT_PRESET)


def resume(
    run: str | os.PathLike[str] | Run,
    *,
    watchers: Sequence[Sink] = (),
    task: Task | None = None,
    stop: StopRequest | None = None,
    allow_code: bool = False,
    workers: int | None = None,
    ray_address: str | None = None,
    progress: ShowProgress = "auto",
) -> Run:
    """Resume a run from its last checkpoint; a run that is done is checked and returned unchanged.

    Args:
        run: The run, its folder, or its name in the runs folder.
        watchers: Receive every record as it is made.
        task: The task, if the run was given one as an object.
        stop: Another way to request a stop.
        allow_code: Whether to run a task that the run's settings name by ``module:function``.
        workers: Number of worker processes, as for :func:`train`; it may differ from before.
        ray_address: Address of a Ray cluster, as for :func:`train`.
        progress: Whether to show a bar; by default in terminals and notebooks.

    Raises:
        TaskError: If the run's settings name code and that is not allowed.
        RunError: If there is no such run, another process is working on it, or a link is in the
            place of one of its files.
        CheckpointError: If no checkpoint is intact, or the settings differ from its own.

    Examples:
        >>> run = esper.resume("runs/my-run")  # a run that is done is returned unchanged
        >>> run.name
        'my-run'
    """
    folder = run.folder if isinstance(run, Run) else RunFolder.find(run)
    found = Run(folder)
    found.require_learning()
    if found.is_complete:
        _check_complete(found)
        return found
    found.require_trusted_task(allow_code=allow_code)
    config = found.config
    require_room(config)
    with _torch_defaults(config.threads):
        made = make_run_task(config, task)
    with (
        shown_run(progress, config) as shown,
        closing(make_pool(config, made, workers=workers, ray_address=ray_address)) as pool,
    ):
        all_watchers, stop = [*watchers, *shown], stop or StopRequest()
        return _run(folder, config, all_watchers, stop, made, pool, is_new=False)


def _check_complete(run: Run) -> None:
    """Check the files and settings of a run that is done as if it were resumed.

    Its checkpoints may have been deleted: nothing needs them any more.
    """
    run.folder.require_own_files()
    checkpoints = CheckpointFolder(run.folder.checkpoints)
    if checkpoints.names():
        with _torch_defaults(run.config.threads):
            require_saved_config(run.config, checkpoints.latest().state)


def _run(
    folder: RunFolder,
    config: RunConfig,
    watchers: Sequence[Sink],
    stop: StopRequest,
    task: Task,
    pool: Pool,
    *,
    is_new: bool,
) -> Run:
    """Run to the end: a new run from the start, another from the last checkpoint."""
    with folder.locked(), _torch_defaults(config.threads), signals_ask(stop), ExitStack() as stack:
        checkpoints = CheckpointFolder(folder.checkpoints, keep_last=config.checkpoints.keep_last)
        writer, problem = _open_telemetry(folder.telemetry_file)
        stack.enter_context(writer)
        has_records = writer.position > 0
        loaded = None if is_new else _load(checkpoints, writer)
        if loaded is not None and _telemetry_position(loaded) and not has_records and not problem:
            problem = "Records of earlier rounds are missing."
            warnings.warn(problem, TelemetryWarning, stacklevel=3)
        text = read_file(folder.config_file).decode()
        sinks = [
            stack.enter_context(closing(make_sink(name, folder.path, text)))
            for name in config.telemetry.sinks
        ]
        activity = stack.enter_context(closing(ActivityFile(folder.activity_file)))
        output = RecordOutput(writer, [activity, *watchers, *sinks])
        with _session(writer, loaded, config, folder, problem):
            trainer = Trainer(
                config,
                task=task,
                output=output,
                checkpoints=checkpoints,
                stop=stop,
                name=folder.name,
                pool=pool,
            )
            for note in (describe_pool(pool, config), trainer.describe_forms()):
                if note is not None:
                    output.show_note(note)
            if loaded is not None:
                trainer.load(loaded.state)
            try:
                trainer.run()
                conclude(trainer, folder, output)
            except WorkerError as error:
                if not checkpoints.names():
                    raise
                raise TrainingError(
                    f"{error} The run is saved; resume with other workers (--workers 0: none) or a "
                    f"corrected task: {Run(folder).resume_command}"
                ) from error
    return Run(folder)


def _open_telemetry(path: Path) -> tuple[TelemetryWriter, str]:
    """Open a run's telemetry for writing, and return what is wrong with its earlier contents.

    A database that cannot be used is set aside, so that damage to records never stops a run.
    """
    try:
        return TelemetryWriter(path), ""
    except DamagedTelemetryError:
        kept = set_aside(path)
    problem = f"Earlier records were damaged and are kept in {kept.name}."
    warnings.warn(problem, TelemetryWarning, stacklevel=4)
    return TelemetryWriter(path), problem


def _load(checkpoints: CheckpointFolder, writer: TelemetryWriter) -> Loaded | None:
    """Load the last checkpoint and rewind the telemetry to it.

    Returns None, with a warning, for a run that was killed before it saved or recorded anything.
    """
    if not checkpoints.names() and not writer.position:
        warnings.warn(
            "the run had not saved anything yet; it starts from the beginning",
            CheckpointWarning,
            stacklevel=4,
        )
        return None
    loaded = checkpoints.latest()
    writer.rewind(_telemetry_position(loaded))
    return loaded


def _telemetry_position(loaded: Loaded) -> int:
    """Return how many records had been written when a checkpoint was saved."""
    return loaded.state["progress"]["telemetry_position"]


@contextmanager
def _session(
    writer: TelemetryWriter,
    loaded: Loaded | None,
    config: RunConfig,
    folder: RunFolder,
    problem: str,
) -> Generator[None]:
    """Record that this process works on the run, what was wrong before, and how it ends."""
    first_round, message = 1, None
    if loaded is not None:
        first_round = loaded.state["progress"]["round"] + 1
        message = f"Resumed from {loaded.path.name}."
        if loaded.skipped:
            message += f" Skipped damaged checkpoints: {', '.join(p.name for p in loaded.skipped)}."
        message = f"{message} {problem}".rstrip()
    writer.start_session(
        first_round=first_round,
        threads=config.threads,
        torch_version=torch.__version__,
        message=message,
    )
    try:
        yield
    except Stopped as stopped:
        writer.end_session("interrupted", f"Stopped by {stopped}.")
        raise RunInterrupted(Run(folder)) from None
    except BaseException as error:
        # A full disk cannot record the failure either; the first error is the one to raise.
        with suppress(EsperError):
            writer.end_session("failed", str(error) or type(error).__name__)
        raise
    writer.end_session("done")


@contextmanager
def _torch_defaults(n_threads: int) -> Generator[None]:
    """Run PyTorch with a number of threads and its default modes within the context.

    The caller's random state is restored, because new layers draw from the default generator.
    """
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(n_threads)
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
