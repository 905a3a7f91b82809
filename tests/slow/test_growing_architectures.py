"""A ResNet, a GPT-2 and a Llama grow in every group, and load into the user's own classes again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import esper
from esper.growth.modules import count_parameters

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

LENGTH, VOCABULARY = 12, 32


class Residual(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """Two stages of residual blocks, as users write it."""

    def __init__(
        self,
        widths: tuple[int, int] = (8, 12),
        inner: tuple[int, int] = (6, 10),
        depths: tuple[int, int] = (2, 2),
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, widths[0], 3, padding=1), nn.BatchNorm2d(widths[0]))
        self.layer1 = nn.Sequential(*(Residual(widths[0], inner[0]) for _ in range(depths[0])))
        self.down = nn.Sequential(
            nn.Conv2d(widths[0], widths[1], 2, 2, bias=False), nn.BatchNorm2d(widths[1])
        )
        self.layer2 = nn.Sequential(*(Residual(widths[1], inner[1]) for _ in range(depths[1])))
        self.head = nn.Linear(widths[1], 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(torch.relu(self.stem(x)))
        return self.head(self.layer2(torch.relu(self.down(x))).mean((2, 3)))


def same_class(model: nn.Module, _: Path) -> nn.Module:
    """Return a new ResNet of the sizes that a grown one has, with its weights."""
    stages: list[Any] = [model.layer1, model.layer2]
    twin = ResNet(
        widths=tuple(stage[0].conv2.out_channels for stage in stages),  # type: ignore[arg-type]
        inner=tuple(stage[0].conv1.out_channels for stage in stages),  # type: ignore[arg-type]
        depths=tuple(map(len, stages)),  # type: ignore[arg-type]
    )
    twin.load_state_dict(model.state_dict())
    return twin


def make_gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, n_inner=16
        )
    )


def make_llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
        )
    )


def reloaded(model: Any, folder: Path) -> nn.Module:
    """Return what Transformers alone loads again."""
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any, Path], nn.Module]]] = {
    "resnet": (ResNet, same_class),
    "gpt2": (make_gpt2, reloaded),
    "llama": (make_llama, reloaded),
}


def make_data(kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if kind == "resnet":
        x = torch.randn(48, 1, 8, 8, generator=generator)
        return x, x.mean((1, 2, 3)).mul(40).long().clamp(0, 3)
    tokens = torch.randint(VOCABULARY, (48, 1), generator=generator) + torch.arange(LENGTH + 1)
    return tokens[:, :-1] % VOCABULARY, tokens[:, 1:] % VOCABULARY


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    found: Any = model(x)
    return found if isinstance(found, Tensor) else found.logits


def evaluated(model: nn.Module, x: Tensor) -> Tensor:
    was_training = model.training
    with torch.no_grad():
        found = logits_of(model.eval(), x)
    model.train(was_training)
    return found


class Training:
    """A loop of the user's own."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model = MODELS[kind][0]()
        self.x, self.y = make_data(kind)
        optimizer = torch.optim.AdamW(self.model.parameters(), 3e-3)
        self.grower = esper.Grower(
            self.model, optimizer, epochs=30, controller="no-growth", sample_input=self.x[:2]
        )

    def run_epoch(self) -> float:
        self.model.train()
        for rows in torch.arange(len(self.x)).split(16):
            logits = logits_of(self.model, self.x[rows]).flatten(0, -2)
            loss = cross_entropy(logits, self.y[rows].flatten())
            loss.backward()
            assert self.grower.step(loss, max_grad_norm=1.0) is None
        self.grower.end_epoch(val_loss=loss.item())
        return loss.item()


@pytest.mark.parametrize("kind", MODELS)
def test_every_group_grows_twice_in_mid_training(kind: str, tmp_path: Path) -> None:
    training = Training(kind)
    model, slots = training.model, training.grower.slots
    kinds = {slot.site.what for slot in slots.values()}
    assert kinds == {"units", "blocks"}
    types = {type(module) for module in model.modules()}
    first = training.run_epoch()
    size = count_parameters(model)
    for _ in range(2):
        for name, slot in slots.items():
            before = evaluated(model, training.x)
            blueprint = "deepen" if slot.site.what == "blocks" else "widen_medium"
            assert slots.germinate(name, blueprint).was_done
            torch.testing.assert_close(evaluated(model, training.x), before, atol=1e-4, rtol=1e-3)
            assert count_parameters(model) > size
            size = count_parameters(model)
            last = training.run_epoch()
        for _ in range(3):  # until slots can grow again
            last = training.run_epoch()
    assert last < first
    assert {type(module) for module in model.modules()} == types
    loaded = MODELS[kind][1](training.grower.export(), tmp_path)
    assert type(loaded) is type(model)
    torch.testing.assert_close(
        evaluated(loaded, training.x), evaluated(model, training.x), atol=1e-5, rtol=1e-4
    )
    again = Training(kind)
    again.grower.load_state_dict(copy.deepcopy(training.grower.state_dict()))
    for each in (training, again):
        torch.manual_seed(1)  # for dropout
        each.run_epoch()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


@pytest.mark.parametrize("kind", MODELS)
def test_grow_returns_a_model_of_the_users_class(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[kind][0]()
    x, y = make_data(kind)
    loss = (
        None
        if kind == "resnet"
        else lambda found, wanted: cross_entropy(found.logits.flatten(0, -2), wanted.flatten())
    )
    grown = esper.grow(
        model,
        (x, y),
        (x[:16], y[:16]),
        epochs=8,
        loss=loss,
        metric="loss",
        controller="progressive",
        target={"parameters": 2 * count_parameters(model)},
        fractions=[0.1],
        learning_rate=3e-3,
        progress=False,
    )
    assert grown.summary.growth
    assert type(grown.model) is type(model)
    loaded = MODELS[kind][1](grown.model, tmp_path)
    torch.testing.assert_close(
        evaluated(loaded, x), evaluated(grown.model, x), atol=1e-5, rtol=1e-4
    )
