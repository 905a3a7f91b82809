"""Validation accepts numbers of any library and rejects everything else."""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from esper.config.checks import make_numbers_plain, require_choice, require_int, require_number
from esper.config.controllers import HeuristicConfig
from esper.config.growth import Budget, PopulationConfig
from esper.errors import ConfigError


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize("value", [3, 7, np.int64(3), np.int8(3), np.uint16(3)])
def test_integers_of_any_type_are_accepted(value: Any) -> None:
    require_int("n", value, least=3)
    require_number("n", value, least=3.0, most=7.0)


@pytest.mark.parametrize(
    "value", [2, np.int64(2), 3.0, np.float64(3), True, np.True_, "3", None, np.array(3)]
)
def test_other_values_and_small_integers_are_rejected(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"n is .* at least 3"):
        require_int("n", value, least=3)


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.float16(0.5), np.float64(0.5)])
def test_numbers_of_any_type_are_accepted(value: Any) -> None:
    require_number("rate", value, above=0.0, most=1.0)


@pytest.mark.parametrize(
    "value",
    [0.0, np.float32(0), np.float32(1.5), np.float32("nan"), np.float64("inf"), True, "1", 0.5j],
)
def test_numbers_out_of_range_and_other_values_are_rejected(value: Any) -> None:
    with pytest.raises(ConfigError, match="rate is "):
        require_number("rate", value, above=0.0, most=1.0)


@pytest.mark.parametrize("value", [14, 14.0, np.int32(14), np.float32(14)])
def test_a_choice_is_returned_as_the_allowed_value(value: Any) -> None:
    chosen = require_choice("size", value, (28, 14))
    assert chosen == 14
    assert type(chosen) is int


def test_strings_and_enum_members_are_choices() -> None:
    assert require_choice("host", "mlp", {"cnn": 1, "mlp": 2}) == "mlp"
    assert require_choice("colour", Colour.RED, tuple(Colour)) is Colour.RED


@pytest.mark.parametrize("value", [True, np.True_, 13, "28", None, [14], np.array([14, 28]), {}])
def test_other_values_are_rejected_with_the_choices(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"size is .* 28, 14, 1\."):
        require_choice("size", value, (28, 14, 1))
    with pytest.raises(ConfigError, match=r"host is 'mpl'.*Did you mean 'mlp'\?"):
        require_choice("host", "mpl", ("cnn", "mlp"))


def test_numbers_of_other_libraries_become_python_numbers() -> None:
    @dataclass(frozen=True)
    class Settings:
        values: tuple[Any, ...]
        value: Any

    for given, kind in (
        (np.int64(3), int),
        (np.float32(0.5), float),
        (np.float64(0.25), float),
        (Fraction(1, 8), float),
        (True, bool),
        ("a", str),
        (None, type(None)),
    ):
        settings = Settings((given,), given)
        make_numbers_plain(settings)
        assert type(settings.value) is kind
        assert settings.value == given
        assert settings.values == (given,)


def test_settings_hold_plain_numbers() -> None:
    assert type(Budget(n_epochs=np.int64(3)).n_epochs) is int  # type: ignore[arg-type]
    assert type(Budget(flop_price=np.float32(1)).flop_price) is float  # type: ignore[arg-type]
    training = PopulationConfig(batch_size=np.int16(8), learning_rate=np.float32(0.01))  # type: ignore[arg-type]
    assert (type(training.batch_size), type(training.learning_rate)) == (int, float)
    assert type(HeuristicConfig(max_prunes=np.int64(1)).max_prunes) is int  # type: ignore[arg-type]
