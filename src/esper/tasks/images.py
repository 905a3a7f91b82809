"""What the tasks on sets of many labelled images share. Shapes: n images, C channels, H x W."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.config.checks import require_int
from esper.errors import BadDataError, MissingDataError, TaskError
from esper.tasks.data import Samples, TaskData, stratified_split

N_CLASSES = 10


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images as they are stored, and the class of each."""

    images: NDArray[np.uint8]
    """``[n, C, H, W]``, 0 to 255."""
    labels: NDArray[np.uint8]
    """``[n]``"""
    source: Path
    """The file or folder they are from, for messages."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise BadDataError(
                f"{self.source} has {len(self.images)} images and {len(self.labels)} labels; it "
                "must have as many of each."
            )
        if len(self.labels) and self.labels.max() >= N_CLASSES:
            raise BadDataError(
                f"{self.source} has a label {self.labels.max()}; labels must be in "
                f"0..{N_CLASSES - 1}."
            )


def split_images(
    learning: LabelledImages,
    testing: LabelledImages,
    *,
    n_train: int,
    n_validation: int,
    shrink: int = 1,
) -> TaskData:
    """Return splits: train and validation from one set, drawn once for all, test from the other.

    Pixels are standardised by the mean and deviation of each channel of the training samples.

    Args:
        learning: Where samples to learn from and to validate on are taken from.
        testing: All of these are the test split.
        n_train: Samples to learn from.
        n_validation: Samples to validate on.
        shrink: Side of the squares of pixels that become one, their mean.

    Raises:
        TaskError: If there are not as many samples.
    """
    require_int("n_train", n_train, least=2)
    require_int("n_validation", n_validation, least=2)
    if n_train + n_validation > len(learning.labels):
        raise TaskError(
            f"n_train is {n_train} and n_validation is {n_validation}; together they must be at "
            f"most the {len(learning.labels)} samples of {learning.source}."
        )
    rows = stratified_split(learning.labels, (n_train, n_validation), seed=0)
    train, validation = (_pixels(learning.images[row], shrink) for row in rows)
    mean = train.mean(dim=(0, 2, 3), keepdim=True)
    # A channel that is the same everywhere stays as it is.
    deviation = train.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-3)
    train_labels, validation_labels = (_targets(learning.labels[row]) for row in rows)
    return TaskData(
        train=Samples((train - mean) / deviation, train_labels),
        validation=Samples((validation - mean) / deviation, validation_labels),
        test=Samples(
            (_pixels(testing.images, shrink) - mean) / deviation, _targets(testing.labels)
        ),
    )


def flat(data: TaskData) -> TaskData:
    """Return the same data with each image as one vector."""
    train, validation, test = (
        Samples(samples.inputs.flatten(1), samples.targets) for _, samples in data.splits()
    )
    return TaskData(train=train, validation=validation, test=test)


def _pixels(images: NDArray[np.uint8], shrink: int) -> Tensor:
    """Return images as numbers in [0, 1], squares of pixels replaced by their mean."""
    pixels = torch.from_numpy(images.astype(np.float32)) / 255
    if shrink == 1:
        return pixels
    n, channels, height, width = pixels.shape
    squares = pixels.view(n, channels, height // shrink, shrink, width // shrink, shrink)
    return squares.mean(dim=(3, 5))


def _targets(labels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


VARIABLE = "ESPER_DATA_DIR"
"""The environment variable that names a folder with one folder of data for each task."""


def data_places(task: str, data_dir: str | Path | None, *installed: str) -> list[Path]:
    """Return where a task's files may be: the user's folder, or else the usual ones.

    A folder that the user names is the only one: a slip in its name must not bring other data.

    Args:
        task: The task's name.
        data_dir: The folder that the user named.
        installed: Folders where packages of the system put the files.
    """
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    shared = os.environ.get(VARIABLE)
    places = [Path(shared).expanduser() / task] if shared else []
    return [*places, *(Path(folder) for folder in installed)]


def find_files(
    task: str,
    places: Sequence[Path],
    layouts: Sequence[Mapping[str, Sequence[str]]],
    *,
    advice: str,
) -> tuple[int, dict[str, Path]]:
    """Return which layout was found first, and the path of each of its files.

    Args:
        task: The task's name, for the message.
        places: Folders, the first that has everything wins.
        layouts: Each gives, for the role of each file, the names that it may have.
        advice: How to get the files.

    Raises:
        MissingDataError: If no folder has all files of a layout.
    """
    nearest, absent = -1, " or ".join(next(iter(layouts[0].values())))
    for place in places:
        for index, layout in enumerate(layouts):
            found, missing = _look(place, layout)
            if not missing:
                return index, found
            if len(found) > nearest:
                nearest, absent = len(found), missing[0]
    looked = f"in {', '.join(str(place) for place in places)}" if places else "in no folder yet"
    raise MissingDataError(
        f"task {task!r} needs the file {absent}, which is missing; looked {looked}. {advice}"
    )


def _look(place: Path, layout: Mapping[str, Sequence[str]]) -> tuple[dict[str, Path], list[str]]:
    found: dict[str, Path] = {}
    missing: list[str] = []
    for role, names in layout.items():
        paths = [place / name for name in names if (place / name).is_file()]
        if paths:
            found[role] = paths[0]
        else:
            missing.append(" or ".join(names))
    return found, missing
