"""Telemetry of a run: typed records in SQLite, readable while the run writes them."""

from esper.telemetry.damage import TelemetryWarning
from esper.telemetry.metrics import METRICS, Metrics, Series, metrics_of
from esper.telemetry.reader import RunTelemetry, open_run
from esper.telemetry.records import Record
from esper.telemetry.writer import TelemetryWriter

__all__ = [
    "METRICS",
    "Metrics",
    "Record",
    "RunTelemetry",
    "Series",
    "TelemetryWarning",
    "TelemetryWriter",
    "metrics_of",
    "open_run",
]
