"""The version of Esper."""

__version__ = "0.2.0"
