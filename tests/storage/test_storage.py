"""A disk that refuses to write stops a save in one line and harms nothing that was saved."""

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from esper.errors import StorageError
from esper.storage.checkpoint import CheckpointWarning
from esper.storage.checkpoint_folder import CheckpointFolder
from tests.storage.states import exact, state_of

CODES = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO]


def _saved(path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(path / "checkpoints")
    for step in (1, 2):
        folder.save(state_of(step), step=step, is_best=step == 1)
    return folder


def _require_as_before(folder: CheckpointFolder) -> None:
    loaded, best = folder.latest(), folder.best()
    assert exact(loaded.state) == exact(state_of(2))
    assert best is not None
    assert exact(best.state) == exact(state_of(1))


@contextmanager
def _size_limit(n_bytes: int) -> Iterator[None]:
    """Let no file of this process become larger; a write beyond that gives EFBIG."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("n_bytes", [0, 100, 4096, 300_000])
def test_a_limit_on_the_size_of_files_is_told_and_leaves_no_part_of_a_checkpoint(
    tmp_path: Path, n_bytes: int
) -> None:
    folder = _saved(tmp_path)
    said = r"saving .*step-000000003 failed: File too large; raise the limit on the size of files"
    with _size_limit(n_bytes), pytest.raises(StorageError, match=said):
        folder.save(state_of(3, numel=100_000), step=3)
    assert sorted(path.name for path in folder.path.iterdir()) == folder.names()
    assert folder.names() == ["step-000000001", "step-000000002"]
    _require_as_before(folder)
    folder.save(state_of(3), step=3)
    assert folder.latest().step == 3


def _fail_at(monkeypatch: pytest.MonkeyPatch, call: str, failing: int, code: int) -> None:
    """Let the n-th call of a function of the operating system fail, and no other."""
    real, n_calls = getattr(os, call), 0

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == failing:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize(
    ("call", "n_calls"),
    [("mkdir", 1), ("open", 5), ("write", 6), ("fsync", 5), ("rename", {2: 2, 3: 1})],
)
@pytest.mark.parametrize("code", CODES)
def test_whichever_call_fails_earlier_checkpoints_are_as_they_were(
    tmp_path: Path, call: str, n_calls: int | dict[int, int], code: int, step: int
) -> None:
    n_calls = n_calls if isinstance(n_calls, int) else n_calls[step]
    for failing in range(1, n_calls + 2):
        folder = _saved(tmp_path / str(failing))
        with pytest.MonkeyPatch.context() as patch:
            _fail_at(patch, call, failing, code)
            if failing > n_calls:
                folder.save(state_of(9), step=step)
                continue
            with pytest.raises(StorageError, match=os.strerror(code)) as told:
                folder.save(state_of(9), step=step)
        assert "\n" not in str(told.value)
        assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]
        if call in ("open", "fsync") and failing == n_calls:
            # Only the new name is not certain to be on the disk: what it leads to is whole.
            assert exact(folder.latest().state) == exact(state_of(9))
        else:
            _require_as_before(folder)


def test_an_interrupted_save_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _saved(tmp_path)

    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            folder.save(state_of(3), step=3)
    assert sorted(path.name for path in folder.path.iterdir()) == folder.names()
    _require_as_before(folder)


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file is in the way"):
        CheckpointFolder(tmp_path / "file").save(state_of(1), step=1)
    with pytest.raises(StorageError, match="a file is in the way"):
        CheckpointFolder(tmp_path / "file" / "below").save(state_of(1), step=1)


UNPRIVILEGED = """
import os, sys, warnings
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.errors import StorageError
from tests.storage.states import state_of
warnings.simplefilter("error")
state = state_of(3)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
folder = CheckpointFolder(sys.argv[1])
try:
    folder.save(state, step=3)
except StorageError as error:
    print(error)
print(folder.latest().step)
"""


def test_a_folder_that_may_not_be_written_to_is_told_and_can_be_read() -> None:
    root = Path(__file__).parents[2]
    sources = f"{root / 'src'}{os.pathsep}{root}"
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        folder = _saved(Path(place))
        folder.path.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, folder.path],
            capture_output=True,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"},
        )
        folder.path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.endswith(
        "Permission denied; choose a folder that can be written to. "
        "Older checkpoints are as they were."
    )
    assert second == "2"


def test_a_checkpoint_that_cannot_be_removed_is_told_and_the_save_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    folder.save(state_of(1), step=1)
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if target.name.startswith(".removing-"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.warns(CheckpointWarning, match="step-000000001 cannot be removed: Operation not"):
        folder.save(state_of(2), step=2)
    assert folder.latest().step == 2
    assert folder.names() == ["step-000000001", "step-000000002"]
