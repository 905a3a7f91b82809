"""The checkpoints of a run: saved whole or not at all, and the newest whole one found again.

Besides checkpoints the folder holds, for moments, folders whose names begin with a dot:

    .saving-step-000000123-<hex>    files that are being written
    .replaced-step-000000123-<hex>  the earlier checkpoint of a step that was saved again
    .removing-step-000000123-<hex>  a checkpoint that nobody needs any more

A process that is killed leaves some behind; the next save clears them up. One process at a time
saves in a folder; any number may read.
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
    """The checkpoints of one run, each a folder named after its step.

    Args:
        path: The folder; it is made at the first save.
        keep_last: How many of the newest checkpoints are kept, besides the best.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_last: int = 3) -> None:
        require_int("keep_last", keep_last, least=1)
        self.path = Path(path)
        self.keep_last = keep_last

    def names(self) -> list[str]:
        """Return the names of all checkpoints, damaged ones too, in the order of their steps."""
        return [name_of(step) for step in sorted(self._find())]

    def save(self, state: State, *, step: int, is_best: bool = False) -> Path:
        """Write a checkpoint and return its folder when it will outlast a loss of power.

        A checkpoint of the same step is replaced. Checkpoints of later steps belong to a course
        that was given up, and are removed, as are old ones.

        Raises:
            ConfigError: If the step is not a whole number of at least 0.
            CheckpointError: If the state holds what cannot be saved. Nothing is written then.
            StorageError: If the disk refuses to write. Earlier checkpoints stay as they were.
        """
        require_int("step", step, least=0)
        files = encode(state)
        manifest = make_manifest(state, files, step=int(step), is_best=bool(is_best))
        files[MANIFEST_FILE] = [memoryview(write_manifest(manifest))]
        name = name_of(step)
        with storage_errors("saving", self.path / name):
            make_folder(self.path)
            self._clear_up()
            self._put(name, files)
        self._retain(step)
        return self.path / name

    def latest(self) -> Loaded:
        """Return the newest checkpoint that is whole.

        A :class:`CheckpointWarning` names each newer one that is damaged, and tells when versions,
        threads or the machine are others than at the time, so that numbers may be others too.

        Raises:
            CheckpointError: If there is none that is whole.
        """
        loaded, skipped = _load_first(sorted(self._find().items(), reverse=True))
        if loaded is not None:
            return loaded
        if skipped:
            names = ", ".join(path.name for path in skipped)
            raise CheckpointError(f"{self.path} has no checkpoint that is whole: {names}.")
        raise CheckpointError(f"{self.path} holds no checkpoints; nothing was saved there.")

    def best(self) -> Loaded | None:
        """Return the last checkpoint that was saved as the best, or None if none is there.

        A :class:`CheckpointWarning` names those that are damaged, one of which may have been it.
        """
        marked: list[tuple[int, Path]] = []
        for step, path in sorted(self._find().items(), reverse=True):
            try:
                if inspect(path, step)["is_best"]:
                    marked.append((step, path))
            except CheckpointError as error:
                warnings.warn(f"{error} It is passed over.", CheckpointWarning, stacklevel=2)
        return _load_first(marked)[0]

    def _find(self) -> dict[int, Path]:
        """Return the folder of each step's checkpoint.

        Where a save was killed between its two renames, that is the one that was to be replaced.
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

    def _put(self, name: str, files: dict[str, Pieces]) -> None:
        """Write files under a hidden name and give them theirs when all are on the disk."""
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
            self._clear_up()
            raise

    def _clear_up(self) -> None:
        """Remove what saves left behind that did not come to their end, where that can be done."""
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

    def _retain(self, step: int) -> None:
        """Remove checkpoints that are neither among the last ones nor the best."""
        found, whole, best = self._find(), list[int](), -1
        for other, path in sorted(found.items()):
            try:
                manifest = inspect(path, other)
            except CheckpointError:
                continue
            if other <= step:
                whole.append(other)
                best = other if manifest["is_best"] else best
        oldest = whole[-self.keep_last :][0] if whole else step
        for other, path in found.items():
            if (other < oldest and other != best) or other > step:
                self._retire(path, other)
        self._clear_up()

    def _retire(self, path: Path, step: int) -> None:
        """Take a checkpoint out of the list in one step, so that no half of one is ever in it."""
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
    """Return the first checkpoint that is whole, and those that were passed over before it."""
    skipped: tuple[Path, ...] = ()
    for step, path in found:
        try:
            loaded = load_step(path, step)
        except CheckpointError as error:
            warnings.warn(f"{error} It is passed over.", CheckpointWarning, stacklevel=3)
            skipped = (*skipped, path)
            continue
        differences = find_differences(loaded.manifest)
        if differences:
            warnings.warn(
                f"{path} was saved under other conditions: {'; '.join(differences)}. "
                "What follows may differ in the last bits.",
                CheckpointWarning,
                stacklevel=3,
            )
        return replace(loaded, skipped=skipped), skipped
    return None, skipped
