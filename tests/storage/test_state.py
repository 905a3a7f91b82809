"""Merging states and splitting them again restores the parts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.errors import CheckpointError
from esper.storage.state import State, merge, split
from tests.storage.states import FACTS, exact, state_of, tensors

NAMES = st.text(min_size=1, max_size=4).filter(lambda name: "/" not in name)
STATES = st.builds(State, st.dictionaries(st.text(max_size=5), tensors(), max_size=3), FACTS)


def test_tensor_names_are_prefixed_with_their_part() -> None:
    weight = torch.zeros(2)
    merged = merge({"agent": State({"w": weight}, {"a": 1}), "env": State({"h/0/w": weight}, {})})
    assert list(merged.tensors) == ["agent/w", "env/h/0/w"]
    assert merged.tensors["agent/w"] is weight
    assert merged.facts == {"agent": {"a": 1}, "env": {}}


@given(st.dictionaries(NAMES, STATES, max_size=3))
def test_split_undoes_merge(parts: dict[str, State]) -> None:
    assert exact(split(merge(parts))) == exact(parts)


def test_merged_states_can_be_merged_again() -> None:
    inner = {"a": state_of(1), "b": state_of(2)}
    outer = split(merge({"inner": merge(inner), "other": State()}))
    assert exact(split(outer["inner"])) == exact(inner)
    assert exact(outer["other"]) == exact(State())


@pytest.mark.parametrize("name", ["", "a/b", 3])
def test_an_invalid_part_name_is_rejected(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"named {name!r}"):
        merge({name: State()})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (State({}, {"lr": 0.1}), "'lr' .*float"),
        (State({"w": torch.zeros(1)}, {"w": {}}), "tensor 'w'"),
        (State({"b/w": torch.zeros(1)}, {"a": {}}), "tensor 'b/w'"),
    ],
)
def test_a_state_without_parts_cannot_be_split(state: State, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        split(state)
