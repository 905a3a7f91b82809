"""Slots work in models designed elsewhere: a ResNet, BERT, GPT-2 and torch's own transformers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.growth.helpers import find_leftovers, same_bits, same_state, state_of
from torch import Tensor, nn

import esper
from esper.errors import SlotError
from esper.growth.blueprints import fitting_blueprints
from esper.growth.dry_run import call_model
from esper.growth.export import comes_from_esper
from esper.growth.modules import count_parameters
from esper.lifecycle.stages import Stage

pytestmark = pytest.mark.slow


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with one in-place ReLU that is used twice."""

    def __init__(self, width: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or width != width_out:
            shortcut = nn.Conv2d(width, width_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width_out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """The shape of a ResNet-18: a stem, four stages of two blocks, a classifier."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = self._stage(width, width, 1)
        self.layer2 = self._stage(width, 2 * width, 2)
        self.layer3 = self._stage(2 * width, 4 * width, 2)
        self.layer4 = self._stage(4 * width, 8 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, 5)

    def _stage(self, width: int, width_out: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            BasicBlock(width, width_out, stride), BasicBlock(width_out, width_out, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@dataclass(frozen=True)
class Case:
    """A model, the slots to grow in, and the errors expected elsewhere."""

    build: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], Any]
    at: tuple[str, ...]
    proposed: tuple[str, ...]
    """Slots that must be among the proposals."""
    not_proposed: tuple[str, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict[str, str])
    """Pattern of the error for a slot there, by name."""
    needs: str = "torch"


def _normal(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def _tokens(generator: torch.Generator) -> dict[str, Tensor]:
    tokens = torch.randint(50, (3, 6), generator=generator)
    mask = torch.ones_like(tokens)
    mask[0, 4:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def _bert() -> nn.Module:
    transformers = importlib.import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def _gpt2() -> nn.Module:
    transformers = importlib.import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=8,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _encoder(*, batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 2, 20, batch_first=batch_first, norm_first=False)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)


CASES = {
    "resnet": Case(
        build=ResNet,
        sample=_normal(2, 3, 32, 32),
        at=("relu", "layer1", "layer2.0", "layer2.0.conv1", "layer3.1.bn2", "layer4", "fc"),
        proposed=tuple(f"layer{i}{j}" for i in (1, 2, 3, 4) for j in ("", ".0", ".1")),
        not_proposed=("relu", "maxpool", "avgpool", "layer1.0.relu"),
        rejected={"layer1.0.relu": "2 times"},
    ),
    "bert": Case(
        build=_bert,
        sample=_tokens,
        at=(
            "bert.embeddings",
            "bert.encoder.layer.0",
            "bert.encoder.layer.1.output",
            "bert.pooler",
        ),
        proposed=("bert.encoder.layer.0", "bert.encoder.layer.1", "bert.pooler"),
        not_proposed=("bert.encoder.layer.0.attention", "bert.encoder"),
        rejected={
            "bert.encoder.layer.0.attention": r"a tuple of \(.*\[3, 6, 16\], nothing\)",
            "bert.encoder": "a BaseModelOutput",
        },
        needs="transformers",
    ),
    "gpt2": Case(
        build=_gpt2,
        sample=_tokens,
        at=("transformer.h.0", "transformer.h.1.mlp", "transformer.ln_f"),
        proposed=tuple(f"transformer.h.{i}{j}" for i in (0, 1) for j in ("", ".mlp")),
        not_proposed=("transformer.h.0.attn", "transformer"),
        rejected={
            "transformer.h.0.attn": r"a tuple of \(.*\[3, 6, 16\], nothing\)",
            "transformer.h": "never calls it",
        },
        needs="transformers",
    ),
    "encoder": Case(
        build=lambda: _encoder(batch_first=True),
        sample=_normal(3, 5, 12),
        at=("layers.0", "layers.1"),
        proposed=("layers.0", "layers.1"),
        rejected={"layers.0.self_attn": "a tuple|fast path"},
    ),
    "encoder, batch second": Case(
        build=lambda: _encoder(batch_first=False),
        sample=_normal(5, 3, 12),
        at=("layers.0", "layers.1.linear2"),
        proposed=("layers.0", "layers.1"),
        rejected={"layers.0.self_attn": "a tuple|fast path"},
    ),
    "encoder and decoder": Case(
        build=lambda: nn.Transformer(12, 2, 1, 2, 20, batch_first=True),
        sample=lambda generator: (_normal(3, 5, 12)(generator), _normal(3, 4, 12)(generator)),
        at=("encoder", "decoder.layers.0", "decoder.layers.1.linear2"),
        proposed=("encoder", "encoder.layers.0", "decoder.layers.0", "decoder.layers.1"),
        rejected={"decoder.layers.0.multihead_attn": "a tuple"},
    ),
}
SLOTS = [pytest.param(name, slot, id=f"{name}-{slot}") for name in CASES for slot in CASES[name].at]


def make(name: str) -> tuple[nn.Module, Any]:
    """Return a case's model with fresh weights, and a sample input."""
    case = CASES[name]
    pytest.importorskip(case.needs)
    torch.manual_seed(0)
    return case.build(), case.sample(torch.Generator().manual_seed(1))


def outputs(model: nn.Module, x: Any) -> Tensor:
    """Return a model's output in its current mode, with the same dropout every time."""
    torch.manual_seed(2)
    result = call_model(model, x)
    return result if isinstance(result, Tensor) else result.logits


def evaluate(model: nn.Module, x: Any) -> Tensor:
    with torch.no_grad():
        return outputs(model.eval(), x)


def gradients_of(model: nn.Module, x: Any) -> dict[str, Tensor]:
    """Return all gradients of an asymmetric loss, by the parameter's name in the host."""
    model.zero_grad()
    y = outputs(model, x)
    target = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    (y - target).square().mean().backward()
    return {
        name.replace("block.", ""): parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def assert_close(given: Tensor, wanted: Tensor) -> None:
    error = (given - wanted).abs().max() / wanted.abs().max().clamp_min(1.0)
    assert error.item() < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_sensible_slots_are_proposed(name: str) -> None:
    model, x = make(name)
    before, wanted = state_of(model), evaluate(model, x)
    found = esper.find_slots(model, x)
    assert set(CASES[name].proposed) <= set(found.names)
    assert not set(CASES[name].not_proposed) & set(found.names)
    assert all(proposal.parameters > 0 for proposal in found)
    assert same_state(state_of(model), before)
    assert same_bits(evaluate(model, x), wanted)


@pytest.mark.parametrize("name", CASES)
def test_an_unsuitable_block_is_rejected_with_a_reason(name: str) -> None:
    model, x = make(name)
    for block, reason in CASES[name].rejected.items():
        with pytest.raises(SlotError, match=f"{block!r} .*({reason})"):
            esper.add_slots(model, [block], x)


@pytest.mark.parametrize("name", CASES)
def test_empty_slots_do_not_change_the_model(name: str) -> None:
    model, x = make(name)
    before, wanted = state_of(model), evaluate(model, x)
    model.train()
    learned = outputs(copy.deepcopy(model), x)
    gradients = gradients_of(copy.deepcopy(model), x)
    esper.add_slots(model, list(CASES[name].at), x)
    assert same_bits(outputs(copy.deepcopy(model), x), learned)
    assert same_state(gradients_of(copy.deepcopy(model), x), gradients)
    assert same_bits(evaluate(model, x), wanted)
    assert list(state_of(model)) == list(before)


@pytest.mark.parametrize(("name", "slot"), SLOTS)
def test_every_blueprint_passes_through_all_stages(name: str, slot: str, tmp_path: Path) -> None:
    original, x = make(name)
    esper.add_slots(original, [slot], x)
    for blueprint in fitting_blueprints(esper.slots(original)[slot].site, esper.blueprint_names()):
        check_life(copy.deepcopy(original), CASES[name], slot, blueprint, x, tmp_path / blueprint)


def check_life(
    model: nn.Module, case: Case, slot: str, blueprint: str, x: Any, folder: Path
) -> None:
    """Take a seed through all stages, training in each, and check every guarantee."""
    slots = esper.slots(model)
    wanted, learned = evaluate(model, x), outputs(copy.deepcopy(model).train(), x)
    gradients = gradients_of(copy.deepcopy(model).train(), x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    esper.OptimizerKeeper(model, optimizer)

    slots.germinate(slot, blueprint)
    assert same_bits(evaluate(model, x), wanted), blueprint
    assert slots.advance(slot).was_done
    for _ in range(2):
        assert same_bits(evaluate(model, x), wanted), blueprint
        assert same_bits(outputs(copy.deepcopy(model).train(), x), learned), blueprint
        given = gradients_of(copy.deepcopy(model).train(), x)
        host = {name: gradient for name, gradient in given.items() if ".seed." not in name}
        assert same_state(host, gradients), blueprint
        assert len(given) == len(host) + len(slots[slot].seed_parameters()), blueprint
        # Training the seed alone does not change the output either.
        train_seed(model, x, slots[slot].seed_parameters())
    train_epoch(model, x, optimizer)

    assert slots.advance(slot).was_done
    train_epoch(model, x, optimizer)
    assert slots[slot].stage == Stage.BLENDING
    esper.save(model, folder)
    assert same_bits(evaluate(esper.load(folder, case.build), x), evaluate(model, x)), blueprint
    assert_close(evaluate(esper.export(model), x), evaluate(model, x))
    while not slots.advance(slot).was_done:
        train_epoch(model, x, optimizer)
    train_epoch(model, x, optimizer)
    assert slots.fossilize(slot).was_done
    train_epoch(model, x, optimizer)
    assert_exports(model, x)
    assert not find_leftovers(model, optimizer)


def assert_exports(model: nn.Module, x: Any) -> None:
    """Check that the exported model is plain and computes the same."""
    plain = esper.export(model)
    assert not [module for module in plain.modules() if comes_from_esper(module)]
    assert_close(evaluate(plain, x), evaluate(model, x))


def train_epoch(model: nn.Module, x: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take a training step and end the epoch."""
    gradients_of(model.train(), x)
    optimizer.step()
    esper.slots(model).tick()


def train_seed(model: nn.Module, x: Any, parameters: list[nn.Parameter]) -> None:
    """Train the seed alone, in evaluation mode so that no running statistic changes."""
    gradients_of(model.eval(), x)
    with torch.no_grad():
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.sub_(parameter.grad)


@pytest.mark.parametrize("name", CASES)
def test_seeds_can_grow_in_all_slots_at_once(name: str, tmp_path: Path) -> None:
    model, x = make(name)
    slots = esper.slots(esper.add_slots(model, list(CASES[name].at), x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    esper.OptimizerKeeper(model, optimizer)
    for slot in slots:
        slots.germinate(slot, fitting_blueprints(slots[slot].site, esper.blueprint_names())[-1])
        while slots[slot].stage != Stage.FOSSILIZED:
            act = slots.fossilize if slots[slot].stage == Stage.HOLDING else slots.advance
            act(slot)
            train_epoch(model, x, optimizer)
    esper.save(model, tmp_path)
    assert same_bits(evaluate(esper.load(tmp_path, CASES[name].build), x), evaluate(model, x))
    assert_exports(model, x)
    assert not find_leftovers(model, optimizer)


@pytest.mark.parametrize(("name", "slot"), SLOTS)
def test_pruning_restores_the_original_model(name: str, slot: str) -> None:
    model, x = make(name)
    slots, n_changed = esper.slots(esper.add_slots(model, [slot], x)), 0
    before, wanted, n_parameters = state_of(model), evaluate(model, x), count_parameters(model)
    for blueprint in fitting_blueprints(slots[slot].site, esper.blueprint_names()):
        slots.germinate(slot, blueprint)
        slots.advance(slot)
        seed = slots[slot].seed_parameters()
        while slots[slot].stage != Stage.HOLDING:
            train_seed(model, x, seed)
            slots.tick()
            slots.advance(slot)
        # No unit of a very small seed may be active for any sample; then it gets no gradient.
        is_changed = not torch.equal(evaluate(model, x), wanted)
        assert seed or not is_changed, blueprint
        n_changed += is_changed
        slots.prune(slot)
        assert same_bits(evaluate(model, x), wanted), blueprint
        assert count_parameters(model) == n_parameters
        while slots[slot].stage != Stage.DORMANT:
            slots.tick()
    assert n_changed > 1
    assert same_state(state_of(model), before)
