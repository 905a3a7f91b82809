"""Training a controller: rounds of collecting and learning, from any point to the end."""

from esper.simic.training.output import RecordOutput
from esper.simic.training.run_state import RunParts
from esper.simic.training.stopping import Stopped, StopRequest
from esper.simic.training.trainer import Trainer

__all__ = ["RecordOutput", "RunParts", "StopRequest", "Stopped", "Trainer"]
