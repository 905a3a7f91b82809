"""The page, the figure and the table of a study, and :func:`study` for Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.dashboard.figures import empty_figure, save_evidence, save_figure
from esper.dashboard.report import write_report
from esper.progress import ProgressBar, ShowProgress
from esper.telemetry.frames import DataFrame, make_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from esper.evidence.study import Study
    from esper.results.evidence import Evidence

PAGE_FILE, CURVES_FILE = "study.html", "curves.png"


def study(
    study: str | os.PathLike[str] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    allow_code: bool = False,
    progress: ShowProgress = "auto",
) -> DataFrame:
    """Train every configuration of a study with every seed, and return a row for each run.

    Finished runs are kept, so a study that was stopped or killed continues where it was.

    Args:
        study: A TOML file, or the same values as a mapping; see ``docs/study.md``.
        out: Folder of the study; by default one of its name in the runs folder.
        workers: Runs that are trained side by side; by default as many as there are cores.
        ray_address: Address of a Ray cluster that trains them instead.
        allow_code: Whether a file may name its task by ``module:function``.
        progress: Whether to show a bar; by default in terminals and notebooks.

    Raises:
        ConfigError: If the study is invalid, or pandas is not installed.

    Examples:
        >>> table = esper.study("study.toml")  # doctest: +SKIP
        >>> table.groupby("configuration")["ep_rew_mean"].mean()  # doctest: +SKIP
    """
    from esper.evidence.study import read_study, run_study, study_rows

    make_frame({})  # fails before anything is trained
    found = read_study(study)
    folder = found.folder if out is None else Path(out)
    with ProgressBar(progress, title="study") as bar:
        run_study(
            found,
            folder,
            workers=workers,
            ray_address=ray_address,
            allow_code=allow_code or isinstance(study, Mapping),
            on_progress=bar.show,
        )
    save_study(found, folder)
    rows = study_rows(found, folder)
    return make_frame({name: [row[name] for row in rows] for name in rows[0]})


def save_study(study: Study, folder: Path) -> tuple[list[Path], Evidence | None]:
    """Write the results of the runs that are done; return the files and the comparison."""
    from esper.evidence.study import complete_runs, study_evidence, write_table

    evidence, done = study_evidence(study, folder), complete_runs(study, folder)
    paths = [write_table(study, folder)]
    if evidence is None:
        return paths, None
    paths += save_evidence([evidence], folder)
    page, _ = write_report(
        list(done.values()), out=folder / PAGE_FILE, evaluation=folder / "evaluation.json"
    )
    save_figure(plot_study(study, folder), folder / CURVES_FILE)
    return [page, folder / CURVES_FILE, *paths], evidence


def plot_study(study: Study, folder: Path) -> Figure:
    """Return the learning curves: the mean over seeds of each configuration, with intervals."""
    from esper.evidence.study import complete_runs, evaluations_of
    from esper.statistics import mean_interval

    figure = empty_figure(7.0, 3.6)
    axis: Any = figure.subplots()
    done = complete_runs(study, folder)
    for number, name in enumerate(study.configurations):
        curves = [evaluations_of(run) for (one, _), run in done.items() if one == name]
        rounds = [at for at in curves[0] if all(at in one for one in curves)] if curves else []
        points = [mean_interval([curve[at] for curve in curves]) for at in rounds]
        color = f"C{number % 10}"
        axis.plot(rounds, [one.mean for one in points], color=color, label=name, marker=".")
        if len(curves) > 1:
            low, high = [one.low for one in points], [one.high for one in points]
            axis.fill_between(rounds, low, high, color=color, alpha=0.15, linewidth=0)
    axis.set_xlabel("round")
    axis.set_ylabel("held-out return")
    axis.set_title("Mean over seeds with 95% intervals", loc="left")
    axis.legend(frameon=False)
    return figure
