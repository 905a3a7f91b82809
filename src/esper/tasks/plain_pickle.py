"""Reading plain values and arrays of bytes from a pickle without unpickling it.

Unpickling runs whatever code a file names. The reader here goes through the few opcodes that a
dictionary of numbers, strings, lists and arrays of bytes consists of in protocol 2, makes plain
values of them, and refuses every other opcode and every name but those of an array. Nothing that a
file names is imported or called.
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


class RefusedPickleError(Exception):
    """A pickle holds something that no plain value is made of, or is damaged."""


@dataclass
class _Array:
    """An array that is made but has no numbers yet, or has them."""

    values: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Name:
    """A function or class that a file names; never looked up."""

    path: str


@dataclass(frozen=True)
class _ByteType:
    """The type of an array's numbers, which can only be bytes."""


def read_plain_pickle(content: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle; strings of Python 2 and bytes as str, arrays as uint8.

    Raises:
        RefusedPickleError: If there is anything else in it, or it is damaged.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        found = machine.stack.pop()
        return {_text(key): _finished(value) for key, value in found.items()}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise RefusedPickleError(f"it is damaged ({error})") from error


@dataclass
class _Machine:
    """The stack and the memory of a pickle, for plain values."""

    stack: list[Any] = field(default_factory=list[Any])
    marks: list[int] = field(default_factory=list[int])
    memory: dict[int, Any] = field(default_factory=dict[int, Any])

    def step(self, opcode: str, argument: Any) -> None:
        """Do what one opcode says."""
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
                self.stack.append(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(tuple(self._pop(int(opcode[-1]))))
            case "APPEND" | "APPENDS":
                values = self._pop(1) if opcode == "APPEND" else self._pop_to_mark()
                self.stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._pop(2) if opcode == "SETITEM" else self._pop_to_mark()
                self.stack[-1].update(zip(values[::2], values[1::2], strict=True))
            case "GLOBAL" if argument in NAMES:
                self.stack.append(_Name(argument))
            case "GLOBAL":
                raise RefusedPickleError(f"it names {argument!r}")
            case "REDUCE":
                self.stack.append(_result_of(*self._pop(2)))
            case "BUILD":
                [state] = self._pop(1)
                _give_state(self.stack[-1], state)
            case _:
                raise RefusedPickleError(f"it has the opcode {opcode}")

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


def _result_of(function: Any, arguments: tuple[Any, ...]) -> object:
    """Return what three known calls would give; none is made."""
    path = function.path if isinstance(function, _Name) else "a value"
    if path in ARRAY_MAKERS and arguments[0] == _Name(ARRAY):
        return _Array()
    if path == DTYPE and _text(arguments[0]) == "u1":
        return _ByteType()
    if path == ENCODE and arguments[1:] == ("latin1",):
        return arguments[0].encode("latin-1")
    raise RefusedPickleError(f"it calls {path!r} with {str(arguments)[:60]}")


def _give_state(target: Any, state: tuple[Any, ...]) -> None:
    """Give an array its shape and its bytes; the state of a type of bytes says nothing."""
    if isinstance(target, _ByteType):
        return
    if not isinstance(target, _Array) or not isinstance(state[2], _ByteType):
        raise RefusedPickleError("it gives a state to something that is no array of bytes")
    _, shape, _, is_by_column, content = state
    raw = content if isinstance(content, bytes) else content.encode("latin-1")
    order = "F" if is_by_column else "C"
    target.values = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _finished(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value
