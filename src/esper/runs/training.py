"""Starting a run and going on with one: the folder, the records, the signals around a trainer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from esper.checkpoints import CheckpointFolder, CheckpointWarning, Loaded, split
from esper.config.presets import DEFAULT_PRESET, load_preset
from esper.config.run import RunConfig
from esper.config.toml import override, read_toml_file
from esper.errors import ConfigError, EsperError, StorageError
from esper.runs.concluding import conclude
from esper.runs.folder import RunFolder
from esper.runs.run import Run
from esper.runs.signals import signals_ask
from esper.simic.training import RecordOutput, Stopped, StopRequest, Trainer
from esper.simic.training.setup import with_task_budget
from esper.telemetry import TelemetryWriter
from esper.telemetry.sinks import Sink, make_sink


class RunInterrupted(KeyboardInterrupt):
    """A run was asked to stop by a signal; it is saved and can be resumed."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"interrupted and saved; esper.resume({str(run.path)!r}) goes on")
        self.run = run


def train(
    config: RunConfig | str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    watchers: Sequence[Sink] = (),
    stop: StopRequest | None = None,
    **settings: Any,
) -> Run:
    """Train a controller from its first step to the comparison at the end.

    SIGINT and SIGTERM finish the step, save, and end in :class:`RunInterrupted`.

    Args:
        config: All settings, or a TOML file of them; or
        preset: the name of a preset, ``"quick"`` if neither is given.
        run_dir: The folder of the run; by default one in ``runs`` named after task and time.
        watchers: Shown every record as it is made.
        stop: Another way to ask for a stop.
        **settings: Settings to change, such as ``task="spirals"``, ``rounds=20`` or
            ``ppo={"learning_rate": 1e-3}``.

    Raises:
        ConfigError: If a setting cannot be right.
        RunError: If the folder holds a run already.
    """
    if config is not None and preset is not None:
        raise ConfigError(f"both config and preset {preset!r} are given; give one of them.")
    if isinstance(config, (str, os.PathLike)):
        config = read_toml_file(config)
    chosen = override(config or load_preset(preset or DEFAULT_PRESET), settings)
    chosen = with_task_budget(chosen)  # refuses a task that there is not, too
    folder = RunFolder.create(run_dir, chosen)
    try:
        return _work(folder, chosen, watchers, stop or StopRequest(), is_new=True)
    except StorageError:
        raise  # with room on the disk the run can go on
    except Exception:
        folder.forget()
        raise


def resume(
    run: str | os.PathLike[str] | Run,
    *,
    watchers: Sequence[Sink] = (),
    stop: StopRequest | None = None,
) -> Run:
    """Go on with a run where its last checkpoint is; one that is done is returned as it is.

    Raises:
        RunError: If there is no such run, or another process works on it.
        CheckpointError: If none of its checkpoints is whole.
    """
    folder = run.folder if isinstance(run, Run) else RunFolder.find(run)
    found = Run(folder)
    if found.state == "done" and found.summary is not None:
        return found
    return _work(folder, found.config, watchers, stop or StopRequest(), is_new=False)


def _work(
    folder: RunFolder,
    config: RunConfig,
    watchers: Sequence[Sink],
    stop: StopRequest,
    *,
    is_new: bool,
) -> Run:
    """Bring a run to its end, from wherever it is."""
    with folder.locked(), _torch_set_up(config.threads), signals_ask(stop), ExitStack() as stack:
        checkpoints = CheckpointFolder(folder.checkpoints, keep_last=config.checkpoints.keep_last)
        writer = stack.enter_context(TelemetryWriter(folder.telemetry_file))
        loaded = None if is_new else _load(checkpoints, writer)
        sinks = [stack.enter_context(_sink(name, folder)) for name in config.telemetry.sinks]
        output = RecordOutput(writer, [*watchers, *sinks])
        with _session(writer, loaded, config, folder):
            trainer = Trainer(
                config, output=output, checkpoints=checkpoints, stop=stop, name=folder.name
            )
            if loaded is not None:
                trainer.load(loaded.state)
            trainer.run()
            conclude(trainer, folder, output)
    return Run(folder)


def _load(checkpoints: CheckpointFolder, writer: TelemetryWriter) -> Loaded | None:
    """Return the checkpoint to go on from, with the telemetry put back to it.

    None, with a warning, for a run that was killed before it had saved or recorded anything.
    """
    if not checkpoints.names() and not writer.position:
        warnings.warn(
            "the run had not saved anything yet; it starts from the beginning",
            CheckpointWarning,
            stacklevel=4,
        )
        return None
    loaded = checkpoints.latest()
    writer.rewind(split(loaded.state)["progress"].facts["telemetry_position"])
    return loaded


@contextmanager
def _session(
    writer: TelemetryWriter, loaded: Loaded | None, config: RunConfig, folder: RunFolder
) -> Generator[None]:
    """Record that this process works on the run, and how that ended."""
    first_round, message = 1, None
    if loaded is not None:
        first_round = split(loaded.state)["progress"].facts["round"] + 1
        message = f"Resumed from {loaded.path.name}."
        if loaded.skipped:
            message += f" Damaged and left out: {', '.join(p.name for p in loaded.skipped)}."
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
        # What went wrong is what matters; a disk that is full cannot take this note either.
        with suppress(EsperError):
            writer.end_session("failed", str(error) or type(error).__name__)
        raise
    writer.end_session("done")


@contextmanager
def _sink(name: str, folder: RunFolder) -> Generator[Sink]:
    """Open a tracker, and close it at the end."""
    sink = make_sink(name, folder.path, folder.config_file.read_text("utf-8"))
    try:
        yield sink
    finally:
        sink.close()


@contextmanager
def _torch_set_up(n_threads: int) -> Generator[None]:
    """Let PyTorch use so many threads, and be as it is by default, while the context lasts.

    Layers that are made draw from torch's default generator; a caller's numbers stay as they are.
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
