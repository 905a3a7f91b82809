"""Shared parts of the image tasks. Shapes: n images, C channels, H x W pixels."""

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
    """Images as stored, with the class of each."""

    images: NDArray[np.uint8]
    """``[n, C, H, W]``, 0 to 255."""
    labels: NDArray[np.uint8]
    """``[n]``"""
    source: Path
    """The file or folder they come from, for messages."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise BadDataError(
                f"{self.source} has {len(self.images)} images but {len(self.labels)} labels."
            )
        if len(self.labels) and self.labels.max() >= N_CLASSES:
            raise BadDataError(
                f"{self.source} has the label {self.labels.max()}; labels must be in "
                f"0..{N_CLASSES - 1}."
            )


def split_images(
    training: LabelledImages,
    test: LabelledImages,
    *,
    n_train: int,
    n_validation: int,
    shrink: int = 1,
) -> TaskData:
    """Return the three splits, with fixed train and validation samples.

    Pixels are standardized by the mean and deviation of each channel of the training samples.

    Args:
        training: The images that train and validation samples are drawn from.
        test: The images of the test split, all of which are used.
        n_train: Training samples.
        n_validation: Validation samples.
        shrink: Factor of average pooling.

    Raises:
        TaskError: If there are fewer samples.
    """
    require_int("n_train", n_train, least=2)
    require_int("n_validation", n_validation, least=2)
    if n_train + n_validation > len(training.labels):
        raise TaskError(
            f"n_train is {n_train} and n_validation is {n_validation}; together they must be at "
            f"most {len(training.labels)}, the samples of {training.source}."
        )
    rows = stratified_split(training.labels, (n_train, n_validation), seed=0)
    train, validation = (_pixels(training.images[row], shrink) for row in rows)
    mean = train.mean(dim=(0, 2, 3), keepdim=True)
    # The floor leaves a constant channel unscaled.
    deviation = train.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-3)
    train_labels, validation_labels = (_targets(training.labels[row]) for row in rows)
    return TaskData(
        train=Samples((train - mean) / deviation, train_labels),
        validation=Samples((validation - mean) / deviation, validation_labels),
        test=Samples((_pixels(test.images, shrink) - mean) / deviation, _targets(test.labels)),
    )


def flatten_images(data: TaskData) -> TaskData:
    """Return the same data with each image as one vector."""
    train, validation, test = (
        Samples(samples.inputs.flatten(1), samples.targets) for _, samples in data.splits()
    )
    return TaskData(train=train, validation=validation, test=test)


def _pixels(images: NDArray[np.uint8], shrink: int) -> Tensor:
    """Return pixels in [0, 1], after average pooling."""
    pixels = torch.from_numpy(images.astype(np.float32)) / 255
    if shrink == 1:
        return pixels
    n, channels, height, width = pixels.shape
    squares = pixels.view(n, channels, height // shrink, shrink, width // shrink, shrink)
    return squares.mean(dim=(3, 5))


def _targets(labels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


VARIABLE = "ESPER_DATA_DIR"
"""The environment variable that names a folder with one data folder per task."""


def data_folders(task: str, data_dir: str | Path | None, *installed: str) -> list[Path]:
    """Return the folders that may hold a task's files.

    If the user gives a folder it is the only one: a typo in its name must not load other data.

    Args:
        task: The task's name.
        data_dir: The folder that the user gave.
        installed: Folders where system packages put the files.
    """
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    shared = os.environ.get(VARIABLE)
    folders = [Path(shared).expanduser() / task] if shared else []
    return [*folders, *(Path(folder) for folder in installed)]


def find_files(
    task: str,
    folders: Sequence[Path],
    layouts: Sequence[Mapping[str, Sequence[str]]],
    *,
    advice: str,
) -> tuple[int, dict[str, Path]]:
    """Return the index of the first complete layout and the path of each of its files.

    Args:
        task: The task's name, for messages.
        folders: The folders to search, in order.
        layouts: Possible sets of files: for the role of each file, its possible names.
        advice: How to get the files.

    Raises:
        MissingDataError: If no folder has all files of a layout.
    """
    most_found, absent = -1, " or ".join(next(iter(layouts[0].values())))
    for folder in folders:
        for index, layout in enumerate(layouts):
            found, missing = _search(folder, layout)
            if not missing:
                return index, found
            if len(found) > most_found:
                most_found, absent = len(found), missing[0]
    searched = ", ".join(map(str, folders)) or "no folder, as none is set"
    raise MissingDataError(
        f"task {task!r} needs the missing file {absent}; searched {searched}. {advice}"
    )


def _search(folder: Path, layout: Mapping[str, Sequence[str]]) -> tuple[dict[str, Path], list[str]]:
    found: dict[str, Path] = {}
    missing: list[str] = []
    for role, names in layout.items():
        paths = [folder / name for name in names if (folder / name).is_file()]
        if paths:
            found[role] = paths[0]
        else:
            missing.append(" or ".join(names))
    return found, missing
