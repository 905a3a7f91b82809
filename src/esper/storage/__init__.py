"""Everything that is written to disk: whole files or none, checked when they are read."""
