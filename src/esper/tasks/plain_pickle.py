"""Reading plain values and byte arrays from a pickle without unpickling it.

Unpickling a file can run any code that it names. This reader interprets only the few opcodes of
protocol 2 that a dict of numbers, strings, lists and byte arrays needs, and rejects every other
opcode and every name except those of an array. It never imports or calls anything.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAY_MAKERS = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
ARRAY, DTYPE, ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
NAMES = frozenset({*ARRAY_MAKERS, ARRAY, DTYPE, ENCODE})

MOST_IN_TUPLE = 64
"""Most values in a tuple, those of inner tuples included; the largest describes an array."""


class UnsafePickleError(Exception):
    """A pickle is damaged, or holds more than plain values and byte arrays."""


@dataclass
class _Array:
    """An array, whose values arrive after it is created."""

    values: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Name:
    """The name of a function or class, which is never looked up."""

    path: str


@dataclass(frozen=True)
class _ByteType:
    """The dtype of an array, which can only be uint8."""


def read_plain_pickle(content: bytes) -> dict[str, Any]:
    """Return the dict in a pickle: Python 2 strings and bytes as str, arrays as uint8.

    Raises:
        UnsafePickleError: If it is damaged or holds anything else.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        found = machine.stack.pop()
        return {_text(key): _finished(value) for key, value in found.items()}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise UnsafePickleError(f"it is damaged ({error})") from error


@dataclass
class _Machine:
    """The stack and the memo of a pickle."""

    stack: list[Any] = field(default_factory=list[Any])
    marks: list[int] = field(default_factory=list[int])
    memory: dict[int, Any] = field(default_factory=dict[int, Any])

    def step(self, opcode: str, argument: Any) -> None:
        """Execute one opcode."""
        match opcode:
            case "PROTO" | "STOP":
                pass
            case "BININT" | "BININT1" | "BININT2" | "SHORT_BINSTRING" | "BINSTRING" | "BINUNICODE":
                self.stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                self.stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[opcode])
            case "BINPUT" | "LONG_BINPUT":
                self.memory[argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memory[argument])
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self.stack.append(_make_tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(_make_tuple(self._pop(int(opcode[-1]))))
            case "APPEND" | "APPENDS":
                values = self._pop(1) if opcode == "APPEND" else self._pop_to_mark()
                self.stack[-1].extend(_require(values, dict, list, tuple))
            case "SETITEM" | "SETITEMS":
                values = self._pop(2) if opcode == "SETITEM" else self._pop_to_mark()
                items = zip(values[::2], _require(values[1::2], dict), strict=True)
                self.stack[-1].update(items)
            case "GLOBAL" if argument in NAMES:
                self.stack.append(_Name(argument))
            case "GLOBAL":
                raise UnsafePickleError(f"it names {argument!r}")
            case "REDUCE":
                self.stack.append(_result_of(*self._pop(2)))
            case "BUILD":
                [state] = self._pop(1)
                _set_state(self.stack[-1], state)
            case _:
                raise UnsafePickleError(f"it has the opcode {opcode}")

    def _pop(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError("a value is missing")
        return self._cut(len(self.stack) - count)

    def _pop_to_mark(self) -> list[Any]:
        return self._cut(self.marks.pop())

    def _cut(self, start: int) -> list[Any]:
        values = self.stack[start:]
        del self.stack[start:]
        return values


class _Tuple(tuple[Any, ...]):
    """A tuple that knows its size with all inner tuples."""

    size: int


def _make_tuple(values: list[Any]) -> _Tuple:
    """Return a tuple of bounded size, and thereby depth, however often it repeats an inner one."""
    made = _Tuple(_require(values, dict, list))
    made.size = sum(1 + (value.size if isinstance(value, _Tuple) else 0) for value in made)
    if made.size > MOST_IN_TUPLE:
        raise UnsafePickleError(f"it has a tuple of more than {MOST_IN_TUPLE} values")
    return made


def _require(values: list[Any], *rejected: type) -> list[Any]:
    """Reject containers inside others, which no file of numbers, strings and arrays needs."""
    for value in values:
        if isinstance(value, rejected):
            raise UnsafePickleError(
                f"it has a {type(value).__name__.strip('_').lower()} inside another container"
            )
    return values


def _result_of(function: Any, arguments: tuple[Any, ...]) -> object:
    """Return the equivalent of three known calls, without making them."""
    path = function.path if isinstance(function, _Name) else "a value"
    if path in ARRAY_MAKERS and arguments[0] == _Name(ARRAY):
        return _Array()
    if path == DTYPE and _text(arguments[0]) == "u1":
        return _ByteType()
    if path == ENCODE and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin-1")
    raise UnsafePickleError(f"it calls {path!r} with {str(arguments)[:60]}")


def _set_state(target: Any, state: tuple[Any, ...]) -> None:
    """Set the values of an array; the state of a dtype is ignored."""
    if isinstance(target, _ByteType):
        return
    if not isinstance(target, _Array) or not isinstance(state[2], _ByteType):
        raise UnsafePickleError("it sets the state of something other than a byte array")
    _, shape, _, is_fortran, content = state
    raw = content if isinstance(content, bytes) else content.encode("latin-1")
    order = "F" if is_fortran else "C"
    target.values = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _finished(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value
