"""Registers Esper's environments with Gymnasium, without importing torch.

Importing :mod:`esper.environment` registers them; so does importing :mod:`esper` if Gymnasium is
already loaded. ``gymnasium.make("esper.environment:Esper/Growth-v0")`` needs neither import.
Importing :mod:`esper` alone does not import Gymnasium, which would take four times as long.
"""

from __future__ import annotations

ENVIRONMENT_ID = "Esper/Growth-v0"


def register_environments() -> None:
    """Register the environments unless they are registered already."""
    import gymnasium

    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(
            ENVIRONMENT_ID,
            entry_point="esper.environment:GrowthEnv",
            vector_entry_point="esper.environment:GrowthVectorEnv",
        )
