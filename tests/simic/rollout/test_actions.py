"""Decisions become actions of any space, and masks in any form mean the same."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from esper.errors import (
    ActionSpecError,
    EsperError,
    ShapeError,
    UnknownHeadError,
    UnsupportedEnvironmentError,
    ValueRangeError,
)
from esper.simic import ActionSpec
from esper.simic.policy.mask_reader import MaskReader
from esper.simic.policy.masks import ChoiceMasks
from esper.simic.rollout.actions import ActionCodec, require_spec

CPU = torch.device("cpu")
SPACES = {
    "discrete": spaces.Discrete(4),
    "discrete from 5": spaces.Discrete(4, start=5),
    "discrete from -2": spaces.Discrete(3, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-discrete from others": spaces.MultiDiscrete([2, 3], start=[7, -1]),
    "bits": spaces.MultiBinary(3),
    "box": spaces.Box(-1.0, 3.0, (2,)),
    "box of other bounds": spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 9.0])),
    "box of a table": spaces.Box(-1.0, 1.0, (2, 3)),
    "double box": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "dict": spaces.Dict(
        {"amount": spaces.Box(0.0, 2.0, (2,)), "op": spaces.Discrete(3), "z": spaces.MultiBinary(2)}
    ),
    "tuple": spaces.Tuple(
        [spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2, start=1), spaces.Box(-1.0, 0.0, (2,))]
    ),
}


def draw(spec: ActionSpec, n: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return choices and wild numbers, as a policy would draw them."""
    random = np.random.default_rng(0)
    actions = (
        np.stack([random.integers(size, size=n) for size in spec.sizes], 1)
        if spec.sizes
        else np.zeros((n, 0), np.int64)
    )
    numbers = 5.0 * random.standard_normal((n, spec.n_numbers)).astype(np.float32)
    return actions, numbers if spec.dims else None


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("squash", [False, True])
def test_every_decision_is_an_action_of_the_space(name: str, squash: bool) -> None:
    space = SPACES[name]
    spec = ActionSpec.from_space(space)
    codec, n = ActionCodec(space, spec, squash=squash), 50
    actions, numbers = draw(spec, n)
    assert batch_space(space, n).contains(codec.batch(actions, numbers))
    each = codec.each(actions, numbers)
    assert len(each) == n
    assert all(space.contains(action) for action in each)


def test_choices_count_from_the_start_of_their_space() -> None:
    def convert(space: spaces.Space[Any], choices: list[int]) -> Any:
        codec = ActionCodec(space, ActionSpec.from_space(space))
        return np.asarray(codec.each(np.array([choices]), None)[0]).tolist()

    assert convert(spaces.Discrete(3, start=-2), [0]) == -2
    assert convert(spaces.Discrete(3, start=5), [2]) == 7
    assert convert(spaces.MultiDiscrete([2, 3], start=[7, -1]), [1, 0]) == [8, -1]
    assert convert(spaces.MultiBinary(3), [1, 0, 1]) == [1, 0, 1]


def test_numbers_are_clipped_to_their_bounds_or_squashed_between_them() -> None:
    space = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64)
    spec = ActionSpec.from_space(space)
    numbers = np.array([[0.25, 3.0], [-7.0, 20.0], [0.0, 0.0]], np.float32)
    clipped = ActionCodec(space, spec).batch(np.zeros((3, 0), np.int64), numbers)
    np.testing.assert_allclose(clipped, [[0.25, 3.0], [-1.0, 10.0], [0.0, 0.0]])
    squashed = ActionCodec(space, spec, squash=True).batch(np.zeros((3, 0), np.int64), numbers)
    tanh = np.tanh(numbers.astype(np.float64))
    np.testing.assert_allclose(squashed[:, 0], tanh[:, 0], rtol=1e-6)
    np.testing.assert_allclose(squashed[:, 1], 5.0 + 5.0 * tanh[:, 1], rtol=1e-6)


