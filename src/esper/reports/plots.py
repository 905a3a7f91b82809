"""Figures of runs: for a notebook, and as files."""

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
    from esper.reports.run_report.values import RunValues
    from esper.training.run import Run

Plot = Literal["learning", "timeline", "learned"]
"""What is drawn: how a run learned, the life of one host, or what the controller does."""
PLOTS: tuple[Plot, ...] = get_args(Plot)

DPI = 120


def plot_run(
    run: Run, what: Plot = "learning", *, env: int | None = None, episode: int | None = None
) -> Any:
    """Return a matplotlib figure of a run.

    Args:
        run: The run.
        what: ``"learning"``, ``"timeline"`` or ``"learned"``.
        env: The environment whose host's life is drawn, and
        episode: which of its episodes; a typical one of late training if neither is given.

    Raises:
        ConfigError: If there is no such figure, or matplotlib is not installed.
        RunError: If there is no such episode.
    """
    from esper.reports import views
    from esper.reports.figures import plot_metrics

    require_choice("what", what, PLOTS)
    if what == "learning":
        limit = run.config.ppo.kl_limit
        limit = limit if math.isfinite(limit) else None
        return plot_metrics(run.metrics(), title=run.name, kl_limit=limit)
    if what == "timeline":
        return _plot_timeline(run, env, episode)
    from esper.reports.run_figures import plot_learned

    with run.telemetry() as telemetry:
        return plot_learned(views.learned(telemetry), title=run.name)


def save_plots(runs: Sequence[RunValues], folder: Path) -> list[Path]:
    """Save every chart of runs as PNG, several runs in one chart where they share it.

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
            raise StorageError(
                f"{path} cannot be written: {error.strerror or error}; choose another folder."
            ) from error
        saved.append(path)
    return saved


def _plot_timeline(run: Run, env: int | None, episode: int | None) -> Any:
    from esper.reports import views
    from esper.reports.run_figures import plot_episode
    from esper.reports.run_report.sections import episode_heading
    from esper.reports.run_report.values import find_episodes

    with run.telemetry() as telemetry:
        if env is None and episode is None:
            found = find_episodes(telemetry, views.learned(telemetry))
            if not found:
                raise RunError(f"{run.path} has no episode that ended yet; plot it later.")
            return plot_episode(
                found[0]["detail"], title=f"{run.name}: {episode_heading(found[0])}"
            )
        place = env or 0, episode or 0
        detail = views.episode_detail(telemetry, *place)
    if detail is None:
        raise RunError(
            f"{run.path} has no episode {place[1]} of environment {place[0]}; environments are "
            f"numbered from 0 to {run.config.envs - 1}, and so are the episodes of each from 0."
        )
    return plot_episode(detail, title=f"{run.name}: environment {place[0]}, episode {place[1]}")


def _figures(runs: Sequence[RunValues]) -> Iterator[tuple[str, Any]]:
    """Give each figure with the name of its file."""
    from esper.reports.figures import find_panels, plot_panel
    from esper.reports.run_figures import plot_episode, plot_health, plot_learned
    from esper.reports.run_report.sections import episode_heading

    metrics = {run["name"]: _metrics(run) for run in runs}
    limits = {run["overview"]["kl_limit"] for run in runs}
    limit = limits.pop() if len(limits) == 1 else None
    for panel in find_panels({name for one in metrics.values() for name in one}):
        figure = plot_panel(panel, metrics, kl_limit=limit)
        if figure is not None:
            yield panel.name, figure
    for place, run in enumerate(runs):
        before = "" if len(runs) == 1 else f"{place}-{_file_name(run['name'])}-"
        for episode in run["episodes"]:
            title = f"{run['name']}: {episode_heading(episode)}"
            yield f"{before}episode-{episode['kind']}", plot_episode(episode["detail"], title=title)
        if run["learned"]["parts"]:
            yield f"{before}learned", plot_learned(run["learned"], title=run["name"])
            yield f"{before}health", plot_health(run["health"], title=run["name"])


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
