"""Nested state dicts survive conversion to states, whatever their keys are."""

import collections
import enum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.errors import CheckpointError
from esper.storage.checkpoint_folder import CheckpointFolder, load_checkpoint
from esper.storage.state import TENSORS_FILE, TREE_FILE, decode, encode, from_bytes, to_bytes
from esper.storage.tensors import unpack
from tests.storage.states import SCALARS, exact, passed_on, tensors

KEYS = st.one_of(
    st.sampled_from(["", "$tensor", "$dict", "$tuple", "/", "a/b", "a", "1", "__metadata__"]),
    st.sampled_from([0, 1, -1, None, True, 1.5, (), (1, "a")]),
    st.text(st.characters(codec=None), max_size=3),
)
TREES = st.recursive(
    SCALARS | tensors(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=10,
)


@given(nested=st.dictionaries(KEYS, TREES, max_size=4))
def test_a_nested_dict_is_restored_exactly(nested: dict[Any, Any]) -> None:
    assert exact(from_bytes(to_bytes(nested))) == exact(nested)


@given(nested=st.dictionaries(KEYS, TREES, max_size=4))
def test_a_nested_dict_is_restored_exactly_from_disk(
    nested: dict[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = CheckpointFolder(tmp_path_factory.mktemp("checkpoints"))
    path = folder.save(nested, step=7)
    assert path.name == "step-000000007"
    assert exact(folder.latest().state) == exact(nested)
    assert exact(load_checkpoint(path).state) == exact(nested)


def names_in(state: dict[Any, Any]) -> list[str]:
    """Return the names of the tensors in a state's file."""
    return list(unpack(b"".join(encode(state)[TENSORS_FILE])))


def test_tensor_names_are_paths() -> None:
    weight = torch.zeros(2)
    state = {"policy": {"head.weight": weight}, "state": {0: {"step": weight}, "0": 1}}
    assert names_in(state) == ["policy/head.weight", "state/0/step"]


def test_keys_with_the_same_text_keep_separate_tensors() -> None:
    one, two, three, four = (torch.tensor(value) for value in range(4))
    nested = {"a": {"b": one, 1: two, "1": three}, "a/b": four}
    assert names_in(nested) == ["a/b", "a/1", "a/1~", "a/b~"]
    assert exact(passed_on(nested)) == exact(nested)


def _trained(seed: int, optimizer: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    made: torch.optim.Optimizer = {
        "adam": lambda: torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "lbfgs": lambda: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3),
    }[optimizer]()
    _train(model, made)
    return model, made


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.linspace(-1, 1, 15).reshape(5, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(inputs) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


@pytest.mark.parametrize("name", ["adam", "sgd", "lbfgs"])
def test_an_optimizer_continues_as_if_it_had_never_been_saved(name: str) -> None:
    model, optimizer = _trained(0, name)
    nested = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    restored = passed_on(nested)
    other, other_optimizer = _trained(1, name)
    other.load_state_dict(restored["model"])
    other_optimizer.load_state_dict(restored["optimizer"])
    _train(model, optimizer)
    _train(other, other_optimizer)
    assert exact(dict(other.state_dict())) == exact(dict(model.state_dict()))


def test_other_mappings_are_restored_as_dicts() -> None:
    nested = {"a": collections.OrderedDict(b=1), "c": collections.defaultdict(int, {2: 3})}
    assert exact(passed_on(nested)) == exact({"a": {"b": 1}, "c": {2: 3}})


class _Colour(enum.IntEnum):
    RED = 1


_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.float64(1.0), "'a/0/b' is a numpy.float64"),
        (np.zeros(2), "'a/0/b' is a numpy.ndarray"),
        (_Colour.RED, "_Colour"),
        ({1, 2}, "'a/0/b' is a set"),
        (torch.Size([1]), "is a torch.Size"),
        (2**5000, "4096 bits"),
        (_ENDLESS, "200 levels"),
        ({torch.zeros(1): 1}, "'a/0/b' .*tensor as a key"),
        ({frozenset[int](): 1}, r"'a/0/b/frozenset\(\)' is a frozenset"),
    ],
)
def test_an_unsupported_value_is_rejected_with_its_location(value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        encode({"a": [{"b": value}]})


def test_only_a_mapping_is_a_state() -> None:
    with pytest.raises(CheckpointError, match="is a list"):
        encode([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tree",
    [
        "{}",
        "[1]",
        '{"state": [1]}',
        '{"state": {}}',
        '{"state": {"a": {"$tensor": "v"}}}',
        '{"state": {"a": {"$dict": [1]}, "w": {"$tensor": "w"}}}',
        '{"state": {"a": {"$dict": [[[1], 2]]}, "w": {"$tensor": "w"}}}',
    ],
)
def test_files_that_were_not_made_from_a_state_are_rejected(tree: str) -> None:
    tensors = b"".join(encode({"w": torch.zeros(1)})[TENSORS_FILE])
    with pytest.raises(CheckpointError):
        decode({TREE_FILE: tree.encode(), TENSORS_FILE: tensors})
