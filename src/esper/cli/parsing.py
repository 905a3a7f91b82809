"""Turn command-line arguments into a command's options, which are a frozen dataclass.

tyro converts the arguments and prints the help. They are checked here first, so that every mistake
is reported in one line that names the argument, its value and what is allowed.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from esper.cli.output import print_wrapped, wrapped_output
from esper.config.catalogue import TASKS
from esper.config.schema import NONE, allowed_words, hints_of, is_section, shown, written_docs_of
from esper.config.toml import parse_toml
from esper.errors import EsperError, did_you_mean

Options = TypeVar("Options")

Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""A flag that is off unless it is given."""

_HELP = ("-h", "--help")


class UsageError(EsperError):
    """The arguments of a command are wrong."""


def optional(metavar: str) -> Any:
    """Describe an option whose help text says what happens without it."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def required(metavar: str) -> Any:
    """Describe a positional argument of which at least one must be given."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(required)")


def parse(kind: type[Options], args: Sequence[str], *, command: str) -> Options:
    """Return a command's options. ``--help`` prints the help and exits.

    Args:
        kind: A frozen dataclass. Its fields are the options, their docstrings the help texts.
        args: The arguments after the command's name.
        command: The command's name.

    Raises:
        UsageError: If an argument is unknown, missing or not of its option's type.
    """
    if any(arg in _HELP for arg in args):
        _print_description(kind)
        return _call_tyro(_with_help(kind), ["--help"], command)
    checked = _check_options(flags_of(kind), args)
    _check_leftovers(kind, checked, command)
    return _call_tyro(kind, checked.args, command)


def parse_known(kind: type[Options], args: Sequence[str], *, command: str) -> Options:
    """Return a command's options, ignoring every other argument.

    Raises:
        UsageError: If a value is missing or not of its option's type.
    """
    checked = _check_options(flags_of(kind), args)
    return _call_tyro(kind, checked.args, command, add_help=False)


