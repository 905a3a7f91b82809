"""A run as its folder tells it: settings, state, metrics, figures, and the hosts it can grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from esper.config.run import RunConfig
from esper.errors import RunError, TelemetryError
from esper.storage.files import read_json
from esper.storage.run_folder import RunFolder, list_folders
from esper.telemetry import Metrics, RunTelemetry, open_run
from esper.telemetry.records import RoundRecord, SessionRecord
from esper.training.comparison import Comparison

if TYPE_CHECKING:
    from torch import nn

    from esper.reports.plots import Plot

RunState = Literal["running", "done", "interrupted", "failed", "killed", "empty"]


class Run:
    """A run that is done, under way, or waiting to be resumed. Reading it needs no torch."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.config: RunConfig = folder.read_config()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state}, {self.rounds_done} of {self.config.rounds})"

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder.path

    @property
    def name(self) -> str:
        """What it is called."""
        return self.folder.name

    @property
    def state(self) -> RunState:
        """How it is: being worked on, done, or how the last process that worked on it ended."""
        if self.folder.is_in_use:
            return "running"
        session = self._last_session()
        if session is None:
            return "empty"
        match session.outcome:
            case "done" | "interrupted" | "failed":
                return session.outcome
            case _:
                return "killed"

    @property
    def rounds_done(self) -> int:
        """Rounds that are recorded."""
        try:
            with open_run(self.path) as telemetry:
                last = telemetry.last(RoundRecord)
        except TelemetryError:
            return 0
        return 0 if last is None else last.round

    @property
    def n_episodes(self) -> int:
        """Episodes of hosts that were learned from, as far as they are recorded."""
        try:
            with open_run(self.path) as telemetry:
                return sum(row.n_episodes for row in telemetry.rows(RoundRecord))
        except TelemetryError:
            return 0

    @property
    def summary(self) -> Comparison | None:
        """How the controller did beside others at the end; None before that."""
        try:
            return Comparison.from_json(read_json(self.folder.summary_file, allow_nan=True))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.folder.summary_file} is damaged; delete it and resume the run."
            ) from error

    def telemetry(self) -> RunTelemetry:
        """Return everything that is recorded, to be read while the run goes on too."""
        return open_run(self.path)

    def metrics(self) -> Metrics:
        """Return each metric over the rounds, by the names that docs/reference/metrics.md lists."""
        with open_run(self.path) as telemetry:
            return telemetry.metrics()

    def plot(
        self, what: Plot = "learning", *, env: int | None = None, episode: int | None = None
    ) -> Any:
        """Return a matplotlib figure: how it learned, the life of a host, or what it does.

        Args:
            what: ``"learning"``, ``"timeline"`` or ``"learned"``.
            env: For a timeline, the environment, and
            episode: which of its episodes; a typical one if neither is given.
        """
        from esper.reports.plots import plot_run

        return plot_run(self, what, env=env, episode=episode)

    def report(self, **how: Any) -> Path:
        """Write a report on the run and return its file; see :func:`esper.report`."""
        from esper.reports.reporting import report

        return report(self, **how)

    def best_host(self) -> nn.Module:
        """Return the best host of the comparison at the end, grown again, as a plain module.

        The host is drawn as it was there, steered by the run's best controller, and exported.
        """
        from esper.growing.grow import grow_best_host

        return grow_best_host(self).model

    def _last_session(self) -> SessionRecord | None:
        try:
            with open_run(self.path) as telemetry:
                sessions = telemetry.sessions()
        except TelemetryError:
            return None
        return sessions[-1] if sessions else None


def load_run(run: str | os.PathLike[str]) -> Run:
    """Return a run by its folder, or by its name in the runs folder."""
    return Run(RunFolder.find(run))


def list_runs(parent: str | os.PathLike[str] | None = None) -> list[Run]:
    """Return the runs in a folder, the oldest first; by default those in the runs folder."""
    return [Run(folder) for folder in list_folders(parent)]
