"""The real data sets as tensors, read from the packages that `download.py` unpacked.

Shapes: N samples, D inputs, T places of a sequence.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import sys
import sysconfig
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rda import Frame, Vector, read_frame
from torch import Tensor
from torch.nn import functional

MAX_TESTS = 5_000
"""Test samples at most."""
CONTEXT = 32
"""Characters of a window of text."""
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""Newline and what ASCII can print; all else is one token."""
LONGEST_WORD = 12
LANGUAGES = {
    "wamerican": "american-english",
    "wfrench": "french",
    "witalian": "italian",
    "wngerman": "ngerman",
    "wspanish": "spanish",
}
NOT_TEXT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders of Python's library that are left out: other packages, and its own tests."""


@dataclass(frozen=True)
class RealSet:
    """All samples of a data set, before they are split."""

    inputs: Tensor
    """``[N, ...]``, floats or tokens; NaN where a value is missing."""
    targets: Tensor
    """Classes ``[N]``, numbers ``[N, 1]``, next tokens ``[N, T]`` or images."""
    n_classes: int = 0
    """0 for numbers."""
    is_tabular: bool = True
    """Whether inputs and numeric targets are standardized by the training samples."""

    @property
    def digest(self) -> str:
        """A checksum of all samples. Results on other data are not comparable."""
        total = hashlib.sha256()
        for tensor in (self.inputs, self.targets):
            total.update(tensor.contiguous().numpy().tobytes())
        return total.hexdigest()[:12]


@dataclass(frozen=True)
class Splits:
    """Inputs and targets of the three splits."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def split(data: RealSet, seed: int, *, max_training: int) -> Splits:
    """Return random splits: 60% for training up to a limit, a third as many for validation.

    The rest is for testing: 20% of a small set, and more of a large one, whose scores are then less
    noisy.
    """
    n = len(data.inputs)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    n_train = min(round(0.6 * n), max_training)
    n_validation = round(n_train / 3)
    rows = (
        order[:n_train],
        order[n_train:][:n_validation],
        order[n_train + n_validation :][:MAX_TESTS],
    )
    inputs, targets = data.inputs, data.targets
    if data.is_tabular:
        inputs = standardize(inputs, rows[0])
        targets = targets if data.n_classes else standardize(targets, rows[0])
    train, validation, test = ((inputs[each], targets[each]) for each in rows)
    return Splits(train, validation, test)


def standardize(values: Tensor, rows: Tensor) -> Tensor:
    """Return columns ``[N, D]`` with mean 0 and variance 1 in some rows; missing ones are 0."""
    known = values[rows].double()
    mean = known.nanmean(0).nan_to_num()
    spread = (known - mean).square().nanmean(0).sqrt().nan_to_num()
    spread[spread < 1e-8] = 1.0
    return ((values.double() - mean) / spread).nan_to_num().float()


class Library:
    """Loads data sets from a folder of unpacked packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, RealSet] = {}

    def load(self, name: str) -> RealSet:
        """Return a data set; it is read once."""
        if name not in self._loaded:
            self._loaded[name] = SETS[name](self.folder)
        return self._loaded[name]


def _find(folder: Path, path: str) -> Path:
    if not (folder / path).exists():
        print(
            f"{folder / path} does not exist; get it with python "
            f"benchmarks/evidence/real/download.py --to {folder}",
            file=sys.stderr,
        )
        sys.exit(2)
    return folder / path


def frame_set(frame: Frame, target: str, *, without: Iterable[str] = ()) -> RealSet:
    """Return the samples of a data frame that have a target; factors are encoded one-hot."""
    targets = frame[target]
    kept = ~np.isnan(targets.values)
    columns = [
        _columns(vector)[kept]
        for name, vector in frame.items()
        if name != target and name not in set(without)
    ]
    inputs = torch.from_numpy(np.concatenate(columns, axis=1)).float()
    if targets.levels is None:
        return RealSet(inputs, torch.from_numpy(targets.values[kept]).float()[:, None])
    classes = torch.from_numpy(targets.values[kept]).long() - 1  # R counts from 1
    return RealSet(inputs, classes, n_classes=len(targets.levels))


