"""What hosts are trained for and judged by. Shapes: any axes ``...``, K classes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn.functional import cross_entropy


class Objective(Protocol):
    """A loss and a metric of each prediction, whatever axes are in front of it."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each prediction, differentiable."""
        ...

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return how good each prediction is; its mean is the metric."""
        ...


class CrossEntropy:
    """Classification: logits ``[..., K]`` and class numbers ``[...]``; the metric is accuracy."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return minus the log-probability of each target, in the shape of ``targets``."""
        flat = cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def require_classes(self, n_classes: int, targets: Tensor) -> None:
        """Refuse targets that are not one of the classes.

        Raises:
            ValueError: If there is one.
        """
        least, most = int(targets.min()), int(targets.max())
        if least < 0 or most >= n_classes:
            raise ValueError(f"a target is {least if least < 0 else most}; there are {n_classes}.")

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 where the largest logit is the target's and 0 elsewhere."""
        return (outputs.argmax(-1) == targets).to(outputs.dtype)


def sample_means(values: Tensor) -> Tensor:
    """Return the mean of each sample's predictions ``[B, ...]``, as ``[B]`` in double precision."""
    values = values.double()
    return values if values.ndim == 1 else values.flatten(1).mean(1)
