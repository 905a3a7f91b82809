"""A figure that shows itself in a notebook. Importing this needs matplotlib."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure

PIXELS_PER_INCH = 72
"""Size of a figure in a notebook; it is drawn twice as sharp."""


class ShownFigure(Figure):
    """A figure outside pyplot, which a notebook shows exactly once and without ``%matplotlib``."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the figure as a PNG image, and its size in pixels on the page."""
        file = BytesIO()
        # White, because the text is black on dark pages too.
        self.savefig(file, format="png", dpi=2 * PIXELS_PER_INCH, facecolor="white")
        width, height = (round(PIXELS_PER_INCH * inches) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height}
