"""Grow a small GPT-2 while the Trainer of Transformers trains it on sequences that count.

Run:  pip install "esper-lite[transformers]" && python examples/grow_in_transformers.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from esper.integrations.transformers import GrowthCallback, from_pretrained


class Counting(torch.utils.data.Dataset):
    """Sequences that count upwards modulo 32, each by a step of its own."""

    def __init__(self, n: int, seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        start, step = torch.randint(1, 32, (2, n, 1), generator=drawn)
        self.tokens = (start + step * torch.arange(16)) % 32

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", default="transformers_gpt2", help="folder for checkpoints")
    options = parser.parse_args()
    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, n_inner=32)
    args = TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        report_to=[],
    )
    trainer = Trainer(
        GPT2LMHeadModel(config), args, train_dataset=Counting(800, 1), eval_dataset=Counting(200, 2)
    )
    growth = GrowthCallback().attach(trainer)
    trainer.train()
    print(growth.grower.trace)
    model = from_pretrained(GPT2LMHeadModel, trainer.state.best_model_checkpoint)
    print(f"best loss {trainer.state.best_metric:.3f}, {model.num_parameters():,} parameters")
