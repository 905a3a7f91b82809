"""What settings and arguments may be: declared as types, checked from the declaration.

    n_epochs: Annotated[int, Bounds(1, 10_000)]
    gamma: UnitInterval
    clip: Literal["per-head", "joint"]
    target_kl: PositiveFloat | None

Fields of a :class:`Settings` are declared so, and arguments are passed to :func:`check` with their
declaration. Every error names the setting, its value and what is allowed.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from esper.errors import ConfigError, TaskError, did_you_mean, shown, type_of

Choice = TypeVar("Choice")
P = ParamSpec("P")
R = TypeVar("R")


MAX_INT = 2**63 - 1
"""The largest integer that files and tensors can hold."""

MAX_SEED = 2**64 - 1
"""The largest seed of a torch generator."""


@dataclass(frozen=True)
class Bounds:
    """The range of a number, which is in ``[minimum, maximum]`` and greater than ``above``."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf

    def contain(self, number: float) -> bool:
        """Return whether a number is in the range."""
        return self.minimum <= number <= self.maximum and number > self.above

    def words(self) -> str:
        """Describe the range, such as ``" of at least 1 and at most 9"``."""
        lower = f" of at least {_digits(self.minimum)}" if self.minimum > -math.inf else ""
        lower = f" greater than {_digits(self.above)}" if self.above > -math.inf else lower
        upper = f" at most {_digits(self.maximum)}" if self.maximum < math.inf else ""
        return f"{lower} and{upper}" if lower and upper else lower or upper


