"""Budgets are checked when they are made, and each mistake is named."""

import dataclasses
import subprocess
import sys

import pytest

from esper.config.growth import Budget
from esper.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_epochs": 0}, "n_epochs is 0; it must be a whole number of at least 1"),
        ({"n_epochs": 2.0}, r"n_epochs is 2\.0"),
        ({"n_epochs": True}, "n_epochs is True"),
        ({"flop_price": -0.1}, r"flop_price is -0\.1; it must be a finite number at least 0"),
        ({"flop_price": float("inf")}, "flop_price is inf"),
        ({"parameter_rent": -1}, "parameter_rent is -1; it must be a finite number at least 0"),
        ({"parameter_rent": float("nan")}, "parameter_rent is nan"),
        ({"parameter_rent": "0"}, "parameter_rent is '0'"),
    ],
)
def test_bad_budgets_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget(**settings)  # type: ignore[arg-type]


def test_the_least_budget_that_is_allowed() -> None:
    least = Budget(n_epochs=1, flop_price=0, parameter_rent=0.0)
    assert dataclasses.astuple(least) == (1, 0, 0)


def test_a_budget_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Budget().n_epochs = 2  # type: ignore[misc]


def test_budgets_can_be_read_without_torch() -> None:
    script = "import sys, esper.config.growth; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
