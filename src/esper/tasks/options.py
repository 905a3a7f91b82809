"""Options that the built-in tasks share."""

from __future__ import annotations

from esper.config.population import PopulationConfig
from esper.config.tasks import Budget


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
