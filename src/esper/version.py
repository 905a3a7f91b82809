"""The version of Esper."""

__version__ = "0.1.0"
