"""Every exception that Esper raises for invalid input, in one tree.

    EsperError
    ├── ConfigError                  a setting has a value that is not allowed
    ├── ActionSpecError              an action specification contradicts itself
    ├── TensorError                  an argument is not the tensor that is needed
    │   ├── ShapeError
    │   ├── DtypeError
    │   ├── DeviceError
    │   └── ValueRangeError
    ├── SlotError                    a slot, stage or blueprint is invalid or cannot be used
    │   ├── UnknownSlotError         no slot or blueprint has this name
    │   └── IllegalActionError       the host's state does not allow the action
    ├── SurgeryError                 a model cannot be widened or deepened in this way
    ├── GrowerError                  a training loop uses its Grower in a way that cannot work
    │   └── RanksDisagreeError       the processes of a distributed training differ
    ├── SavedModelError              a saved model is missing, damaged or of another design
    ├── ControllerError              a saved controller is missing, damaged or incompatible
    ├── UnsupportedHostError         a population or an export cannot handle the model
    ├── UnknownHeadError             the action specification has no head of this name
    ├── UnknownFeatureError          observations have no feature of this name
    ├── NoLegalActionError           a head has no legal choice in some environment
    ├── UnsupportedEnvironmentError  the collector cannot drive a Gymnasium environment
    ├── ResetNeededError             an environment was stepped before it was reset
    ├── TaskError                    a task's data or description cannot be used
    │   ├── UnknownTaskError         no task has this name
    │   ├── MissingDataError         a file of a task was not found
    │   └── BadDataError             a task's data are invalid
    ├── CheckpointError              a checkpoint is missing, damaged or of another run
    ├── OtherVersionError            a file was made by another version of Esper
    ├── StorageError                 the disk is full, read-only or broken
    ├── RunError                     a run folder is missing, in use, or holds another run
    ├── TrainingError                a run stopped: rejected updates, or workers that keep dying
    ├── WorkerError                  worker processes cannot be started, or die again and again
    ├── TelemetryError               a run's telemetry is missing, damaged or incompatible
    │   └── DamagedTelemetryError    its contents are not what was written
    ├── DashboardError               the dashboard cannot be served at the given address
    ├── EvidenceError                evaluation results are inconsistent, or their file is damaged
    ├── ReportError                  a report cannot be made or written
    ├── NonFiniteError               a number that must be finite is NaN or infinite
    └── RolloutError                 a rollout buffer was overfilled, or read while incomplete

Every message names the thing, its value, what is allowed and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

_MAX_SHOWN = 60

CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    r"\udc80-\udc9f]"
)
"""Characters that can change what a terminal does or shows: controls except tab and line feed,
marks that reverse or hide text, and undecoded bytes of a file name that are controls."""


def escape_controls(text: str) -> str:
    r"""Return a text for people in which control characters are visible, as ``\x1b``.

    The form is that of ``repr``, so that quoted and unquoted names look the same.
    """
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_for_data(text: str) -> str:
    r"""Return JSON or TOML with control characters as ``\u001b``, which both require."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class EsperError(Exception):
    """Base class of every error that a user of Esper can cause.

    Control characters in a message, which can be quoted from a file, are escaped.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(escape_controls(arg) if isinstance(arg, str) else arg for arg in args))


class EsperWarning(UserWarning):
    """Something works, but not in full."""


class ConfigError(EsperError):
    """A setting has a value that is not allowed."""


class ActionSpecError(EsperError):
    """An action specification contradicts itself."""


class TensorError(EsperError):
    """An argument is not the tensor that is needed."""


class ShapeError(TensorError):
    """A tensor has the wrong shape."""


class DtypeError(TensorError):
    """A tensor has the wrong dtype."""


class DeviceError(TensorError):
    """Tensors that must be on the same device are not."""


class ValueRangeError(TensorError):
    """A tensor holds a value outside the allowed range."""


class SlotError(EsperError):
    """A slot, stage or blueprint is invalid, duplicated, or cannot be used."""


class UnknownSlotError(SlotError, KeyError):
    """No slot or blueprint has this name."""

    __str__ = Exception.__str__  # KeyError would quote the message


class IllegalActionError(SlotError):
    """The host's state does not allow the action."""


class SurgeryError(EsperError):
    """A model cannot be widened or deepened in this way."""


