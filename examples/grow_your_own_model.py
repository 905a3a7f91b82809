"""Grow a model of your own while it trains, and get a plain model back.

A small convolutional network, defined here, learns the handwritten digits that come with Esper.
While it trains, seeds grow in its blocks by a fixed schedule: each first learns beside its block,
then is blended in, and is kept only if more validation images are right with it than without.
The grown model is exported and reloaded in a process that cannot import Esper. Two models that did
not grow, one as small as this one began and one as large as it became, tell what growth was worth.

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
from torch.nn.functional import cross_entropy

import esper
from esper.lifecycle.stages import COOLING_STAGES
from esper.tasks.digits_data import load_digits

PLAN = {"late": "widen_large", "stem": "attention", "early": "widen_large"}
"""What is tried at which block, one after the other."""

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
        self.early = Block(4, 4, 8, stride=1)
        self.late = Block(8, 4, 16, stride=2)
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


def find_right(model: nn.Module, data: Data) -> Tensor:
    """Return which images ``[N]`` a model classifies as they are labelled."""
    with torch.no_grad():
        return model.eval()(data[0]).argmax(1) == data[1]


def accuracy(model: nn.Module, data: Data) -> float:
    return find_right(model, data).float().mean().item()


def act(model: nn.Module, plan: dict[str, str], valid: Data) -> str:
    """Take the next step of the plan if it is time for it, and say what happened."""
    if not plan:
        return ""
    slots, (slot, blueprint) = esper.slots(model), next(iter(plan.items()))
    stage, epochs = slots[slot].stage, slots[slot].life.stage_epochs
    if any(other.stage in COOLING_STAGES for other in slots.values()):
        return ""  # a seed was pruned; the model rests before the next one
    if stage == esper.Stage.DORMANT:
        slots.germinate(slot, blueprint)
        slots.advance(slot)
        return f"{slot}: {blueprint} germinates and learns beside the block"
    if stage == esper.Stage.TRAINING and epochs >= 2:
        slots.advance(slot)
        return f"{slot}: {blueprint} begins to blend in"
    if stage == esper.Stage.BLENDING and slots.advance(slot).was_done:
        return f"{slot}: {blueprint} is blended in and held"
    if stage != esper.Stage.HOLDING:
        return ""
    del plan[slot]
    on = accuracy(model, valid)
    with slots.switched_off(slot):
        off = accuracy(model, valid)
    if on > off:
        slots.fossilize(slot)
    else:
        slots.prune(slot)
    verdict = "kept" if on > off else "pruned"
    return f"{slot}: {blueprint} {verdict}; {on:.1%} with it, {off:.1%} without"


def check_saving(model: nn.Module, images: Tensor) -> str:
    """Save and load a model with a seed that is partly blended in."""
    with tempfile.TemporaryDirectory() as folder:
        esper.save(model, folder)
        loaded = esper.load(folder, DigitNet)
    assert torch.equal(loaded.eval()(images), model.eval()(images)), "loading changed the model"
    return "saved and loaded half-blended: the same outputs to the bit"


def train(model: nn.Module, data: list[Data], epochs: int, plan: dict[str, str]) -> float:
    """Train a model with slots, growing it by the plan; return the FLOPs that this took."""
    (images, labels), valid = data
    sample, order = images[:8], torch.Generator().manual_seed(0)
    slots, meter = esper.slots(model), esper.TrainingMeter(model, sample)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    esper.OptimizerKeeper(model, optimizer)  # from now on it follows what comes and goes
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    governor = esper.Governor(model, optimizer)
    does_grow, is_saved = bool(plan), False
    for epoch in range(1, epochs + 1):
        events = [act(model, plan, valid) if epoch > 3 else ""]
        model.train()
        for part in torch.randperm(len(images), generator=order).split(64):
            optimizer.zero_grad()
            problem = governor.step(cross_entropy(model(images[part]), labels[part]))
            if problem:
                events.append(f"the governor took the model back: {problem.reason}")
        meter.add_training(len(images))
        scheduler.step()
        slots.tick()
        governor.end_epoch()
        if not is_saved and any(0 < slot.alpha < 1 for slot in slots.values()):
            is_saved = True
            events.append(check_saving(model, valid[0]))
        if does_grow:
            cost, now = esper.footprint(model, sample), accuracy(model, valid)
            flops = cost.forward_flops // len(sample)
            event = f"\n{'':42}".join(filter(None, events))
            print(f"{epoch:5}  {now:8.1%}  {cost.parameters:10,}  {flops:11,}  {event}".rstrip())
    for slot in slots.abandon_growing():
        print(f"{'':42}{slot}: given up, because the epochs ended before it was measured")
    return meter.total_flops


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


def main(epochs: int, seed: int, folder: Path) -> None:
    """Grow the model, export it, and compare it with models that did not grow."""
    torch.set_num_threads(1)  # networks this small are faster on one
    torch.manual_seed(seed)
    started, small = time.monotonic(), DigitNet()
    *data, test = split_digits(seed)
    sample, at = data[0][0][:8], list(PLAN)
    print("Where DigitNet can grow, and what each seed would cost there:")
    print(esper.find_slots(small, sample))

    print("\nepoch  accuracy  parameters  FLOPs/image  what happened")
    grown = esper.add_slots(copy.deepcopy(small), at, sample)
    spent = [train(grown, data, epochs, dict(PLAN))]

    plain = esper.export(grown).eval()
    torch.testing.assert_close(plain(test[0]), grown.eval()(test[0]), rtol=1e-5, atol=1e-5)
    right, reloaded = find_right(plain, test), reload_without_esper(plain, test, folder)
    assert reloaded == right.float().mean().item(), "the reloaded model differs"
    print("\nExported as a plain module: its outputs are the same.")
    print(
        f"Reloaded in a process that cannot import esper: {reloaded:.1%} of the test images right."
    )

    rivals = {"not grown": small, "as large from the start": with_new_weights(plain)}
    for rival in rivals.values():
        esper.add_slots(rival, at, sample)  # they stay empty
        spent.append(train(rival, data, epochs, {}))
    print(f"\n{'300 test images':<23}  accuracy  parameters  FLOPs/image  FLOPs of training")
    for (name, model), flops in zip({"grown": plain, **rivals}.items(), spent, strict=True):
        cost = esper.footprint(model, sample[:1])
        line = f"{name:<23}  {accuracy(model, test):8.1%}  {cost.parameters:10,}"
        print(f"{line}  {cost.forward_flops:11,}  {flops:17.2e}")
    for name, rival in rivals.items():
        other = find_right(rival, test)
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
        "--epochs", type=whole_number, default=30, help="epochs that each model trains"
    )
    parser.add_argument(
        "--seed", type=whole_number, default=0, help="seed of the weights and the split"
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
        main(arguments.epochs, arguments.seed, folder)
