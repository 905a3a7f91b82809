"""Spaces survive being written as JSON."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from esper.errors import CheckpointError, UnsupportedEnvironmentError
from esper.simic.rollout.space_json import decode_space, encode_space, is_same_space

BIT = spaces.Discrete(2)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 2.0, (3,)),
        spaces.Box(np.float32([-1.0, -np.inf]), np.float32([0.1, np.inf])),
        spaces.Box(0, 255, (4, 5, 3), np.uint8),
        spaces.Box(-1.0, 1.0, (2, 2), np.float64),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 2]),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0.0, 1.0, (1,))}),
        spaces.Tuple([spaces.Discrete(2), spaces.Dict({"x": spaces.MultiBinary(1)})]),
        spaces.Dict(b=spaces.Discrete(2), a=spaces.Discrete(3)),
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Dict(d=BIT, c=BIT))]),
        spaces.Tuple([spaces.Dict(z=BIT, y=BIT), BIT]),
    ],
    ids=str,
)
def test_a_space_is_the_same_after_a_round_trip(space: spaces.Space[Any]) -> None:
    restored = decode_space(json.loads(json.dumps(encode_space(space))))
    assert restored == space
    assert names_of(restored) == names_of(space)
    assert is_same_space(restored, space)


def names_of(space: spaces.Space[Any]) -> list[Any]:
    """Return the names of all parts in their order, nested as the space is."""
    if isinstance(space, spaces.Dict):
        return [[name, names_of(part)] for name, part in space.items()]
    return [names_of(part) for part in space] if isinstance(space, spaces.Tuple) else []


def test_spaces_differ_if_their_parts_are_in_another_order() -> None:
    assert spaces.Dict(a=BIT, b=BIT) == spaces.Dict(b=BIT, a=BIT)
    assert not is_same_space(spaces.Dict(a=BIT, b=BIT), spaces.Dict(b=BIT, a=BIT))
    assert not is_same_space(spaces.Dict(a=BIT), spaces.Dict(a=spaces.Discrete(3)))


def test_other_spaces_are_named() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="Text"):
        encode_space(spaces.Text(3))
    with pytest.raises(CheckpointError, match="'Text'"):
        decode_space({"type": "Text"})
