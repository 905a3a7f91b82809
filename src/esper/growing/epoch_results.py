"""What a training loop says about an epoch: checked, and the same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

from esper.config.checks import as_number
from esper.errors import ConfigError, GrowerError, type_of
from esper.growth.ranks import Call, Ranks


class EpochResults(NamedTuple):
    """How a model does after an epoch."""

    train_loss: float | None
    val_loss: float | None
    """Not finite if the epoch ruined the model."""
    score: float

    @property
    def finite_val_loss(self) -> float | None:
        """The validation loss, if it is finite."""
        return self.val_loss if math.isfinite(self.val_loss or 0.0) else None


class EpochReader:
    """Reads what a loop gives at the end of an epoch."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.first_val_loss: float | None = None

    def read(
        self,
        train_loss: float | None,
        val_loss: float | None,
        score: float | None,
        mean_loss: float | None,
    ) -> EpochResults:
        """Return the losses and the score of the epoch, the mean over all ranks.

        Args:
            train_loss: As given; ``mean_loss`` counts instead of none, and of one that is not
                finite, because the governor left bad batches out.
            val_loss: As given.
            score: As given; None for how much lower the validation loss is than at first.
            mean_loss: The mean of the good training losses.

        Raises:
            GrowerError: If there is no score and no validation loss, or one is not finite.
        """
        given = {"train_loss": train_loss, "val_loss": val_loss, "score": score}
        read = {n: None if v is None else as_number(n, v) for n, v in given.items()}
        if not math.isfinite(read["train_loss"] or 0.0) or read["train_loss"] is None:
            read["train_loss"] = mean_loss
        agreed = self._ranks.mean(Call.END_EPOCH, list(read.values()))
        means = {n: value for n, value in zip(read, agreed, strict=True) if value is not None}
        if "val_loss" not in means and "score" not in means:
            raise GrowerError(
                "end_epoch has neither score nor val_loss; the controller decides by how the model "
                "does on data that it is not trained on, so give it one of them."
            )
        for name, value in means.items():
            if not math.isfinite(value) and not (name == "val_loss" and "score" in means):
                raise GrowerError(
                    f"{name} is {value}; it must be finite. The model is as it was: end the epoch "
                    "again with another value, or export it."
                )
        if self.first_val_loss is None and math.isfinite(means.get("val_loss", math.nan)):
            self.first_val_loss = means["val_loss"]
        if "score" not in means:
            means["score"] = relative_drop(cast(float, self.first_val_loss), means["val_loss"])
        return EpochResults(means.get("train_loss"), means.get("val_loss"), means["score"])

    def make_validation(self, validate: Callable[[], float] | None) -> Callable[[], float] | None:
        """Return what scores the model on all ranks; None if no rank can validate.

        A rank without a function takes part in the mean of the others.
        """
        flags = self._ranks.exchange(Call.VALIDATE, [validate is not None])
        if not any(has for (has,) in flags):
            return None

        def run() -> float:
            own = None if validate is None else as_number("what validate() returns", validate())
            (mean,) = self._ranks.mean(Call.VALIDATE, [own])
            if mean is None or not math.isfinite(mean):
                raise GrowerError(
                    f"what validate() returns is {mean}; it must be a finite number, the score of "
                    "the model as it is. Nothing has changed: end the epoch again."
                )
            return mean

        return run


def require_function(validate: object) -> None:
    """Reject what cannot validate."""
    if validate is not None and not callable(validate):
        raise ConfigError(
            f"validate is {type_of(validate)}; it must be a function that returns the score of "
            "the model as it is."
        )


def relative_drop(first: float, loss: float) -> float:
    """Return how much lower a loss is than the first one, as a share of that."""
    return (first - loss) / max(abs(first), 1e-12)
