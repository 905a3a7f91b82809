"""The catalogue of host designs: networks as users write them, most of them small."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from esper.config.growth import MLP_ACTIVATIONS, CNNHostConfig, GPTHostConfig, MLPHostConfig
from esper.growth.hosts import HostMaker
from esper.tasks.data import log_uniform

MAX_SLOTS = 4
N_FEATURES = (2, 64)
N_OUTPUTS = {2: 0.35, 3: 0.2, 5: 0.2, 10: 0.15, 26: 0.1}
"""The share of classifiers with each number of outputs."""
N_BLOCKS = (0.35, 0.35, 0.2, 0.1)
"""The share of MLPs with 1, 2, 3 and 4 blocks."""
HIDDEN = (2, 64)
SMALLNESS = 2.0
"""Exponent of the uniform number that determines ``hidden``; above 1, small sizes prevail."""
WIDTHS = (4, 32)
CONTEXT = 16


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All designs, each a host factory that draws share, by what they can learn."""

    classifiers: tuple[HostMaker, ...]
    regressors: tuple[HostMaker, ...]
    digit_classifiers: tuple[HostMaker, ...]
    image_classifiers: tuple[HostMaker, ...]
    token_predictors: tuple[HostMaker, ...]

    @property
    def designs(self) -> tuple[HostMaker, ...]:
        """All designs."""
        vectors = (*self.classifiers, *self.regressors, *self.digit_classifiers)
        return (*vectors, *self.image_classifiers, *self.token_predictors)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Return the 160 designs, which are the same everywhere."""
    rng, shares = np.random.Generator(np.random.PCG64(20)), list(N_OUTPUTS.values())
    return Catalogue(
        classifiers=tuple(
            _mlp(rng, n_outputs=int(rng.choice(list(N_OUTPUTS), p=shares))) for _ in range(108)
        ),
        regressors=tuple(_mlp(rng, n_outputs=1) for _ in range(28)),
        digit_classifiers=tuple(_mlp(rng, n_outputs=10, n_features=64) for _ in range(12)),
        image_classifiers=tuple(_cnn(rng) for _ in range(8)),
        token_predictors=tuple(_gpt(rng) for _ in range(4)),
    )


def _mlp(rng: np.random.Generator, *, n_outputs: int, n_features: int | None = None) -> HostMaker:
    """Draw an MLP whose residual stream is wide enough to tell the classes apart."""
    min_width = {10: 8, 26: 16}.get(n_outputs, WIDTHS[0])
    minimum, maximum = HIDDEN
    config = MLPHostConfig(
        n_features=n_features or round(log_uniform(rng, *N_FEATURES)),
        n_classes=n_outputs,
        width=round(log_uniform(rng, min_width, WIDTHS[1])),
        hidden=round(minimum * (maximum / minimum) ** (rng.random() ** SMALLNESS)),
        n_blocks=1 + int(rng.choice(len(N_BLOCKS), p=N_BLOCKS)),
        has_skips=bool(rng.random() < 0.5),
        activation=MLP_ACTIVATIONS[rng.choice(3, p=(0.5, 0.3, 0.2))],
        has_norm=bool(rng.random() < 0.35),
    )
    return HostMaker(config, has_modules=False)


def _cnn(rng: np.random.Generator) -> HostMaker:
    config = CNNHostConfig(
        image_size=8,
        n_channels=1,
        n_classes=10,
        width=int(rng.integers(3, 7)),
        hidden=int(rng.integers(2, 7)),
        n_blocks=int(rng.integers(1, 3)),
    )
    return HostMaker(config, has_modules=False)


def _gpt(rng: np.random.Generator) -> HostMaker:
    config = GPTHostConfig(
        vocabulary=int(rng.integers(16, 27)),
        context=CONTEXT,
        width=16,
        hidden=16,
        n_blocks=1,
    )
    return HostMaker(config, has_modules=False)
