"""The command ``esper train``: settings from a preset or a file, flags on top, then the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from esper.cli.parsing import UsageError, parse, parse_known, read_table
from esper.config.run import RunConfig
from esper.config.schema import docs_of, hints_of, is_section, is_table, key_text, value_text
from esper.config.toml import (
    DEFAULT_PRESET,
    load_preset,
    override,
    preset_names,
    read_toml_file,
    write_toml,
)

if TYPE_CHECKING:
    from esper.cli.progress import View
    from esper.training.run import Run
    from esper.training.stopping import StopRequest


_ABOUT = """Train a controller that grows hosts, and compare it with simple ones in the end.

Settings come from a preset or a file, and every one of them is also an option."""
_METAVARS = {"config": "FILE", "run_dir": "FOLDER"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the settings come from, before any flag changes one."""

    preset: str | None = None
    """Settings that come with Esper."""

    config: str | None = None
    """A TOML file of settings."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a run is started and shown; these are not settings of it."""

    run_dir: str | None = None
    """The folder of the run, which must not hold one; without it, one of the run's own in runs."""

    quiet: bool = False
    """Print nothing but one line at the end."""

    json: bool = False
    """Print a JSON object in each line."""

    dashboard: bool = False
    """Show it in a browser too, as long as it trains; the link is printed first."""

    print_config: bool = False
    """Print the settings as TOML, and do nothing."""


def run_train(words: Sequence[str]) -> int:
    """Read the settings and train, or print them."""
    source = _source(words)
    start = _settings(source)
    options: Any = parse(options_class(start, source), words, command="train")
    config = override(start, _values(options, start))
    if options.print_config:
        print(write_toml(config), end="")
        return 0
    if options.run_dir == "":
        raise UsageError("--run-dir is ''; it must be a folder, or left out.")
    run_dir = None if options.run_dir is None else Path(options.run_dir)
    ways = Ways(quiet=options.quiet, json=options.json, dashboard=options.dashboard)
    return train_and_show(config, run_dir, ways)


def train_and_show(config: RunConfig, run_dir: Path | None, ways: Ways) -> int:
    """Train, showing how it goes, and return the exit code."""
    from esper.cli.launch import follow
    from esper.storage.run_folder import RunFolder, runs_folder

    if run_dir is not None:
        RunFolder(run_dir).require_unused()  # before PyTorch is loaded
    _require_task(config.task)

    def work(view: View, stop: StopRequest) -> Run:
        from esper.training.runs import train

        return train(config, run_dir=run_dir, watchers=[view], stop=stop)

    parent = runs_folder() if run_dir is None else run_dir.absolute().parent
    served = parent if ways.dashboard else None
    return follow(work, config, served=served, quiet=ways.quiet, as_json=ways.json)


def _require_task(name: str) -> None:
    """Refuse a task that there is not, before anything is said of training on it.

    The names of tasks come with PyTorch, which takes seconds to load. Those of presets are known.
    """
    if ":" in name or name in {load_preset(preset).task for preset in preset_names()}:
        return
    from esper.tasks import make_task, task_names

    if name not in task_names():
        make_task(name)


def options_class(config: RunConfig, source: Source) -> type[Any]:
    """Return a dataclass of all options, whose defaults are these settings from this source.

    The settings' own dataclasses check themselves one by one, and a section does not know its
    name; these do not check, so that all of them can be checked together and named by their path.
    """
    own: list[tuple[str, Any, Any]] = []
    for kind, place in ((Source, source), (Ways, Ways())):
        for name, hint in hints_of(kind).items():
            explained = tyro.conf.arg(help=docs_of(kind)[name], metavar=_METAVARS.get(name))
            allowed = Literal[preset_names()] if name == "preset" and source.preset else hint
            flag = Annotated[allowed, explained, tyro.conf.FlagCreatePairsOff]  # type: ignore[valid-type]
            own.append((name, flag, getattr(place, name)))
    return _dataclass("TrainOptions", _ABOUT, [*own, *_flags(config)])


