"""Settings as frozen dataclasses, checked when they are built. Nothing here imports torch."""

from esper.config.growth import GovernorConfig, GrowthConfig
from esper.config.learning import PolicyConfig, PPOConfig

__all__ = ["GovernorConfig", "GrowthConfig", "PPOConfig", "PolicyConfig"]
