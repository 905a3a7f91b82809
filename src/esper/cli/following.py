"""Working on a run while showing how it goes; the same for a new run and for one that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.early_signals import early_signals
from esper.cli.plain_views import tell_on_stderr
from esper.cli.views import View, make_view
from esper.config.run import RunConfig
from esper.dashboard.companion import dashboard_beside
from esper.errors import EsperError
from esper.invocation import program
from esper.storage.run_folder import shell_word
from esper.training.run import Run
from esper.training.signals import INTERRUPTED, ignore_signals

if TYPE_CHECKING:
    from esper.training.stopping import StopRequest

Work = Callable[[View, "StopRequest"], Run]
"""Works on a run: takes the view on it and the request that may stop it."""


def follow(
    work: Work,
    config: RunConfig,
    *,
    begun: Run | None = None,
    served: Path | None = None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Do the work with a view on it, say what came of it, and return the exit code.

    Args:
        work: Works on the run.
        config: The run's settings.
        begun: The run, if there is one already.
        served: The folder of runs that a dashboard shows meanwhile; None for no dashboard.
        quiet: Say one line in the end.
        as_json: Print a JSON object in each line.
    """
    try:
        # The view comes first: loading PyTorch takes seconds in which nothing would be seen.
        with (
            nullcontext() if served is None else dashboard_beside(served, tell_on_stderr),
            make_view(config, quiet=quiet, json=as_json, begun=begun) as view,
            early_signals(view.tell) as early,
        ):
            try:
                run = work(view, early.make_stop_request())
            except KeyboardInterrupt:
                ignore_signals()
                raise
    except KeyboardInterrupt as interrupted:
        from esper.cli.ending import print_end_event

        saved: Run | None = getattr(interrupted, "run", None)
        if as_json:
            with suppress(OSError):  # the way to go on is told where the output is full, too
                print_end_event(saved or begun, state="interrupted")
        _tell_interrupted(saved, begun)
        return INTERRUPTED
    except EsperError as error:
        from esper.cli.ending import print_end_event

        if as_json:
            with suppress(OSError):
                print_end_event(begun, state="failed", message=str(error))
        raise
    from esper.cli.ending import show_end

    show_end(run, quiet=quiet, as_json=as_json)
    return 0


def _tell_interrupted(saved: Run | None, begun: Run | None) -> None:
    """Say on stderr what is left of the run, and how to go on."""
    esper = program()
    if saved is not None:
        told = f"interrupted and saved; go on with: {esper} resume {shell_word(saved.path)}"
    elif begun is not None:
        told = f"interrupted; the run is as it was: {esper} resume {shell_word(begun.path)}"
    else:
        told = "interrupted before training began; nothing was saved"
    print(f"esper: {told}", file=sys.stderr)
