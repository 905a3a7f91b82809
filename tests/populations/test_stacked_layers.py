"""Each stacked layer computes what the hosts' own layers compute."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from esper.errors import UnsupportedHostError, ValueRangeError
from esper.populations.rows import ActiveRows, Row, RowStore
from esper.populations.stacked_design import LoopedModule, find_difference
from esper.populations.stacking import (
    require_plain_parameters,
    stack_module,
)

N, B = 3, 5
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear on vectors": (nn.Linear(4, 6), (4,)),
    "linear on sequences": (nn.Linear(4, 6), (7, 4)),
    "linear without bias": (nn.Linear(4, 6, bias=False), (4,)),
    "3x3 convolution": (nn.Conv2d(2, 3, 3, padding=1), (2, 4, 6)),
    "strided convolution": (nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), (2, 5, 6)),
    "dilated convolution": (nn.Conv2d(2, 3, 3, padding=2, dilation=2), (2, 5, 6)),
    "depthwise convolution": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 5, 5)),
    "1x1 convolution": (nn.Conv2d(4, 2, 1), (4, 5, 5)),
    "batch norm on maps": (nn.BatchNorm2d(3), (3, 4, 4)),
    "batch norm on vectors": (nn.BatchNorm1d(3), (3,)),
    "layer norm": (nn.LayerNorm(4), (7, 4)),
    "layer norm without bias": (nn.LayerNorm(4, bias=False), (4,)),
    "group norm": (nn.GroupNorm(2, 4), (4, 3, 3)),
    "mean pool and flatten": (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), (4, 3, 3)),
    "flatten a map": (nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (3, 2, 2)),
    "flatten a sequence": (nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), (3, 2)),
}


def randomised(module: nn.Module, seed: int) -> nn.Module:
    twin = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(seed)
    for tensor in [*twin.parameters(), *twin.buffers()]:
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5
            tensor.data.copy_(values)
    return twin


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("n_hosts", [N, 1])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_gradients_and_buffers_match_single_hosts(
    name: str, n_hosts: int, is_training: bool
) -> None:
    template, shape = LAYERS[name]
    hosts = [randomised(template, seed).train(is_training) for seed in range(n_hosts)]
    store = RowStore(hosts[0], ())
    store.put({host: Row.of_module(module) for host, module in enumerate(hosts)})
    rows = ActiveRows()
    stacked = stack_module(hosts[0], rows, {}).train(is_training)
    rows.select(store, slice(None), needs_grad=True)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n_hosts, B, *shape, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    y = stacked(x)
    expected = torch.stack([host(sample) for host, sample in zip(hosts, x, strict=True)])
    torch.testing.assert_close(y, expected)

    weights = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    (grad_x,) = torch.autograd.grad((expected * weights).sum(), x, retain_graph=True)
    parameters = [parameter for host in hosts for parameter in host.parameters()]
    wanted = torch.autograd.grad((expected * weights).sum(), parameters) if parameters else ()
    (y * weights).sum().backward()
    torch.testing.assert_close(x.grad, grad_x)
    if wanted:
        assert rows.leaf is not None
        flat = torch.cat([grad.flatten() for grad in wanted])
        torch.testing.assert_close(rows.leaf.grad, flat.view(n_hosts, -1))
    for host, module in enumerate(hosts):
        for buffer_name, buffer in module.named_buffers():
            torch.testing.assert_close(store.buffers[buffer_name][host], buffer)


@pytest.mark.parametrize("name", ["3x3 convolution", "depthwise convolution", "1x1 convolution"])
@pytest.mark.parametrize("broken", ["samples", "weights"])
def test_nan_in_one_host_does_not_reach_others(name: str, broken: str) -> None:
    template, shape = LAYERS[name]
    store, rows = RowStore(template, ()), ActiveRows()
    store.put({host: Row.of_module(template) for host in range(N)})
    x = torch.randn(N, 7, *shape)
    if broken == "samples":
        x[1] = torch.nan
    else:
        store.values[1] = torch.nan
    stacked = stack_module(template, rows, {})
    rows.select(store, slice(None), needs_grad=True)
    y = stacked(x)
    y.sum().backward()
    assert rows.leaf is not None
    assert rows.leaf.grad is not None
    assert y[1].isnan().all()
    assert y[::2].isfinite().all()
    assert rows.leaf.grad[::2].isfinite().all()


def test_an_embedding_uses_each_hosts_own_table() -> None:
    hosts = [nn.Embedding(5, 3) for _ in range(N)]
    store = RowStore(hosts[0], ())
    store.put({host: Row.of_module(module) for host, module in enumerate(hosts)})
    rows = ActiveRows()
    stacked = stack_module(hosts[0], rows, {})
    rows.select(store, slice(None), needs_grad=True)
    tokens = torch.randint(5, (N, B, 4), generator=torch.Generator().manual_seed(0))
    expected = torch.stack([host(t) for host, t in zip(hosts, tokens, strict=True)])
    y = stacked(tokens)
    assert torch.equal(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    assert rows.leaf is not None
    grads = [host.weight.grad for host in hosts]
    torch.testing.assert_close(
        rows.leaf.grad, torch.stack([g.flatten() for g in grads if g is not None])
    )


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.BatchNorm2d(2, affine=False),
        nn.Embedding(3, 2, padding_idx=0),
        nn.AdaptiveAvgPool2d(2),
        nn.LSTM(2, 2),
        _Scaled(),
    ],
)
def test_a_layer_without_a_stacked_form_is_rejected_by_name(module: nn.Module) -> None:
    model = nn.Sequential(nn.ReLU(), module)
    with pytest.raises(UnsupportedHostError, match=f"1 is an? {type(module).__name__}"):
        stack_module(model, ActiveRows(), {})


class _MeanOverMaps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class _MeanOverSamples(nn.Module):
    """Its head is zero, so a test with its own weights would detect nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(0))


