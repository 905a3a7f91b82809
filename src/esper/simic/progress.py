"""What training shows in a terminal or notebook: a progress bar, or a table of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


class ProgressBar(Callback):
    """Shows how far training is, in a terminal or a notebook."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def on_start(self, model: PPO) -> None:
        """Show the bar."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("return {task.fields[mean]}"),
            TextColumn("{task.fields[speed]} steps/s"),
            TimeRemainingColumn(),
        )
        self._bar.start()
        self._task = self._bar.add_task(
            "learn", total=model.total_timesteps, completed=model.num_timesteps, mean="-", speed="-"
        )

    def on_update_end(self, model: PPO) -> None:
        """Move the bar."""
        mean = model.metrics.get("rollout/ep_rew_mean")
        self._bar.update(
            self._task,
            completed=model.num_timesteps,
            mean="-" if mean is None else f"{mean:.4g}",
            speed=f"{model.metrics['time/fps']:,.0f}",
        )

    def on_end(self, model: PPO) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
