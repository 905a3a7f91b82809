"""Where a run's records go besides its own database: trackers that other people know.

A sink gets every record; a tracker's sink sends the metrics among them, with the round as the step.
"""

from esper.telemetry.sinks.making import make_sink
from esper.telemetry.sinks.sink import Sink

__all__ = ["Sink", "make_sink"]