class _OtherInEvaluation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        return y if self.training else y.log_softmax(1)


class _WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), _MeanOverMaps()), (1, 4, 4)),
        (_MeanOverSamples(), (4,)),
        (_OtherInEvaluation(), (4,)),
        (_WithUnused(), (4,)),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (4,)),
    ],
)
def test_a_design_whose_stacked_form_differs_is_detected(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert find_difference(module, torch.zeros(3, *shape)) is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class _SharedActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.act_1 = self.act_2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act_2(self.second(self.act_1(self.first(x))))


class _Looking(nn.Module):
    """Runs its norm twice if the input has no host axis."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            self.norm(x)
        return self.norm(x)


def test_a_buffer_that_changes_in_one_form_only_is_detected() -> None:
    problem = find_difference(_Looking(), torch.zeros(3, 4))
    assert problem is not None
    assert problem.startswith("its norm.running_mean differs by")


class _Squeezing(nn.Module):
    """Drops the host axis if there is one host."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.squeeze(0))


def test_a_design_that_fails_for_a_single_host_is_detected() -> None:
    assert find_difference(_Squeezing(), torch.zeros(3, 4)) is not None


def test_a_shared_activation_can_be_stacked() -> None:
    assert find_difference(_SharedActivation(), torch.zeros(3, 4)) is None


def test_frozen_and_shared_parameters_are_rejected_by_name() -> None:
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    frozen[1].weight.requires_grad_(False)
    with pytest.raises(UnsupportedHostError, match=r"1\.weight is frozen"):
        require_plain_parameters(frozen)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(UnsupportedHostError, match=r"0\.weight and 1\.weight are the same"):
        require_plain_parameters(tied)


def test_an_unknown_token_does_not_read_another_hosts_table() -> None:
    store = RowStore(nn.Embedding(5, 3), ())
    store.put({host: Row.of_module(nn.Embedding(5, 3)) for host in range(2)})
    rows = ActiveRows()
    stacked = stack_module(nn.Embedding(5, 3), rows, {})
    rows.select(store, slice(None), needs_grad=False)
    for token in (-1, 5):
        with pytest.raises(ValueRangeError, match=rf"token {token} .*0 to 4"):
            stacked(torch.full((2, 1, 2), token))


@pytest.mark.parametrize("shape", [(4,), (6, 4), (4, 3, 3)])
def test_a_seed_without_a_stacked_form_is_computed_in_a_loop(shape: tuple[int, ...]) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.randn(4))
            self.norm = nn.BatchNorm2d(4) if len(shape) == 3 else nn.Identity()

        def forward(self, y: Tensor) -> Tensor:
            factor = self.factor[:, None, None] if y.ndim == 4 else self.factor
            return self.norm(y * factor)

    hosts = [Scale().double() for _ in range(N)]
    store = RowStore(hosts[0], ())
    store.put({host: Row.of_module(module) for host, module in enumerate(hosts)})
    rows = ActiveRows()
    looped = LoopedModule(rows, Scale().double())
    rows.select(store, slice(None), needs_grad=True)
    x = torch.randn(N, B, *shape, dtype=torch.float64)
    y = looped(x)
    expected = torch.stack([host(own) for host, own in zip(hosts, x, strict=True)])
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    assert rows.leaf is not None
    wanted = torch.stack([torch.cat([_grad(p) for p in host.parameters()]) for host in hosts])
    torch.testing.assert_close(rows.leaf.grad, wanted)
    for name, buffer in hosts[1].named_buffers():
        torch.testing.assert_close(store.buffers[name][1], buffer)


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.flatten()