def _digits(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


PositiveInt = Annotated[int, Bounds(1)]
NonNegativeInt = Annotated[int, Bounds(0)]
Seed = Annotated[int, Bounds(0, MAX_SEED)]
PositiveFloat = Annotated[float, Bounds(above=0.0)]
NonNegativeFloat = Annotated[float, Bounds(0.0)]
UnitInterval = Annotated[float, Bounds(0.0, 1.0)]

_NAMES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a string"}
_MISMATCH = object()


class Settings:
    """Base of frozen dataclasses whose fields are checked by their declarations.

    Numbers of other libraries become Python's, which every file can hold. Rules between fields are
    added to ``__post_init__``.
    """

    def __post_init__(self) -> None:
        for name, kind in types_of(type(self)).items():
            object.__setattr__(self, name, check(name, getattr(self, name), kind))


@functools.cache
def types_of(cls: type[Any]) -> dict[str, Any]:
    """Return the declarations of a dataclass's fields, in order."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def check(name: str, value: object, kind: Any, *, none: str = "None") -> Any:
    """Return a value as its declaration has it: numbers as Python's and lists as tuples.

    Args:
        name: What the value is called, for messages.
        value: The value from a file or a user.
        kind: Its declaration: a plain type, one with :class:`Bounds`, a Literal, a tuple or a dict
            of these, or a union.
        none: How None is spelled where the value is from.

    Raises:
        ConfigError: If the value is something else. True is not a number and 1.0 not an integer;
            an integer is also a float, and floats are finite.
    """
    for member in _members(kind):
        converted = _convert(name, value, member)
        if converted is not _MISMATCH:
            return converted
    words = [choice for member in _members(kind) for choice in _choices(member)]
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    if isinstance(value, Integral) and int(value) > MAX_INT:
        near = f" The largest whole number is {MAX_INT}."
    raise ConfigError(f"{name} is {shown(value)}; it must be {allowed_words(kind, none)}.{near}")


def allowed_words(kind: Any, none: str = "None") -> str:
    """Describe the values that a declaration allows."""
    members = _members(kind)
    if len(members) > 1:
        others = [allowed_words(member) for member in members if member is not NoneType]
        return " or ".join(others) + (f", or {none}" if NoneType in members else "")
    plain, bounds = _parts(kind)
    if choices := _choices(plain):
        return f"one of {', '.join(json.dumps(choice) for choice in choices)}"
    if get_origin(plain) is tuple:
        first, *rest = get_args(plain)
        if rest == [Ellipsis]:
            return f"a list, each {allowed_words(first)}"
        return f"a list of {', '.join(map(allowed_words, (first, *rest)))}"
    if get_origin(plain) is dict:
        return f"a table, each {allowed_words(get_args(plain)[1])}"
    return _type_words(plain) + bounds.words()


def _type_words(plain: Any) -> str:
    if plain in _NAMES:
        return _NAMES[plain]
    if get_origin(plain) is cast("Any", Callable):
        return "a function"
    kind: type[Any] = get_origin(plain) or plain
    if issubclass(kind, Enum):
        return f"one of {', '.join(f'{kind.__name__}.{member.name}' for member in kind)}"
    return f"a {kind.__name__}"


def _convert(name: str, value: object, kind: Any) -> Any:
    """Return a value converted to a declaration that is not a union, or ``_MISMATCH``."""
    plain, bounds = _parts(kind)
    origin = get_origin(plain)
    if origin is Literal:
        is_text = isinstance(value, str)
        return next((one for one in _choices(plain) if is_text and one == value), _MISMATCH)
    if origin is tuple and isinstance(value, (list, tuple)):
        items, kinds = cast("Sequence[object]", value), get_args(plain)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(items)
        if len(kinds) != len(items):
            return _MISMATCH
        pairs = enumerate(zip(items, kinds, strict=True))
        return tuple(check(f"{name}[{i}]", item, each) for i, (item, each) in pairs)
    if origin is dict and isinstance(value, Mapping):
        return _check_table(name, cast("Mapping[object, object]", value), get_args(plain)[1])
    if plain is not int and plain is not float:
        return value if isinstance(value, origin or plain) else _MISMATCH
    number = _as_integer(value) if plain is int else _as_float(value)
    if number is None or not bounds.contain(number):
        return _MISMATCH
    is_storable = bounds == Bounds() or bounds.maximum < math.inf or abs(number) <= MAX_INT
    return number if plain is float or is_storable else _MISMATCH


def _as_integer(value: object) -> int | None:
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _as_float(value: object) -> float | None:
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _check_table(name: str, table: Mapping[object, object], kind: Any) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(key, str):
            raise ConfigError(f"a name in {name} is {shown(key)}; it must be a string.")
        checked[key] = check(f"{name}.{key if key.isidentifier() else repr(key)}", value, kind)
    return checked


@functools.cache
def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@functools.cache
def _parts(kind: Any) -> tuple[Any, Bounds]:
    """Return the plain type of a declaration, and its bounds."""
    if get_origin(kind) is not Annotated:
        return kind, Bounds()
    plain, *rest = get_args(kind)
    return plain, next((each for each in rest if isinstance(each, Bounds)), Bounds())


def _choices(kind: Any) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def require_choice(name: str, value: object, allowed: Iterable[Choice]) -> Choice:
    """Return the allowed value that equals the given one, or raise ConfigError.

    Numbers of other types are converted: 14.0 becomes 14. True is not 1.
    """
    choices = tuple(allowed)
    if isinstance(value, (str, Real, Enum)):
        for choice in choices:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
    words = [str(choice) for choice in choices]
    hint = did_you_mean(value, words)
    listed = ", ".join(f'"{word}"' if "," in word else word for word in words)
    raise ConfigError(f"{name} is {shown(value)}; it must be one of {listed}.{hint}")


def reject_unknown(
    function: str, given: Iterable[str], allowed: Iterable[str], hints: Mapping[str, str]
) -> None:
    """Raise ConfigError for the first given argument that a function does not have.

    Args:
        function: Its name.
        given: Arguments by name.
        allowed: Those that it has.
        hints: What to do instead, for names that users bring from other libraries.
    """
    names = list(allowed)
    for name in given:
        if name in hints:
            raise ConfigError(f"{function} has no argument {name!r}; {hints[name]}.")
        if name not in names:
            raise ConfigError(
                f"{function} has no argument {name!r}.{did_you_mean(name, names)} It has "
                f"{', '.join(names)}."
            )


def rejects_unknown(
    function: str, hints: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function raise ConfigError with a hint for an argument that it does not have.

    Args:
        function: The name that users know it by.
        hints: What to do instead, for names that users bring from other libraries.
    """

    def decorate(run: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(run).parameters.values()
        names = [
            p.name
            for p in parameters
            if p.name not in ("self", "cls") and p.kind != p.VAR_POSITIONAL
        ]

        @functools.wraps(run)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            reject_unknown(function, kwargs, names, hints or {})
            return run(*args, **kwargs)

        return checked

    return decorate


def as_number(name: str, value: Any) -> float:
    """Return a number that may be a tensor or an array of one.

    Raises:
        ConfigError: If it is something else.
    """
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise ConfigError(f"{name} is {type_of(value)}; it must be a number.")


class CodeWarning(UserWarning):
    """Code that a file names is about to run, because the user allowed it."""


def names_code(task: str) -> bool:
    """Return whether a task's name is ``module:function``, not that of a registered task."""
    return ":" in task


def require_trusted_task(
    task: str, options: Mapping[str, object], *, source: object, allow_code: bool
) -> None:
    """Reject a task that a file names by ``module:function``, unless the user allows its code.

    Emits a :class:`CodeWarning` that shows the call if it is allowed.

    Args:
        task: The name of the task, as read from a file.
        options: Its options.
        source: The file or folder, for messages.
        allow_code: Whether the user allows the code.

    Raises:
        TaskError: If the name is that of code and code is not allowed.
    """
    if not names_code(task):
        return
    call = f"{task}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    if not allow_code:
        raise TaskError(
            f"{source} names code to run, {call}; files may only name registered tasks. If you "
            "trust it, pass --allow-code (allow_code=True in Python)."
        )
    warnings.warn(
        f"running code that {source} names: {call}", CodeWarning, stacklevel=_user_level()
    )


def _user_level() -> int:
    """Return the stack level, for the calling function, of the line that called Esper."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "esper":
        frame, level = frame.f_back, level + 1
    return level
