"""The handwritten digits that come with the package; see ``data/README.md`` for their source."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

LEVELS = 16
"""The value of a pixel that is all ink; 0 is paper."""


def load_digits() -> tuple[Tensor, Tensor]:
    """Return the images ``[1797, 1, 8, 8]``, float32 in [0, 1], and the labels ``[1797]``, int64.

    The order is scikit-learn's, which is not random; shuffle before splitting.
    """
    with (
        files("esper.tasks").joinpath("data", "digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        images = torch.from_numpy(arrays["images"]).to(torch.float32).div_(LEVELS)
        labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
    return images.unsqueeze(1), labels
