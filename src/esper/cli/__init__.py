"""The command ``esper``, one file for each of its commands. Nothing here imports torch at once."""