def _columns(vector: Vector) -> np.ndarray:
    """Return the columns ``[N, D]`` of a vector: one for each level of a factor of several."""
    values = vector.values[:, None]
    if vector.levels is None or len(vector.levels) == 2:
        return values
    return (values == np.arange(1, len(vector.levels) + 1)).astype(np.float64)


def _from_r(package: str, name: str, target: str, *without: str) -> Callable[[Path], RealSet]:
    def load(folder: Path) -> RealSet:
        path = f"r-cran-{package}/usr/lib/R/site-library/{package}/data/{name}.rda"
        return frame_set(read_frame(_find(folder, path)), target, without=without)

    return load


def _load_breast_cancer(folder: Path) -> RealSet:
    path = _find(folder, "scikit-learn/sklearn/datasets/data/breast_cancer.csv")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    inputs, targets = torch.from_numpy(table[:, :-1]).float(), torch.from_numpy(table[:, -1])
    return RealSet(inputs, targets.long(), n_classes=2)


def _load_diabetes(folder: Path) -> RealSet:
    names = ("diabetes_data_raw", "diabetes_target")
    paths = [_find(folder, f"scikit-learn/sklearn/datasets/data/{name}.csv.gz") for name in names]
    inputs, targets = (torch.from_numpy(np.loadtxt(path)).float() for path in paths)
    return RealSet(inputs, targets[:, None])


def _load_diamonds(folder: Path) -> RealSet:
    """Return the logarithm of prices, and what they may depend on."""
    with _find(folder, "plotnine/plotnine/data/diamonds.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns: list[np.ndarray] = []
    for name in ("carat", "depth", "table", "x", "y", "z"):
        columns.append(np.array([[float(row[name])] for row in rows]))
    for name in ("cut", "color", "clarity"):
        levels = sorted({row[name] for row in rows})
        columns.append(np.array([[row[name] == level for level in levels] for row in rows]))
    prices = torch.tensor([[float(row["price"])] for row in rows]).log()
    return RealSet(torch.from_numpy(np.concatenate(columns, axis=1)).float(), prices)


def _load_dna(folder: Path) -> RealSet:
    """Return the bases ``[N, 60]`` as tokens 0 to 3: three indicators each, none for the last."""
    found = SETS["dna"](folder)
    present = (found.inputs == found.inputs.max()).reshape(len(found.inputs), 60, 3).int()
    tokens = torch.where(present.any(2), present.argmax(2), 3)
    return RealSet(tokens, found.targets, n_classes=found.n_classes, is_tabular=False)


def _load_fashion(folder: Path) -> RealSet:
    """Return the images ``[N, 1, 14, 14]`` at half resolution, and their classes."""
    images, labels = _read_fashion(folder)
    return RealSet(images, labels, n_classes=10, is_tabular=False)


def _load_noisy_fashion(folder: Path) -> RealSet:
    """Return images with noise, and without it as targets."""
    images, _ = _read_fashion(folder)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return RealSet(images + 0.3 * noise, images, is_tabular=False)


def _read_fashion(folder: Path) -> tuple[Tensor, Tensor]:
    root = "dataset-fashion-mnist/usr/share/datasets/fashion-mnist"
    parts = []
    for name, start in (("images-idx3", 16), ("labels-idx1", 8)):
        path = _find(folder, f"{root}/train-{name}-ubyte.gz")
        parts.append(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=start))
    # Half resolution and a quarter of the images are enough, and cheaper.
    images = torch.from_numpy(parts[0].reshape(-1, 1, 28, 28)[:15_000].copy()).float() / 255.0
    labels = torch.from_numpy(parts[1][:15_000].copy()).long()
    return functional.avg_pool2d(images, 2), labels


