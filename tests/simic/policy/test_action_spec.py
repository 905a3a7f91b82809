"""An action specification cannot contradict itself, and reads masks in the forms users have."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from esper.errors import (
    ActionSpecError,
    DtypeError,
    ShapeError,
    ValueRangeError,
)
from esper.simic.policy.action_spec import ActionSpec


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[tuple[bool, ...], ...], int]:
    """A random relevance table and the column of its op head."""
    n_ops, n_heads = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    row = st.tuples(*[st.booleans()] * n_heads)
    return draw(st.tuples(*[row] * n_ops)), draw(st.integers(0, n_heads - 1))


def build(table: tuple[tuple[bool, ...], ...], op: int) -> ActionSpec:
    names = tuple(f"h{i}" for i in range(len(table[0])))
    sizes = tuple(len(table) if i == op else 3 for i in range(len(names)))
    return ActionSpec(names=names, sizes=sizes, op_head=names[op], relevance=table)


@given(tables())
def test_a_specification_exists_exactly_if_its_op_always_matters(
    drawn: tuple[tuple[tuple[bool, ...], ...], int],
) -> None:
    table, op = drawn
    if all(row[op] for row in table):
        ops = torch.arange(len(table))
        assert build(table, op).relevant_heads(ops).sum(dim=-1).min() >= 1
    else:
        with pytest.raises(ActionSpecError, match=r"op \d .*'\w+'"):
            build(table, op)


@given(tables())
def test_any_table_becomes_a_specification_once_its_op_row_is_true(
    drawn: tuple[tuple[tuple[bool, ...], ...], int],
) -> None:
    table, op = drawn
    mended = tuple(tuple(value or i == op for i, value in enumerate(row)) for row in table)
    build(mended, op)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("op", "op")}, "named twice"),
        ({"sizes": (2,)}, "2 names, 1 sizes"),
        ({"sizes": (2, 0)}, "'a' has size 0"),
        ({"sizes": (2, 1.5)}, r"'a' has size 1\.5"),
        ({"op_head": "opp"}, "Did you mean 'op'"),
        ({"relevance": ((True, True),)}, "has 1 rows"),
        ({"relevance": ()}, r"relevance is empty; .*ActionSpec\.independent"),
        ({"op_head": None}, r"must be one of op, a\. .*ActionSpec\.independent"),
        ({"relevance": ((True,), (True, True))}, "row 0 has 1 entries"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, object], message: str) -> None:
    valid: dict[str, object] = {
        "names": ("op", "a"),
        "sizes": (2, 3),
        "op_head": "op",
        "relevance": ((True, False), (True, True)),
    }
    ActionSpec(**valid)  # type: ignore[arg-type]
    with pytest.raises(ActionSpecError, match=message):
        ActionSpec(**{**valid, **changes})  # type: ignore[arg-type]


def test_lists_and_arrays_are_taken_too() -> None:
    table = np.array([[True, False], [True, True]])
    spec = ActionSpec(names=["op", "a"], sizes=np.array([2, 3]), op_head="op", relevance=table)  # type: ignore
    assert spec == ActionSpec(
        names=("op", "a"), sizes=(2, 3), op_head="op", relevance=((True, False), (True, True))
    )
    assert isinstance(hash(spec), int)


def test_gymnasium_spaces_become_independent_heads() -> None:
    spec = ActionSpec.from_space(spaces.MultiDiscrete([3, 5]))
    assert spec.sizes == (3, 5)
    assert all(all(row) for row in spec.relevance)
    assert ActionSpec.from_space(spaces.Discrete(4)).sizes == (4,)
    assert ActionSpec.from_space(spaces.Discrete(4, start=-3)).sizes == (4,)
    assert ActionSpec.from_space(spaces.MultiBinary(3)).sizes == (2, 2, 2)
    with pytest.raises(ActionSpecError, match="empty"):
        ActionSpec.independent([])


def test_a_box_is_one_continuous_head_as_long_as_its_numbers() -> None:
    spec = ActionSpec.from_space(spaces.Box(-1.0, 1.0, (2, 3)))
    assert (spec.sizes, spec.dims, spec.n_numbers, spec.op_head) == ((), (6,), 6, None)


def test_parts_of_a_dict_or_tuple_are_heads_with_the_continuous_ones_last() -> None:
    parts = {
        "amount": spaces.Box(0.0, 1.0, (2,)),
        "bits": spaces.MultiBinary(2),
        "op": spaces.Discrete(3),
    }
    spec = ActionSpec.from_space(spaces.Dict(parts))
    assert spec.names == ("bits_0", "bits_1", "op", "amount")
    assert (spec.sizes, spec.dims) == ((2, 2, 3), (2,))
    same = ActionSpec.from_space(spaces.Tuple(list(parts.values())))
    assert (same.sizes, same.dims) == ((2, 2, 3), (2,))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.Dict({"inner": spaces.Dict({"a": spaces.Discrete(2)})}),
    ],
)
def test_action_spaces_that_have_no_heads_are_named(space: spaces.Space[Any]) -> None:
    with pytest.raises(ActionSpecError, match=r"(?s)the action space .*is needed"):
        ActionSpec.from_space(space)


SPEC = ActionSpec.independent([2, 3], ["move", "door"])


def test_equal_specifications_hash_alike_in_every_process() -> None:
    code = (
        "from esper.simic import ActionSpec;"
        "print(hash(ActionSpec.independent([2, 3], ['move', 'door'])))"
    )
    # Another seed than that of this process, which is random unless it was set.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == hash(SPEC)


def test_ops_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="0 to 2"):
        SPEC.relevant_heads(torch.tensor([0, 2]))
    with pytest.raises(DtypeError, match=r"torch\.float32"):
        SPEC.relevant_heads(torch.tensor([0.0]))
    with pytest.raises(ShapeError, match=r"op_masks has shape \(4, 3\)"):
        SPEC.available_heads(torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(DtypeError, match=r"torch\.int64"):
        SPEC.available_heads(torch.ones(4, 2, dtype=torch.int64))
