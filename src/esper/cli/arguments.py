"""The arguments of a command: a dataclass whose fields argparse reads.

    runs: Annotated[tuple[str, ...], Positional("RUN")]
    hosts: Annotated[int, Bounds(2)] = 512
    out: Annotated[str | None, Metavar("FOLDER")] = None
    json: bool = False

A field's declaration defines what is allowed (:mod:`esper.config.checks`), and its docstring is the
help. Every mistake is reported in one line.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin

from esper.cli.output import raw_stream
from esper.config.catalogue import TASKS
from esper.config.checks import allowed_words, check, types_of
from esper.config.run import RunConfig
from esper.config.schema import NONE, is_table, key_text, settings_of, value_text, written_docs_of
from esper.config.toml import SourcedConfig, parse_toml
from esper.errors import EsperError, escape_controls, shown

Options = TypeVar("Options")


class UsageError(EsperError):
    """The arguments of a command are wrong."""


class Metavar(str):
    """The placeholder of a flag's value in the help, such as FILE."""


class Positional(Metavar):
    """The placeholder of a positional argument, such as RUN."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A flag or a positional argument."""

    path: str
    """Name of the option, or path of the setting."""
    hint: Any
    """Its declaration, with or without a placeholder."""
    default: object
    """Its value if it is not given; MISSING if it must be."""
    doc: str
    """Its description."""

    @property
    def kind(self) -> Any:
        """The declaration without the placeholder."""
        notes = get_args(self.hint)[1:]
        is_noted = any(isinstance(note, Metavar) for note in notes)
        return get_args(self.hint)[0] if is_noted else self.hint

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return is_table(self.kind) or get_origin(self.kind) is tuple

    @property
    def item(self) -> Any:
        """The declaration of one value."""
        return get_args(self.kind)[0] if get_origin(self.kind) is tuple else self.kind

    @property
    def choices(self) -> list[str]:
        """The words that it can be, if it is declared as one of them."""
        kinds = _plain_members(self.item)
        return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]

    @property
    def metavar(self) -> str:
        """The placeholder of its value: the choices in braces, or a word."""
        for note in get_args(self.hint)[1:]:
            if isinstance(note, Metavar):
                return note
        if self.choices:
            return f"{{{','.join(self.choices)}}}"
        if is_table(self.kind):
            return "NAME=VALUE"
        kinds = list(_plain_members(self.item))
        return "N" if int in kinds else "X" if float in kinds else self.path.upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags: none if it is positional, two if it turns a setting on or off."""
        if isinstance(self.metavar, Positional):
            return ()
        section, dot, name = self.path.replace("_", "-").rpartition(".")
        off = (f"--{section}.no-{name}",) if self.kind is bool and section else ()
        return (f"--{section}{dot}{name}", *off)


def arguments_of(kind: type[Any]) -> list[Argument]:
    """Return the arguments of a command, the fields of its options, inherited ones last."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        docs |= written_docs_of(base)
    return [
        Argument(
            path=each.name,
            hint=types_of(kind)[each.name],
            default=each.default if each.default_factory is MISSING else each.default_factory(),
            doc=docs[each.name],
        )
        for each in sorted(
            fields(kind), key=lambda one: one.name not in vars(kind)["__annotations__"]
        )
    ]


def arguments_for(config: RunConfig | None = None) -> list[Argument]:
    """Return the flags of all settings, with the values of ``config`` as defaults."""
    return [
        Argument(path=one.path, hint=one.hint, default=one.default, doc=one.doc)
        for one in settings_of(config)
    ]


def parse(kind: type[Options], args: Sequence[str], *, command: str) -> Options:
    """Return a command's options. ``--help`` prints the help and exits.

    Args:
        kind: A dataclass whose fields are the options.
        args: The arguments after the command's name.
        command: The command's name.

    Raises:
        EsperError: If an argument is unknown, missing or not allowed.
    """
    own = arguments_of(kind)
    given, rest = _read_flags(own, args)
    if given.pop("help", False):
        _print_help(kind, own, command)
    return kind(**given, **_read_words(own, rest, command, given))


