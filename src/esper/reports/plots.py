"""Plotting runs, in a notebook or to PNG files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from esper.config.checks import require_choice
from esper.errors import RunError, StorageError
from esper.storage.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from esper.reports.run_report.values import RunValues
    from esper.training.run import Run

Plot = Literal["learning", "timeline", "learned"]
"""What to plot: learning curves, the timeline of one host, or what the controller learned."""
PLOTS: tuple[Plot, ...] = get_args(Plot)

DPI = 120


def plot_run(
    run: Run, what: Plot = "learning", *, env: int | None = None, episode: int | None = None
) -> Figure:
    """Return a matplotlib figure of a run.

    Args:
        run: The run.
        what: ``"learning"``, ``"timeline"`` or ``"learned"``.
        env: The environment whose host to plot in a timeline.
        episode: The episode of that environment. Without either, a typical late episode is plotted.

    Raises:
        ConfigError: If ``what`` is unknown, or matplotlib is not installed.
        RunError: If the episode does not exist.
    """
    from esper.reports import views
    from esper.reports.figures import plot_metrics

    require_choice("what", what, PLOTS)
    if what == "learning":
        limit = run.config.ppo.kl_limit
        limit = limit if math.isfinite(limit) else None
        is_scheduled = run.config.rewards.reward == "scheduled"
        return plot_metrics(
            run.metrics(), title=run.name, kl_limit=limit, is_scheduled=is_scheduled
        )
    if what == "timeline":
        return _plot_timeline(run, env, episode)
    from esper.reports.run_figures import plot_learned

    with run.telemetry() as telemetry:
        return plot_learned(views.learned(telemetry), title=run.name)


def save_plots(runs: Sequence[RunValues], folder: Path) -> list[Path]:
    """Save every chart of the runs as PNG; charts of metrics show all runs together.

    Raises:
        ConfigError: If matplotlib is not installed.
        StorageError: If a file cannot be written.
    """
    saved: list[Path] = []
    for name, figure in _figures(runs):
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=DPI)
        path = folder / f"{name}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, image.getvalue())
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error
        saved.append(path)
    return saved


def _plot_timeline(run: Run, env: int | None, episode: int | None) -> Figure:
    from esper.reports import views
    from esper.reports.run_figures import plot_episode
    from esper.reports.run_report.values import episode_heading, find_episodes

    with run.telemetry() as telemetry:
        if env is None and episode is None:
            found = find_episodes(telemetry, views.learned(telemetry))
            if not found:
                raise RunError(f"no episode of {run.path} has ended yet; try again later.")
            return plot_episode(
                found[0]["detail"], title=f"{run.name}: {episode_heading(found[0])}"
            )
        place = env or 0, episode or 0
        detail = views.episode_detail(telemetry, *place)
    if detail is None:
        raise RunError(
            f"{run.path} has no episode {place[1]} of environment {place[0]}; environments are "
            f"numbered from 0 to {run.config.envs - 1}, and episodes from 0."
        )
    return plot_episode(detail, title=f"{run.name}: environment {place[0]}, episode {place[1]}")


def _figures(runs: Sequence[RunValues]) -> Iterator[tuple[str, Figure]]:
    """Yield each figure with the name of its file."""
    from esper.reports.figures import find_panels, plot_panel
    from esper.reports.run_figures import plot_episode, plot_health, plot_learned
    from esper.reports.run_report.values import episode_heading

    metrics = {run["name"]: _metrics(run) for run in runs}
    limits = {run["overview"]["kl_limit"] for run in runs}
    limit = limits.pop() if len(limits) == 1 else None
    names = {name for one in metrics.values() for name in one}
    is_scheduled = all(run["overview"]["reward"] == "scheduled" for run in runs)
    for panel in find_panels(names, is_scheduled=is_scheduled):
        figure = plot_panel(panel, metrics, kl_limit=limit)
        if figure is not None:
            yield panel.name, figure
    for place, run in enumerate(runs):
        prefix = "" if len(runs) == 1 else f"{place}-{_file_name(run['name'])}-"
        for episode in run["episodes"]:
            title = f"{run['name']}: {episode_heading(episode)}"
            yield f"{prefix}episode-{episode['kind']}", plot_episode(episode["detail"], title=title)
        if run["learned"]["parts"]:
            yield f"{prefix}learned", plot_learned(run["learned"], title=run["name"])
            yield f"{prefix}health", plot_health(run["health"], title=run["name"])


def _metrics(run: RunValues) -> Any:
    from esper.telemetry import Series

    return {
        name: Series(
            rounds=points["rounds"],
            values=[math.nan if value is None else value for value in points["values"]],
        )
        for name, points in run["metrics"]["series"].items()
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"
