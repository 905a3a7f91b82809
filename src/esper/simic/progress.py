"""What training shows in a terminal or notebook: a progress bar, or a table of metrics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from esper.progress import ProgressBar, ShowProgress
from esper.simic.callbacks import Callback

if TYPE_CHECKING:
    from esper.simic.algorithm import PPO


class MetricsTable(Callback):
    """Prints the metrics of every update, grouped as Stable-Baselines3 does: ``PPO(verbose=1)``."""

    def on_update_end(self, model: PPO) -> None:
        """Print a table."""
        import rich
        from rich.box import ASCII
        from rich.table import Table

        table = Table(box=ASCII, show_header=False)
        group = ""
        for name, value in sorted(model.metrics.items()):
            first, _, rest = name.partition("/")
            if first != group:
                table.add_row(f"{first}/", "")
                group = first
            table.add_row(f"   {rest}", f"{value:.4g}" if value % 1 else f"{value:.0f}")
        rich.print(table)


class LearningProgress(Callback):
    """Shows how far training is, with the return and the speed."""

    def __init__(self, wanted: ShowProgress) -> None:
        self._bar = ProgressBar(wanted, title="learning")

    @property
    def is_shown(self) -> bool:
        """Whether there is a place to show it in."""
        return self._bar.is_shown

    def on_start(self, model: PPO) -> None:
        """Show the bar."""
        self._bar.__enter__()
        self._show(model, "")

    def on_update_end(self, model: PPO) -> None:
        """Move the bar."""
        mean = model.metrics.get("rollout/ep_rew_mean")
        shown = "" if mean is None else f", return {mean:.4g}"
        self._show(model, f"{shown}, {model.metrics['time/fps']:,.0f} steps/s")

    def on_end(self, model: PPO) -> None:
        """Remove the bar."""
        self._bar.__exit__(*sys.exc_info())

    def _show(self, model: PPO, details: str) -> None:
        steps = f", {model.num_timesteps:,} of {model.total_timesteps:,} steps"
        self._bar.show("learning", model.num_timesteps / model.total_timesteps, steps + details)
