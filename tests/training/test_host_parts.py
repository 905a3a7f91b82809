"""host_parts lists layers in order, each slot after the block that it wraps."""

from __future__ import annotations

import torch
from torch import nn

import esper
from esper.config.growth import GPTHostConfig, MLPHostConfig
from esper.growth.hosts import make_host
from esper.training.records import host_parts


def test_slots_follow_the_layers_of_their_block() -> None:
    host = make_host(MLPHostConfig(n_features=3, n_classes=2, width=4, hidden=5, n_blocks=2))
    found = [(part.name, part.kind, part.parameters) for part in host_parts(host)]
    assert [one for one in found if not one[0].startswith("blocks.1")] == [
        ("stem", "Linear", 16),
        ("blocks.0.first", "Linear", 25),
        ("blocks.*.first>second", "slot", 0),
        ("blocks.0.second", "Linear", 24),
        ("blocks.0", "slot", 0),
        ("blocks.*", "slot", 0),
        ("head", "Linear", 10),
    ]
    assert sum(part.parameters for part in host_parts(host)) == 16 + 2 * (25 + 24) + 10


def test_of_nested_slots_the_inner_comes_first() -> None:
    config = GPTHostConfig(vocabulary=5, context=4, width=4, n_heads=1, hidden=4, n_blocks=1)
    names = [part.name for part in host_parts(make_host(config))]
    assert names.index("blocks.0.mlp.2") < names.index("blocks.0") < names.index("blocks.*")
    assert names.index("blocks.0") < names.index("head")


def test_grown_seeds_are_left_out() -> None:
    host = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    before = sum(p.numel() for p in host.parameters())
    esper.add_slots(host, ["2"], torch.zeros(2, 4))
    esper.slots(host).germinate("2", "mlp_small")
    assert sum(p.numel() for p in host.parameters()) > before
    assert sum(part.parameters for part in host_parts(host)) == before


def test_a_slot_on_a_pair_follows_the_producer() -> None:
    host = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    esper.add_slots(host, ["0>2"], torch.zeros(2, 4))
    assert [part.name for part in host_parts(host)] == ["0", "0>2", "2"]
    esper.slots(host).germinate("0>2", "widen_large")
    parts = host_parts(host)
    assert [(part.name, part.parameters) for part in parts] == [
        ("0", 60),
        ("0>2", 0),
        ("2", 52),
    ]
