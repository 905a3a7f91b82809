"""``esper train`` and ``esper resume``: start or continue a run, with live progress."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from esper.cli.parsing import (
    Switch,
    UsageError,
    optional,
    parse,
    parse_known,
    read_table,
    require_task,
)
from esper.config.checks import CodeWarning, require_trusted_task
from esper.config.run import RunConfig
from esper.config.schema import (
    hints_of,
    is_section,
    is_table,
    key_text,
    value_text,
    written_docs_of,
)
from esper.config.toml import (
    DEFAULT_PRESET,
    load_preset,
    override,
    preset_names,
    read_toml_file,
    write_toml,
)

if TYPE_CHECKING:
    from esper.cli.views import View
    from esper.training.run import Run
    from esper.training.stopping import StopRequest


_ABOUT = """Train a controller that grows hosts, then compare it with simple baselines.

Settings come from a preset or a file; options override them.

The quick preset is a first look: in minutes, it learns to grow one family of networks. The
controller that ships with Esper, which esper.grow uses by default, was trained for longer on many
kinds of tasks (preset universal)."""
_METAVARS = {"config": "FILE", "run_dir": "FOLDER", "workers": "N", "ray_address": "ADDRESS"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the settings come from before options override them."""

    preset: str | None = None
    """Preset to start from."""

    config: str | None = None
    """TOML file of settings to start from, instead of a preset."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a run is started and shown; not part of its settings."""

    run_dir: str | None = None
    """New folder for the run; by default a generated name in the runs folder."""

    quiet: bool = False
    """Print only one line at the end."""

    json: bool = False
    """Print one JSON object per line."""

    dashboard: bool = False
    """Serve the dashboard during training and afterwards, until Ctrl-C, and print its link."""

    allow_code: bool = False
    """Run a task that the file of settings names by module:function."""

    workers: int | None = None
    """Worker processes; 0 for none. By default as many as there are cores or shards, if the run is
    large enough to gain."""

    ray_address: str | None = None
    """Ray cluster that works instead: host:port, auto for the one this machine belongs to, or
    local."""

    print_config: bool = False
    """Print the settings as TOML and exit."""


@dataclass(frozen=True, kw_only=True)
class _Typed:
    """The task, if the user typed it."""

    task: str | None = None


def run_train(args: Sequence[str]) -> int:
    """Start a run, or print its settings."""
    source = _find_source(args)
    start = _load_settings(source)
    options: Any = parse(make_options_class(start, source), args, command="train")
    config = override(start, _values(options, start))
    if options.print_config:
        print(write_toml(config), end="")
        return 0
    if source.config is not None and parse_known(_Typed, args, command="train").task is None:
        require_trusted_task(
            config.task, config.task_options, source=source.config, allow_code=options.allow_code
        )
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
            config,
            run_dir=run_dir,
            watchers=[view],
            stop=stop,
            progress=False,  # the view shows it
            workers=options.workers,
            ray_address=options.ray_address,
        )

    return run_with_view(
        work,
        config,
        served=run_dir if options.dashboard else None,
        quiet=options.quiet,
        as_json=options.json,
    )


def make_options_class(config: RunConfig, source: Source) -> type[Any]:
    """Return a dataclass of all options with these settings as defaults.

    The config dataclasses validate themselves section by section. These don't: all settings are
    validated together later, so that an error names a setting by its full path.
    """
    own: list[tuple[str, Any, Any]] = []
    for kind, defaults in ((Source, source), (LaunchOptions, LaunchOptions())):
        for name, hint in hints_of(kind).items():
            default = getattr(defaults, name)
            help_arg = tyro.conf.arg(
                help=written_docs_of(kind)[name],
                metavar=_METAVARS.get(name),
                help_behavior_hint=None if default else "",
            )
            allowed = Literal[preset_names()] if name == "preset" and source.preset else hint
            flag = Annotated[allowed, help_arg, tyro.conf.FlagCreatePairsOff]  # type: ignore[valid-type]
            own.append((name, flag, default))
    return _dataclass("TrainOptions", _ABOUT, [*own, *_flags(config)])


def __getattr__(name: str) -> Any:
    """Build ``TrainOptions`` with the default preset's settings on first use."""
    if name == "TrainOptions":
        return make_options_class(load_preset(DEFAULT_PRESET), Source(preset=DEFAULT_PRESET))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _find_source(args: Sequence[str]) -> Source:
    source = parse_known(Source, args, command="train")
    if source.preset is not None and source.config is not None:
        raise UsageError("--preset and --config are both given; choose one.")
    if source.preset is None and source.config is None:
        return Source(preset=DEFAULT_PRESET)
    return source


def _load_settings(source: Source) -> RunConfig:
    if source.config is not None:
        return read_toml_file(source.config)
    assert source.preset is not None, "settings come from a file or a preset"
    return load_preset(source.preset)


def _flags(section: object) -> list[tuple[str, Any, Any]]:
    """Return the name, the type with its help, and the value of each field of a section."""
    flags: list[tuple[str, Any, Any]] = []
    docs = written_docs_of(type(section))
    for name, hint in hints_of(type(section)).items():
        value = getattr(section, name)
        if is_section(hint):
            inner = _dataclass(hint.__name__, docs[name], _flags(value))
            flags.append((name, inner, inner()))
        elif is_table(hint):
            help_arg = tyro.conf.arg(
                help=docs[name],
                metavar="NAME=VALUE",
                help_behavior_hint=None if value else "",
            )
            flags.append((name, Annotated[tuple[str, ...], help_arg], _table_pairs(value)))
        else:
            help_arg = tyro.conf.arg(
                help=docs[name], help_behavior_hint="" if value == () else None
            )
            flags.append((name, Annotated[hint, help_arg], value))
    return flags


def _dataclass(name: str, doc: str | None, flags: list[tuple[str, Any, Any]]) -> type[Any]:
    members = [(each, hint, field(default=value)) for each, hint, value in flags]
    made = make_dataclass(name, members, frozen=True, kw_only=True)
    made.__doc__ = doc
    return made


def _values(options: Any, section: object) -> dict[str, Any]:
    """Return the values of a section's settings from the options, nested sections included."""
    values: dict[str, Any] = {}
    for name, hint in hints_of(type(section)).items():
        given, value = getattr(options, name), getattr(section, name)
        if is_section(hint):
            values[name] = _values(given, value)
        elif is_table(hint):
            values[name] = value if given == _table_pairs(value) else read_table(name, given)
        else:
            values[name] = given
    return values


def _table_pairs(table: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key_text(key)}={value_text(value)}" for key, value in table.items())


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Resume an interrupted run, with the same results as if it had never stopped."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, or its name in the runs folder."""

    quiet: Switch = False
    """Print only one line at the end."""

    json: Switch = False
    """Print one JSON object per line."""

    dashboard: Switch = False
    """Serve the dashboard during training and afterwards, until Ctrl-C, and print its link."""

    allow_code: Switch = False
    """Run a task that the run's settings names by module:function."""

    workers: Annotated[int | None, optional("N")] = None
    """Worker processes, as for train; the number may differ from before."""

    ray_address: Annotated[str | None, optional("ADDRESS")] = None
    """Ray cluster that works instead, as for train."""


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
        show_results(found, quiet=options.quiet, as_json=options.json)
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

    return run_with_view(
        work,
        found.config,
        resumed=found,
        served=found.path if options.dashboard else None,
        quiet=options.quiet,
        as_json=options.json,
    )
