"""Words of the command line as a command's options, which are a frozen dataclass."""

from __future__ import annotations

import difflib
import io
import re
import sys
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, TypeVar, get_args

import tyro

from esper.config.schema import NONE, allowed_words, hints_of, is_section, shown
from esper.errors import EsperError, did_you_mean

Options = TypeVar("Options")


class UsageError(EsperError):
    """The words of a command cannot be understood."""


def parse(kind: type[Options], words: Sequence[str], *, command: str) -> Options:
    """Return a command's options; ``--help`` prints what there is and ends the process.

    Args:
        kind: A frozen dataclass: its fields are the options, what is written under them their help.
        words: The words after the command's name.
        command: The command's name.

    Raises:
        UsageError: If a word is not an option, or a value is not of its option's type.
    """
    parsed, unknown = parse_known(kind, words, command=command)
    if unknown:
        raise UsageError(_unknown(kind, unknown[0], command))
    return parsed


def parse_known(
    kind: type[Options], words: Sequence[str], *, command: str, add_help: bool = True
) -> tuple[Options, list[str]]:
    """Return a command's options, and the words that belong to none of them.

    Raises:
        UsageError: If a value is not of its option's type, or missing.
    """
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            parsed, unknown = tyro.cli(
                kind,
                prog=f"esper {command}",
                args=_with_none(kind, words),
                return_unknown_args=True,
                add_help=add_help,
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        raise UsageError(_refusal(kind, words, said.getvalue(), command)) from None
    sys.stderr.write(said.getvalue())
    return parsed, unknown


def flags_of(kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Return the type of each flag of a dataclass, by its spelling on the command line."""
    flags: dict[str, Any] = {}
    hints = hints_of(kind)
    for field in fields(kind):
        hint, name = hints[field.name], field.name.replace("_", "-")
        if is_section(hint):
            flags |= flags_of(hint, f"{prefix}{name}.")
        elif field.default is not MISSING:
            flags[f"--{prefix}{name}"] = hint
            if field.default is True:
                flags[f"--{prefix}no-{name}"] = hint
    return flags


def read_table(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the values by name that words such as ``n_epochs=4`` give.

    Raises:
        UsageError: If a word is not of this form.
    """
    table: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--{name.replace('_', '-')} has {word!r}; it must be NAME=VALUE.")
        try:
            table[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            table[key] = text
    return table


def require_counts(**given: tuple[int, int]) -> None:
    """Refuse numbers of things below the least that makes sense, named as options are."""
    for name, (value, least) in given.items():
        if value < least:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is {value}; it must be at least {least}.")


def _with_none(kind: type[Any], words: Sequence[str]) -> list[str]:
    """Return the words with None for the none of configuration files, where it is allowed."""
    optional = {flag for flag, hint in flags_of(kind).items() if NoneType in get_args(hint)}
    written: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        flag, equals, value = word.partition("=")
        if value == NONE and flag.replace("_", "-") in optional:
            written.append(f"{flag}{equals}None")
        else:
            follows = word == NONE and before.replace("_", "-") in optional
            written.append("None" if follows else word)
    return written


def _unknown(kind: type[Any], word: str, command: str) -> str:
    """Return what is wrong with a word that no option took."""
    if not word.startswith("-"):
        return f"{shown(word)} is one word too many for esper {command}; options begin with --."
    flag, known = word.partition("=")[0].replace("_", "-"), flags_of(kind)
    same = [each for each in known if each.rpartition(".")[2] == flag.lstrip("-")]
    if same:
        near = f" Did you mean {' or '.join(repr(each) for each in same)}?"
    else:
        # The dashes are left out: all flags have them, and they would make all of them near.
        bare = {each.lstrip("-"): each for each in known}
        nearest = difflib.get_close_matches(flag.lstrip("-"), bare, n=1)
        near = f" See esper {command} --help."
        if nearest:
            near = f" Did you mean {bare[nearest[0]]!r}?"
    return f"{flag} is not an option of esper {command}.{near}"


def _refusal(kind: type[Any], words: Sequence[str], box: str, command: str) -> str:
    """Return in one line what the parser says in a box against a value."""
    said = _inside(box)
    named = re.search(r"--[\w.-]+", said)
    hint = flags_of(kind).get(named[0]) if named else None
    value = _value_of(named[0], words) if named else None
    if named and value is not None and value.startswith("-") and _takes_text(hint):
        if value.partition("=")[0].replace("_", "-") not in flags_of(kind):
            told = f"{named[0]} is followed by {value}; if that is its value, write "
            return f"{told}{named[0]}={value}."
        value = None
    if named and hint is not None and value is None:
        return f"{named[0]} has no value; it must be {allowed_words(hint)}."
    choices = re.search(r"invalid choice '(.*)' for", said)
    if named and hint is not None:
        wrong = choices[1] if choices else value
        near = did_you_mean(wrong, _choices(hint))
        return f"{named[0]} is {shown(wrong)}; it must be {allowed_words(hint)}.{near}"
    return f"{said.rstrip('.')}. See esper {command} --help."


def _inside(box: str) -> str:
    """Return the first paragraph in a box, whether its frame is drawn with lines or in ASCII."""
    parts = re.split(r"[─-]{4,}", box)
    lines = (parts[1] if len(parts) > 1 else box).splitlines()
    return " ".join(" ".join(line.strip("│|╮+╭ ") for line in lines).split())


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    """Return the word after a flag, the last time that it is given."""
    value = None
    for word, after in zip(words, [*words[1:], ""], strict=True):
        spelled, equals, given = word.partition("=")
        if spelled.replace("_", "-") == flag:
            value = given if equals else after
    return value or None


def _takes_text(hint: Any) -> bool:
    """Return whether a flag of a type takes any text."""
    return hint is str or str in get_args(hint)


def _choices(hint: Any) -> list[str]:
    """Return the words among which a type lets choose."""
    if isinstance(hint, str):
        return [hint]
    return [word for part in get_args(hint) for word in _choices(part)]
