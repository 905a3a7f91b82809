"""Grow a model of your own while it trains, with one call, and get a plain model back.

A small convolutional network, defined below, learns the handwritten digits that ship with Esper.
In every epoch a controller decides whether to plant a seed in one of its blocks, to blend one in,
to keep or prune it, or to stop. The result is a plain module, which is saved and then loaded in a
process that cannot import Esper. Two models that do not grow, one of the initial size and one of
the final size, show what growth was worth.

Run:  python examples/grow_your_own_model.py
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import esper
from esper.errors import ConfigError, EsperError
from esper.growing.decisions import Decision
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
    """Two convolutions with a narrow bottleneck between them, and a skip connection."""

    def __init__(self, width: int, hidden: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(width, hidden, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(hidden)
        self.conv_2 = nn.Conv2d(hidden, width_out, 3, padding=1)
        self.skip = nn.Conv2d(width, width_out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the skip connection and the convolutions."""
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
    """Return the training, validation and test sets."""
    images, labels = load_digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, valid, test = ((images[part], labels[part]) for part in order.split([1197, 300, 300]))
    return train, valid, test


def show(step: Decision) -> None:
    """Print one epoch."""
    decision = " ".join(filter(None, (step.op, step.blueprint, step.slot, step.why)))
    seeds = ", ".join(f"{slot} {stage}" for slot, stage in step.stages.items())
    epoch, added = step.epoch, step.seed_parameters
    facts = f"{epoch:5}  {step.score:8.1%}  {step.flops:5.2f}  {added:5,}  "
    print(wrapped(facts + "; ".join(filter(None, (decision, seeds))), indent=len(facts)))


def wrapped(text: str, indent: int = 0) -> str:
    """Return a text in lines of 80 columns."""
    return textwrap.fill(
        text, 80, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def correct_predictions(model: nn.Module, data: Data) -> Tensor:
    """Return a mask ``[N]`` of the images that the model classifies correctly."""
    with torch.no_grad():
        return model.eval()(data[0]).argmax(1) == data[1]


def reload_without_esper(plain: nn.Module, test: Data, folder: Path) -> float:
    """Save a model with ``torch.export`` and return its accuracy in a process without Esper."""
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(plain.eval(), (test[0],), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "digits.pt2")
    torch.save(test, folder / "test_images.pt")
    files = [str(folder / "digits.pt2"), str(folder / "test_images.pt")]
    command = [sys.executable, "-c", RELOAD, *files]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def reinitialize(model: nn.Module) -> nn.Module:
    """Return a copy of a model with new random weights."""
    copied = copy.deepcopy(model)
    for layer in copied.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return copied


def main(epochs: int, seed: int, controller: str, folder: Path, *, is_kept: bool) -> None:
    """Grow the model, save it, and compare it with models that do not grow."""
    torch.manual_seed(seed)
    started, small = time.monotonic(), DigitNet()
    train, valid, test = split_digits(seed)

    print("epoch  accuracy  FLOPs  added  decision; seeds")
    grown = esper.grow(
        small, train, valid, epochs, controller=controller, seed=seed, on_step=show, **TRAINING
    )
    print(f"\n{grown.summary}")

    plain = grown.model.eval()
    correct, reloaded = correct_predictions(plain, test), reload_without_esper(plain, test, folder)
    assert reloaded == correct.float().mean().item(), "the reloaded model differs"
    print(f"Test accuracy in a process that cannot import esper: {reloaded:.1%}")

    models, flops = {"grown": plain}, {"grown": grown.summary.flops}
    cost = esper.footprint(small, train[0][:1]).training_step_flops
    for name, baseline in (
        ("no growth", small),
        ("full size from scratch", reinitialize(plain)),
    ):
        trained = esper.grow(
            baseline, train, valid, epochs, controller="no-growth", seed=seed, **TRAINING
        )
        share = esper.footprint(baseline, train[0][:1]).training_step_flops / cost
        models[name], flops[name] = trained.model, share * trained.summary.flops
    print("\nTraining FLOPs are relative to training the small model for all epochs:")
    print(f"{'300 test images':<23}  accuracy  parameters  training FLOPs")
    for name, model in models.items():
        size = sum(parameter.numel() for parameter in model.parameters())
        score = correct_predictions(model, test).float().mean().item()
        print(f"{name:<23}  {score:8.1%}  {size:10,}  {flops[name]:14.2f}")
    for name in list(models)[1:]:
        other = correct_predictions(models[name], test)
        won, lost = int((correct & ~other).sum()), int((other & ~correct).sum())
        print(f'Images that only "grown" gets right: {won}; only "{name}": {lost}.')
    print(f"One run, {time.monotonic() - started:.0f} s; try another with --seed.")
    if is_kept:
        show_files(grown, folder)


def show_files(grown: esper.Grown, folder: Path) -> None:
    """Draw the growth, and say what there is to look at."""
    assert grown.trace is not None, "a model of one's own has a trace"
    print(f"\n{folder / 'digits.pt2'}: the model; torch.export.load(file).module() loads it")
    page = folder / "growth.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>DigitNet</title>"
        + grown.summary.to_html()
        + grown.trace.to_html(),
        encoding="utf-8",
    )
    try:
        grown.trace.figure(title="DigitNet").savefig(folder / "growth.png", dpi=144)
    except ConfigError as error:  # matplotlib is optional
        print(wrapped(str(error)))
    else:
        print(f"{folder / 'growth.png'}: accuracy, seeds and parameters by epoch")
    print(f"Next: open {page} in a browser to see every decision of this run,")
    print("or see many networks grow: esper train, then esper dashboard.")


def whole_number(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and {2**32 - 1}")
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--epochs", type=whole_number, default=16, help="epochs to train each model for"
    )
    parser.add_argument(
        "--seed", type=whole_number, default=0, help="seed of the weights and the data split"
    )
    parser.add_argument(
        "--controller",
        default="learned",
        help="learned, heuristic, or a folder",
    )
    parser.add_argument("--out", type=Path, help="folder to keep the model and a figure in")
    arguments = parser.parse_args()
    if arguments.epochs == 0:
        parser.error("--epochs 0 is too small; it must be at least 1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out {folder} cannot be used as a folder: {error.strerror}")
        try:
            main(
                arguments.epochs,
                arguments.seed,
                arguments.controller,
                folder,
                is_kept=arguments.out is not None,
            )
        except EsperError as error:
            parser.error(str(error))
