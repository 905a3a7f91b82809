"""A block's path is found exactly where hidden units can be added to its own layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.growth.host_slots import slots
from esper.growth.placement import add_slots
from esper.growth.sites import BlockPath, ConvShape
from tests.growth.helpers import ConvBlock, ResidualBlock, same_state, state_of


class Block(nn.Module):
    """A block made of layers and a function that connects them."""

    def __init__(self, joined: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.joined = joined
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(self, x)


def path_of(block: nn.Module, x: Tensor) -> BlockPath | None:
    """Return the path of a block and check that finding it changes nothing."""
    model = nn.Sequential(block)
    before, flags = state_of(model), [module.training for module in model.modules()]
    generator = torch.get_rng_state()
    add_slots(model, ["0"], x)
    assert same_state(before, state_of(model))
    assert flags == [module.training for module in model.modules()]
    assert torch.equal(generator, torch.get_rng_state())
    return slots(model)["0"].site.path


def linear_block(joined: Callable[..., Tensor], **more: nn.Module) -> nn.Module:
    return Block(joined, up=nn.Linear(6, 8), down=nn.Linear(8, 6), **more)


VECTORS = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(0))

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda h: functional.gelu(h, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "identity": lambda h: h,
}
MODULES: dict[str, nn.Module] = {
    "relu": nn.ReLU(inplace=True),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(inplace=True),
    "tanh": nn.Tanh(),
    "identity": nn.Identity(),
}


@pytest.mark.parametrize("x", [VECTORS, SEQUENCES])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_a_residual_block_with_an_activation_function_has_a_path(
    x: Tensor, activation: str
) -> None:
    act = FUNCTIONS[activation]
    path = path_of(linear_block(lambda b, x: x + b.down(act(b.up(x)))), x)
    assert path == BlockPath(
        first="up", second="down", norm=None, activation=activation, hidden=8, has_first_bias=True
    )


@pytest.mark.parametrize("activation", MODULES)
def test_a_sequence_of_modules_has_a_path(activation: str) -> None:
    block = nn.Sequential(nn.Linear(6, 8, bias=False), MODULES[activation], nn.Linear(8, 3))
    assert path_of(block, VECTORS) == BlockPath(
        first="0", second="2", norm=None, activation=activation, hidden=8, has_first_bias=False
    )


@pytest.mark.parametrize("has_norm", [True, False])
def test_the_path_of_a_convolutional_block_includes_its_geometry(has_norm: bool) -> None:
    norm = nn.BatchNorm2d(8, eps=1e-3, momentum=0.2) if has_norm else nn.Identity()
    first = nn.Conv2d(4, 8, 3, stride=2, padding=2, dilation=2, bias=False)
    block = nn.Sequential(first, norm, nn.ReLU(), nn.Conv2d(8, 5, 1))
    assert path_of(block, MAPS) == BlockPath(
        first="0",
        second="3",
        norm="1" if has_norm else None,
        activation="relu",
        hidden=8,
        has_first_bias=False,
        norm_eps=1e-3 if has_norm else 1e-5,
        norm_momentum=0.2 if has_norm else 0.1,
        first_conv=ConvShape(kernel=(3, 3), stride=(2, 2), padding=(2, 2), dilation=(2, 2)),
        second_conv=ConvShape(kernel=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1)),
    )


def test_batch_norm_is_part_of_a_path_on_vectors_but_not_on_sequences() -> None:
    block = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 6))
    path = path_of(block, VECTORS)
    assert path is not None
    assert path.norm == "1"
    assert path_of(block, SEQUENCES) is None


def residual_path(prefix: str = "") -> BlockPath:
    """Return the path of ``ResidualBlock(6, 8)``."""
    return BlockPath(
        first=f"{prefix}up",
        second=f"{prefix}down",
        norm=None,
        activation="relu",
        hidden=8,
        has_first_bias=True,
    )


def test_a_nested_block_is_found_by_its_full_name() -> None:
    assert path_of(nn.Sequential(ResidualBlock(6, 8)), VECTORS) == residual_path("0.")


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_path_does_not_depend_on_the_mode_of_the_model(stride: int, is_training: bool) -> None:
    def same(stride: int) -> ConvShape:
        return ConvShape(kernel=(3, 3), stride=(stride, stride), padding=(1, 1), dilation=(1, 1))

    assert path_of(ConvBlock(4, 6, 4, stride).train(is_training), MAPS) == BlockPath(
        first="conv_1",
        second="conv_2",
        norm="norm",
        activation="relu",
        hidden=6,
        has_first_bias=False,
        first_conv=same(stride),
        second_conv=same(1),
    )


def test_an_in_place_operation_after_the_second_layer_is_no_obstacle() -> None:
    def joined(b: nn.Module, x: Tensor) -> Tensor:
        y = b.down(torch.relu_(b.up(x)))
        y += x
        return y

    assert path_of(linear_block(joined), VECTORS) == residual_path()


REJECTED: dict[str, Callable[[], nn.Module]] = {
    "an activation after the sum": lambda: linear_block(
        lambda b, x: torch.relu(x + b.down(torch.relu(b.up(x))))
    ),
    "a factor after the second layer": lambda: linear_block(
        lambda b, x: x + 0.5 * b.down(torch.relu(b.up(x)))
    ),
    "a norm after the second layer": lambda: linear_block(
        lambda b, x: x + b.norm(b.down(torch.relu(b.up(x)))), norm=nn.BatchNorm1d(6)
    ),
    "a norm after the sum": lambda: linear_block(
        lambda b, x: b.norm(8.0 * x + b.down(torch.relu(b.up(x)))), norm=nn.BatchNorm1d(6)
    ),
    "a norm before the first layer": lambda: linear_block(
        lambda b, x: x + b.down(torch.relu(b.up(b.norm(x)))), norm=nn.LayerNorm(6)
    ),
    "a layer norm between": lambda: linear_block(
        lambda b, x: x + b.down(torch.relu(b.norm(b.up(x)))), norm=nn.LayerNorm(8)
    ),
    "a norm without statistics": lambda: linear_block(
        lambda b, x: x + b.down(torch.relu(b.norm(b.up(x)))),
        norm=nn.BatchNorm1d(8, track_running_stats=False),
    ),
    "an unknown activation": lambda: linear_block(
        lambda b, x: x + b.down(functional.softplus(b.up(x)))
    ),
    "an unknown in-place activation": lambda: linear_block(
        lambda b, x: x + b.down(functional.elu_(b.up(x)))
    ),
    "an activation over all units": lambda: linear_block(
        lambda b, x: x + b.down(torch.softmax(b.up(x), -1))
    ),
    "hidden units that a sum also reads": lambda: linear_block(
        lambda b, x: _with_hidden(b, x, lambda h: h.sum(-1, keepdim=True))
    ),
    "hidden units that another layer also reads": lambda: linear_block(
        lambda b, x: _with_hidden(b, x, b.other), other=nn.Linear(8, 6)
    ),
    "hidden units that are sliced": lambda: Block(
        lambda b, x: x + b.down(torch.relu(b.up(x))[:, :4]),
        up=nn.Linear(6, 8),
        down=nn.Linear(4, 6),
    ),
    "a layer called twice": lambda: linear_block(
        lambda b, x: x + b.down(torch.relu(b.up(x))) + b.down(torch.relu(b.up(2.0 * x)))
    ),
    "a second layer whose output is read twice": lambda: linear_block(
        lambda b, x: _twice(x, b.down(torch.relu(b.up(x))))
    ),
    "dropout between": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6)
    ),
    "dropout after": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.Dropout(0.5)
    ),
    "one dropout both between and after": lambda: linear_block(
        lambda b, x: x + b.drop(b.down(b.drop(torch.relu(b.up(x))))), drop=nn.Dropout(0.5)
    ),
    "a layer of a custom class": lambda: Block(
        lambda b, x: x + b.down(torch.relu(b.up(x))), up=Doubled(6, 8), down=nn.Linear(8, 6)
    ),
}


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


def _with_hidden(b: nn.Module, x: Tensor, use: Callable[[Tensor], Tensor]) -> Tensor:
    hidden = torch.relu(b.up(x))
    return x + b.down(hidden) + use(hidden)


def _twice(x: Tensor, y: Tensor) -> Tensor:
    return x + y + y.tanh()


@pytest.mark.parametrize("reason", REJECTED)
def test_a_block_has_no_path_if_there_is(reason: str) -> None:
    torch.manual_seed(0)
    assert path_of(REJECTED[reason](), VECTORS) is None


@pytest.mark.parametrize(
    "first",
    [
        nn.Conv2d(4, 8, 3, padding=1, groups=2),
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
    ],
    ids=["groups", "padding by name", "circular padding"],
)
def test_a_convolution_that_cannot_be_widened_has_no_path(first: nn.Module) -> None:
    assert path_of(nn.Sequential(first, nn.ReLU(), nn.Conv2d(8, 4, 1)), MAPS) is None
    assert path_of(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), first), MAPS) is None


def test_pooling_between_convolutions_rules_out_a_path() -> None:
    block = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 4, 1))
    assert path_of(block, MAPS) is None


def test_dropout_with_probability_zero_is_no_obstacle() -> None:
    block = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 6))
    path = path_of(block, VECTORS)
    assert path is not None
    assert path.second == "3"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_path_does_not_depend_on_the_precision(dtype: torch.dtype) -> None:
    assert path_of(ResidualBlock(6, 8).to(dtype), VECTORS.to(dtype)) == residual_path()


class _Counts(nn.Module):
    """A block that records its calls in an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, seen: list[int]) -> Tensor:
        seen.append(len(x))
        return x + self.down(torch.relu(self.up(x)))


def test_a_block_with_a_mutable_argument_is_only_called_by_its_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = _Counts()

        def forward(self, x: Tensor) -> Tensor:
            seen: list[int] = []
            y = self.block(x, seen)
            assert len(seen) == 1
            return y

    model = Model()
    add_slots(model, ["block"], torch.randn(2, 4))
    assert slots(model)["block"].site.path is None
