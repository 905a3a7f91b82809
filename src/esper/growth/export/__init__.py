"""Handing a grown model back as a plain module that knows nothing of Esper."""

from esper.growth.export.exporting import export

__all__ = ["export"]
