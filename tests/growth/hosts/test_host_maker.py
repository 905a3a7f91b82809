"""A host whose weights are drawn anew is the host that would have been made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import esper
from esper.config.growth import CNNHostConfig, GPTHostConfig, HostConfig, MLPHostConfig
from esper.growth.hosts import HostMaker, make_host

CONFIGS = [
    MLPHostConfig(hidden=3),
    MLPHostConfig(has_skips=False),
    CNNHostConfig(hidden=3),
    GPTHostConfig(hidden=5),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_redrawing_gives_the_weights_of_a_host_that_is_made(config: HostConfig) -> None:
    maker = HostMaker(config, design=replace(config, hidden=8))
    host = maker(1)
    with torch.no_grad():
        for tensor in (*host.parameters(), *host.buffers()):
            tensor.add_(1)
    state = torch.get_rng_state()
    maker.redraw(host, 7)
    assert torch.equal(torch.get_rng_state(), state)
    made = make_host(config, seed=7, design=replace(config, hidden=8))
    tensors = host.state_dict()
    assert tensors.keys() == made.state_dict().keys()
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensors[name], tensor), name
    assert esper.slots(host).sites == esper.slots(made).sites
