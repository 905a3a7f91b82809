"""Growing a model happens on its device: nothing that is made on the CPU meets its tensors.

There is no other device here, so one is pretended: tensors of the model, and what was sent to its
device, are marked. An operation on a marked tensor and an unmarked one, which a real device would
refuse, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import esper

PRETENDED = torch.device("cpu", 0)
"""The device, as marked tensors report it. PyTorch makes tensors of the CPU on it."""
COPIES = ("aten.copy_.default", "aten._to_copy.default")
"""What may read another device than it writes to."""
GET_DEVICE = torch.Tensor.device.__get__  # type: ignore[attr-defined]


class Marks:
    """Which memory counts as that of the device. Its storages are kept, so none is reused."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def set(self, tensor: Tensor, is_on_device: bool = True) -> None:
        storage = tensor.untyped_storage()
        if is_on_device:
            self._storages[storage._cdata] = storage
        else:
            self._storages.pop(storage._cdata, None)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages


class Moves(TorchFunctionMode):
    """Marks what is made on the device or sent there, and makes marked tensors report it."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if function == GET_DEVICE:
            return PRETENDED if args[0] in self._marks else torch.device("cpu")
        if function is Tensor.numpy and args[0] in self._marks:
            raise RuntimeError("a tensor of the device was read as an array without .cpu()")
        result = function(*args, **given)
        device = self._device_asked_for(function, args, given)
        if device is not None and isinstance(result, Tensor):
            if args and result is args[0] and (args[0] in self._marks) != (device == PRETENDED):
                result = result.clone()
            self._marks.set(result, device == PRETENDED)
        return result

    def _device_asked_for(self, function: Any, args: Any, given: Any) -> torch.device | None:
        if function is Tensor.cpu:
            return torch.device("cpu")
        asked = given.get("device")
        if function is Tensor.to and asked is None and len(args) > 1:
            like = args[1]
            if isinstance(like, Tensor):
                return PRETENDED if like in self._marks else torch.device("cpu")
            asked = like if isinstance(like, (str, torch.device)) else None
        return None if asked is None else torch.device(asked)


class OneDevice(TorchDispatchMode):
    """Raises where an operation mixes marked and unmarked tensors; marks what marked ones give."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
        is_marked = [one in self._marks for one in given]
        # A number without axes may be on the CPU.
        strays = [
            tuple(one.shape)
            for one, marked in zip(given, is_marked, strict=True)
            if not marked and one.ndim and one.numel()
        ]
        if any(is_marked) and strays and str(function) not in COPIES:
            raise RuntimeError(f"{function} got tensors of the CPU, of shapes {strays}")
        result = function(*args, **(kwargs or {}))
        if any(is_marked) and (is_marked[0] or str(function) not in COPIES):
            for one in tree_iter(result):
                if isinstance(one, Tensor):
                    self._marks.set(one)
        return result


@contextmanager
def pretending(model: nn.Module) -> Generator[None]:
    """Pretend that a model is on a device of its own."""
    marks = Marks()
    for tensor in (*model.parameters(), *model.buffers()):
        marks.set(tensor)
    with Moves(marks), OneDevice(marks):
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(9, 16), nn.Linear(16, 2)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.layer(self.embedding(tokens)).mean(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )


class LeavesATensorBehind(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.ones(self.out_features)


def samples(model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Return 96 inputs for a model, and targets."""
    draw = np.random.default_rng(0)
    if isinstance(model, Encoder):
        inputs = draw.integers(0, 9, (96, 6))
    else:
        shape = (96, 1, 8, 8) if isinstance(model, nn.Sequential) else (96, 8)
        inputs = draw.standard_normal(shape).astype(np.float32)
    return inputs, (inputs.reshape(96, -1)[:, 0] > inputs.mean()).astype(np.int64)


def growth_on_device(model: nn.Module, **settings: Any) -> esper.Grown:
    data = samples(model)
    with pretending(model):
        return esper.grow(model, data, data, epochs=8, progress=False, **settings)


@pytest.mark.parametrize(
    ("make", "target", "optimizer"),
    [
        (convolutions, {"parameters": 1200}, "adamw"),
        (Encoder, {"parameters": 3000}, "sgd"),
        (Residual, {"depth": 4}, "adamw"),
    ],
)
def test_a_model_is_trained_and_grown_on_its_device(
    make: Callable[[], nn.Module], target: dict[str, int], optimizer: str
) -> None:
    torch.manual_seed(0)
    grown = growth_on_device(make(), controller="progressive", target=target, optimizer=optimizer)
    # Whether or not an epoch after it was the best.
    assert any(decision.blueprint for decision in grown.timeline)


def test_a_tensor_left_on_the_cpu_would_be_noticed() -> None:
    with pytest.raises(Exception, match=r"aten\.mul.* got tensors of the CPU"):
        growth_on_device(LeavesATensorBehind(8, 2))


@pytest.mark.parametrize("change", ["widen", "deepen"])
def test_surgery_happens_on_the_device(change: str) -> None:
    torch.manual_seed(0)
    model = Residual()
    inputs = torch.randn(4, 8)
    expected = model(inputs)
    with pretending(model):
        sample = inputs.to(model.first.weight.device)
        getattr(esper, change)(model, 2, sample_input=sample)
        torch.testing.assert_close(model(sample).cpu(), expected)