class GrowerError(EsperError):
    """A training loop uses its Grower in a way that cannot work."""


class RanksDisagreeError(GrowerError):
    """The processes of a distributed training differ."""


class SavedModelError(EsperError):
    """A saved model is missing, damaged, or of another design."""


class ControllerError(EsperError):
    """A saved controller is missing, damaged, incompatible, or cannot control a host."""


class UnsupportedHostError(EsperError):
    """A population or an export cannot handle the model."""


class UnknownHeadError(EsperError, KeyError):
    """The action specification has no head of this name."""

    __str__ = Exception.__str__  # KeyError would quote the message


class UnknownFeatureError(EsperError, KeyError):
    """Observations have no feature of this name."""

    __str__ = Exception.__str__  # KeyError would quote the message


class NoLegalActionError(EsperError):
    """A head has no legal choice in some environment."""


class UnsupportedEnvironmentError(EsperError):
    """The collector cannot drive a Gymnasium environment as it is configured."""


class ResetNeededError(EsperError):
    """An environment was stepped before its first reset or after its episode ended."""


class TaskError(EsperError):
    """A task's data or description cannot be used."""


class UnknownTaskError(TaskError, KeyError):
    """No task has this name."""

    __str__ = Exception.__str__  # KeyError would quote the message


class MissingDataError(TaskError):
    """A file that a task needs was not found."""


class BadDataError(TaskError):
    """A task's data are invalid."""


class CheckpointError(EsperError):
    """A checkpoint is missing, damaged or of another run, or cannot hold a given value."""


class OtherVersionError(EsperError):
    """A checkpoint, controller or saved model was made by another version of Esper."""


class StorageError(EsperError):
    """The disk is full, read-only or broken."""


class RunError(EsperError):
    """A run folder is missing, in use, or holds another run."""


class TrainingError(EsperError):
    """A run stopped, because too many updates in a row were rejected or workers keep dying."""


class WorkerError(EsperError):
    """Worker processes cannot be started or reached, or die again and again."""


class TelemetryError(EsperError):
    """A run's telemetry is missing, damaged or incompatible, or lacks the requested rows."""


class DamagedTelemetryError(TelemetryError):
    """The contents of a run's telemetry are not what was written."""


class DashboardError(EsperError):
    """The dashboard cannot be served at the given address."""


class EvidenceError(EsperError):
    """Evaluation results are inconsistent, or their file is damaged."""


class ReportError(EsperError):
    """A report cannot be made or written."""


class NonFiniteError(EsperError):
    """A number that must be finite is NaN or infinite."""


class RolloutError(EsperError):
    """A rollout buffer was overfilled, or read while incomplete."""


SYNONYMS = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "validation_data": "val_data",
    "loss_fn": "loss",
    "criterion": "loss",
}
"""Names that other libraries use, and ours."""


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the allowed name closest to ``name``, or ``""``."""
    allowed = list(allowed)
    synonym = SYNONYMS.get(str(name))
    if synonym in allowed:
        return f" Did you mean {synonym!r}?"
    text = str(name).lower()
    same = [each for each in allowed if each.lower() == text]
    nearest = same or difflib.get_close_matches(str(name), allowed, n=1)
    if not nearest and len(text) > 1:
        longer = [each for each in allowed if each.lower().startswith(text)]
        nearest = longer if len(longer) == 1 else []
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def type_of(value: object) -> str:
    """Return the name of a value's type with its article, such as ``"an ndarray"``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def shown(value: object) -> str:
    """Return a value for a message: on one line, and truncated if it is long."""
    text = repr(value)
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def message_of(error: BaseException) -> str:
    """Return the message of an exception on one line."""
    return " ".join(str(error).split())


def summarize_error(error: BaseException) -> str:
    """Return an exception's type and message on one line."""
    return f"{type(error).__name__} ({message_of(error) or 'no message'})"


def blame_user_code(kind: type[EsperError], error: Exception, who: str, advice: str) -> NoReturn:
    """Raise an error of ours for what a user's code raised; an error of ours passes as it is.

    Args:
        kind: The error to raise.
        error: What the code raised.
        who: What was called, in words.
        advice: When that was, and what to do about it.
    """
    if isinstance(error, EsperError):
        raise error
    raise kind(f"{who} raised {summarize_error(error)} {advice}") from error
