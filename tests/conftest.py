"""Settings and fixtures that all tests share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

EXAMPLES = int(os.environ.get("ESPER_TEST_EXAMPLES", "20"))
"""Examples of each property; make slow-test runs more."""

settings.register_profile("esper", deadline=None, max_examples=EXAMPLES, derandomize=True)
settings.load_profile("esper")
torch.set_num_threads(1)

# A shell starts background jobs with Ctrl-C ignored, and nohup with a closed terminal, which Esper
# would respect.
for _number, _handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture
def fresh_shipped(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Let a controller with fresh weights, which wishes to grow, stand for the one that ships."""
    from esper.tamiyo import save_controller
    from esper.tamiyo.controllers import saved as saved_files
    from tests.tamiyo.fresh_controllers import fresh_controller

    place = tmp_path_factory.mktemp("package") / "shipped"
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", place)
    return save_controller(fresh_controller(n_epochs=14), place)


@pytest.fixture(scope="session")
def done_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Train one tiny run for all tests that only read it."""
    from esper.training.runs import train
    from tests.training.tiny import liveliness, tiny_config

    with liveliness():
        yield train(tiny_config(), run_dir=tmp_path_factory.mktemp("runs") / "done")


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch as it starts on a machine with four processors."""
    from esper import modes

    for name in modes.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(modes, "default_threads", lambda: {4})
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs that have no place of their own in the test's folder."""
    monkeypatch.setenv("ESPER_RUNS", str(tmp_path))
