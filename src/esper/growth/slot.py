"""What all slots have in common, whatever grows in them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

from esper.growth.blueprints import find_blueprint
from esper.growth.sharding import total_norm
from esper.growth.sites import SlotSite
from esper.growth.slot_states import SlotLife, SlotStates
from esper.lifecycle.stages import Stage


class SlotBase:
    """A named place of a model with the life of its seed."""

    site: SlotSite
    is_off: bool
    """Whether the seed is disabled, to measure what it contributes; committed ones never are."""
    starts_blended: bool = False
    """Whether seeds skip isolated training, because they start at zero."""
    _lives: SlotStates

    @property
    def name(self) -> str:
        """The slot's name."""
        return self.site.name

    @property
    def life(self) -> SlotLife:
        """The life of the slot's seed."""
        return self._lives[self.site.name]

    @property
    def stage(self) -> Stage:
        """The slot's stage."""
        return self.life.stage

    @property
    def alpha(self) -> float:
        """How strongly the seed is blended in, 0 to 1."""
        return self.life.alpha

    @abstractmethod
    def refresh(self) -> None:
        """Let the model compute what the life says; called whenever that may have changed."""

    @abstractmethod
    def seed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are the seed's alone."""

    @contextmanager
    def switched_off(self) -> Generator[None]:
        """Disable the seed inside the context."""
        was_off, self.is_off = self.is_off, True
        self.refresh()
        try:
            yield
        finally:
            self.is_off = was_off
            self.refresh()

    def gradient_norm(self) -> float:
        """Return the norm of the gradients of the uncommitted seed's parameters; 0 without any."""
        own = self.seed_parameters() if self.life.is_growing else []
        grads = [p.grad for p in own if p.grad is not None]
        return total_norm(grads) if grads else 0.0

    def explain_misfit(self, blueprint: str) -> str:
        """Return why a blueprint does not fit the slot."""
        return find_blueprint(blueprint).why_not(self.site) or "its slots leave it out"
