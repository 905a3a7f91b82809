"""Everything Esper writes to disk: atomic files, checkpoints, run folders."""
