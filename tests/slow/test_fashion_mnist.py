"""Every baseline runs on Fashion-MNIST, from the real files."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from esper.environment import GrowthVectorEnv, run_episodes
from esper.errors import MissingDataError
from esper.growth.host_slots import slots
from esper.lifecycle.factored_actions import Op, growth_action_spec
from esper.simic.policy import RecurrentPolicy
from esper.tamiyo import (
    Controller,
    LearnedController,
    WaitController,
    controller_names,
    grow_once,
    make_controller,
)
from esper.tasks import Task, make_task
from esper.tasks.fashion_mnist import ADVICE, FILES, INSTALLED, read_fashion_mnist
from esper.tasks.images import data_folders, find_files

pytestmark = pytest.mark.slow

PACKAGE = "dataset-fashion-mnist"
N_EPOCHS = 7
TINY = {"n_epochs": N_EPOCHS, "batches_per_epoch": 2, "n_train": 200, "n_validation": 100}
# Seven epochs have no plateau; a heuristic that sees one everywhere gets to grow.
OPTIONS = {"heuristic": {"warmup_epochs": 0, "plateau_rise": 1.0, "profit_epochs": 0}}
MakeTask = Callable[..., Task]


def find_folder() -> Path | None:
    """Return the first standard location that has all four files."""
    layout = {role: (name, f"{name}.gz") for role, name in FILES.items()}
    places = data_folders("fashion-mnist", None, INSTALLED)
    try:
        _, paths = find_files("fashion-mnist", places, [layout], advice=ADVICE)
    except MissingDataError:
        return None
    return paths["train images"].parent


def unpack_package(folder: Path) -> str | None:
    """Download and unpack Debian's package into a folder; return the reason if that fails.

    Neither needs root, and nothing is installed.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    try:
        run("apt-get", "download", PACKAGE, folder=folder)
        (package,) = folder.glob(f"{PACKAGE}_*.deb")
        run("dpkg-deb", "-x", package.name, ".", folder=folder)
    except subprocess.SubprocessError:
        return f"`apt-get download {PACKAGE}` failed"
    return None


def run(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=300)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the four files; skip if they are not available."""
    found = find_folder()
    if found is not None:
        return found
    place = tmp_path_factory.mktemp("fashion-mnist")
    failure = unpack_package(place)
    if failure is not None:
        pytest.skip(f"Fashion-MNIST is missing and {failure}. {ADVICE}")
    return place / Path(INSTALLED).relative_to("/")


@pytest.fixture(scope="session")
def make(folder: Path) -> MakeTask:
    """Return a function that makes the task from the real files and caches each variant."""
    made: dict[str, Task] = {}

    def make_once(**options: object) -> Task:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = make_task("fashion-mnist", data_dir=folder, **options)
        return made[key]

    return make_once


def read_bytes(folder: Path, name: str, header: int) -> NDArray[np.uint8]:
    """Return the data after a file's header, compressed or not."""
    path = folder / name
    data = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    return np.frombuffer(data, np.uint8, offset=header)


def make_named(name: str, envs: GrowthVectorEnv) -> Controller:
    if name == "learned":
        spec, layout = growth_action_spec(envs.slot_config), envs.layout
        generator = torch.Generator().manual_seed(0)
        policy = RecurrentPolicy(
            spec, layout.size, categories=layout.categories, generator=generator
        )
        return LearnedController(policy)
    return make_controller(name, envs.layout, **OPTIONS.get(name, {}))


def run_one(task: Task, name: str) -> None:
    """Run two episodes and check the properties that every controller shares."""
    envs = GrowthVectorEnv(task, 2, autoreset=False)
    results = run_episodes(envs, make_named(name, envs), seed=0)
    assert np.isfinite(results.returns).all()
    # Half of the validation samples are kept for the final score.
    assert ((results.scores >= 0.0) & (results.scores <= 1.0)).all()
    np.testing.assert_allclose(results.scores * 50, np.rint(results.scores * 50), atol=1e-9)
    assert (results.n_illegal == 0).all()
    n_finished = results.op_counts[:, Op.FINISH]
    assert (results.n_epochs + n_finished == results.op_counts.sum(1)).all()
    assert ((results.n_epochs == N_EPOCHS) | (n_finished == 1)).all()
    n_grown = results.op_counts[:, Op.GERMINATE].sum()
    assert (n_grown == 0) if name == "wait" else (n_grown > 0)


