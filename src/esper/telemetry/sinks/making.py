"""Sinks by name."""

from __future__ import annotations

from pathlib import Path

from esper.errors import ConfigError, did_you_mean
from esper.telemetry.sinks.sink import Sink
from esper.telemetry.sinks.tensorboard_sink import TensorBoardSink
from esper.telemetry.sinks.trackio_sink import TrackioSink
from esper.telemetry.sinks.wandb_sink import WandbSink

_SINKS: dict[str, type[TensorBoardSink] | type[WandbSink] | type[TrackioSink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "trackio": TrackioSink,
}


def make_sink(name: str, run_dir: Path, config_text: str) -> Sink:
    """Return the sink of a name, for a run that begins or is resumed.

    Args:
        name: ``tensorboard``, ``wandb`` or ``trackio``.
        run_dir: The run folder, which exists.
        config_text: The run's configuration, as TOML.

    Raises:
        ConfigError: If there is no such sink, or its package is not installed.
    """
    if name not in _SINKS:
        raise ConfigError(
            f"telemetry.sinks names {name!r}; there are {', '.join(_SINKS)}."
            f"{did_you_mean(name, _SINKS)}"
        )
    return _SINKS[name](Path(run_dir), config_text)
