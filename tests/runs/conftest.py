"""One tiny run for all tests that only read it."""

import os
from collections.abc import Iterator

import pytest

from esper.runs.run import Run
from esper.runs.training import train
from tests.runs.tiny import liveliness, tiny_config


@pytest.fixture(scope="session")
def done_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with liveliness():
        yield train(tiny_config(), run_dir=tmp_path_factory.mktemp("runs") / "done")


@pytest.fixture(autouse=True)
def runs_elsewhere(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_RUNS", str(tmp_path))
