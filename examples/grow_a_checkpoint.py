"""Deepen a trained Llama, train only its new blocks, save it and load it again; half a minute.

Run:  pip install "esper-lite[transformers]" && python examples/grow_a_checkpoint.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

import esper
from esper.tasks.text import load_book

LENGTH, BATCH = 64, 16


def batches(tokens: Tensor, steps: int, seed: int) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - LENGTH, (steps, BATCH), generator=drawn)
    return [torch.stack([tokens[k : k + LENGTH] for k in row.tolist()]) for row in starts]


def train(model: LlamaForCausalLM, tokens: Tensor, steps: int, seed: int) -> None:
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for batch in batches(tokens, steps, seed):
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()


@torch.no_grad()
def loss_of(model: LlamaForCausalLM, tokens: Tensor) -> float:
    losses = [model(input_ids=batch, labels=batch).loss for batch in batches(tokens, 8, seed=0)]
    return torch.stack(losses).mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of training before and after")
    parser.add_argument("--out", type=Path, default=Path("larger_llama"), help="folder to save to")
    options = parser.parse_args()
    set_seed(0)
    text = load_book()
    ids = {character: k for k, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[character] for character in text])
    held_out, tokens = tokens[:10_000], tokens[10_000:]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=len(ids), num_attention_heads=4, **sizes)
    model = LlamaForCausalLM(config)
    train(model, tokens, options.steps, seed=1)
    print(f"trained: loss {loss_of(model, held_out):.3f}")

    change = esper.deepen(model, by=2, sample_input={"input_ids": tokens[None, :LENGTH]})
    print(change)
    print(f"deepened: loss {loss_of(model, held_out):.3f}")

    change.freeze_old()
    train(model, tokens, options.steps, seed=2)
    print(f"new blocks trained: loss {loss_of(model, held_out):.3f}")

    model.save_pretrained(options.out)
    again = LlamaForCausalLM.from_pretrained(options.out)
    print(f"loaded from {options.out}: loss {loss_of(again, held_out):.3f}")
