"""Expanding a Transformers checkpoint: a folder is read, changed, written and loaded again.

    config.json, model.safetensors (or shards and their index)     what is read
    growth.json                                                    what is new in the folder written

The folder may come from a stranger, so nothing in it is unpickled and none of its code runs: the
class of the model is one of the installed Transformers, and weights are safetensors.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook

from esper.config.memory import amount_of, available_memory
from esper.errors import (
    ConfigError,
    EsperError,
    SavedModelError,
    StorageError,
    SurgeryError,
    message_of,
)
from esper.growth.surgery.changes import Change, deepen, widen
from esper.growth.surgery.checking import describe_difference, largest_difference, tolerance_for
from esper.integrations.adapters import import_library
from esper.integrations.sample_inputs import find_sample_input, run_model
from esper.storage.files import (
    creating_folder,
    storage_errors,
    write_atomic,
)
from esper.storage.transformers_folder import (
    CONFIG_FILE,
    INDEX_FILE,
    Checkpoint,
    read_checkpoint,
    require_new,
)
from esper.version import __version__

GROWTH_FILE = "growth.json"
COPIES = 3.0
"""How many times its weights an expansion needs in memory: before, after, and loaded again."""

MODULES_PER_TENSOR, MORE_MODULES = 20, 10_000
"""How many modules a model may have: so many for each tensor of its weights, and so many more."""

MAX_COPIED_BYTES = 200_000_000
_COPIED = {".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".bpe", ".vocab", ""}
"""Endings of files that are copied: tokenizer, processor, generation, licence."""
_MAX_REASON = 300


@dataclass(frozen=True)
class Expansion:
    """What was changed in a checkpoint."""

    changes: tuple[Change, ...]
    growth: dict[str, Any]
    """The content of ``growth.json``."""
    notes: tuple[str, ...]
    """What was left out of the new folder, and why."""


def expand_checkpoint(
    folder: str | Path,
    out: str | Path | None,
    *,
    deepen: int | None = None,
    widen: float | None = None,
    deepen_at: Sequence[str] | None = None,
    widen_at: Sequence[str] | None = None,
    on_stage: Callable[[str, float], None] | None = None,
) -> Expansion:
    """Widen and deepen the model in a folder, and write it to another one.

    The new folder gets its name once it has been loaded with ``from_pretrained`` and gives the
    outputs of the original. It is written whole or not at all.

    Args:
        folder: A Transformers model: ``config.json`` and safetensors.
        out: The folder to write, which must not exist; None to write nothing.
        deepen: Number of blocks to add to each list of blocks.
        widen: New number of hidden units, relative to the present one.
        deepen_at: Names of the lists to deepen; all by default.
        widen_at: Names of what to widen; everything that can be by default.
        on_stage: Called with the work at hand and the share that is done.

    Raises:
        SavedModelError: If the folder is not a checkpoint that can be expanded.
        SurgeryError: If nothing in the model can be changed, or its outputs would change.
        StorageError: If the new folder cannot be written.
    """
    target = None if out is None else require_new(out)
    checkpoint = read_checkpoint(folder)
    held = amount_of(checkpoint.n_bytes)
    _require_memory(COPIES * checkpoint.n_bytes, f"expanding {held} of weights in {folder}")
    transformers = import_library("transformers", "transformers")
    with _quiet(transformers):
        _tell(on_stage, "loading the model", 0.1)
        model, notes = _load(transformers, checkpoint)
        sample = find_sample_input(model)
        before = run_model(model, sample)
        _tell(on_stage, "changing the model", 0.3)
        changes: list[Change] = []
        if widen is not None:  # first, so that new blocks are as wide as the others
            generator = torch.Generator().manual_seed(0)
            changes.append(
                _widen(model, widen, sample_input=sample, at=widen_at, generator=generator)
            )
            _require_expressible(model, changes[-1], "widen")
        if deepen is not None:
            changes.append(_deepen(model, deepen, sample_input=sample, at=deepen_at))
            _require_expressible(model, changes[-1], "deepen")
        if not changes:
            raise SurgeryError("nothing to do; give deepen, widen or both.")
        growth = _describe(model, changes, deepen=deepen, widen=widen)
        if target is not None:
            grown = sum(each.numel() * each.element_size() for each in model.state_dict().values())
            _require_memory(grown, "loading the expanded model again")
            _tell(on_stage, "writing the model", 0.6)
            with storage_errors(target), creating_folder(target) as temporary:
                notes += _write(model, checkpoint, temporary, growth)
                _tell(on_stage, "loading what was written", 0.8)
                _require_same(model, temporary, sample, before)
    return Expansion(tuple(changes), growth, tuple(notes))


def _tell(on_stage: Callable[[str, float], None] | None, work: str, share: float) -> None:
    if on_stage is not None:
        on_stage(work, share)


def _require_memory(needed: float, work: str) -> None:
    """Raise if there is less memory than some work needs."""
    available = available_memory()
    if needed > available:
        raise ConfigError(
            f"{work} needs about {amount_of(needed)} of memory, but only {amount_of(available)} is "
            "available."
        )


@contextmanager
def _quiet(transformers: Any) -> Generator[None]:
    """Keep Transformers from printing and warning; problems are reported as errors."""
    logging = transformers.utils.logging
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


def _load(transformers: Any, checkpoint: Checkpoint) -> tuple[Any, list[str]]:
    """Return the model in a checkpoint, and notes on weights that it has no use for."""
    name = checkpoint.architecture
    cls = getattr(transformers, name, None)
    base = transformers.PreTrainedModel
    if not isinstance(cls, type) or not issubclass(cls, base) or cls.config_class is None:
        raise SavedModelError(
            f"{CONFIG_FILE} names {name!r} in 'architectures', which is not a model of "
            f"Transformers {transformers.__version__}."
        )
    with _bounded_modules(checkpoint):
        model, info = _from_pretrained(cls, checkpoint.folder, checkpoint.dtype)
    wrong = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if wrong:
        raise SavedModelError(
            f"{checkpoint.folder} does not hold all weights of {name}: {wrong[0]!r} and "
            f"{len(wrong) - 1} more are missing or of another shape."
        )
    unused = sorted(map(str, info["unexpected_keys"]))
    notes = [f"Left out, because {name} does not use them: {', '.join(unused)}."] if unused else []
    return model, notes


@contextmanager
def _bounded_modules(checkpoint: Checkpoint) -> Generator[None]:
    """End the making of a model that has far more modules than its weights can be of."""
    n_left = MODULES_PER_TENSOR * checkpoint.n_tensors + MORE_MODULES

    def count(*_: object) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise SavedModelError(
                f"{CONFIG_FILE} of {checkpoint.folder} asks for far more layers than its "
                f"{checkpoint.n_tensors} tensors can be of; it belongs to other weights."
            )

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _from_pretrained(
    cls: type[Any], folder: Path, dtype: torch.dtype | str
) -> tuple[Any, Mapping[str, Any]]:
    try:
        model, info = cls.from_pretrained(
            str(folder),
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (MemoryError, EsperError):
        raise
    except Exception as error:  # damaged files give errors of many kinds
        reason = f"{type(error).__name__}: {message_of(error)}"[:_MAX_REASON].rstrip(".")
        raise SavedModelError(f"{folder} cannot be loaded as {cls.__name__} ({reason}).") from error
    return model.eval(), info


_widen, _deepen = widen, deepen


def _require_expressible(model: Any, change: Change, verb: str) -> None:
    """Raise if the configuration cannot follow what was named."""
    if change.inexpressible:
        raise SurgeryError(
            f"the configuration of {type(model).__name__} cannot express a change of "
            f"{change.inexpressible}, so from_pretrained could not load the result; leave that out "
            f"of --{verb}-at, or call esper.{verb} in Python and save the module itself."
        )


def _describe(
    model: Any, changes: Sequence[Change], *, deepen: int | None, widen: float | None
) -> dict[str, Any]:
    """Return the content of ``growth.json``; the last change knows what is new in all."""
    entries = changes[-1].new_entries()
    new = [name for name in changes[-1].new_names() if name not in entries]
    blocks: dict[str, list[int]] = {}
    for row in changes[-1].places if deepen is not None else ():
        container = row.place.removesuffix("*").removesuffix(".")
        start = f"{container}." if container else ""
        indices = {
            name.removeprefix(start).partition(".")[0] for name in new if name.startswith(start)
        }
        blocks[container] = sorted(map(int, indices))
    return {
        "esper": __version__,
        "model": type(model).__name__,
        "deepen": deepen,
        "widen": widen,
        "new_blocks": blocks,
        "new_parameters": new,
        "new_entries": entries,
    }


def _write(
    model: Any, checkpoint: Checkpoint, folder: Path, growth: Mapping[str, Any]
) -> list[str]:
    """Save a model with the other files of its checkpoint; return notes on what is not copied."""
    sizes = [path.stat().st_size for path in checkpoint.weights]
    shards: dict[str, Any] = {"max_shard_size": max(sizes)} if len(sizes) > 1 else {}
    try:
        model.save_pretrained(str(folder), **shards)
    except SafetensorError as error:  # how a full disk is reported
        raise StorageError(f"the model cannot be written: {message_of(error)}.") from error
    skipped: list[str] = []
    own = {CONFIG_FILE, INDEX_FILE, GROWTH_FILE, *(path.name for path in checkpoint.weights)}
    for path in sorted(checkpoint.folder.iterdir()):
        if path.name in own or path.name.startswith("."):
            continue
        is_small = _is_own(path) and path.stat().st_size <= MAX_COPIED_BYTES
        if is_small and path.suffix in _COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
        else:
            skipped.append(path.name)
    write_atomic(folder / GROWTH_FILE, json.dumps(growth, indent=1) + "\n")
    return [f"Not copied: {', '.join(skipped)}."] if skipped else []


def _is_own(path: Path) -> bool:
    """Return whether a file belongs to its checkpoint: a link may lead into the Hub's cache."""
    folder, target = path.parent.resolve(), path.resolve()
    return target.is_file() and target.parent in (folder, folder.parent.parent / "blobs")


def _require_same(
    model: Any, folder: Path, sample: dict[str, Tensor], before: Sequence[Tensor]
) -> None:
    """Load a folder and compare it with the model that was written and the outputs before.

    Raises:
        SurgeryError: If it is another model.
    """
    name = type(model).__name__
    try:
        again, _ = _from_pretrained(cast("type[Any]", type(model)), folder, "auto")
    except SavedModelError as error:
        reason = message_of(error.__cause__ or error)[:_MAX_REASON].rstrip(".")
        raise SurgeryError(f"the expanded {name} cannot be loaded again ({reason}).") from error
    own, other = model.state_dict(), again.state_dict()
    wrong = [key for key in {**own, **other} if not _is_equal(own.get(key), other.get(key))]
    if wrong:
        raise SurgeryError(f"the expanded {name} is loaded with another {wrong[0]!r}.")
    difference = largest_difference(before, run_model(again, sample))
    if difference > tolerance_for(before):
        raise SurgeryError(
            f"the outputs of the expanded {name} would {describe_difference(difference)} when it "
            "is loaded."
        )


def _is_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype:
        return False
    return torch.equal(one, other)
