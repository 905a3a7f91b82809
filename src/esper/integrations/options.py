"""What all adapters share: their options, the metrics they log, and missing packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from esper.errors import ConfigError, did_you_mean
from esper.growing.decisions import Decision

GROWER_OPTIONS = ("at", "controller", "ema", "price", "sample_input", "seed")
"""Arguments of :class:`esper.Grower` that adapters pass on as they are."""


def require_options(given: Mapping[str, Any]) -> None:
    """Raise if an option is not one that adapters pass on.

    Raises:
        ConfigError: With its name.
    """
    for name in given:
        if name not in GROWER_OPTIONS:
            raise ConfigError(
                f"option {name!r} does not exist; options for the Grower are "
                f"{', '.join(GROWER_OPTIONS)}.{did_you_mean(name, GROWER_OPTIONS)}"
            )


def read_metric(metrics: Mapping[str, Any], name: str | None, *, is_needed: bool) -> float | None:
    """Return a metric of an epoch, or None if it is neither there nor needed.

    Raises:
        ConfigError: If it is needed, with the metrics that there are.
    """
    if name is not None and name in metrics:
        return float(metrics[name])
    if is_needed:
        known = ", ".join(sorted(map(str, metrics))) or "none"
        raise ConfigError(
            f"metric {name!r} was not logged in this epoch; logged were: {known}. Name another as "
            "score= (more is better) or val_loss=, and validate after every epoch."
        )
    return None


def metrics_of(decision: Decision) -> dict[str, float]:
    """Return the metrics of growth that adapters log after each epoch."""
    growing = [stage for stage in decision.stages.values() if stage != "fossilized"]
    return {
        "growth/score": decision.score,
        "growth/flops": decision.flops,
        "growth/parameters": float(decision.parameters),
        "growth/seed_parameters": float(decision.seed_parameters),
        "growth/growing_seeds": float(len(growing)),
    }


def import_library(module: str, extra: str) -> Any:
    """Return a module of another library.

    Raises:
        ConfigError: If it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"esper.integrations.{extra} needs {error.name}, which is not installed; run: "
            f'pip install "esper-lite[{extra}]"'
        ) from error
