"""Settings: frozen dataclasses that validate themselves. Nothing here imports torch."""

from esper.config.growth import GovernorConfig, GrowthConfig
from esper.config.learning import PolicyConfig, PPOConfig

__all__ = ["GovernorConfig", "GrowthConfig", "PPOConfig", "PolicyConfig"]
