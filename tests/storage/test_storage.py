"""A failing disk raises a StorageError and leaves earlier checkpoints unchanged."""

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
from esper.storage.checkpoint_folder import CheckpointFolder, CheckpointWarning, load_checkpoint
from tests.storage.states import exact, state_of

CODES = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO]


def _saved(path: Path) -> CheckpointFolder:
    folder = CheckpointFolder(path / "checkpoints")
    for step in (1, 2):
        folder.save(state_of(step), step=step)
    return folder


def _require_unchanged(folder: CheckpointFolder) -> None:
    assert exact(folder.latest().state) == exact(state_of(2))
    assert exact(load_checkpoint(folder.path / folder.names()[0]).state) == exact(state_of(1))


@contextmanager
def _size_limit(n_bytes: int) -> Iterator[None]:
    """Limit the size of files; a write beyond it fails with EFBIG."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("n_bytes", [0, 100, 4096, 300_000])
def test_a_save_beyond_the_file_size_limit_leaves_no_partial_checkpoint(
    tmp_path: Path, n_bytes: int
) -> None:
    folder = _saved(tmp_path)
    message = r"step-000000003 cannot be written: File too large; raise the limit"
    with _size_limit(n_bytes), pytest.raises(StorageError, match=message):
        folder.save(state_of(3, numel=100_000), step=3)
    assert sorted(path.name for path in folder.path.iterdir()) == folder.names()
    assert folder.names() == ["step-000000001", "step-000000002"]
    _require_unchanged(folder)
    folder.save(state_of(3), step=3)
    assert folder.latest().step == 3


def _fail_at(monkeypatch: pytest.MonkeyPatch, call: str, failing: int, code: int) -> None:
    """Make the n-th call of an ``os`` function fail."""
    real, n_calls = getattr(os, call), 0

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == failing:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, fail)


CALLS = {
    ("mkdir", 2): 0,
    ("mkdir", 3): 1,
    ("write", 2): 6,
    ("write", 3): 6,
    ("fsync", 2): 5,
    ("fsync", 3): 6,
    ("replace", 2): 1,
    ("replace", 3): 1,
}
"""How often each call is made when a checkpoint is replaced, and when one is added."""


@pytest.mark.parametrize(
    ("call", "step", "code"),
    [(*at, errno.ENOSPC) for at in CALLS]
    + [("write", 3, code) for code in CODES if code != errno.ENOSPC],
)
def test_earlier_checkpoints_survive_a_failure_of_any_call(
    tmp_path: Path, call: str, step: int, code: int
) -> None:
    n_calls = CALLS[call, step]
    for failing in range(1, n_calls + 2):
        folder = _saved(tmp_path / str(failing))
        with pytest.MonkeyPatch.context() as patch:
            _fail_at(patch, call, failing, code)
            if failing > n_calls:
                folder.save(state_of(9), step=step)
                continue
            with pytest.raises(StorageError, match=os.strerror(code)) as caught:
                folder.save(state_of(9), step=step)
        assert "\n" not in str(caught.value)
        assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]
        if call == "fsync" and failing == n_calls:
            # Only the flush of the manifest's name failed; the checkpoint itself is intact.
            assert exact(folder.latest().state) == exact(state_of(9))
        else:
            _require_unchanged(folder)


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
    _require_unchanged(folder)


def test_a_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="in the way"):
        CheckpointFolder(tmp_path / "file").save(state_of(1), step=1)
    with pytest.raises(StorageError, match="in the way"):
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


def test_a_read_only_folder_is_reported_and_can_be_read() -> None:
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
    assert "Permission denied" in first
    assert second == "2"


def test_a_save_succeeds_if_an_old_checkpoint_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    folder.save(state_of(1), step=1)
    unlink = os.unlink

    def fail(path: Path, **options: Any) -> None:
        if Path(path).parent.name == "step-000000001":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.warns(CheckpointWarning, match="step-000000001 cannot be removed"):
        folder.save(state_of(2), step=2)
    assert folder.latest().step == 2
    assert folder.names() == ["step-000000001", "step-000000002"]
