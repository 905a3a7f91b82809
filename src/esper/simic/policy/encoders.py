"""Columns of an observation that hold a category, replaced by what is learned of each category.

Shapes: ``...`` observations, D = observation size, C = columns that hold a category.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from esper.config.checks import require_int
from esper.errors import ConfigError


class CategoryColumns(nn.Module):
    """Replaces columns by embeddings; columns with the same number of categories share one table.

    A column holds ``k / n``: category k of n, or none for 0.
    """

    order: Tensor
    counts: Tensor

    def __init__(
        self, categories: Mapping[int, int], observation_size: int, embedding_size: int
    ) -> None:
        super().__init__()
        for column, n in categories.items():
            if column not in range(observation_size):
                raise ConfigError(
                    f"categories names column {column!r}; "
                    f"an observation has columns 0 to {observation_size - 1}."
                )
            require_int(f"categories[{column}]", n, least=1)
        columns = sorted(categories, key=lambda column: (categories[column], column))
        counts = [categories[column] for column in columns]
        plain = [column for column in range(observation_size) if column not in categories]
        self.n_plain = len(plain)
        self.widths = [counts.count(n) for n in sorted(set(counts))]
        """Columns that each table is read for."""
        self.tables = nn.ModuleDict(
            {str(n): nn.Embedding(n + 1, embedding_size) for n in sorted(set(counts))}
        )
        self.output_size = len(plain) + len(columns) * embedding_size
        """Features of an observation after the columns are replaced."""
        self.is_ordered = [*plain, *columns] == list(range(observation_size))
        """Whether the plain columns come first anyway."""
        self.register_buffer("order", torch.tensor([*plain, *columns]), persistent=False)
        self.register_buffer("counts", torch.tensor(counts), persistent=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw embeddings of about the size of other features."""
        for table in self._tables():
            nn.init.normal_(table.weight, std=0.5, generator=generator)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the plain columns, then the embeddings: ``[..., D]`` to ``[..., output size]``."""
        is_ordered = self.is_ordered
        ordered = observations if is_ordered else observations.index_select(-1, self.order)
        plain, shares = ordered[..., : self.n_plain], ordered[..., self.n_plain :]
        # Cells of a grid that only reset the state may show anything.
        numbers = (shares * self.counts).round().long().clamp_(min=0).minimum(self.counts)
        groups = cast(tuple[Tensor, ...], numbers.split(self.widths, dim=-1))
        tables = zip(self._tables(), groups, strict=True)
        return torch.cat([plain, *(table(group).flatten(-2) for table, group in tables)], dim=-1)

    def _tables(self) -> list[nn.Embedding]:
        return [cast(nn.Embedding, table) for table in self.tables.values()]