def __getattr__(name: str) -> Any:
    """Return the options with the defaults of the default preset, when they are asked for."""
    if name == "TrainOptions":
        return options_class(load_preset(DEFAULT_PRESET), Source(preset=DEFAULT_PRESET))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _source(words: Sequence[str]) -> Source:
    """Return where the settings come from, as the words say."""
    source, _ = parse_known(Source, words, command="train", add_help=False)
    if source.preset is not None and source.config is not None:
        raise UsageError("--preset and --config are both given; a run starts from one of them.")
    if source.preset is None and source.config is None:
        return Source(preset=DEFAULT_PRESET)
    return source


def _settings(source: Source) -> RunConfig:
    if source.config is not None:
        return read_toml_file(source.config)
    assert source.preset is not None, "settings come from a file or a preset"
    return load_preset(source.preset)


def _flags(section: object) -> list[tuple[str, Any, Any]]:
    """Return the name, the type with its help, and the value of each field of a section."""
    flags: list[tuple[str, Any, Any]] = []
    for name, hint in hints_of(type(section)).items():
        value = getattr(section, name)
        if is_section(hint):
            inner = _dataclass(hint.__name__, docs_of(type(section))[name], _flags(value))
            flags.append((name, inner, inner()))
        elif is_table(hint):
            help_arg = tyro.conf.arg(help=docs_of(type(section))[name], metavar="NAME=VALUE")
            flags.append((name, Annotated[tuple[str, ...], help_arg], _table_words(value)))
        else:
            flags.append((name, _explained(type(section), name), value))
    return flags


def _explained(kind: type[Any], name: str) -> Any:
    return Annotated[hints_of(kind)[name], tyro.conf.arg(help=docs_of(kind)[name])]


def _dataclass(name: str, doc: str | None, flags: list[tuple[str, Any, Any]]) -> type[Any]:
    members = [(each, hint, field(default=value)) for each, hint, value in flags]
    made = make_dataclass(name, members, frozen=True, kw_only=True)
    made.__doc__ = doc
    return made


def _values(options: Any, section: object) -> dict[str, Any]:
    """Return the values of a section's settings as the flags give them, sections within it too."""
    values: dict[str, Any] = {}
    for name, hint in hints_of(type(section)).items():
        given, value = getattr(options, name), getattr(section, name)
        if is_section(hint):
            values[name] = _values(given, value)
        elif is_table(hint):
            values[name] = value if given == _table_words(value) else read_table(name, given)
        else:
            values[name] = given
    return values


def _table_words(table: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key_text(key)}={value_text(value)}" for key, value in table.items())


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Go on with a run that was interrupted, as if nothing had been."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    quiet: bool = False
    """Print nothing but one line at the end."""

    json: bool = False
    """Print a JSON object in each line."""

    dashboard: bool = False
    """Show it in a browser too, as long as it trains; the link is printed first."""


def run_resume(words: Sequence[str]) -> int:
    """Go on with the run and return the exit code."""
    options = parse(ResumeOptions, words, command="resume")
    from esper.cli.launch import follow, show_end
    from esper.training.run import load_run

    found = load_run(options.run)
    if found.state == "done" and found.summary is not None:
        print(f"esper: {found.path} is done; nothing is left to do", file=sys.stderr)
        show_end(found, quiet=options.quiet, as_json=options.json)
        return 0

    with found.folder.locked():
        pass  # refuses a run that another process works on before PyTorch is loaded

    def work(view: View, stop: StopRequest) -> Run:
        from esper.training.runs import resume

        return resume(found, watchers=[view], stop=stop)

    return follow(
        work,
        found.config,
        begun=found,
        served=found.path.absolute().parent if options.dashboard else None,
        quiet=options.quiet,
        as_json=options.json,
    )