def flags_of(kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Return the type of each option of a dataclass by its flag on the command line."""
    flags: dict[str, Any] = {}
    positional, switches = (
        _marked(kind, tyro.conf.Positional),
        _marked(kind, tyro.conf.FlagCreatePairsOff),
    )
    for field_name, hint in hints_of(kind).items():
        name = field_name.replace("_", "-")
        if is_section(hint):
            flags |= flags_of(hint, f"{prefix}{name}.")
        elif field_name not in positional:
            flags[f"--{prefix}{name}"] = hint
            if hint is bool and field_name not in switches:
                flags[f"--{prefix}no-{name}"] = hint
    return flags


def read_table(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the table that arguments such as ``n_epochs=4`` describe.

    Raises:
        UsageError: If an argument is not of this form.
    """
    table: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--{name.replace('_', '-')} has {pair!r}; it must be NAME=VALUE.")
        try:
            table[key] = parse_toml(f"value = {text}")["value"]
        except ValueError:
            table[key] = text
    return table


def require_counts(**given: tuple[int, int]) -> None:
    """Reject counts below their minimum, given as ``option=(value, minimum)``."""
    for name, (value, least) in given.items():
        if value < least:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is {value}; it must be at least {least}.")


def require_task(name: str | None) -> None:
    """Reject an unknown task before any work is announced; None is the default task.

    Other packages' tasks come with PyTorch, which takes seconds to load; the built-in ones don't.
    """
    if name is None or ":" in name or name in TASKS:
        return
    from esper.tasks import make_task, task_names

    if name not in task_names():
        make_task(name)


@dataclass
class _CheckedArgs:
    args: list[str] = field(default_factory=list[str])
    """All arguments, with None spelled as tyro wants it."""
    unknown_flags: list[str] = field(default_factory=list[str])
    words: list[str] = field(default_factory=list[str])
    """The arguments that belong to no flag."""


def _check_options(flags: dict[str, Any], args: Sequence[str]) -> _CheckedArgs:
    """Check the values of all options, and sort out the other arguments."""
    checked, i = _CheckedArgs(), 0
    while i < len(args):
        arg, i = args[i], i + 1
        flag, equals, value = _split_flag(arg)
        if arg == "--":
            checked.args += args[i - 1 :]
            checked.words += args[i:]
            break
        checked.args.append(flag + equals if flag in flags else arg)
        if flag not in flags:
            (checked.unknown_flags if _is_flag(arg) else checked.words).append(arg)
            continue
        hint, values = flags[flag], [value] if equals else []
        if hint is bool:
            if equals:
                raise UsageError(f"{flag} takes no value.")
            continue
        n_most = len(args) if get_origin(hint) is tuple else 1
        while len(values) < n_most and i < len(args) and not _is_flag(args[i]):
            values.append(args[i])
            i += 1
        if not values and n_most == 1:
            raise UsageError(_missing_value(flag, hint, args[i : i + 1], flags))
        values = [_check_value(flag, text, hint) for text in values]
        if equals:
            checked.args[-1] += values.pop(0)
        checked.args += values
    return checked


def _check_value(flag: str, text: str, hint: Any) -> str:
    """Return the value as tyro takes it, or raise UsageError if it does not fit the type."""
    item = get_args(hint)[0] if get_origin(hint) is tuple else hint
    members = get_args(item) if get_origin(item) in (Union, UnionType) else (item,)
    if text in (NONE, "None") and NoneType in members:
        return "None"
    choices: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            choices += get_args(member)
        elif member is str or (member in (int, float) and _is_number(text, member)):
            return text
    if text in choices:
        return text
    near = did_you_mean(text, choices)
    raise UsageError(f"{flag} is {shown(text)}; it must be {allowed_words(hint)}.{near}")


def _missing_value(flag: str, hint: Any, following: Sequence[str], flags: dict[str, Any]) -> str:
    if following and following[0] != "--" and _split_flag(following[0])[0] not in flags:
        return (
            f"{flag} is followed by {following[0]}; "
            f"if that is its value, write {flag}={following[0]}."
        )
    return f"{flag} has no value; it must be {allowed_words(hint)}."


def _check_leftovers(kind: type[Any], checked: _CheckedArgs, command: str) -> None:
    """Reject unknown flags, superfluous words and missing required words."""
    if checked.unknown_flags:
        raise UsageError(_unknown_flag(checked.unknown_flags[0], flags_of(kind), command))
    words, hints, positional = checked.words, hints_of(kind), _marked(kind, tyro.conf.Positional)
    for each in fields(kind):
        if each.name not in positional:
            continue
        if get_origin(hints[each.name]) is tuple:
            return
        if words:
            _check_value(each.name.upper(), words.pop(0), hints[each.name])
        elif each.default is MISSING:
            raise UsageError(f"{each.name.upper()} is missing. {_see_help(command)}")
    if words:
        raise UsageError(
            f"unexpected argument {shown(words[0])} for esper {command}; options start with --."
        )


def _unknown_flag(arg: str, flags: dict[str, Any], command: str) -> str:
    flag = _split_flag(arg)[0]
    # Without the dashes, which would make all flags look alike.
    bare = {known.lstrip("-"): known for known in flags}
    near = [known for known in flags if known.rpartition(".")[2] == flag.lstrip("-")]
    near = near or [bare[name] for name in difflib.get_close_matches(flag.lstrip("-"), bare, n=1)]
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else _see_help(command)
    return f"{flag} is not an option of esper {command}. {advice}"


def _see_help(command: str) -> str:
    return f"See esper {command} --help."


def _call_tyro(
    kind: type[Options], args: Sequence[str], command: str, *, add_help: bool = True
) -> Options:
    try:
        with wrapped_output():  # the help has colours, and tyro does not wrap its usage
            options, _ = tyro.cli(
                kind,
                prog=f"esper {command}",
                description="",  # it would not be wrapped
                args=args,
                return_unknown_args=True,
                add_help=add_help,
                console_outputs=add_help and "--help" in args,
                registry=_REGISTRY,
            )
        return options
    except SystemExit as ended:
        if not ended.code:
            raise
        raise UsageError(f"invalid arguments. {_see_help(command)}") from None


_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.primitive_rule
def _none_rule(
    given: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[None] | None:
    """Show None as users write it."""
    if given.type is not NoneType:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=NONE,
        choices=("None",),
        instance_from_str=lambda _: None,
        is_instance=lambda value: value is None,
        str_from_instance=lambda _: [NONE],
    )


def _print_description(kind: type[Any]) -> None:
    """Print what a command does."""
    for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
        print_wrapped(" ".join(paragraph.split()))
        print()


def _with_help(kind: type[Any]) -> type[Any]:
    """Return a class with the same options, and a help text for each that tyro can wrap.

    In docstrings it would keep the line breaks.
    """
    if kind.__module__ == "types":  # made with its help texts
        return kind
    hints, docs = get_type_hints(kind, include_extras=True), written_docs_of(kind)
    members = [
        (each.name, Annotated[hints[each.name], tyro.conf.arg(help=docs[each.name])], each)
        for each in fields(kind)
    ]
    return make_dataclass(kind.__name__, members, frozen=True, kw_only=True)


def _marked(kind: type[Any], marker: Any) -> set[str]:
    """Return the names of the fields that carry one of tyro's markers."""
    hints = get_type_hints(kind, include_extras=True)
    return {name for name, hint in hints.items() if marker in get_args(hint)}


def _split_flag(arg: str) -> tuple[str, str, str]:
    flag, equals, value = arg.partition("=")
    return flag.replace("_", "-"), equals, value


def _is_flag(arg: str) -> bool:
    """Return whether an argument is a flag rather than a word, a lone dash or a negative number."""
    return re.match(r"-{1,2}[A-Za-z]|--$", arg) is not None and not _is_number(arg, float)


def _is_number(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
