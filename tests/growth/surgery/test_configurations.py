"""A model that is built from a configuration can be built from it again after it has grown."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Part:
    """A part of a configuration, such as that of the text of a model of text and images."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Config(Part):
    """A configuration that gives the sizes of the layers in one of several ways."""

    def validate(self) -> None:
        assert self.n_layers == len(self.kinds)

    def hidden_of(self, block: int) -> int:
        own = vars(self)
        if "hidden_sizes" in own:
            return self.hidden_sizes[block]
        if "text" in own:
            return self.text.hidden
        return int(6 * self.ratio) if own.get("hidden") is None else self.hidden


class Block(nn.Module):
    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        self.config = config
        self.up = nn.Linear(6, config.hidden_of(index))
        self.down = nn.Linear(config.hidden_of(index), 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Network(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.first = nn.Linear(4, 6)
        self.blocks = nn.ModuleList(Block(config, k) for k in range(config.n_layers))
        self.last = nn.Linear(6, 2)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    @classmethod
    def from_pretrained(cls, folder: str) -> Network:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x) * self.scale


def network(**fields: Any) -> Network:
    torch.manual_seed(0)
    return Network(Config(**{"n_layers": 2, "kinds": ["full", "sliding"], **fields}))


def assert_rebuilt(model: Any) -> None:
    """The configuration alone gives a model that takes all tensors and computes the same."""
    model.config.validate()
    twin = Network(model.config)
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin(X), model(X), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize(
    ("fields", "wider"),
    [
        ({"hidden": 8}, {"hidden": 12}),
        ({"hidden": None, "ratio": 2.0}, {"hidden": None, "ratio": 3.0}),
        ({"text": Part(hidden=8)}, {}),
        ({"hidden_sizes": [8, 8]}, {"hidden_sizes": [12, 12]}),
        ({"hidden_sizes": (8, 8)}, {"hidden_sizes": (12, 12)}),
    ],
    ids=["size", "ratio", "part", "list", "tuple"],
)
def test_a_field_follows_the_width_of_all_blocks(
    fields: dict[str, Any], wider: dict[str, Any]
) -> None:
    model = network(**fields)
    before = model(X)
    esper.widen(model, 1.5, sample_input=X)
    assert_rebuilt(model)
    torch.testing.assert_close(model(X), before, atol=1e-5, rtol=0.0)
    assert {name: vars(model.config)[name] for name in wider} == wider


def test_lists_with_an_entry_for_each_block_follow_the_depth() -> None:
    model = network(hidden=8)
    esper.deepen(model, 2, sample_input=X)
    assert_rebuilt(model)
    assert (model.config.n_layers, len(model.config.kinds)) == (4, 4)
