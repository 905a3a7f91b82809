"""The state of an environment of this process as plain values, so that training can resume exactly.

An environment with ``state_dict()`` and ``load_state_dict()`` says itself what its state is. Of any
other, the attributes of the environment and of each wrapper are saved: numbers, text, arrays,
random generators, and lists, tuples, sets and dicts of them. What never changes (spaces, functions,
rendering) is left out. An attribute of any other type makes the state unsavable.
"""

from __future__ import annotations

import base64
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from esper.errors import UnsupportedEnvironmentError, type_of

_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}
_PLAIN = (type(None), bool, int, float, str)
_FIXED = (
    gymnasium.Space,
    EnvSpec,
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
)
_LINKS = ("env", "screen", "clock", "surf", "isopen", "metadata", "spec", "unwrapped")


def save_env_state(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the state of an environment and its wrappers, outermost first.

    Raises:
        UnsupportedEnvironmentError: If an attribute cannot be saved, naming it.
    """
    return [_save_layer(layer) for layer in _layers(env)]


def load_env_state(env: gymnasium.Env[Any, Any], state: list[Any]) -> None:
    """Restore what :func:`save_env_state` returned, in an environment made the same way."""
    for layer, saved in zip(_layers(env), state, strict=True):
        if "state_dict" in saved:
            cast(Any, layer).load_state_dict(_decode(saved["state_dict"]))
            continue
        for name, value in saved["attributes"].items():
            setattr(layer, name, _decode(value))


def _layers(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _save_layer(layer: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    own = getattr(type(layer), "state_dict", None)
    if own is not None and hasattr(type(layer), "load_state_dict"):
        return {"state_dict": _encode(cast(Any, layer).state_dict(), type(layer).__name__)}
    kind = type(layer).__name__
    attributes = {
        name: _encode(value, f"{kind}.{name}")
        for name, value in vars(layer).items()
        if name not in _LINKS and not isinstance(value, _FIXED)
    }
    return {"attributes": attributes}


def _encode(value: Any, where: str) -> Any:
    """Return a value as JSON can hold it."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.random.Generator):
        name = type(value.bit_generator).__name__
        if name in _BIT_GENERATORS:
            return {"$random": [name, _encode(value.bit_generator.state, where)]}
    held = cast(Any, value)
    if isinstance(value, np.ndarray) and held.dtype != object:
        raw = base64.b64encode(np.ascontiguousarray(held).tobytes()).decode("ascii")
        return {"$array": [held.dtype.str, list(held.shape), raw]}
    if isinstance(value, np.generic):
        return {"$number": _encode(np.asarray(held), where)["$array"]}
    kind = cast("type[Any]", type(held))
    if kind in (list, tuple, set, deque):
        items = [_encode(item, f"{where}[{i}]") for i, item in enumerate(held)]
        return {f"${kind.__name__}": [held.maxlen, items] if kind is deque else items}
    if kind is dict:
        return {
            "$dict": [[_encode(k, where), _encode(v, f"{where}[{k!r}]")] for k, v in held.items()],
        }
    raise UnsupportedEnvironmentError(
        f"{where} is {type_of(held)}, which cannot be saved; give the environment "
        "state_dict() and load_state_dict() that return and take plain values and arrays."
    )


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = cast("dict[str, Any]", value).items()
    if kind == "$random":
        # By name from a list: a file must not choose what is called.
        generator = np.random.Generator(_BIT_GENERATORS[held[0]]())
        generator.bit_generator.state = _decode(held[1])
        return generator
    if kind in ("$array", "$number"):
        dtype, shape, raw = held
        array = np.frombuffer(base64.b64decode(raw), dtype).reshape(shape).copy()
        return array if kind == "$array" else array[()]
    if kind == "$dict":
        return {_decode(k): _decode(v) for k, v in held}
    if kind == "$deque":
        return deque([_decode(item) for item in held[1]], maxlen=held[0])
    items = [_decode(item) for item in held]
    return {"$list": list, "$tuple": tuple, "$set": set}[kind](items)
