"""Draw a network that grows while it trains, as an animation: ``docs/images/growth.gif``,
and ``growth-dark.gif`` for dark pages.

A small network learns the digits that ship with Esper, twice with the same weights and batches: as
it is, and grown by a controller. The animation shows both scores and the layers of the second.

Run:  python tools/draw_growth.py
      python tools/draw_growth.py --controller heuristic --frames frames
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Polygon
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

import esper
from esper.tasks import split_digits

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "growth.gif"
EPOCHS, LEARNING_RATE, BATCH = 40, 3e-3, 32
HIDDEN = {"1>3": "1", "3>5": "3"}
"""The slots of the network, and the names of the layers that they widen."""


@dataclass(frozen=True)
class Theme:
    """The colours of a light or a dark page."""

    paper: str
    ink: str
    soft: str
    grid: str
    plain: str
    grown: str
    ink_map: str
    """The colour map of the image that goes in."""


LIGHT = Theme("#ffffff", "#1f2933", "#8492a6", "#eef1f5", "#b3bcc8", "#2f6fde", "Greys")
DARK = Theme("#1e2129", "#e6e9ef", "#98a2b3", "#2b303b", "#6b7686", "#6ea0ff", "gray")
SEED = "#f59e0b"
SIZE, DPI, TOP = (7.0, 3.2), 170, 0.925
FRAMES_PER_EPOCH = 2
FRAME_MS, LAST_MS = 100, 4000
N_COLOURS = 255
LOWEST = 60
"""The lowest accuracy shown, in percent."""
SHOWN = 3
"""The validation image that is shown."""
PLACES, MIDDLE = (0.42, 1.35, 2.4, 3.4), 1.72
"""Where the image, the layers and the digits stand, in inches."""
STEP = 0.145
"""Inches between units."""
ROWS = 12
"""Units of a layer above each other, before the next column begins."""


@dataclass(frozen=True)
class Epoch:
    """The network after one epoch."""

    score: float
    """Accuracy on validation."""
    units: dict[str, int]
    """Units of each hidden layer that are part of the network."""
    blending: dict[str, tuple[int, float]]
    """Units that are being blended in, and how far."""
    parameters: int
    action: str
    """What the controller did, in words; empty for nothing."""


def make_network() -> nn.Module:
    """Return the network of the README."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10)
    )


