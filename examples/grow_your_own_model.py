"""Grow a model of your own while it trains, by one call, and get a plain model back.

A small convolutional network, defined here, learns the handwritten digits that come with Esper.
While it trains, a controller decides in every epoch whether a seed is planted in one of its blocks,
blended in, kept or pruned, and when to stop. What comes back is a plain module; it is saved and
used in a process that cannot import Esper. Two models that did not grow, one as small as this one
began and one as large as it became, tell what growth was worth.

Run:  python examples/grow_your_own_model.py
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import esper
from esper.errors import EsperError
from esper.growing.timeline import TimelineStep
from esper.tasks.digits import load_digits

TRAINING = {"learning_rate": 5e-3, "batch_size": 64}

RELOAD = """
import sys
sys.modules["esper"] = None  # from here on, importing esper fails
import torch
model = torch.export.load(sys.argv[1]).module()
images, labels = torch.load(sys.argv[2], weights_only=True)
print((model(images).argmax(1) == labels).float().mean().item())
"""

Data = tuple[Tensor, Tensor]
"""Images ``[N, 1, 8, 8]`` and labels ``[N]``."""


class Block(nn.Module):
    """Two convolutions with few channels between them, beside a skip connection."""

    def __init__(self, width: int, hidden: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(width, hidden, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(hidden)
        self.conv_2 = nn.Conv2d(hidden, width_out, 3, padding=1)
        self.skip = nn.Conv2d(width, width_out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the skip connection plus what the convolutions give."""
        return self.skip(x) + self.conv_2(torch.relu(self.norm(self.conv_1(x))))


class DigitNet(nn.Module):
    """Your model: Esper has never seen it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.early = Block(4, 2, 8, stride=1)
        self.late = Block(8, 2, 16, stride=2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[N, 10]`` of images ``[N, 1, 8, 8]``."""
        x = torch.relu(self.early(torch.relu(self.stem(x))))
        return self.head(torch.relu(self.late(x)).mean((2, 3)))


def split_digits(seed: int) -> tuple[Data, Data, Data]:
    """Return images to learn from, images to decide by, and images to look at once, at the end."""
    images, labels = load_digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, valid, test = ((images[part], labels[part]) for part in order.split([1197, 300, 300]))
    return train, valid, test


def show(step: TimelineStep) -> None:
    """Print an epoch as it happens."""
    decision = " ".join(filter(None, (step.op, step.blueprint, step.slot, step.note)))
    seeds = ", ".join(f"{slot} {stage}" for slot, stage in step.stages.items())
    epoch, added = step.epoch, step.seed_parameters
    print(f"{epoch:5}  {step.score:8.1%}  {step.flops:5.2f}  {added:5,}  {decision:32}  {seeds}")


def find_right(model: nn.Module, data: Data) -> Tensor:
    """Return which images ``[N]`` a model classifies as they are labelled."""
    with torch.no_grad():
        return model.eval()(data[0]).argmax(1) == data[1]


def reload_without_esper(plain: nn.Module, test: Data, folder: Path) -> float:
    """Save a plain model with ``torch.export``; return its accuracy in a process without Esper."""
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(plain.eval(), (test[0],), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "digits.pt2")
    torch.save(test, folder / "test_images.pt")
    files = [str(folder / "digits.pt2"), str(folder / "test_images.pt")]
    command = [sys.executable, "-c", RELOAD, *files]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def with_new_weights(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose layers have forgotten everything."""
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return twin


def main(epochs: int, seed: int, controller: str, folder: Path) -> None:
    """Grow the model, save it, and compare it with models that did not grow."""
    torch.set_num_threads(1)  # networks this small are faster on one
    torch.manual_seed(seed)
    started, small = time.monotonic(), DigitNet()
    train, valid, test = split_digits(seed)

    print("epoch  accuracy  FLOPs  added  decision                          seeds")
    grown = esper.grow(
        small, train, valid, epochs, controller=controller, seed=seed, on_step=show, **TRAINING
    )
    print(f"\n{grown.summary}")

    plain = grown.model.eval()
    right, reloaded = find_right(plain, test), reload_without_esper(plain, test, folder)
    assert reloaded == right.float().mean().item(), "the reloaded model differs"
    print(f"Used in a process that cannot import esper: {reloaded:.1%} of the test images right.")

    models, flops = {"grown": plain}, {"grown": grown.summary.flops}
    cost = esper.footprint(small, train[0][:1]).training_step_flops
    for name, rival in (
        ("not grown", small),
        ("as large from the start", with_new_weights(plain)),
    ):
        trained = esper.grow(rival, train, valid, epochs, controller="wait", seed=seed, **TRAINING)
        share = esper.footprint(rival, train[0][:1]).training_step_flops / cost
        models[name], flops[name] = trained.model, share * trained.summary.flops
    print("\nFLOPs of training are a share of those of the small model for all epochs:")
    print(f"{'300 test images':<23}  accuracy  parameters  FLOPs of training")
    for name, model in models.items():
        size = sum(parameter.numel() for parameter in model.parameters())
        score = find_right(model, test).float().mean().item()
        print(f"{name:<23}  {score:8.1%}  {size:10,}  {flops[name]:17.2f}")
    for name in list(models)[1:]:
        other = find_right(models[name], test)
        lost, won = int((right & ~other).sum()), int((other & ~right).sum())
        print(f'Only "grown" is right on {lost} images, only "{name}" on {won}.')
    print(f"This is one run, which took {time.monotonic() - started:.0f} s; --seed gives others.")


def whole_number(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not from 0 to {2**32 - 1}")
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--epochs", type=whole_number, default=16, help="epochs that each model may train"
    )
    parser.add_argument(
        "--seed", type=whole_number, default=0, help="seed of the weights and the split"
    )
    parser.add_argument(
        "--controller", default="shipped", help="who decides: shipped, a folder, or heuristic"
    )
    parser.add_argument("--out", type=Path, help="folder that keeps the exported model")
    arguments = parser.parse_args()
    if arguments.epochs == 0:
        parser.error("--epochs 0 is too few; at least 1 is needed")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out {folder} cannot be used as a folder: {error.strerror}")
        try:
            main(arguments.epochs, arguments.seed, arguments.controller, folder)
        except EsperError as error:
            parser.error(str(error))