def test_parts_of_a_dict_get_their_own_numbers_and_choices() -> None:
    space = SPACES["dict"]
    codec = ActionCodec(space, ActionSpec.from_space(space))
    (action,) = codec.each(np.array([[2, 1, 0]]), np.array([[0.5, 1.5]], np.float32))
    assert action["amount"].tolist() == [0.5, 1.5]
    assert (action["op"], action["z"].tolist()) == (2, [1, 0])


def test_squashing_needs_bounds() -> None:
    space = spaces.Box(-np.inf, np.inf, (2,))
    ActionCodec(space, ActionSpec.from_space(space))
    with pytest.raises(UnsupportedEnvironmentError, match=r"squash is on.*no bounds"):
        ActionCodec(space, ActionSpec.from_space(space), squash=True)


def test_a_specification_of_other_sizes_than_the_space_is_named() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match=r"heads have sizes \(2, 4\)"):
        ActionCodec(spaces.MultiDiscrete([2, 3]), ActionSpec.independent([2, 4]))
    with pytest.raises(ActionSpecError, match=r"sizes \(2, 4\).*has sizes \(2, 3\)"):
        require_spec(spaces.MultiDiscrete([2, 3]), ActionSpec.independent([2, 4]))
    named = ActionSpec.independent([2, 3], ["move", "door"])
    assert require_spec(spaces.MultiDiscrete([2, 3]), named) is named


SPEC = ActionSpec.independent([2, 3], ["move", "door"])
MOVE, DOOR = np.array([[1, 0], [1, 1]], np.int8), np.array([[0, 1, 1], [1, 0, 0]], np.int8)
LEGAL = [[[True, False, False], [False, True, True]], [[True, True, False], [True, False, False]]]


def objects(*values: Any) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    "masks",
    [
        [(MOVE[0], DOOR[0]), (MOVE[1], DOOR[1])],
        [[MOVE[0], DOOR[0]], [MOVE[1], DOOR[1]]],
        [np.concatenate([MOVE[0], DOOR[0]]), np.concatenate([MOVE[1], DOOR[1]])],
        [{"door": DOOR[0], "move": MOVE[0]}, {"move": MOVE[1], "door": DOOR[1]}],
    ],
    ids=["tuple", "list", "flat", "dict"],
)
def test_the_masks_of_each_environment_mean_the_same_in_every_form(masks: list[Any]) -> None:
    assert MaskReader(SPEC, CPU).read_each(masks).legal.tolist() == LEGAL


@pytest.mark.parametrize(
    "masks",
    [
        np.concatenate([MOVE, DOOR], axis=1),
        np.concatenate([MOVE, DOOR], axis=1).astype(bool),
        np.array(LEGAL),
        objects((MOVE[0], DOOR[0]), (MOVE[1], DOOR[1])),
        ((MOVE[0], DOOR[0]), (MOVE[1], DOOR[1])),
        {"door": DOOR, "move": MOVE, "_door": np.ones(2, bool)},
    ],
    ids=["flat", "bool", "padded", "tuples", "tuple of tuples", "dict"],
)
def test_the_masks_of_a_vector_environment_mean_the_same_in_every_form(masks: Any) -> None:
    assert MaskReader(SPEC, CPU).read_batch(masks).legal.tolist() == LEGAL


def test_a_misspelt_head_is_an_error_with_a_hint() -> None:
    with pytest.raises(UnknownHeadError, match=r"no head 'dor'.*Did you mean 'door'"):
        MaskReader(SPEC, CPU).read_batch({"move": MOVE, "dor": DOOR})


def test_tensors_are_read_as_arrays_are() -> None:
    masks = {"move": torch.from_numpy(MOVE), "door": torch.from_numpy(DOOR).bool()}
    assert MaskReader(SPEC, CPU).read_batch(masks).legal.tolist() == LEGAL


def test_a_head_that_a_dict_leaves_out_is_free() -> None:
    read = MaskReader(SPEC, CPU).read_batch({"move": MOVE})
    assert read.legal[:, 1].all()
    assert read.legal[:, 0].tolist() == [row[0] for row in LEGAL]


