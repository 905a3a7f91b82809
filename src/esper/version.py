"""The version of Esper."""

__version__ = "0.3.0"