def test_the_files_are_the_published_ones(folder: Path) -> None:
    learning, testing = read_fashion_mnist(folder)
    assert learning.images.shape == (60_000, 1, 28, 28)
    assert testing.images.shape == (10_000, 1, 28, 28)
    assert np.bincount(learning.labels).tolist() == [6000] * 10
    assert np.bincount(testing.labels).tolist() == [1000] * 10
    assert learning.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert testing.labels[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    # The mean and deviation that everybody standardises by.
    assert learning.images.mean() / 255 == pytest.approx(0.2860, abs=5e-5)
    assert learning.images.std() / 255 == pytest.approx(0.3530, abs=5e-5)
    for part, given in (("train", learning), ("test", testing)):
        pixels = read_bytes(folder, FILES[f"{part} images"], 16)
        np.testing.assert_array_equal(given.images.ravel(), pixels)
        np.testing.assert_array_equal(given.labels, read_bytes(folder, FILES[f"{part} labels"], 8))


@pytest.mark.parametrize(
    ("image_size", "host", "shape"),
    [(28, "cnn", (1, 28, 28)), (14, "cnn", (1, 14, 14)), (28, "mlp", (784,)), (14, "mlp", (196,))],
)
def test_splits_have_their_shapes_and_all_classes(
    make: MakeTask, image_size: int, host: str, shape: tuple[int, ...]
) -> None:
    data = make(image_size=image_size, host=host, **TINY).sample(0).data
    assert [len(samples) for _, samples in data.splits()] == [200, 100, 10_000]
    for _, samples in data.splits():
        assert tuple(samples.inputs.shape[1:]) == shape
        assert samples.inputs.dtype == torch.float32
        counts = samples.targets.bincount(minlength=10)
        assert counts.tolist() == [len(samples) // 10] * 10
    assert abs(data.train.inputs.mean().item()) < 1e-4
    assert data.train.inputs.std().item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("host", ["cnn", "mlp"])
@pytest.mark.parametrize("name", [*controller_names(), "learned"])
def test_every_controller_runs_on_the_small_images(make: MakeTask, name: str, host: str) -> None:
    run_one(make(image_size=14, host=host, **TINY), name)


@pytest.mark.parametrize("name", [*controller_names(), "learned"])
def test_every_controller_runs_on_the_full_images(make: MakeTask, name: str) -> None:
    run_one(make(image_size=28, **TINY), name)


def test_a_seed_can_be_committed_to_a_host_of_full_images(make: MakeTask) -> None:
    envs = GrowthVectorEnv(make(image_size=28, **TINY), 1, autoreset=False)
    controller = grow_once(envs.layout, blueprint="widen_small")
    results = run_episodes(envs, controller, seed=0)
    assert results.op_counts[0, Op.FOSSILIZE] == 1
    model = envs.growth.population.model(0)
    grown = [slot.seed for slot in slots(model).values() if slot.seed is not None]
    (seed,) = grown
    assert results.seed_parameters[0] == sum(p.numel() for p in seed.parameters()) > 0


# Guessing has a tenth right.
@pytest.mark.parametrize(("image_size", "host", "least"), [(14, "cnn", 0.5), (28, "mlp", 0.75)])
def test_a_host_learns_in_a_few_epochs(
    make: MakeTask, image_size: int, host: str, least: float
) -> None:
    task = make(image_size=image_size, host=host, n_epochs=4)
    envs = GrowthVectorEnv(task, 1, autoreset=False, purpose="evaluation", final_split="test")
    envs.reset(seed=0)
    first = envs.growth.records.score[0]
    results = run_episodes(envs, WaitController(), seed=0)
    assert first < 0.3
    assert results.scores[0] > least
    test = task.sample(0).data.test
    model = envs.growth.population.model(0).eval()
    with torch.no_grad():
        hits = model(test.inputs).argmax(1) == test.targets
    assert results.scores[0] == pytest.approx(hits.double().mean().item(), abs=1e-12)