def test_the_mask_of_a_head_whose_name_starts_like_gymnasiums_flags_is_read() -> None:
    spec = ActionSpec.independent([2, 3], ["move", "_door"])
    read = MaskReader(spec, CPU).read_batch({"move": MOVE, "_door": DOOR, "_move": np.ones(2)})
    assert read.legal.tolist() == LEGAL


def test_a_conditional_mask_is_a_table_by_the_choice_of_the_other_head() -> None:
    table = np.array([[1, 0, 0], [0, 1, 1]])
    read = MaskReader(SPEC, CPU).read_each([{"door|move": table}, {"door|move": 1 - table}])
    (condition,) = read.conditions
    assert (condition.child, condition.parent) == (SPEC.index("door"), SPEC.index("move"))
    assert condition.allowed(torch.tensor([0, 0])).int().tolist() == [[1, 0, 0], [0, 1, 1]]
    assert condition.allowed(torch.tensor([1, 1])).int().tolist() == [[0, 1, 1], [1, 0, 0]]


def test_conditional_masks_are_put_in_the_order_in_which_heads_can_be_drawn() -> None:
    spec = ActionSpec.independent([2, 2, 2], ["a", "b", "c"])
    every = np.ones((1, 2, 2), bool)
    reader = MaskReader(spec, CPU)
    chain = reader.read_batch({"a|b": every, "b|c": every})
    assert [(one.child, one.parent) for one in chain.conditions] == [(1, 2), (0, 1)]
    with pytest.raises(ActionSpecError, match="depend"):
        reader.read_batch({"a|b": every, "b|a": every})


@pytest.mark.parametrize(
    "masks",
    [
        [np.ones(4), np.ones(4)],
        [np.ones(5), np.ones(4)],
        [(np.ones(2),), (np.ones(2),)],
        [(np.ones(2), np.ones(4)), (np.ones(2), np.ones(4))],
        [(np.ones(3), np.ones(2)), (np.ones(2), np.ones(3))],
        [{"door": np.ones(2)}, {"door": np.ones(3)}],
        [{"door": np.ones(2)}, {"door": np.ones(2)}],
        [{"dor": np.ones(3)}, {"dor": np.ones(3)}],
        [{"door": np.ones(3)}, {"move": np.ones(2)}],
        [{"door": np.ones(3)}, {"door": np.ones(3), "move": np.ones(2)}],
        [[1, 0], [1, 1]],
        [(np.ones(2), np.ones(3)), np.ones(5)],
        [{"door": np.ones(3)}, np.ones(5)],
        [{"door|mov": np.ones((2, 3))}, {"door|mov": np.ones((2, 3))}],
        [(np.ones(2), np.ones(3)), None],
        [None, (np.ones(2), np.ones(3))],
    ],
)
def test_masks_that_do_not_fit_are_errors_of_this_library(masks: list[Any]) -> None:
    with pytest.raises(EsperError):
        MaskReader(SPEC, CPU).read_each(masks)


@pytest.mark.parametrize("masks", [np.ones((2, 6)), np.ones(5), np.ones((2, 3, 3))])
def test_batches_of_masks_that_do_not_fit_are_named(masks: np.ndarray) -> None:
    with pytest.raises(ShapeError, match=str(masks.shape).strip("()")):
        MaskReader(SPEC, CPU).read_batch(masks)


def test_a_choice_in_the_padding_is_an_error() -> None:
    masks = np.array(LEGAL, np.int8)
    masks[1, 0, 2] = 1  # move has two choices
    reader = MaskReader(SPEC, CPU)
    for read in (reader.read_batch, reader.read_each, lambda one: reader.read_batch(objects(*one))):
        with pytest.raises(ShapeError, match=r"environment 1.* choice 2 of head 'move'.* size 2"):
            read(masks)


def test_what_is_read_is_a_copy() -> None:
    masks = np.concatenate([MOVE, DOOR], axis=1).astype(bool)
    read: ChoiceMasks = MaskReader(SPEC, CPU).read_batch(masks)
    masks[:] = False
    assert read.legal.tolist() == LEGAL