def _load_python(_: Path) -> RealSet:
    """Return windows ``[N, T]`` of the source of Python's library, and their next characters."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if not NOT_TEXT.intersection(path.relative_to(root).parts):
            texts.append(path.read_text("utf-8", errors="replace"))
    tokens = _encode("".join(texts))
    n = (len(tokens) - 1) // CONTEXT
    inputs, targets = (
        tokens[start : start + n * CONTEXT].reshape(n, CONTEXT).clone() for start in (0, 1)
    )
    chosen = torch.from_numpy(np.random.default_rng(0).permutation(n)[:10_000])
    return RealSet(inputs[chosen], targets[chosen], len(CHARACTERS) + 1, is_tabular=False)


def _encode(text: str) -> Tensor:
    table = np.full(0x110000, len(CHARACTERS), np.int64)
    table[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
    return torch.from_numpy(table[np.frombuffer(text.encode("utf-32-le"), np.uint32)])


def _load_words(folder: Path) -> RealSet:
    """Return words ``[N, 12]`` as letters 1 to 26, padded with 0, and their languages.

    Accents are removed, and so are words of several languages.
    """
    by_language: list[set[str]] = []
    for package, name in LANGUAGES.items():
        lines = _find(folder, f"{package}/usr/share/dict/{name}").read_text("utf-8").splitlines()
        plain = (unicodedata.normalize("NFKD", line.lower()) for line in lines)
        words = {"".join(c for c in word if not unicodedata.combining(c)) for word in plain}
        by_language.append({word for word in words if _is_usable(word)})
    generator = np.random.default_rng(0)
    inputs: list[list[int]] = []
    targets: list[int] = []
    for number, words in enumerate(by_language):
        others = set().union(*(each for each in by_language if each is not words))
        own = sorted(words - others)
        for row in generator.permutation(len(own))[:3_000]:
            letters = [ord(letter) - ord("a") + 1 for letter in own[row]]
            inputs.append(letters + [0] * (LONGEST_WORD - len(letters)))
            targets.append(number)
    return RealSet(torch.tensor(inputs), torch.tensor(targets), len(LANGUAGES), is_tabular=False)


def _is_usable(word: str) -> bool:
    return word.isascii() and word.isalpha() and 4 <= len(word) <= LONGEST_WORD


SETS: dict[str, Callable[[Path], RealSet]] = {
    "boston": _from_r("mlbench", "BostonHousing", "medv"),
    "breast-cancer": _load_breast_cancer,
    "diabetes": _load_diabetes,
    "diamonds": _load_diamonds,
    "dna": _from_r("mlbench", "DNA", "Class"),
    "dna-bases": _load_dna,
    "fashion": _load_fashion,
    "fashion-noisy": _load_noisy_fashion,
    "glass": _from_r("mlbench", "Glass", "Type"),
    "income": _from_r("kernlab", "income", "INCOME"),
    "insurance": _from_r("kernlab", "ticdata", "CARAVAN"),
    "ionosphere": _from_r("mlbench", "Ionosphere", "Class"),
    "letter": _from_r("mlbench", "LetterRecognition", "lettr"),
    "musk": _from_r("kernlab", "musk", "Class"),
    "ozone": _from_r("mlbench", "Ozone", "V4", "V2", "V3"),
    "pima": _from_r("mlbench", "PimaIndiansDiabetes", "diabetes"),
    "python": _load_python,
    "satellite": _from_r("mlbench", "Satellite", "classes"),
    "shuttle": _from_r("mlbench", "Shuttle", "Class"),
    "sonar": _from_r("mlbench", "Sonar", "Class"),
    "soybean": _from_r("mlbench", "Soybean", "Class"),
    "spam": _from_r("kernlab", "spam", "type"),
    "vehicle": _from_r("mlbench", "Vehicle", "Class"),
    "vowel": _from_r("mlbench", "Vowel", "Class", "V1"),
    "words": _load_words,
}
"""Every set by name."""
