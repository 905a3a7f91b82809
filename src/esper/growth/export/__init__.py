"""Handing a grown model back as a plain module that knows nothing of Esper."""

from esper.growth.export.exporter import export

__all__ = ["export"]
