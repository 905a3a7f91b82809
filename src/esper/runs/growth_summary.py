"""What growing a model came to, in numbers and in sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GrowthSummary:
    """What growing a model came to. Printing it gives sentences."""

    metric: str
    """What models are judged by."""
    before: float
    """The metric of the given model on all of the validation data."""
    after: float
    """The same of the model that is returned."""
    grown: float
    """The same of the trained model with what was committed, whether it is returned or not."""
    parameters_before: int
    parameters_after: int
    """Of the model that is returned."""
    flops: float
    """Computing spent, as a share of training the given model for the whole budget."""
    n_epochs: int
    """Epochs that were trained."""
    budget_epochs: int
    """Epochs that the budget allows."""
    seeds: tuple[tuple[str, str], ...]
    """The slot and the blueprint of each seed that the returned model has."""
    was_kept: bool
    """Whether the trained model is better on validation and is returned; if not, the given model
    is."""
    controller: str
    """Who decided."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What there is to say, one thing in each sentence."""
        return (self._result(), self._growth(), self._cost())

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _result(self) -> str:
        if not self.was_kept:
            return (
                f"The model is returned as it was given: {self.metric} {self.before:.4g} on "
                f"validation; trained and grown it had {self.grown:.4g}, which is no better."
            )
        return (
            f"{self.metric.capitalize()} on validation went from {self.before:.4g} to "
            f"{self.after:.4g}."
        )

    def _growth(self) -> str:
        if not self.was_kept:
            return f"It has {self.parameters_after:,} parameters, as before."
        if not self.seeds:
            return f"It was trained, and nothing was grown: {self.parameters_after:,} parameters."
        listed = ", ".join(f"{blueprint} in {slot}" for slot, blueprint in self.seeds)
        added = self.parameters_after - self.parameters_before
        return (
            f"Grown: {listed}; {self.parameters_before:,} parameters became "
            f"{self.parameters_after:,} ({added:+,})."
        )

    def _cost(self) -> str:
        return (
            f"The controller {self.controller} used {self.n_epochs} of {self.budget_epochs} epochs "
            f"and {self.flops:.0%} of the FLOPs of training the given model for all of them."
        )
