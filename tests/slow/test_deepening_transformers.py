"""``deepen`` works on the models of Transformers, and ``save_pretrained`` on what it exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import esper
from esper.growth.host_slots import slots
from esper.lifecycle.stages import Stage

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

TOKENS = {"input_ids": torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(0))}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
}
TEXT = {**SMALL, **SPECIAL, "vocab_size": 50, "max_position_embeddings": 32}


def image(size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}


def gpt2() -> nn.Module:
    sizes = {"n_layer": 3, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 50}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **SPECIAL))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, num_key_value_heads=1))


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**TEXT))


def vit() -> nn.Module:
    return transformers.ViTModel(transformers.ViTConfig(**SMALL, image_size=16, patch_size=8))


def resnet(kind: str) -> nn.Module:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
    return transformers.ResNetModel(transformers.ResNetConfig(**sizes, layer_type=kind))


Case = tuple[Callable[[], nn.Module], str, dict[str, Tensor], Callable[[Any], object], object]

CASES: dict[str, Case] = {
    "gpt2": (gpt2, "transformer.h.*", TOKENS, lambda config: config.n_layer, 5),
    "llama": (llama, "model.layers.*", TOKENS, lambda config: config.num_hidden_layers, 5),
    "bert": (bert, "encoder.layer.*", TOKENS, lambda config: config.num_hidden_layers, 5),
    "vit": (vit, "layers.*", image(16), lambda config: config.num_hidden_layers, 5),
    "resnet": (
        lambda: resnet("basic"),
        "encoder.stages.0.layers.*",
        image(32),
        lambda config: config.depths,
        [4, 2],
    ),
    "resnet bottleneck": (
        lambda: resnet("bottleneck"),
        "encoder.stages.1.layers.*",
        image(32),
        lambda config: config.depths,
        [2, 4],
    ),
}
"""Constructor, slot, input, and the field of the configuration that two more blocks change."""


def make(name: str) -> tuple[Any, Any]:
    build, slot, x, *_ = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)
    esper.add_slots(model.eval(), [slot], x)
    return model, slots(model)


def deepen(host: Any, slot: str) -> None:
    if host[slot].stage == Stage.FOSSILIZED:
        host.absorb(slot)
    host.germinate(slot, "deepen")


def run(model: nn.Module, x: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**x)[0]


def train(model: nn.Module, x: dict[str, Tensor]) -> None:
    optimizer = AdamW(model.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (model(**x)[0] - 1.0).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_a_model_deepens_twice_and_is_saved_as_usual(name: str, tmp_path: Path) -> None:
    model, host = make(name)
    build, slot, x, read, wanted = CASES[name]
    for _ in range(2):
        given = run(model, x)
        deepen(host, slot)
        torch.testing.assert_close(run(model, x), given, atol=3e-6, rtol=3e-6)
        train(model, x)
    plain: Any = esper.export(model)
    torch.testing.assert_close(run(plain, x), run(model, x), atol=3e-6, rtol=3e-6)
    assert type(plain) is type(model)
    assert read(plain.config) == wanted
    assert read(model.config) == wanted
    plain.save_pretrained(tmp_path)
    again = type(plain).from_pretrained(tmp_path).eval()
    assert torch.equal(run(again, x), run(plain, x))

    esper.save(model, tmp_path / "growing")
    loaded = esper.load(tmp_path / "growing", build).eval()
    assert torch.equal(run(loaded, x), run(model, x))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generating_with_and_without_a_cache_gives_the_same_tokens(name: str) -> None:
    model, host = make(name)
    slot, x = CASES[name][1:3]
    for _ in range(2):
        deepen(host, slot)
        train(model, x)
    for each in (model, esper.export(model)):
        tokens = [
            each.generate(
                **x,
                attention_mask=torch.ones_like(x["input_ids"]),
                min_new_tokens=8,
                max_new_tokens=8,
                num_beams=beams,
                do_sample=False,
                use_cache=use_cache,
            )
            for beams in (1, 2)
            for use_cache in (True, False)
        ]
        assert torch.equal(tokens[0], tokens[1])
        assert torch.equal(tokens[2], tokens[3])


def test_a_padded_batch_is_masked_in_the_copy_too() -> None:
    model, host = make("bert")
    slot, x = CASES["bert"][1:3]
    mask = torch.ones_like(x["input_ids"])
    mask[0, 4:] = 0
    deepen(host, slot)
    train(model, {**x, "attention_mask": mask})
    plain: Any = esper.export(model)
    short = {"input_ids": x["input_ids"][:1, :4]}
    padded = run(plain, {**x, "attention_mask": mask})[:1, :4]
    torch.testing.assert_close(padded, run(plain, short), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run(model, short), run(plain, short), atol=1e-5, rtol=1e-5)
