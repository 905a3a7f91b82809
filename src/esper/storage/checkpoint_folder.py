"""The checkpoints of a run: saved atomically, and loaded from the newest intact one.

While a save is in progress, the folder also holds hidden folders:

    .saving-step-000000123-<hex>    a checkpoint that is being written
    .replaced-step-000000123-<hex>  the earlier checkpoint of a step that is being saved again
    .removing-step-000000123-<hex>  a checkpoint that is being removed

A process that is killed may leave some behind; the next save cleans them up. Only one process may
save in a folder at a time; any number may read.
"""

from __future__ import annotations

import os
import re
import uuid
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from esper.config.checks import require_int
from esper.errors import CheckpointError
from esper.storage.checkpoint import (
    FILES,
    MANIFEST_FILE,
    CheckpointWarning,
    Loaded,
    find_differences,
    inspect,
    load_step,
    make_manifest,
    name_of,
    step_of,
    write_manifest,
)
from esper.storage.files import (
    flush_folder,
    holds_only,
    make_folder,
    remove_folder,
    storage_errors,
    write_file,
)
from esper.storage.state import Pieces, State, encode

_HIDDEN = re.compile(r"\.(saving|replaced|removing)-(step-[0-9]{9,})-[0-9a-f]{32}")


class CheckpointFolder:
    """The checkpoints of one run, each in a folder named after its step.

    Args:
        path: The folder; the first save creates it.
        keep_last: Number of newest checkpoints to keep, in addition to the best.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_last: int = 3) -> None:
        require_int("keep_last", keep_last, least=1)
        self.path = Path(path)
        self.keep_last = keep_last

    def names(self) -> list[str]:
        """Return the names of all checkpoints, damaged ones included, ordered by step."""
        return [name_of(step) for step in sorted(self._find())]

    def save(self, state: State, *, step: int, is_best: bool = False) -> Path:
        """Write a checkpoint and return its folder; it then survives a power loss.

        A checkpoint of the same step is replaced. Checkpoints of later steps, left over from an
        abandoned continuation, are removed, as are those that are too old to keep.

        Raises:
            ConfigError: If the step is not an integer of at least 0.
            CheckpointError: If the state holds a value that cannot be saved; nothing is written.
            StorageError: If writing fails; earlier checkpoints are unchanged.
        """
        require_int("step", step, least=0)
        files = encode(state)
        manifest = make_manifest(state, files, step=int(step), is_best=bool(is_best))
        files[MANIFEST_FILE] = [memoryview(write_manifest(manifest))]
        name = name_of(step)
        with storage_errors("saving", self.path / name):
            make_folder(self.path)
            self._clean_up()
            self._write(name, files)
        self._remove_old(step)
        return self.path / name

    def latest(self) -> Loaded:
        """Return the newest intact checkpoint.

        Emits a :class:`CheckpointWarning` for each newer checkpoint that is damaged, and if the
        versions, the number of threads or the machine have changed, which can change results.

        Raises:
            CheckpointError: If no checkpoint is intact.
        """
        loaded, skipped = _load_first(sorted(self._find().items(), reverse=True))
        if loaded is not None:
            return loaded
        if skipped:
            names = ", ".join(path.name for path in skipped)
            raise CheckpointError(
                f"{self.path} has only damaged checkpoints: {names}; restore a copy of one."
            )
        raise CheckpointError(f"{self.path} holds no checkpoints.")

    def best(self) -> Loaded | None:
        """Return the last checkpoint that was saved as the best; None if there is none.

        Emits a :class:`CheckpointWarning` for each damaged checkpoint, which may have been the
        best one.
        """
        marked: list[tuple[int, Path]] = []
        for step, path in sorted(self._find().items(), reverse=True):
            try:
                if inspect(path, step)["is_best"]:
                    marked.append((step, path))
            except CheckpointError as error:
                warnings.warn(f"{error} It is skipped.", CheckpointWarning, stacklevel=2)
        return _load_first(marked)[0]

    def _find(self) -> dict[int, Path]:
        """Return the folder of each step's checkpoint.

        If a save was killed between its two renames, that is the checkpoint it was replacing.
        """
        names = self._list()
        found = {step: self.path / name for name in names if (step := step_of(name)) is not None}
        for name in names:
            match = _HIDDEN.fullmatch(name)
            step = step_of(match[2]) if match and match[1] == "replaced" else None
            if step is not None:
                found.setdefault(step, self.path / name)
        return found

    def _list(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}.") from error

    def _write(self, name: str, files: dict[str, Pieces]) -> None:
        """Write the files to a hidden folder and rename it once they are on disk."""
        hidden = self._hidden("saving", name)
        os.mkdir(hidden)
        try:
            for file, pieces in files.items():
                write_file(hidden / file, pieces)
            flush_folder(hidden)
            if (self.path / name).is_dir():
                os.rename(self.path / name, self._hidden("replaced", name))
            os.rename(hidden, self.path / name)
            flush_folder(self.path)
        except BaseException:
            self._clean_up()
            raise

    def _clean_up(self) -> None:
        """Remove what interrupted saves left behind, as far as possible."""
        names = self._list()
        for name in names:
            match = _HIDDEN.fullmatch(name)
            if match is None:
                continue
            with suppress(OSError):
                if match[1] == "replaced" and match[2] not in names:
                    os.rename(self.path / name, self.path / match[2])
                else:
                    remove_folder(self.path / name, FILES)

    def _remove_old(self, step: int) -> None:
        """Remove checkpoints that are neither among the newest nor the best."""
        found, intact, best = self._find(), list[int](), -1
        for other, path in sorted(found.items()):
            try:
                manifest = inspect(path, other)
            except CheckpointError:
                continue
            if other <= step:
                intact.append(other)
                best = other if manifest["is_best"] else best
        oldest = intact[-self.keep_last :][0] if intact else step
        for other, path in found.items():
            if (other < oldest and other != best) or other > step:
                self._remove(path, other)
        self._clean_up()

    def _remove(self, path: Path, step: int) -> None:
        """Hide a checkpoint by one rename, so that a reader never sees part of one."""
        try:
            if holds_only(path, FILES):
                os.rename(path, self._hidden("removing", name_of(step)))
        except OSError as error:
            warnings.warn(
                f"{path} cannot be removed: {error.strerror}.", CheckpointWarning, stacklevel=4
            )

    def _hidden(self, kind: str, name: str) -> Path:
        return self.path / f".{kind}-{name}-{uuid.uuid4().hex}"


def _load_first(found: list[tuple[int, Path]]) -> tuple[Loaded | None, tuple[Path, ...]]:
    """Return the first intact checkpoint, and the damaged ones before it."""
    skipped: tuple[Path, ...] = ()
    for step, path in found:
        try:
            loaded = load_step(path, step)
        except CheckpointError as error:
            warnings.warn(f"{error} It is skipped.", CheckpointWarning, stacklevel=3)
            skipped = (*skipped, path)
            continue
        differences = find_differences(loaded.manifest)
        if differences:
            warnings.warn(
                f"{path} was saved under other conditions: {'; '.join(differences)}. "
                "Results may differ in the last bits.",
                CheckpointWarning,
                stacklevel=3,
            )
        return replace(loaded, skipped=skipped), skipped
    return None, skipped
