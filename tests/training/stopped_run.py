"""A run that is stopped mid-way and resumed from states with something missing.

A *leaf* is the path to a tensor or a plain value.
"""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from esper.config.run import RunConfig
from esper.config.toml import override
from esper.errors import EsperError
from esper.storage.state import State, from_bytes, to_bytes
from esper.telemetry.records import Record, RecordColumns
from esper.training.output import RecordOutput
from esper.training.signals import Stopped, StopRequest
from esper.training.trainer import Trainer
from tests.training.tiny import liveliness, state_digest, tiny_config

Leaf = tuple[Any, ...]
"""The keys on the way to it."""


NUMBERED = ("shards", "hosts", "seeds", "episodes", "elapsed", "state", "blueprints")
"""Lists whose entries are leaves of one kind."""


class Differs(Exception):  # noqa: N818 - control flow, not an error
    """A record differs from that of the uninterrupted run."""


class Records:
    """Stands in for telemetry: keeps records, or compares them with the expected ones."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.expected: list[str] | None = None
        self.position = 0
        self.stop_at = -1
        self.stop = StopRequest()

    def write_many(self, records: tuple[Record | RecordColumns, ...]) -> None:
        entries = (r.records() if isinstance(r, RecordColumns) else (r,) for r in records)
        for record in chain.from_iterable(entries):
            text = as_text(record)
            if self.expected is None:
                self.kept.append(text)
            elif self.position >= len(self.expected) or self.expected[self.position] != text:
                raise Differs(text)
            self.position += 1
            if getattr(record, "step", None) == self.stop_at:
                self.stop.ask("enough")

    def flush(self) -> None:
        pass

    def describes_run(self) -> bool:
        return True


class Checkpoints:
    """Stands in for a folder of checkpoints: keeps the last state."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}

    def save(self, state: State, *, step: int) -> None:
        self.state = from_bytes(to_bytes(state))


def as_text(record: Record) -> str:
    """Return a record without its wall-clock times."""
    values = [getattr(record, f.name) for f in fields(record) if not f.metadata["clock"]]
    return repr((record.table, *values))


def make_trainer(config: RunConfig, *watchers: Any) -> tuple[Trainer, Records, Checkpoints]:
    """Return a trainer that writes nothing to disk, and its stand-ins."""
    records, checkpoints = Records(), Checkpoints()
    output: Any = RecordOutput(records, watchers)  # pyright: ignore[reportArgumentType]
    folder: Any = checkpoints
    with liveliness():
        trainer = Trainer(config, output=output, checkpoints=folder, stop=records.stop)
    return trainer, records, checkpoints


class StoppedRun:
    """A run of 24 steps, stopped after step ``stop``.

    After step 16 it is in the third round and the third episodes, and some seeds are blending.
    """

    def __init__(self, stop: int = 16, **changes: Any) -> None:
        config = tiny_config(
            seed=0,
            rounds=4,
            budget__n_epochs=7,
            evaluation__min_improvement=10.0,
            checkpoints__save_freq=1000,
            policy__normalize_observations=True,
            ppo__n_minibatches=2,
        )
        config = override(config, changes)
        self.trainer, self._records, self._checkpoints = make_trainer(config)
        self.fresh = from_bytes(to_bytes(self.trainer.parts.save()))
        self._records.stop_at = stop
        with suppress(Stopped):
            self.trainer.run()
            raise AssertionError("the run was not stopped")
        self.state = self._checkpoints.state
        self._records.stop_at, self._records.stop.reason = -1, None
        self.trainer.run()
        self._records.expected = self._records.kept
        self._end = state_digest(self._checkpoints.state)

    def outcome_of(self, state: State) -> str:
        """Resume from a state; return how the result compares with the uninterrupted run."""
        parts = self.trainer.parts
        try:
            self.trainer.load(copy.deepcopy(state))
            self._records.position = parts.progress.telemetry_position
            self.trainer.run()
        except Differs:
            return "differs"
        except EsperError:
            return "refused"
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError):
            return "fails"
        if self._records.position != len(self._records.kept):
            return "differs"
        return "same" if state_digest(self._checkpoints.state) == self._end else "differs"

    def leaves(self) -> dict[str, list[Leaf]]:
        """Return all leaves by kind; those of all hosts, slots and layers share a kind.

        Leaves that differ from their initial value come first.
        """
        found: dict[str, list[Leaf]] = {}
        for leaf in _paths(self.state):
            found.setdefault(self._kind_of(leaf), []).append(leaf)
        return {
            kind: sorted(some, key=lambda x: not self.is_changed(x)) for kind, some in found.items()
        }

    def is_changed(self, leaf: Leaf) -> bool:
        """Return whether a leaf differs from its initial value."""
        return not _is_equal(_get(self.state, leaf), self._start_of(leaf))

    def without(self, leaf: Leaf) -> dict[Any, Any]:
        """Return the state without a leaf."""
        state = copy.deepcopy(self.state)
        place, key = _place_of(state, leaf)
        del place[key]
        return state

    def forgetting(self, leaf: Leaf) -> dict[Any, Any]:
        """Return the state with the initial value of a leaf."""
        state = copy.deepcopy(self.state)
        place, key = _place_of(state, leaf)
        place[key] = self._start_of(leaf)
        return state

    def _start_of(self, leaf: Leaf) -> Any:
        """Return the initial value of a leaf, or zero if it has none."""
        now, start = _get(self.state, leaf), _get(self.fresh, leaf)
        if isinstance(now, Tensor):
            fits = isinstance(start, Tensor) and start.shape == now.shape
            return start.clone() if fits else torch.zeros_like(now)
        return type(now)() if start is None and now is not None else start

    def _kind_of(self, leaf: Leaf) -> str:
        slots = self.trainer.parts.slot_config.slot_ids
        parts = [str(part) for part in leaf for part in str(part).split("/")]
        parts = [part for part in parts if part not in ("tensors", "facts")]
        for i, part in enumerate(parts):
            is_number = parts[i - 1] in NUMBERED
            is_layer = part.endswith((".weight", ".bias")) and "hosts" in parts
            if part in slots or is_layer or (is_number and part.isdigit()):
                parts[i] = "*"
        return "/".join(parts)


def _paths(value: Any, path: Leaf = ()) -> list[Leaf]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in _paths(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in _paths(item, (*path, i))]
    return [path]


def _place_of(state: State, leaf: Leaf) -> tuple[Any, Any]:
    place: Any = state
    for key in leaf[:-1]:
        place = place[key]
    return place, leaf[-1]


def _get(state: State, leaf: Leaf) -> Any:
    try:
        place, key = _place_of(state, leaf)
        return place[key]
    except (KeyError, IndexError, TypeError):
        return None


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape == second.shape and torch.equal(
            torch.nan_to_num(first.double(), nan=math.pi),
            torch.nan_to_num(second.double(), nan=math.pi),
        )
    return type(first) is type(second) and first == second
