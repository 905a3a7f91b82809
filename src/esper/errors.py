"""Everything Esper raises when a user's input cannot be right.

    EsperError
    ├── ConfigError             a setting is outside what is allowed
    ├── ActionSpecError         an action specification contradicts itself
    ├── TensorError             an argument is not the tensor that is needed
    │   ├── ShapeError
    │   ├── DtypeError
    │   ├── DeviceError
    │   └── ValueRangeError
    ├── SlotError               a slot, stage or blueprint that does not exist, or cannot be used
    │   ├── UnknownSlotError    a slot or blueprint of a name that there is not
    │   └── IllegalActionError  an action that the host's state does not allow
    ├── SavedModelError         a saved model is missing, damaged, or of another design
    ├── ControllerError         a saved controller is missing, damaged, or of another version
    ├── UnsupportedHostError    a model that a population or an export cannot handle
    ├── UnknownHeadError        an action head that the specification does not have
    ├── UnknownFeatureError     a feature that observations do not have
    ├── NoLegalActionError      a head of an environment has no legal choice
    ├── UnsupportedEnvironmentError  a Gymnasium environment that cannot be driven
    ├── ResetNeededError        an environment was stepped that has no episode to go on with
    ├── TaskError               a task's data or description cannot be used
    │   ├── UnknownTaskError    a task of a name that there is not
    │   ├── MissingDataError    a file of a task is not where it was looked for
    │   └── BadDataError        a task's data are not what they must be
    ├── CheckpointError         a checkpoint is missing, damaged or of another run
    ├── StorageError            the disk refuses to write: full, read-only or broken
    ├── RunError                a run's folder is missing, in use, or holds another run
    ├── TrainingError           a run cannot go on: its updates were refused again and again
    ├── TelemetryError          a run's telemetry is missing, damaged or of another version
    ├── DashboardError          the dashboard cannot be served where it was asked to be
    ├── EvidenceError           results that do not fit together, or a damaged file of them
    ├── ReportError             a report cannot be written where it is wanted, or made at all
    ├── NonFiniteError          a number that must be finite is NaN or infinite
    └── RolloutError            a rollout buffer was overfilled, or read with something missing

Every message names the thing, its value, what is allowed and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EsperError(Exception):
    """The base of every error that a user of Esper can cause."""


class ConfigError(EsperError):
    """A setting is outside what is allowed."""


class ActionSpecError(EsperError):
    """An action specification contradicts itself."""


class TensorError(EsperError):
    """An argument is not the tensor that is needed."""


class ShapeError(TensorError):
    """A tensor has the wrong shape."""


class DtypeError(TensorError):
    """A tensor has the wrong dtype."""


class DeviceError(TensorError):
    """Tensors that must meet are on different devices."""


class ValueRangeError(TensorError):
    """A tensor holds a value outside what is allowed."""


class SlotError(EsperError):
    """A slot, stage or blueprint does not exist, exists twice, or cannot be used."""


class UnknownSlotError(SlotError, KeyError):
    """A slot or blueprint is named that there is not."""

    __str__ = Exception.__str__  # a KeyError would show the sentence in quotes


class IllegalActionError(SlotError):
    """An action is not allowed in the state that the host is in."""


class SavedModelError(EsperError):
    """A saved model is missing, damaged, or belongs to another design."""


class ControllerError(EsperError):
    """A saved controller is missing, damaged, of another version, or cannot steer a host."""


class UnsupportedHostError(EsperError):
    """A model cannot be handled by what was asked of it."""


class UnknownHeadError(EsperError, KeyError):
    """An action head is named that the specification does not have."""

    __str__ = Exception.__str__  # a KeyError would show the sentence in quotes


class UnknownFeatureError(EsperError, KeyError):
    """A feature of an observation is named that there is not."""

    __str__ = Exception.__str__  # a KeyError would show the sentence in quotes


class NoLegalActionError(EsperError):
    """A head of an environment has no legal choice."""


class UnsupportedEnvironmentError(EsperError):
    """A Gymnasium environment is set up in a way the collector cannot drive."""


class ResetNeededError(EsperError):
    """An environment was stepped that has not started an episode, or whose episode is over."""


class TaskError(EsperError):
    """A task's data or description cannot be used."""


class UnknownTaskError(TaskError, KeyError):
    """A task is named that there is not."""

    __str__ = Exception.__str__  # a KeyError would show the sentence in quotes


class MissingDataError(TaskError):
    """A file that a task needs is not where it was looked for."""


class BadDataError(TaskError):
    """A task's data are not what they must be."""


class CheckpointError(EsperError):
    """A checkpoint is missing, damaged or of another run, or cannot hold what it is given."""


class StorageError(EsperError):
    """The disk refuses to write: it is full, read-only or broken."""


class RunError(EsperError):
    """A run's folder is missing, in use, or holds another run."""


class TrainingError(EsperError):
    """A run cannot go on because its updates were refused again and again."""


class TelemetryError(EsperError):
    """A run's telemetry is missing, damaged or of another version, or lacks what is asked for."""


class DashboardError(EsperError):
    """The dashboard cannot be served where it was asked to be."""


class EvidenceError(EsperError):
    """Results of an evaluation do not fit together, or their file is damaged."""


class ReportError(EsperError):
    """A report cannot be written where it is wanted, or what pages are made of is missing."""


class NonFiniteError(EsperError):
    """A number that must be finite is NaN or infinite."""


class RolloutError(EsperError):
    """A rollout buffer was overfilled, or read while something is missing."""


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the allowed name nearest to ``name``, or nothing."""
    nearest = difflib.get_close_matches(str(name), list(allowed), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
