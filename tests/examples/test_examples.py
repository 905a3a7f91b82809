"""Every example runs, with numbers small enough for a quick test."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper.simic import check_env

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """Return a function that runs an example with arguments and returns what it printed."""

    def run(name: str, *arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr()

    return run


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text()
    files = [path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    assert all(f'"{path.name}"' in source for path in files)


@pytest.mark.usefixtures("fresh_shipped")
def test_grow_your_own_model(run_example: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    printed, _ = run_example(
        "grow_your_own_model.py", "--epochs", "2", "--out", str(tmp_path / "grown")
    )
    assert re.findall(r"^ +(\d+) +\d+\.\d% ", printed, flags=re.MULTILINE)[:2] == ["1", "2"]
    # What the process without Esper printed is the accuracy in the table.
    reloaded = re.search(r"cannot import esper: (\d+\.\d)%", printed)
    assert reloaded is not None
    assert re.search(rf"^grown +{reloaded[1]}% ", printed, flags=re.MULTILINE)
    for name in ("digits.pt2", "growth.png"):
        assert (tmp_path / "grown" / name).exists()
        assert str(tmp_path / "grown" / name) in printed


def test_compare_controllers(run_example: Callable[..., tuple[str, str]]) -> None:
    printed, _ = run_example("compare_controllers.py", "--task", "spirals", "--hosts", "2")
    for name in ("no-growth", "stop after 8", "grow once", "random", "heuristic"):
        assert re.search(rf"│ {name} +│ +\d\.\d{{3}}", printed), name
    assert len(re.findall(r"[+-]\d\.\d{3} ± \d\.\d{3}", printed)) == 4


def test_ppo_on_your_environment(run_example: Callable[..., tuple[str, str]]) -> None:
    printed, _ = run_example("ppo_on_your_environment.py", "--steps", "2048", "--episodes", "20")
    for name in ("before training", "after training", "best possible"):
        assert re.search(rf"{name}\s+-?\d+\.\d+", printed), name


def test_the_environment_of_the_example_passes_the_check() -> None:
    scope = runpy.run_path(str(EXAMPLES / "ppo_on_your_environment.py"))
    assert {finding.level for finding in check_env(scope["CourierEnv"])} == {"ok"}


def test_ppo_cartpole(run_example: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    printed, _ = run_example("ppo_cartpole.py", "--steps", "2048", "--out", str(tmp_path / "run"))
    assert re.search(r"mean return \d+\.?\d* \[.*\] over 100 episodes", printed)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_ppo_recipes(run_example: Callable[..., tuple[str, str]]) -> None:
    printed, _ = run_example("ppo_recipes.py", "Pendulum-v1", "--steps", "4096", "--episodes", "2")
    assert re.search(r"mean return -\d+\.?\d* \[.*\] over 2 episodes", printed)


def test_ppo_with_your_own_loss(run_example: Callable[..., tuple[str, str]]) -> None:
    printed, _ = run_example("ppo_with_your_own_loss.py", "--steps", "2048")
    assert re.search(r"divergence of the last update: 0\.0\d+", printed)
    assert re.search(r"mean return \d+\.?\d* \[.*\] over 100 episodes", printed)


NOTEBOOKS = {
    "grow_your_model.ipynb": {"EPOCHS = 40": "EPOCHS = 5"},
    "grow_a_checkpoint.ipynb": {"STEPS = 200": "STEPS = 5"},
    "train_a_controller.ipynb": {
        "LESSON_HOSTS = 96": "LESSON_HOSTS = 8",
        '32, "n_final_episodes": 96': '4, "n_final_episodes": 4',
        "n_hosts=48": "n_hosts=4",
    },
    "ppo_with_masks_and_memory.ipynb": {
        "STEPS = 20_000": "STEPS = 4096",
        "n_episodes=500": "n_episodes=20",
    },
}
"""The notebooks, and what makes them short."""


@pytest.mark.usefixtures("fresh_shipped")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of libraries
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "grow_your_model.ipynb" else pytest.mark.slow)
        for name in NOTEBOOKS
    ],
)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    if name == "grow_a_checkpoint.ipynb":
        pytest.importorskip("transformers")
    text = (EXAMPLES / name).read_text("utf-8")
    for long, short in NOTEBOOKS[name].items():
        long, short = (json.dumps(part)[1:-1] for part in (long, short))
        assert long in text
        text = text.replace(long, short)
    (tmp_path / name).write_text(text, "utf-8")
    scope = runpy.run_path(str(EXAMPLES.parent / "tools" / "run_notebooks.py"))
    after = scope["run_notebook"](tmp_path / name)
    # What is stored in the notebook is of the same kind as what its cells give.
    assert kinds_of_outputs(json.loads(text)) == kinds_of_outputs(after)
    assert "problem " not in json.dumps(after)


def kinds_of_outputs(notebook: dict[str, Any]) -> list[list[list[str]]]:
    return [
        [sorted(output.get("data", ())) for output in cell.get("outputs", [])]
        for cell in notebook["cells"]
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_the_gallery_lists_every_example(path: Path) -> None:
    assert path.name == "README.md" or f"]({path.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("grow_your_own_model.py", ["--epochs", "0"], "--epochs 0"),
        ("grow_your_own_model.py", ["--seed", "-1"], "-1"),
        ("grow_your_own_model.py", ["--controller", "nobody"], "nobody"),
        ("grow_your_own_model.py", ["--out", __file__], __file__),
        ("compare_controllers.py", ["--task", "spiral"], "Did you mean 'spirals'"),
        ("ppo_on_your_environment.py", ["--steps", "0"], "at least 1"),
    ],
)
def test_a_bad_argument_is_reported_in_one_line(
    name: str,
    arguments: list[str],
    named: str,
    run_example: Callable[..., tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_example(name, *arguments)
    assert stopped.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the libraries, about this machine
def test_grow_a_checkpoint(run_example: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "larger"
    printed, _ = run_example("grow_a_checkpoint.py", "--steps", "20", "--out", str(out))
    losses = [float(loss) for loss in re.findall(r": loss (\d+\.\d+)$", printed, re.MULTILINE)]
    before, deepened, trained, loaded = losses
    assert deepened == before
    assert trained < before
    assert loaded == trained


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the libraries, about this machine
@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("grow_in_lightning.py", "lightning"),
        ("grow_in_transformers.py", "transformers"),
        ("grow_in_accelerate.py", "accelerate"),
    ],
)
def test_growth_in_the_loops_of_other_libraries(
    name: str, library: str, run_example: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip(library)
    printed, _ = run_example(name, "--epochs", "3", "--out", str(tmp_path / "out"))
    assert re.findall(r"^after epoch (\d) of 3  ", printed, flags=re.MULTILINE) == ["1", "2", "3"]
    assert re.search(r"[\d,]+ parameters$", printed)
    assert len((EXAMPLES / name).read_text().splitlines()) <= 60
