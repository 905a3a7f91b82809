"""Grow an image classifier while Lightning trains it, on the digits that ship with Esper.

Run:  pip install "esper-lite[lightning]" && python examples/grow_in_lightning.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from esper.integrations.lightning import GrowthCallback, load_grown
from esper.tasks.digits import load_digits


class DigitNet(LightningModule):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, padding=1), nn.ReLU())
        self.net.extend([nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 10)])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log what the controller decides by."""
        logits = self.net(batch[0])
        self.log("val_loss", cross_entropy(logits, batch[1]))
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer; new parameters join it as they grow."""
        return torch.optim.AdamW(self.parameters(), 5e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", default="lightning_digits", help="folder for checkpoints")
    args = parser.parse_args()
    seed_everything(0)
    images, labels = load_digits()
    train = DataLoader(TensorDataset(images[:1200], labels[:1200]), 64, shuffle=True)
    valid = DataLoader(TensorDataset(images[1200:], labels[1200:]), 600)
    growth = GrowthCallback(module="net", score="val_acc")
    best = ModelCheckpoint(args.out, monitor="val_acc", mode="max")
    Trainer(max_epochs=args.epochs, callbacks=[growth, best]).fit(DigitNet(), train, valid)
    print(growth.grower.trace)
    model = load_grown(DigitNet, best.best_model_path)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"best: {best.best_model_score:.1%}, {size:,} parameters")
