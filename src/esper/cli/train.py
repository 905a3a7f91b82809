"""``esper train`` and ``esper resume``: start or continue a run, with live progress."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esper.cli.arguments import (
    Metavar,
    Positional,
    UsageError,
    parse,
    parse_with_settings,
    require_task,
)
from esper.config.checks import CodeWarning, NonNegativeInt, require_trusted_task
from esper.config.toml import (
    DEFAULT_PRESET,
    SourcedConfig,
    load_sourced_preset,
    preset_names,
    write_toml,
)
from esper.storage.files import read_sourced_file
from esper.training.signals import StopRequest

if TYPE_CHECKING:
    from esper.cli.views import View
    from esper.training.run import Run


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a run is shown, and what works on it."""

    quiet: bool = False
    """Print only one line at the end."""

    json: bool = False
    """Print one JSON object per line."""

    dashboard: bool = False
    """Serve the dashboard during training and afterwards, until Ctrl-C, and print its link."""

    allow_code: bool = False
    """Run a task that the file of settings names by module:function."""

    workers: NonNegativeInt | None = None
    """Worker processes; 0 for none. By default as many as there are cores or shards, if the run is
    large enough to gain. The results do not depend on it."""

    ray_address: Annotated[str | None, Metavar("ADDRESS")] = None
    """Ray cluster to use instead: host:port, auto for the one this machine belongs to, or local."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LaunchOptions):
    """Train a controller that grows hosts, then compare it with simple baselines.

    Settings come from a preset or a file; options override them.

    The quick preset is a first look: in minutes, it learns to grow one family of networks. The
    controller that ships with Esper, which esper.grow uses by default, was trained for longer on
    many kinds of tasks (preset universal).
    """

    preset: Annotated[str | None, Metavar(f"{{{','.join(preset_names())}}}")] = None
    """Preset to start from; by default quick."""

    config: Annotated[str | None, Metavar("FILE")] = None
    """TOML file of settings to start from, instead of a preset."""

    run_dir: Annotated[str | None, Metavar("FOLDER")] = None
    """New folder for the run; by default a generated name in the runs folder."""

    print_config: bool = False
    """Print the settings as TOML, with where each comes from, and exit."""


def run_train(args: Sequence[str]) -> int:
    """Start a run, or print its settings."""
    options, start, changes = parse_with_settings(
        TrainOptions, args, command="train", load=_load_settings
    )
    sourced = start.change(changes, "command line")
    config = sourced.config
    runs_task = sourced.needs_task or not options.print_config
    if options.config is not None and "task" not in changes and runs_task:
        require_trusted_task(
            config.task, config.task_options, source=options.config, allow_code=options.allow_code
        )
    if options.print_config:
        print(write_toml(_with_tasks_budget(sourced)), end="")
        return 0
    if options.run_dir == "":
        raise UsageError("--run-dir is ''; it must be a folder.")
    run_dir = None if options.run_dir is None else Path(options.run_dir)
    from esper.cli.launch import run_with_view
    from esper.storage.run_folder import RunFolder, new_run_path

    if run_dir is not None:
        RunFolder(run_dir).require_unused()  # before PyTorch is loaded
    require_task(config.task)
    if run_dir is None and options.dashboard:
        run_dir = new_run_path(config)  # its page is opened before the run is created

    def work(view: View, stop: StopRequest) -> Run:
        from esper.training.runs import train

        return train(
            sourced,
            run_dir=run_dir,
            watchers=[view],
            stop=stop,
            progress=False,  # the view shows it
            workers=options.workers,
            ray_address=options.ray_address,
        )

    return run_with_view(work, config, options, folder=run_dir)


def _load_settings(options: TrainOptions) -> SourcedConfig:
    if options.config is None:
        return load_sourced_preset(DEFAULT_PRESET if options.preset is None else options.preset)
    if options.preset is not None:
        raise UsageError("--preset and --config are both given; choose one.")
    return read_sourced_file(options.config)


def _with_tasks_budget(sourced: SourcedConfig) -> SourcedConfig:
    """Return the settings that training would use; needs PyTorch only to ask the task."""
    if not sourced.needs_task:
        return sourced
    from esper.training.setup import resolve_task

    return resolve_task(sourced)[0]


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(LaunchOptions):
    """Resume an interrupted run, with the same results as if it had never stopped."""

    run: Annotated[str, Positional("RUN")]
    """Folder of the run, or its name in the runs folder."""


def run_resume(args: Sequence[str]) -> int:
    """Resume a run and return the exit code."""
    options = parse(ResumeOptions, args, command="resume")
    from esper.cli.launch import run_with_view, show_results
    from esper.training.run import load_run

    found = load_run(options.run)
    found.require_learning()
    if found.is_complete:
        from esper.training.runs import resume

        resume(found)
        print(f"esper: {found.path} is done; nothing to resume", file=sys.stderr)
        show_results(found, options)
        return 0

    with found.folder.locked():
        pass  # fails before PyTorch is loaded if another process works on the run
    found.require_trusted_task(allow_code=options.allow_code)

    def work(view: View, stop: StopRequest) -> Run:
        from esper.training.runs import resume

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CodeWarning)  # shown before
            return resume(
                found,
                watchers=[view],
                stop=stop,
                progress=False,  # the view shows it
                allow_code=options.allow_code,
                workers=options.workers,
                ray_address=options.ray_address,
            )

    return run_with_view(work, found.config, options, folder=found.path, resumed=found)
