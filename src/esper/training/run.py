"""A run as read from its folder: settings, state, metrics, figures and its best host."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from esper.config.checks import names_code, require_trusted_task
from esper.config.run import RunConfig
from esper.errors import ConfigError, EsperError, RunError, TelemetryError
from esper.formatting import html_lines, html_table, number
from esper.invocation import program
from esper.results.evidence import Evidence
from esper.results.files import read_summary
from esper.results.tables import to_html
from esper.storage.run_folder import RunFolder, list_folders, shell_word
from esper.telemetry import Metrics, RunTelemetry, open_run
from esper.telemetry.frames import DataFrame, make_frame
from esper.telemetry.records import RoundRecord, SessionRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from esper.dashboard.figures import Plot

_LATEST = {
    "return": "rollout/ep_rew_mean",
    "score": "growth/score",
    "held-out return": "eval/mean_reward",
    "held-out score": "eval/score",
    "FLOPs": "growth/flops",
}
"""Metrics whose latest value is shown in a notebook, with their headings."""
_HEADERS = ("run", "state", "task", "rounds", *_LATEST)

RunState = Literal["running", "done", "interrupted", "failed", "killed", "empty"]


class Run:
    """A run that is done, running, or waiting to be resumed. Reading one needs no torch.

    Examples:
        >>> run = esper.load_run("runs/my-run")
        >>> len(run.metrics()["rollout/ep_rew_mean"].values) > 0
        True
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.config: RunConfig = folder.read_config()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state}, {self.rounds_done} of {self.config.rounds})"

    def _repr_html_(self) -> str:
        table = html_table(_HEADERS, [self.cells()], n_left=3)
        from esper.dashboard.figures import figure_html, plot_curve

        try:
            returns = self.metrics().get("rollout/ep_rew_mean")
            curve = "" if returns is None else figure_html(lambda: plot_curve(returns, "return"))
            summary = self.summary
        except EsperError as error:
            return table + html_lines([str(error)])
        return table + curve + ("" if summary is None else to_html(summary, is_folded=True))

    def cells(self) -> list[str]:
        """Return the run as a row of a table: its state and its latest results."""
        config = self.config
        first = [self.name, self.state, config.task, f"{self.rounds_done} of {config.rounds}"]
        try:
            metrics = self.metrics()
        except EsperError:
            metrics = Metrics()
        found = (metrics.get(metric) for metric in _LATEST.values())
        return [*first, *(number(None if one is None else one.values[-1]) for one in found)]

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.name

    @property
    def state(self) -> RunState:
        """Whether the run is running, done, or how its last process ended."""
        if self.folder.is_in_use:
            return "running"
        try:
            with open_run(self.path) as telemetry:
                session = telemetry.last(SessionRecord)
        except TelemetryError:
            session = None
        if session is None:
            return "empty"
        match session.outcome:
            case "done" | "interrupted" | "failed":
                return session.outcome
            case _:
                return "killed"

    @property
    def is_complete(self) -> bool:
        """Whether the run is done and has its final comparison, so that nothing is left to do."""
        return self.state == "done" and self.summary is not None

    @property
    def rounds_done(self) -> int:
        """Number of recorded rounds."""
        try:
            with open_run(self.path) as telemetry:
                last = telemetry.last(RoundRecord)
        except TelemetryError:
            return 0
        return 0 if last is None else last.round

    @property
    def n_episodes(self) -> int:
        """Number of recorded training episodes."""
        try:
            with open_run(self.path) as telemetry:
                return sum(row.n_episodes for row in telemetry.rows(RoundRecord))
        except TelemetryError:
            return 0

    @property
    def torch_versions(self) -> list[str]:
        """Versions of PyTorch that worked on the run, in order; results depend on them."""
        try:
            with open_run(self.path) as telemetry:
                return list(dict.fromkeys(one.torch_version for one in telemetry.sessions()))
        except TelemetryError:
            return []

    @property
    def summary(self) -> Evidence | None:
        """The comparison at the end of the run; None before that."""
        try:
            return read_summary(self.folder.summary_file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(
                f"cannot read {self.folder.summary_file}: {error.strerror or error}; delete it and "
                "resume the run."
            ) from error

    def telemetry(self) -> RunTelemetry:
        """Open the run's telemetry, also while the run is running.

        Raises:
            TelemetryError: If it is missing, damaged or of another version.
        """
        return open_run(self.path)

    @property
    def rounds(self) -> DataFrame:
        """A row for each round; docs/reference/telemetry.md explains the columns.

        Raises:
            ConfigError: If pandas is not installed.
        """
        return self._frame("rounds")

    @property
    def episodes(self) -> DataFrame:
        """A row for each training episode."""
        return self._frame("episodes")

    @property
    def steps(self) -> DataFrame:
        """A row for each step of each host; empty if the run does not record steps."""
        return self._frame("steps")

    def _frame(self, table: str) -> DataFrame:
        with self.telemetry() as telemetry:
            return make_frame(telemetry.columns(table))

    def metrics(self) -> Metrics:
        """Return each metric by round; docs/reference/metrics.md lists their names."""
        with self.telemetry() as telemetry:
            return telemetry.metrics()

    def plot(
        self, what: Plot = "learning", *, env: int | None = None, episode: int | None = None
    ) -> Figure:
        """Return a matplotlib figure of the learning curves or of one episode.

        Args:
            what: ``"learning"`` or ``"timeline"``.
            env: For a timeline, the environment; a typical episode if neither is given.
            episode: For a timeline, the episode of that environment.
        """
        from esper.dashboard.figures import plot_run

        return plot_run(self, what, env=env, episode=episode)

    def report(
        self,
        *,
        out: str | os.PathLike[str] | None = None,
        evaluation: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Write a report on the run and return its file; see :func:`esper.report`."""
        from esper.dashboard.report import report

        return report(self, out=out, evaluation=evaluation)

    def best_host(self, *, allow_code: bool = False) -> nn.Module:
        """Grow the best host of the final comparison again and return it as a plain module.

        Args:
            allow_code: Whether to run a task that the settings name by ``module:function``.
        """
        from esper.growing.task_hosts import grow_best_host

        return grow_best_host(self, allow_code=allow_code).model

    @property
    def allow_code_flag(self) -> str:
        """The option that commands on this run need, with a leading space; empty if none."""
        return " --allow-code" if names_code(self.config.task) else ""

    @property
    def resume_command(self) -> str:
        """The shell command that resumes the run."""
        return f"{program()} resume {shell_word(self.path)}{self.allow_code_flag}"

    def require_learning(self) -> None:
        """Reject a record of the user's own training or of PPO, which holds no controller.

        Raises:
            RunError: If it is one.
        """
        if self.config.is_own_training:
            raise RunError(
                f"{self.path} records a training loop of your own, so it holds no controller and "
                "esper cannot resume it; load grower.state_dict() in your loop and call "
                f"grower.record({str(self.path)!r}) again."
            )

        if self.config.is_ppo_training:
            raise RunError(
                f"{self.path} records PPO.learn ({self.config.task}), so it holds no controller "
                "and esper cannot resume it; continue with PPO.resume(folder of its checkpoints)."
            )

    def require_trusted_task(self, *, allow_code: bool) -> None:
        """Reject a run whose settings name code, unless that is allowed.

        Raises:
            TaskError: If it does and it is not.
        """
        config = self.config
        require_trusted_task(
            config.task, config.task_options, source=self.folder.config_file, allow_code=allow_code
        )


class RunList(list[Run]):
    """Several runs, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        if not self:
            return html_lines(["There are no runs."])
        return html_table(_HEADERS, (run.cells() for run in self), n_left=3)


def load_run(run: str | os.PathLike[str]) -> Run:
    """Load a run by its folder, or by its name in the runs folder.

    Examples:
        >>> run = esper.load_run("runs/my-run")
        >>> run.name
        'my-run'
    """
    return Run(RunFolder.find(run))


def list_runs(parent: str | os.PathLike[str] | None = None) -> RunList:
    """Return the runs in a folder, oldest first; by default in the runs folder.

    A run whose settings cannot be read is left out with a warning.

    Examples:
        >>> [run.name for run in esper.list_runs("runs")]
        ['my-run']
    """
    found = RunList()
    for folder in list_folders(parent):
        try:
            found.append(Run(folder))
        except ConfigError as error:
            warnings.warn(f"{folder.path} is left out: {error}", stacklevel=2)
    return found