def train(controller: str, seed: int) -> list[Epoch]:
    """Train the network under a controller and return it after each epoch, the start first."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    (x, y), (val_x, val_y), _ = split_digits()
    model = make_network()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    grower = esper.Grower(
        model, optimizer, epochs=EPOCHS, controller=controller, sample_input=x[:BATCH], seed=seed
    )
    order = torch.Generator().manual_seed(seed)

    def validate() -> float:
        with torch.no_grad():
            return (model(val_x).argmax(1) == val_y).float().mean().item()

    epochs = [describe(model, validate(), None)]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=order).split(BATCH):
            loss = cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            grower.step(loss)
        with torch.no_grad():
            val_loss = cross_entropy(model(val_x), val_y).item()
        decision = grower.end_epoch(val_loss=val_loss, score=validate(), validate=validate)
        epochs.append(describe(model, decision.score, decision))
        if controller != "no-growth":
            print(decision, flush=True)
    return epochs


def describe(model: nn.Module, score: float, decision: esper.Decision | None) -> Epoch:
    """Return what there is to draw of the network after an epoch."""
    plain = esper.export(model)
    kept, whole = (
        {slot: each.get_submodule(layer).out_features for slot, layer in HIDDEN.items()}
        for each in (esper.export(model, committed_only=True), plain)
    )
    alphas = decision.alphas if decision else {}
    blending = {
        slot: (whole[slot] - kept[slot], alphas.get(slot, 1.0))
        for slot in HIDDEN
        if whole[slot] > kept[slot]
    }
    size = sum(parameter.numel() for parameter in plain.parameters())
    return Epoch(score, kept, blending, size, say(decision) if decision else "")


def say(decision: esper.Decision) -> str:
    """Return what was done in words that need no explanation."""
    number = list(HIDDEN).index(decision.slot) + 1 if decision.slot in HIDDEN else 0
    words = {
        "germinate": f"plant new units in layer {number}",
        "fossilize": f"keep the new units of layer {number}",
        "prune": f"remove the new units of layer {number}",
    }
    return words.get(decision.op, "")


class Units:
    """The units of one hidden layer between two epochs: where they are, how large, in which colour.

    Positions are in inches from the layer's centre, in columns of at most ``ROWS``.
    """

    def __init__(self, slot: str, before: Epoch, after: Epoch, share: float, theme: Theme) -> None:
        smooth = share * share * (3 - 2 * share)
        (kept, new, strength), (next_kept, next_new, next_strength) = (
            (each.units[slot], *each.blending.get(slot, (0, 0.0))) for each in (before, after)
        )
        self.n_kept, self.n_new = kept, new
        count = max(kept + new, next_kept + next_new)
        numbers = np.arange(count)

        def mix(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.floating]:
            return first + smooth * (second - first)

        self.sizes = mix(1.0 * (numbers < kept + new), 1.0 * (numbers < next_kept + next_new))
        # Not mixed: halfway between the two colours is grey.
        blue = 1.0 * (numbers < kept)[:, None]
        first = np.where(numbers < kept, 1.0, strength)
        alpha = mix(first, np.where(numbers < next_kept, 1.0, next_strength))[:, None]
        paper, seed, grown = (np.array(to_rgb(name)) for name in (theme.paper, SEED, theme.grown))
        orange = paper + (0.25 + 0.75 * alpha) * (seed - paper)
        self.faces = orange + blue * (grown - orange)
        self.edges = seed + blue * (grown - seed)
        self.places = mix(*(self._layout(n, count) for n in (kept + new, next_kept + next_new)))

    @staticmethod
    def _layout(n: int, count: int) -> NDArray[np.floating]:
        columns = -(-n // ROWS)
        rows = -(-n // columns)
        column, row = np.divmod(np.arange(count), rows)
        return STEP * np.stack([column - (columns - 1) / 2, (rows - 1) / 2 - row], axis=1)

    @property
    def box(self) -> tuple[float, float]:
        """Half the width and half the height of what the units cover."""
        shown = self.places[self.sizes > 0]
        return tuple(np.abs(shown).max(0) + 0.6 * STEP)


def draw_frame(grown: list[Epoch], plain: list[Epoch], at: float, theme: Theme) -> Image.Image:
    """Return the picture at a time between two epochs."""
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor=theme.paper)
    canvas = FigureCanvasAgg(figure)
    draw_scores(figure.add_axes((0.085, 0.155, 0.36, 0.68)), grown, plain, at, theme)
    wide, high = 0.53 * SIZE[0], SIZE[1]
    network = figure.add_axes((0.47, 0.0, 0.53, 1.0), xlim=(0, wide), ylim=(0, high))
    network.axis("off")
    draw_network(network, grown, at, theme)
    for x, title in ((0.035, "Validation accuracy"), (0.485, "The network")):
        figure.text(x, TOP, title, color=theme.ink, fontsize=10.5, weight="bold", va="center")
    size = f"{grown[0].parameters:,}"
    if grown[int(at)].parameters != grown[0].parameters:
        size += f" → {grown[int(at)].parameters:,}"
    figure.text(
        0.97, TOP, f"{size} parameters", color=theme.ink, fontsize=9.5, ha="right", va="center"
    )
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def draw_scores(
    axis: Axes, grown: list[Epoch], plain: list[Epoch], at: float, theme: Theme
) -> None:
    """Draw both scores up to a time."""
    axis.set_facecolor(theme.paper)
    times = np.append(np.arange(int(at) + 1), at)
    for row, (epochs, colour, width, label) in enumerate(
        ((plain, theme.plain, 1.8, "no growth"), (grown, theme.grown, 2.4, "grown"))
    ):
        scores = 100 * np.interp(times, np.arange(len(epochs)), [each.score for each in epochs])
        axis.plot(times, scores, color=colour, lw=width, solid_capstyle="round")
        axis.plot(at, scores[-1], "o", color=colour, ms=5)
        best = 100 * max(each.score for each in epochs[: int(at) + 1])
        ink = theme.soft if row == 0 else theme.grown
        place = {"transform": axis.transAxes, "ha": "right", "color": ink}
        axis.text(0.985, 0.05 + 0.115 * row, f"{best:.1f}%", fontsize=10, weight="bold", **place)
        axis.text(0.76, 0.05 + 0.115 * row, label, fontsize=9.5, **place)
    axis.set(xlim=(0, EPOCHS + 0.8), ylim=(LOWEST, 100))
    axis.set_xticks(range(0, EPOCHS + 1, 10))
    axis.set_yticks(range(LOWEST, 101, 10), [f"{y}%" for y in range(LOWEST, 101, 10)])
    axis.tick_params(length=0, labelsize=8.5, labelcolor=theme.soft, pad=5)
    axis.grid(axis="y", color=theme.grid, lw=1)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("epoch", color=theme.soft, fontsize=8.5, labelpad=3)


def draw_network(axis: Axes, grown: list[Epoch], at: float, theme: Theme) -> None:
    """Draw the layers, the image that goes in and the digits that come out."""
    before, after = grown[int(at)], grown[min(int(at) + 1, len(grown) - 1)]
    layers = [Units(slot, before, after, at % 1, theme) for slot in HIDDEN]
    image = split_digits()[1][0][SHOWN, 0].numpy()
    boxes = [(0.24, 0.24), *(layer.box for layer in layers), (0.1, 0.95)]
    for i in range(len(boxes) - 1):
        (left, (half, tall)), (right, (next_half, next_tall)) = (
            (PLACES[j], boxes[j]) for j in (i, i + 1)
        )
        corners = [
            (left + half, MIDDLE + tall),
            (right - next_half, MIDDLE + next_tall),
            (right - next_half, MIDDLE - next_tall),
            (left + half, MIDDLE - tall),
        ]
        axis.add_patch(Polygon(corners, color=theme.grid, lw=0))
    axis.imshow(
        image,
        cmap=theme.ink_map,
        vmin=0,
        vmax=1.15,
        aspect="auto",
        interpolation="nearest",
        extent=(PLACES[0] - 0.24, PLACES[0] + 0.24, MIDDLE - 0.24, MIDDLE + 0.24),
    )
    axis.set(xlim=(0, 0.53 * SIZE[0]), ylim=(0, SIZE[1]))
    for i, layer in enumerate(layers):
        for (x, y), size, face, edge in zip(
            layer.places, layer.sizes, layer.faces, layer.edges, strict=True
        ):
            if size > 0:
                at_xy, diameter = (PLACES[i + 1] + x, MIDDLE + y), 0.72 * STEP * size
                axis.add_patch(Ellipse(at_xy, diameter, diameter, fc=face, ec=edge, lw=0.8))
        write_size(axis, PLACES[i + 1], layer, f"layer {i + 1}", theme)
    for digit in range(10):
        y = MIDDLE + 0.85 - digit * 1.7 / 9
        axis.text(
            PLACES[-1], y, str(digit), color=theme.soft, fontsize=8.5, ha="center", va="center"
        )
    axis.text(0.1, 0.13, last_action(grown, int(at)), color=theme.soft, fontsize=9)


def write_size(axis: Axes, x: float, layer: Units, name: str, theme: Theme) -> None:
    """Write how many units a layer has, how many are being blended in, and its name."""
    style = {"fontsize": 9.5, "weight": "bold", "va": "center"}
    if layer.n_new:
        axis.text(x - 0.03, 0.64, f"{layer.n_kept}", color=theme.grown, ha="right", **style)
        axis.text(x + 0.03, 0.64, f"+ {layer.n_new}", color=SEED, ha="left", **style)
    else:
        axis.text(x, 0.64, f"{layer.n_kept}", color=theme.grown, ha="center", **style)
    axis.text(x, 0.45, name, color=theme.soft, fontsize=8.5, ha="center", va="center")


def last_action(grown: list[Epoch], epoch: int) -> str:
    """Return the latest action up to an epoch, with its epoch; empty before the first."""
    for number in range(epoch, 0, -1):
        if grown[number].action:
            return f"epoch {number}: {grown[number].action}"
    return ""


def times() -> Iterator[float]:
    """Return the times of the frames."""
    for frame in range(EPOCHS * FRAMES_PER_EPOCH + 1):
        yield frame / FRAMES_PER_EPOCH


def save_animation(
    grown: list[Epoch], plain: list[Epoch], out: Path, frames: Path | None, theme: Theme
) -> None:
    """Write the animation, and its frames as PNG if a folder is given."""
    images = [draw_frame(grown, plain, at, theme) for at in times()]
    if frames is not None:
        frames.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            image.save(frames / f"{number:03}.png")
    write_gif(images, out)


def write_gif(images: list[Image.Image], out: Path) -> None:
    """Write frames as an endless GIF that rests on the last one."""
    # One palette for all frames, or colours would flicker.
    strip = np.concatenate([np.asarray(image) for image in images[::8]])
    palette = Image.fromarray(strip).quantize(N_COLOURS, dither=Image.Dither.NONE)
    reduced = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    out.parent.mkdir(parents=True, exist_ok=True)
    waits = [FRAME_MS] * (len(images) - 1) + [LAST_MS]
    reduced[0].save(
        out, save_all=True, append_images=reduced[1:], duration=waits, loop=0, optimize=True
    )
    print(f"{out}: {len(images)} frames, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--controller", default="learned", help="learned, heuristic, or a folder")
    parser.add_argument("--seed", type=int, default=2, help="seed of the weights and batches")
    parser.add_argument("--out", type=Path, default=OUT, help="file to write")
    parser.add_argument("--frames", type=Path, help="folder to write single frames to as well")
    options = parser.parse_args()
    grown, plain = (train(name, options.seed) for name in (options.controller, "no-growth"))
    dark = options.out.with_stem(f"{options.out.stem}-dark")
    save_animation(grown, plain, options.out, options.frames, LIGHT)
    save_animation(grown, plain, dark, None, DARK)
