"""States of parts become one state, and come apart as they were."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.errors import CheckpointError
from esper.storage.state import State, merge, split
from tests.storage.states import FACTS, exact, state_of, tensors

NAMES = st.text(min_size=1, max_size=4).filter(lambda name: "/" not in name)
STATES = st.builds(State, st.dictionaries(st.text(max_size=5), tensors(), max_size=3), FACTS)


def test_tensors_get_the_name_of_their_part_in_front() -> None:
    weight = torch.zeros(2)
    merged = merge({"agent": State({"w": weight}, {"a": 1}), "env": State({"h/0/w": weight}, {})})
    assert list(merged.tensors) == ["agent/w", "env/h/0/w"]
    assert merged.tensors["agent/w"] is weight
    assert merged.facts == {"agent": {"a": 1}, "env": {}}


@given(st.dictionaries(NAMES, STATES, max_size=3))
def test_what_is_merged_comes_apart_as_it_was(parts: dict[str, State]) -> None:
    assert exact(split(merge(parts))) == exact(parts)


def test_merged_states_can_be_merged_again() -> None:
    inner = {"a": state_of(1), "b": state_of(2)}
    outer = split(merge({"inner": merge(inner), "other": State()}))
    assert exact(split(outer["inner"])) == exact(inner)
    assert exact(outer["other"]) == exact(State())


@pytest.mark.parametrize("name", ["", "a/b", 3])
def test_a_name_that_could_not_be_split_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="a name is a string that is not empty"):
        merge({name: State()})


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (State({}, {"lr": 0.1}), "its fact 'lr' is a float"),
        (State({"w": torch.zeros(1)}, {"w": {}}), "tensor 'w' belongs to none of the parts w;"),
        (State({"b/w": torch.zeros(1)}, {"a": {}}), "'b/w' belongs to none of the parts a;"),
    ],
)
def test_a_state_without_parts_cannot_be_split(state: State, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        split(state)
