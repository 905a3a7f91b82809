"""Options that the built-in tasks share: each names the option, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable

from esper.config.population import PopulationConfig
from esper.config.tasks import Budget
from esper.errors import TaskError, did_you_mean


def require_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse an option that is none of the allowed values.

    Raises:
        TaskError: If it is not.
    """
    allowed = tuple(allowed)
    if value not in allowed:
        words = [str(choice) for choice in allowed]
        raise TaskError(
            f"{name} is {value!r}; it must be one of {', '.join(words)}."
            f"{did_you_mean(value, words)}"
        )


def budget(n_epochs: int | None, default: int) -> Budget:
    """Return a budget of so many epochs, or of the task's own number."""
    return Budget(n_epochs=default if n_epochs is None else n_epochs)


def training(
    *, batch_size: int, learning_rate: float, batches_per_epoch: int | None
) -> PopulationConfig:
    """Return how the hosts of a built-in task are trained."""
    return PopulationConfig(
        batch_size=batch_size, learning_rate=learning_rate, batches_per_epoch=batches_per_epoch
    )
