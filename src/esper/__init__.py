"""Esper grows neural networks while they train, steered by a controller that learns."""

__version__ = "0.1.0"
