"""Settings of growth are validated and frozen."""

import dataclasses

import pytest

from esper.config.growth import Budget, GovernorConfig, GrowthConfig
from esper.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_training_epochs": -1}, "min_training_epochs is -1"),
        ({"min_training_epochs": 1.0}, r"min_training_epochs is 1\.0"),
        ({"min_holding_epochs": -1}, "min_holding_epochs is -1; .* at least 0"),
        ({"min_holding_epochs": True}, "min_holding_epochs is True"),
        ({"embargo_epochs": 0}, "embargo_epochs is 0; .* at least 1"),
        ({"embargo_epochs": "2"}, "embargo_epochs is '2'"),
        ({"deepen_start": "stacked"}, "deepen_start is 'stacked'; .*copied, fresh"),
    ],
)
def test_invalid_growth_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GrowthConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_losses": 1}, "warmup_losses is 1; .* at least 2"),
        ({"memory": 1.0}, r"memory is 1\.0; .* \[0, 0\.9999\]"),
        ({"memory": -0.1}, r"memory is -0\.1"),
        ({"memory": float("nan")}, "memory is nan"),
        ({"outlier_deviations": 0.0}, r"outlier_deviations is 0\.0; .* greater than 0"),
        ({"outlier_deviations": float("inf")}, "outlier_deviations is inf"),
        ({"outlier_factor": 0.5}, r"outlier_factor is 0\.5; .* at least 1"),
        ({"warmup_factor": 0.5}, r"warmup_factor is 0\.5; .* at least 1"),
        ({"untrained_loss": 0.0}, r"untrained_loss is 0\.0; .* greater than 0"),
    ],
)
def test_invalid_governor_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GovernorConfig(**settings)  # type: ignore[arg-type]


def test_the_smallest_allowed_settings_are_accepted() -> None:
    least = GrowthConfig(min_training_epochs=0, min_holding_epochs=0, embargo_epochs=1)
    assert dataclasses.astuple(least) == (0, 0, 1, False, False, None, "copied")
    edge = GovernorConfig(warmup_losses=2, memory=0, outlier_deviations=0.1, outlier_factor=1)
    edge = dataclasses.replace(edge, outlier_floor=0)
    edge = dataclasses.replace(edge, warmup_factor=1, untrained_loss=1e-9)
    assert dataclasses.astuple(edge) == (2, 1, 1e-9, 0, 0.1, 1, 0)


@pytest.mark.parametrize("config", [GrowthConfig(), GovernorConfig(), Budget()])
def test_settings_are_frozen(config: object) -> None:
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field.name, 1)


def test_settings_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        GrowthConfig(1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_epochs": 0}, "n_epochs is 0; .* at least 1"),
        ({"n_epochs": 2.0}, r"n_epochs is 2\.0"),
        ({"n_epochs": True}, "n_epochs is True"),
        ({"flop_price": -0.1}, r"flop_price is -0\.1; .* at least 0"),
        ({"flop_price": float("inf")}, "flop_price is inf"),
        ({"parameter_rent": -1}, "parameter_rent is -1; .* at least 0"),
        ({"parameter_rent": float("nan")}, "parameter_rent is nan"),
        ({"parameter_rent": "0"}, "parameter_rent is '0'"),
    ],
)
def test_invalid_budgets_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget(**settings)  # type: ignore[arg-type]


def test_the_smallest_allowed_budget_is_accepted() -> None:
    least = Budget(n_epochs=1, flop_price=0, parameter_rent=0.0)
    assert dataclasses.astuple(least) == (1, 0, 0)
