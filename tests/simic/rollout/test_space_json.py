"""Spaces survive being written as JSON."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from esper.errors import CheckpointError, UnsupportedEnvironmentError
from esper.simic.rollout.space_json import decode_space, encode_space


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
    ],
    ids=str,
)
def test_a_space_is_the_same_after_a_round_trip(space: spaces.Space[Any]) -> None:
    assert decode_space(json.loads(json.dumps(encode_space(space)))) == space


def test_other_spaces_are_named() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="Text"):
        encode_space(spaces.Text(3))
    with pytest.raises(CheckpointError, match="'Text'"):
        decode_space({"type": "Text"})
