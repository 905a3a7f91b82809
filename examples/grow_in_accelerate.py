"""Grow a model in a loop with Accelerate, on the digits that ship with Esper.

Run:  pip install "esper-lite[accelerate]" && accelerate launch --cpu examples/grow_in_accelerate.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from esper.integrations.accelerate import AcceleratedGrower
from esper.tasks.digits import load_digits

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", default="accelerate_digits", help="folder of the checkpoint")
    args = parser.parse_args()
    set_seed(0)
    images, labels = load_digits()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    model, optimizer, train, valid = accelerator.prepare(
        net,
        torch.optim.AdamW(net.parameters(), 5e-3),
        DataLoader(TensorDataset(images[:1200], labels[:1200]), 32, shuffle=True),
        DataLoader(TensorDataset(images[1200:], labels[1200:]), 300),
    )
    grower = AcceleratedGrower(accelerator, model, optimizer, epochs=args.epochs)
    if Path(args.out).exists():
        accelerator.load_state(args.out)  # continues after an interruption
    for _ in range(grower.epoch, args.epochs):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(x), y)
                accelerator.backward(loss)
                grower.step(loss, max_grad_norm=1.0)
        model.eval()
        with torch.no_grad():
            pairs = [accelerator.gather_for_metrics((model(x), y)) for x, y in valid]
        logits, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        score = (logits.argmax(1) == y).float().mean().item()
        decision = grower.end_epoch(val_loss=cross_entropy(logits, y).item(), score=score)
        accelerator.print(decision)
        accelerator.save_state(args.out)
    plain = grower.export()
    accelerator.print(f"{sum(p.numel() for p in plain.parameters()):,} parameters")