MIXED: dict[str, spaces.Space[Any]] = {
    "dict": spaces.Dict(
        {
            "hook": spaces.Discrete(3),
            "speed": spaces.Box(-1.0, 1.0, (2,)),
            "motors": spaces.MultiBinary(2),
            "gears": spaces.MultiDiscrete([2, 3]),
        }
    ),
    "tuple": spaces.Tuple(
        (
            spaces.Discrete(3),
            spaces.Box(-1.0, 1.0, (2,)),
            spaces.MultiBinary(2),
            spaces.MultiDiscrete([2, 3]),
        )
    ),
}
HOOK, BITS = np.array([1, 0, 1], np.int8), np.array([1, 2], np.int8)
GEARS = (np.array([0, 1], np.int8), np.array([1, 1, 0], np.int8))


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("kind", MIXED)
def test_what_gymnasium_samples_by_a_mask_is_what_the_mask_allows_here(
    kind: str, is_batch: bool
) -> None:
    """Gymnasium draws 300 samples by the same mask; those are the legal choices."""
    space = MIXED[kind]
    space.seed(0)
    order = ["hook", "speed", "motors", "gears"]
    names = order if kind == "tuple" else sorted(order)
    by_name = {"hook": HOOK, "speed": None, "motors": BITS, "gears": GEARS}
    mask: Any = by_name if kind == "dict" else tuple(by_name[name] for name in names)
    spec = ActionSpec.from_space(space)
    seen = np.zeros((spec.n_discrete, spec.n_choices), bool)
    for _ in range(300):
        sample = cast(Any, space.sample(mask=mask))
        sample = {name: sample[name if kind == "dict" else i] for i, name in enumerate(names)}
        choices = np.concatenate([np.atleast_1d(sample[n]) for n in names if n != "speed"])
        seen[np.arange(spec.n_discrete), choices] = True
    reader = MaskReader(spec, CPU, space)
    given: Any = [mask, mask]
    if is_batch and kind == "dict":
        given = {name: objects(value, value) for name, value in by_name.items()}
    elif is_batch:
        given = objects(mask, mask)
    read = reader.read_batch(given) if is_batch else reader.read_each(given)
    assert read.legal[0].tolist() == read.legal[1].tolist() == seen.tolist()


def test_none_leaves_a_head_free_in_one_environment_and_not_in_another() -> None:
    for masks in ([(None, DOOR[0]), (MOVE[0], None)], [{"door": None}, {"door": DOOR[0]}]):
        read = MaskReader(SPEC, CPU).read_each(masks)
        rows = [list(map(bool, DOOR[0])), [True] * 3]
        assert sorted(read.legal[:, 1].tolist()) == sorted(rows)


def test_a_list_of_numbers_is_a_mask() -> None:
    spec = ActionSpec.independent([3])
    read = MaskReader(spec, CPU).read_each([[True, False, True], [0, 1, 0]])
    assert read.legal.int().tolist() == [[[1, 0, 1]], [[0, 1, 0]]]


