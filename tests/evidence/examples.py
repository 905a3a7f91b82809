"""Made-up results of controllers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from esper.results.arms import Arm, Kind
from esper.results.evidence import Evidence

PRICE = 0.2


def make_arm(
    name: str,
    score: Any,
    *,
    label: str = "",
    kind: Kind = "simple",
    flops: Any = 0.5,
    parameters: Any = 1000.0,
    grown_share: Any = 0.0,
    tuning_runs: int = 0,
) -> Arm:
    """Return an arm with the same FLOPs, parameters and epochs for all hosts."""
    shape = np.shape(score)

    def spread(value: Any) -> Any:
        return np.broadcast_to(np.asarray(value, float), shape)

    sizes = np.broadcast_to(np.asarray(parameters, float), shape)
    # The first hosts are the grown ones.
    grown = np.arange(shape[1]) < np.broadcast_to(grown_share, shape[0])[:, None] * shape[1]
    return Arm(
        name=name,
        label=label or f"the {name} arm",
        kind=kind,
        setting=f"setting of {name}",
        score=score,
        returns=np.asarray(score, float) - PRICE * spread(flops),
        flops=spread(flops),
        parameters=sizes,
        grown_parameters=np.where(grown, 0.1 * sizes, 0.0),
        n_epochs=spread(12.0),
        tuning_runs=tuning_runs,
    )


def make_evidence(*arms: Arm, price: float = PRICE, **values: Any) -> Evidence:
    """Return evidence of arms at a price, the first of which claims are about."""
    arms = tuple(replace(arm, returns=arm.score - price * arm.flops) for arm in arms)
    facts: dict[str, Any] = {
        "task": "digits-family",
        "task_options": {"n_epochs": 16, "host": "mlp"},
        "price": price,
        "seed": 3,
        "runs": tuple(f"run{number}" for number in range(arms[0].n_runs)),
        "arms": arms,
        "learned": arms[0].name,
        "created": "2030-01-02T03:04:05",
        "versions": {"esper": "0.1.0"},
        "command": "esper evaluate run0",
    }
    return Evidence(**facts | values)


def make_hosts(n_runs: int, n_hosts: int, *, gain: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return scores with a part that all arms share and noise of their own."""
    common = 0.7 + 0.1 * np.random.default_rng(99).normal(size=n_hosts)
    own = 0.02 * np.random.default_rng(seed).normal(size=(n_runs, n_hosts))
    return common + own - own.mean() + gain
