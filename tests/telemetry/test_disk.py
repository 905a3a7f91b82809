"""A failing disk stops the writer cleanly, and acknowledged rows are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from esper.errors import StorageError
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import StepRecord
from tests.telemetry.samples import FILE, notice, step

ROOT = Path(__file__).parents[2]

FULL_DISK = """
import resource, sys
from esper.errors import StorageError
from esper.telemetry import TelemetryWriter
from tests.telemetry.samples import step

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
writer = TelemetryWriter(sys.argv[1])
acknowledged = 0
try:
    while True:
        writer.write_many([step(writer.position + i) for i in range(20)])
        writer.flush()
        acknowledged = writer.position
except StorageError as error:
    print(acknowledged)
    print(error)
try:
    writer.write_many([step(0)] * 100)
except StorageError as error:
    print("again")
writer.close()
print("closed")
"""


def test_a_full_disk_stops_the_writer_and_keeps_acknowledged_rows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / FILE)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    acknowledged, message, *rest = done.stdout.splitlines()
    assert int(acknowledged) > 100
    assert f"{tmp_path / FILE} cannot be written" in message
    assert "free disk space" in message
    assert rest == ["again", "closed"]
    assert done.stderr == ""
    with open_run(tmp_path) as telemetry:
        found = telemetry.columns(StepRecord)["step"]
        assert found == list(range(len(found)))
        assert len(found) >= int(acknowledged)
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.rewind(int(acknowledged))
        writer.write(step(writer.position))


@contextmanager
def protected_folder(*, is_open: bool = False) -> Iterator[Path]:
    """Yield a folder with telemetry that this process may read but not write.

    The super-user may always write, so it becomes nobody for a while.
    """
    folder = Path(tempfile.mkdtemp())
    try:
        with TelemetryWriter(folder / FILE) as writer:
            writer.write(notice(1))
        assert {path.name for path in folder.iterdir()} == {FILE}
        if is_open:
            open_run(folder).close()  # leaves the files through which readers and writers agree
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_read_only_folder_is_a_storage_error(is_open: bool) -> None:
    with protected_folder(is_open=is_open) as folder:
        for name in (FILE, "other.sqlite"):
            with pytest.raises(StorageError, match=f"{name} cannot be written"):
                TelemetryWriter(folder / name)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_read_only_folder_can_be_read(is_open: bool) -> None:
    with protected_folder(is_open=is_open) as folder, open_run(folder) as telemetry:
        assert telemetry.rows("notices") == [notice(1)]
        with telemetry.snapshot():
            assert telemetry.count("steps") == 0


def test_a_missing_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        TelemetryWriter(tmp_path / "nowhere" / FILE)