def parse_with_settings(
    kind: type[Options],
    args: Sequence[str],
    *,
    command: str,
    load: Callable[[Options], SourcedConfig],
) -> tuple[Options, SourcedConfig, dict[str, Any]]:
    """Return a command's options, the settings to start from, and the given ones by path.

    Args:
        kind: A dataclass whose fields are the options.
        args: The arguments after the command's name.
        command: The command's name.
        load: Returns the settings to start from, which the help shows as defaults.

    Raises:
        EsperError: If an argument is unknown, missing or not allowed.
    """
    own, settings = arguments_of(kind), arguments_for()
    given, rest = _read_flags([*own, *settings], args)
    wants_help = given.pop("help", False)
    if not wants_help:
        _read_words([*own, *settings], rest, command)
    options = kind(**{one.path: given.pop(one.path) for one in own if one.path in given})
    start = load(options)
    if wants_help:
        _print_help(kind, [*own, *arguments_for(start.config)], command)
    return options, start, given


def require_task(name: str | None) -> None:
    """Reject an unknown task before any work is announced; None is the default task."""
    if name is None or ":" in name or name in TASKS:
        return
    from esper.tasks import make_task

    make_task(name)


def _read_flags(known: Sequence[Argument], args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of all flags that are given, by path, and the other arguments."""
    end = args.index("--") if "--" in args else len(args)
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS, exit_on_error=False
    )
    parser.add_argument("-h", "--help", action="store_true")
    for argument in known:
        if argument.flags:
            _add(parser, argument)
    try:
        found, rest = parser.parse_known_args([_with_dashes(arg) for arg in args[:end]])
    except argparse.ArgumentError as error:
        raise UsageError(_value_problem(error.argument_name or "", known)) from None
    given = vars(found)
    for argument in known:
        if argument.is_list and argument.path in given:
            collect = dict if is_table(argument.kind) else tuple
            given[argument.path] = collect(given[argument.path])
    return given, [*rest, *args[end:]]


def _with_dashes(arg: str) -> str:
    """Return a flag with dashes; the names of settings have underscores."""
    flag, equals, value = arg.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else arg


def _add(parser: argparse.ArgumentParser | argparse._ArgumentGroup, argument: Argument) -> None:  # pyright: ignore[reportPrivateUsage]
    flags, about = argument.flags, _help_text(argument)
    if not flags:
        parser.add_argument(argument.path, metavar=argument.metavar, help=about)
    elif argument.kind is bool:
        parser.add_argument(*flags, dest=argument.path, action=_OnOff, nargs=0, help=about)
    else:
        parser.add_argument(
            *flags,
            dest=argument.path,
            nargs="*" if argument.is_list else None,
            metavar=argument.metavar,
            type=lambda text: _read_value(argument, text),
            help=about,
        )


class _OnOff(argparse.Action):
    """Sets a bool: its first flag turns it on, its second off."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, option_string == self.option_strings[0])


def _read_value(argument: Argument, text: str) -> Any:
    """Return what one value of an argument stands for."""
    name, value = argument.flags[0] if argument.flags else argument.metavar, cast(object, text)
    if is_table(argument.kind):
        return _read_pair(name, text)
    for plain in _plain_members(argument.item):
        if plain is NoneType and text in (NONE, "None"):
            return None
        if plain in (int, float):
            try:
                value = plain(text)
            except ValueError:
                continue
    return check(name, value, argument.item, none=NONE)


def _read_pair(name: str, text: str) -> tuple[str, Any]:
    """Return the name and the value of an argument such as ``n_epochs=4``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{name} has {text!r}; it must be NAME=VALUE.")
    try:
        return key, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return key, value


def _plain_members(kind: Any) -> Iterable[Any]:
    """Return the types of a union without their bounds."""
    for member in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        yield get_args(member)[0] if get_origin(member) is Annotated else member


def _value_problem(flag: str, known: Sequence[Argument]) -> str:
    found = next((one for one in known if "/".join(one.flags) == flag), None)
    if found is None or found.kind is bool:
        return f"{flag} takes no value."
    return (
        f"{flag} has no value; it must be {allowed_words(found.item, NONE)}. A value that starts "
        f"with a dash is written {flag}=VALUE."
    )


def _read_words(
    known: Sequence[Argument],
    rest: Sequence[str],
    command: str,
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the positional arguments; reject unknown flags and what is missing or too many.

    Args:
        known: The arguments of the command.
        rest: What was given besides flags.
        command: The command's name.
        flags: The values of flags; one that takes several may have taken a positional argument.
    """
    end = rest.index("--") if "--" in rest else len(rest)
    for word in rest[:end]:
        if word.startswith("-") and len(word) > 1:
            raise UsageError(_unknown_flag(word.partition("=")[0], known, command))
    words = [*rest[:end], *rest[end + 1 :]]
    given: dict[str, Any] = {}
    for argument in known:
        if argument.flags:
            continue
        if argument.is_list:
            given[argument.path], words = tuple(words), []
        elif words:
            given[argument.path] = _read_value(argument, words.pop(0))
        if argument.default is MISSING and given.get(argument.path, ()) == ():
            raise UsageError(_missing(argument, known, flags or {}, command))
    if words:
        raise UsageError(
            f"unexpected argument {shown(words[0])} for esper {command}; options start with --."
        )
    return given


def _missing(
    argument: Argument, known: Sequence[Argument], flags: Mapping[str, Any], command: str
) -> str:
    """Return what to say of a missing argument, which a flag of several values may have taken."""
    greedy = [one for one in known if one.flags and one.is_list and flags.get(one.path)]
    if not greedy:
        return f"{argument.metavar} is missing. See esper {command} --help."
    taken, *_ = reversed([*flags[greedy[-1].path]])
    return (
        f"{argument.metavar} is missing: {shown(taken)} was read as a value of "
        f"{greedy[-1].flags[0]}, which takes all that follow; give {argument.metavar} first."
    )


def _unknown_flag(flag: str, known: Sequence[Argument], command: str) -> str:
    # Without the dashes, which would make all flags look alike.
    names = {name.lstrip("-"): name for argument in known for name in argument.flags}
    bare = flag.lstrip("-")
    near = [name for name in names if name.rpartition(".")[2] == bare]
    near = near or difflib.get_close_matches(bare, names, n=1)
    advice = f"Did you mean {' or '.join(repr(names[name]) for name in near)}?"
    return f"{flag} is not an option of esper {command}. " + (
        advice if near else f"See esper {command} --help."
    )


def _print_help(kind: type[Any], known: Sequence[Argument], command: str) -> NoReturn:
    """Print what a command does and its arguments, in groups by section; then exit."""
    width = shutil.get_terminal_size().columns - 2
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    words = [
        one.metavar + (" ..." if one.is_list else "")
        if one.default is MISSING
        else f"[{one.metavar}]"
        for one in known
        if not one.flags
    ]
    parser = argparse.ArgumentParser(
        usage=" ".join(["esper", command, "[options]", *words]),
        description="\n\n".join(textwrap.fill(" ".join(one.split()), width) for one in paragraphs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    about = written_docs_of(RunConfig)
    groups: dict[str, Any] = {}
    for argument in sorted(known, key=lambda one: bool(one.flags)):
        section = argument.path.rpartition(".")[0]
        title = section or ("options" if argument.flags else "arguments")
        if title not in groups:
            groups[title] = parser.add_argument_group(title, about.get(section))
        _add(groups[title], argument)
    print(parser.format_help(), end="", file=raw_stream(sys.stdout))
    raise SystemExit(0)


def _help_text(argument: Argument) -> str:
    """Return an argument's description, with its default unless that is nothing."""
    default = argument.default
    if isinstance(default, tuple):
        value = " ".join(map(str, cast("tuple[object, ...]", default)))
    elif isinstance(default, Mapping):
        table = cast("Mapping[str, object]", default)
        value = " ".join(f"{key_text(key)}={value_text(item)}" for key, item in table.items())
    elif default is MISSING or ((default is None or default is False) and "." not in argument.path):
        value = ""
    else:
        value = default if isinstance(default, str) else value_text(default).strip('"')
    text = argument.doc + (f" (default: {value})" if value else "")
    return escape_controls(text).replace("%", "%%")
