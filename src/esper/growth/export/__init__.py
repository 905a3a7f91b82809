"""Exporting a grown model as a plain module that does not depend on Esper."""

from esper.growth.export.exporter import export

__all__ = ["export"]
