"""Every declared setting accepts what it allows and rejects the rest by name and value."""

import dataclasses
import math
import re
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest

from esper.config.checks import (
    MAX_INT,
    Bounds,
    NonNegativeFloat,
    PositiveInt,
    Settings,
    check,
    require_choice,
    types_of,
)
from esper.config.controllers import HeuristicConfig
from esper.config.growth import (
    Budget,
    CNNHostConfig,
    GovernorConfig,
    GPTHostConfig,
    GrowthConfig,
    MLPHostConfig,
    PopulationConfig,
    RewardConfig,
)
from esper.config.learning import NetworkConfig, PolicyConfig, PPOConfig
from esper.config.run import (
    CheckpointConfig,
    EvaluationConfig,
    RunConfig,
    ScheduleConfig,
    TelemetryConfig,
)
from esper.errors import ConfigError

SETTINGS: list[type[Any]] = [
    Budget,
    CheckpointConfig,
    CNNHostConfig,
    EvaluationConfig,
    GovernorConfig,
    GPTHostConfig,
    GrowthConfig,
    HeuristicConfig,
    MLPHostConfig,
    NetworkConfig,
    PolicyConfig,
    PopulationConfig,
    PPOConfig,
    RewardConfig,
    RunConfig,
    ScheduleConfig,
    TelemetryConfig,
]
FIELDS = [(cls, name, kind) for cls in SETTINGS for name, kind in types_of(cls).items()]
ANYTHING = [object(), [], {}, "?", 1j, math.nan, math.inf, np.array([1, 2]), b"1", "1"]


class Colour(Enum):
    RED = "red"


def _bounds(kind: Any) -> Bounds:
    for member in (kind, *get_args(kind)):
        for part in get_args(member):
            if isinstance(part, Bounds):
                return part
    return Bounds()


def _outside(kind: Any) -> list[Any]:
    """Return numbers just outside the bounds of a declaration."""
    bounds = _bounds(kind)
    ends = [bounds.minimum - 1, np.float64(bounds.minimum) - 1, bounds.above, bounds.maximum + 1]
    return [end for end in ends if math.isfinite(end)]


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS)
def test_a_setting_rejects_what_it_does_not_allow(cls: type[Any], name: str, kind: Any) -> None:
    taken = [dict, list, tuple] if name in ("task_options", "sinks", "blueprints") else []
    taken += [list, tuple] if name in ("hidden_sizes", "value_sizes") else []
    wrong = [value for value in ANYTHING if type(value) not in taken]
    wrong = [value for value in wrong if not (kind is str and isinstance(value, str))]
    for value in [*wrong, *_outside(kind)]:
        with pytest.raises(ConfigError) as raised:
            cls(**{name: value})
        message = str(raised.value)
        assert message.startswith(f"{name} is ")
        assert "; it must be " in message
        assert len(message.splitlines()) == 1


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS)
def test_true_is_not_a_number_and_one_is_not_true(cls: type[Any], name: str, kind: Any) -> None:
    wrong = 1 if kind is bool else True
    with pytest.raises(ConfigError, match=f"^{name} is {wrong}; "):
        cls(**{name: wrong})


@pytest.mark.parametrize(("cls", "name", "kind"), FIELDS)
def test_a_setting_accepts_the_ends_of_its_range(cls: type[Any], name: str, kind: Any) -> None:
    bounds = _bounds(kind)
    # Rules between settings: a width has whole heads, limits follow each other, gammas are equal.
    if name in ("n_heads", "width", "n_minibatches", "training_epochs", "holding_epochs"):
        return
    for end in (bounds.minimum, bounds.maximum):
        if math.isfinite(end):
            value = (end,) if get_origin(kind) is tuple else end
            assert getattr(cls(**{name: value}), name) == value
    if type(None) in get_args(kind):
        assert getattr(cls(**{name: None}), name) is None


