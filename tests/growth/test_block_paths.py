"""A block is widened inside only where more hidden units are exactly that, and nothing else."""

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
    """A block made of layers and a function that says how they are joined."""

    def __init__(self, joined: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.joined = joined
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(self, x)


def path_of(block: nn.Module, x: Tensor) -> BlockPath | None:
    """Return what is recognised of a block, which must stay as it is."""
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
def test_a_residual_block_with_a_function_between_is_recognised(x: Tensor, activation: str) -> None:
    act = FUNCTIONS[activation]
    path = path_of(linear_block(lambda b, x: x + b.down(act(b.up(x)))), x)
    assert path == BlockPath(
        first="up", second="down", norm=None, activation=activation, hidden=8, has_first_bias=True
    )


@pytest.mark.parametrize("activation", MODULES)
@pytest.mark.parametrize("x", [VECTORS, SEQUENCES])
def test_a_sequence_of_modules_is_recognised(x: Tensor, activation: str) -> None:
    block = nn.Sequential(nn.Linear(6, 8, bias=False), MODULES[activation], nn.Linear(8, 3))
    assert path_of(block, x) == BlockPath(
        first="0", second="2", norm=None, activation=activation, hidden=8, has_first_bias=False
    )


@pytest.mark.parametrize("has_norm", [True, False])
def test_a_convolutional_block_is_recognised_with_its_geometry(has_norm: bool) -> None:
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


def test_batch_norm_on_vectors_is_recognised_and_on_sequences_refused() -> None:
    block = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 6))
    path = path_of(block, VECTORS)
    assert path is not None
    assert path.norm == "1"
    assert path_of(block, SEQUENCES) is None


@pytest.mark.parametrize("block", [ResidualBlock(6, 8), nn.Sequential(ResidualBlock(6, 8))])
def test_a_block_inside_another_is_recognised_by_its_full_name(block: nn.Module) -> None:
    path = path_of(block, VECTORS)
    assert path is not None
    assert (path.first, path.second) in {("up", "down"), ("0.up", "0.down")}


@pytest.mark.parametrize("stride", [1, 2])
def test_the_blocks_of_the_test_models_are_recognised(stride: int) -> None:
    path = path_of(ConvBlock(4, 6, 4, stride), MAPS)
    assert path is not None
    assert (path.first, path.norm, path.second) == ("conv_1", "norm", "conv_2")


def test_work_in_place_behind_the_second_layer_is_seen_through() -> None:
    def joined(b: nn.Module, x: Tensor) -> Tensor:
        y = b.down(torch.relu_(b.up(x)))
        y += x
        return y

    path = path_of(linear_block(joined), VECTORS)
    assert path is not None
    assert path.activation == "relu"


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "an activation behind the sum": lambda: linear_block(
        lambda b, x: torch.relu(x + b.down(torch.relu(b.up(x))))
    ),
    "a factor behind the second layer": lambda: linear_block(
        lambda b, x: x + 0.5 * b.down(torch.relu(b.up(x)))
    ),
    "a norm behind the second layer": lambda: linear_block(
        lambda b, x: x + b.norm(b.down(torch.relu(b.up(x)))), norm=nn.BatchNorm1d(6)
    ),
    "a norm behind the sum": lambda: linear_block(
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
    "an activation that is not known": lambda: linear_block(
        lambda b, x: x + b.down(functional.softplus(b.up(x)))
    ),
    "an unknown activation in place": lambda: linear_block(
        lambda b, x: x + b.down(functional.elu_(b.up(x)))
    ),
    "an activation over all units": lambda: linear_block(
        lambda b, x: x + b.down(torch.softmax(b.up(x), -1))
    ),
    "hidden units that a sum reads too": lambda: linear_block(
        lambda b, x: _with_hidden(b, x, lambda h: h.sum(-1, keepdim=True))
    ),
    "hidden units that another layer reads too": lambda: linear_block(
        lambda b, x: _with_hidden(b, x, b.other), other=nn.Linear(8, 6)
    ),
    "hidden units that are cut in half": lambda: Block(
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
    "dropout behind": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.Dropout(0.5)
    ),
    "one dropout both between and behind": lambda: linear_block(
        lambda b, x: x + b.drop(b.down(b.drop(torch.relu(b.up(x))))), drop=nn.Dropout(0.5)
    ),
    "a layer of a class of its own": lambda: Block(
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


@pytest.mark.parametrize("reason", REFUSED)
def test_a_block_is_not_widened_inside_if_there_is(reason: str) -> None:
    torch.manual_seed(0)
    assert path_of(REFUSED[reason](), VECTORS) is None


@pytest.mark.parametrize(
    "first",
    [
        nn.Conv2d(4, 8, 3, padding=1, groups=2),
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
    ],
    ids=["groups", "padding by name", "padding that is not zeros"],
)
def test_a_convolution_that_cannot_be_joined_is_refused(first: nn.Module) -> None:
    assert path_of(nn.Sequential(first, nn.ReLU(), nn.Conv2d(8, 4, 1)), MAPS) is None
    assert path_of(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), first), MAPS) is None


def test_a_pooling_between_convolutions_is_refused() -> None:
    block = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 4, 1))
    assert path_of(block, MAPS) is None


def test_dropout_of_nothing_is_no_obstacle() -> None:
    block = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 6))
    path = path_of(block, VECTORS)
    assert path is not None
    assert path.second == "3"


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_a_model_is_in_makes_no_difference(is_training: bool) -> None:
    path = path_of(ConvBlock(4, 6, 4, 1).train(is_training), MAPS)
    assert path is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_paths_are_seen_in_other_precisions(dtype: torch.dtype) -> None:
    path = path_of(ResidualBlock(6, 8).to(dtype), VECTORS.to(dtype))
    assert path is not None


class _Counts(nn.Module):
    """A block that remembers in an argument that it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, seen: list[int]) -> Tensor:
        seen.append(len(x))
        return x + self.down(torch.relu(self.up(x)))


def test_a_block_that_is_given_something_it_could_change_is_called_as_the_model_calls_it() -> None:
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