@pytest.mark.parametrize("value", [0.5, -1, 2, float("nan"), 1e-3])
@pytest.mark.parametrize("form", ["flat", "tuple", "dict", "batch", "condition"])
def test_a_value_that_is_neither_0_nor_1_is_named(form: str, value: float) -> None:
    door = np.array([[1, 1, 0], [1, value, 0]])
    if float(value).is_integer():
        door = door.astype(np.int8)
    flat = np.concatenate([MOVE, door], axis=1)
    reader = MaskReader(SPEC, CPU)
    table = np.ones((2, 2, 3))
    table[1, 1, 2] = value
    reads: dict[str, Any] = {
        "flat": lambda: reader.read_each(list(flat)),
        "tuple": lambda: reader.read_each(list(zip(MOVE, door, strict=True))),
        "dict": lambda: reader.read_each([{"door": one} for one in door]),
        "batch": lambda: reader.read_batch(flat),
        "condition": lambda: reader.read_each([{"door|move": one} for one in table]),
    }
    with pytest.raises(ValueRangeError, match=rf"environment 1 holds {value}.* for head 'door"):
        reads[form]()


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([np.ones(5), np.ones(4)], r"environment 1 has shape \(4,\)"),
        ([(np.ones(2), np.ones(3)), (np.ones(2), np.ones(4))], r"environment 1.*\(4,\).*'door'"),
        ([(np.ones(2), np.ones(3)), (np.ones(2),)], r"environment 1 has shape"),
        ([{"door": np.ones(3)}, {"door": np.ones(2)}], r"environment 1.*\(2,\).*'door'"),
        ([{"door|move": np.ones((2, 3))}, {"door|move": np.ones((3, 2))}], r"environment 1.*3, 2"),
    ],
)
def test_a_mask_of_the_wrong_size_names_environment_and_head(
    masks: list[Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        MaskReader(SPEC, CPU).read_each(masks)


def test_a_box_has_no_mask() -> None:
    space = spaces.Dict({"move": spaces.Discrete(2), "speed": spaces.Box(0.0, 1.0, (3,))})
    reader = MaskReader(ActionSpec.from_space(space), CPU, space)
    with pytest.raises(ShapeError, match=r"environment 1.*'speed'"):
        reader.read_each([{"speed": None}, {"speed": np.ones(3)}])


KINDS_OF_ARRAY: dict[str, Any] = {
    "bool": lambda mask: mask,
    "int8": lambda mask: mask.astype(np.int8),
    "uint8": lambda mask: mask.astype(np.uint8),
    "int64": lambda mask: mask.astype(np.int64),
    "float32": lambda mask: mask.astype(np.float32),
    "every other byte": lambda mask: np.repeat(mask.astype(np.int8), 2)[::2],
    "list": lambda mask: mask.tolist(),
}


@pytest.mark.parametrize("first", KINDS_OF_ARRAY)
@pytest.mark.parametrize("others", KINDS_OF_ARRAY)
@pytest.mark.parametrize("n_envs", [1, 3, 5])
def test_masks_of_any_kinds_of_arrays_are_read_alike(first: str, others: str, n_envs: int) -> None:
    random, sizes = np.random.default_rng(n_envs), (2, 5, 3)
    reader = MaskReader(ActionSpec.independent(sizes), CPU)
    for _ in range(2):  # the reader remembers the number of environments
        n_envs += 1
        flags = [[random.random(size) < 0.5 for size in sizes] for _ in range(n_envs)]
        expected = np.zeros((n_envs, 3, 5), np.bool_)
        for env, heads in enumerate(flags):
            for head, mask in enumerate(heads):
                expected[env, head, : len(mask)] = mask
        kinds = [KINDS_OF_ARRAY[others if env else first] for env in range(n_envs)]
        pairs = list(zip(kinds, flags, strict=True))
        of_heads = [tuple(kind(mask) for mask in heads) for kind, heads in pairs]
        flat = [kind(np.concatenate(heads)) for kind, heads in pairs]
        for masks in (of_heads, flat):
            assert np.array_equal(reader.read_each(masks).legal.numpy(), expected)


def test_masks_that_only_fit_together_are_rejected() -> None:
    reader = MaskReader(ActionSpec.independent((2, 2)), CPU)
    one = np.ones(2, np.int8)
    with pytest.raises(ShapeError, match="environment 0"):
        reader.read_each([(one, one, one), (one,)])
    with pytest.raises(ShapeError, match="environment 1"):
        reader.read_each([np.ones(4, np.int8), np.ones((4, 1), np.int8)])
    with pytest.raises(ValueRangeError, match=r"environment 1 holds 2 for head"):
        reader.read_each([(one, one), (one, 2 * one)])
    with pytest.raises(ValueRangeError, match=r"environment 1 holds 2 for head"):
        reader.read_each([np.ones(4, np.int8), np.full(4, 2, np.int8)])