@pytest.mark.parametrize("cls", SETTINGS)
def test_settings_are_frozen_and_keyword_only(cls: type[Any]) -> None:
    settings = cls()
    for field in dataclasses.fields(settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, 1)
    with pytest.raises(TypeError, match="positional"):
        cls(1)


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        (np.int64(3), PositiveInt, 3),
        (np.uint16(3), PositiveInt, 3),
        (np.float32(0.5), NonNegativeFloat, 0.5),
        (np.int8(2), NonNegativeFloat, 2.0),
        (Fraction(1, 8), float, 0.125),
        (2, float, 2.0),
        (True, bool, True),
        (None, PositiveInt | None, None),
        ("a", Literal["a", "b"], "a"),
        ([np.int32(1), 2], tuple[PositiveInt, ...], (1, 2)),
        (Colour.RED, Colour, Colour.RED),
        ({"a": np.float64(0.5)}, dict[str, float], {"a": 0.5}),
    ],
)
def test_values_become_those_of_python(given: Any, kind: Any, expected: Any) -> None:
    # repr distinguishes 1, 1.0 and True, which are equal.
    assert repr(check("x", given, kind)) == repr(expected)


@pytest.mark.parametrize(
    ("value", "kind", "named"),
    [
        (2, Annotated[int, Bounds(3)], r"x is 2; .* 3\."),
        (np.array(3), PositiveInt, r"x is array\(3\)"),
        (MAX_INT + 1, PositiveInt, rf"x is {MAX_INT + 1}; .* {MAX_INT}"),
        (10**400, float, "x is 1000"),
        (np.True_, bool, "x is "),
        ("b", Literal["bb", "c"], r"x is 'b'; .*Did you mean 'bb'\?"),
        ((1, 0), tuple[PositiveInt, ...], r"x\[1\] is 0"),
        ({"a": math.inf}, dict[str, float], r"x\.a is inf"),
        ({1: 2}, dict[str, int], "name in x is 1"),
        ("red", Colour, r"x is 'red'; .*Colour\.RED"),
        (0, PositiveInt | None, "x is 0; .* None"),
    ],
)
def test_the_error_names_the_value_and_what_is_allowed(value: Any, kind: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check("x", value, kind)


def test_rules_between_settings_name_both() -> None:
    for cls, values in (
        (GPTHostConfig, {"width": 16, "n_heads": 3}),
        (HeuristicConfig, {"training_epochs": 5, "training_patience": 4}),
        (HeuristicConfig, {"holding_epochs": 3, "judging_epochs": 2}),
        (HeuristicConfig, {"finish_rise": 0.5, "plateau_rise": 0.25}),
    ):
        with pytest.raises(ConfigError) as raised:
            cls(**values)
        for name, value in values.items():
            assert re.search(rf"\b{name}\b", str(raised.value))
            assert str(value) in str(raised.value)


def test_a_class_of_settings_is_checked_by_its_declarations() -> None:
    @dataclasses.dataclass(frozen=True)
    class Size(Settings):
        width: PositiveInt = 1

    globals()["Size"] = Size
    assert type(Size(width=np.int64(3)).width) is int  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^width is 0"):
        Size(width=0)


@pytest.mark.parametrize("value", [14, 14.0, np.int32(14), np.float32(14)])
def test_a_choice_is_returned_as_the_allowed_value(value: Any) -> None:
    chosen = require_choice("size", value, (28, 14))
    assert chosen == 14
    assert type(chosen) is int


def test_strings_and_enum_members_are_choices() -> None:
    assert require_choice("host", "mlp", {"cnn": 1, "mlp": 2}) == "mlp"
    assert require_choice("colour", Colour.RED, tuple(Colour)) is Colour.RED


@pytest.mark.parametrize("value", [True, np.True_, 13, "28", None, [14], np.array([14, 28]), {}])
def test_other_choices_are_rejected_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"size is .* 28, 14, 1\."):
        require_choice("size", value, (28, 14, 1))
    with pytest.raises(ConfigError, match=r"host is 'mpl'.*Did you mean 'mlp'\?"):
        require_choice("host", "mpl", ("cnn", "mlp"))
