"""Checkpoints: everything that a run goes on from, saved whole or not at all."""

from esper.checkpoints.checkpoint import CheckpointWarning, Loaded, load_checkpoint
from esper.checkpoints.folder import CheckpointFolder
from esper.checkpoints.nested import from_nested, to_nested
from esper.checkpoints.state import State, merge, split

__all__ = [
    "CheckpointFolder",
    "CheckpointWarning",
    "Loaded",
    "State",
    "from_nested",
    "load_checkpoint",
    "merge",
    "split",
    "to_nested",
]
