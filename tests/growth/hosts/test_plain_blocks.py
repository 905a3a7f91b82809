"""A host without skips puts everything through its hidden units, and grows like the others."""

from __future__ import annotations

import pytest
import torch

import esper
from esper.config.growth import MLPHostConfig
from esper.errors import ConfigError
from esper.growth.hosts import make_host

CONFIG = MLPHostConfig(n_features=6, n_classes=5, width=4, hidden=1, n_blocks=1, has_skips=False)


def test_one_hidden_unit_lets_one_number_through() -> None:
    host = make_host(CONFIG, seed=0)
    logits = host(10 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.linalg.matrix_rank(logits - logits.mean(0), tol=1e-5) == 1
    residual = make_host(MLPHostConfig(n_features=6, n_classes=5, width=4, hidden=1, n_blocks=1))
    logits = residual(10 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.linalg.matrix_rank(logits - logits.mean(0), tol=1e-5) == 4


def test_widening_it_merges_into_the_block() -> None:
    host = make_host(CONFIG, seed=0)
    slots = esper.slots(host)
    slots.germinate("blocks.0", "widen_large")
    slots.advance("blocks.0")
    seed = slots["blocks.0"].seed
    assert seed is not None
    torch.nn.init.normal_(seed.second.weight, generator=torch.Generator().manual_seed(1))
    slots.tick()
    for _ in range(2):
        slots.advance("blocks.0")
        for _ in range(3):
            slots.tick()
    slots.fossilize("blocks.0")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(2))
    plain = esper.export(host)
    torch.testing.assert_close(plain(x), host(x))
    assert sum(p.numel() for p in plain.parameters()) == 7 * 4 + (5 * 2 + 4 * 3) + 5 * 5


def test_whether_there_are_skips_is_yes_or_no() -> None:
    with pytest.raises(ConfigError, match="has_skips is 1; it must be True or False"):
        MLPHostConfig(has_skips=1)  # type: ignore[arg-type]
