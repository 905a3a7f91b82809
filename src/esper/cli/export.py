"""``esper export-controller`` and ``esper export-telemetry``: take results out of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from esper.cli.arguments import Metavar, Positional, UsageError, parse
from esper.cli.output import print_columns, require_writable
from esper.storage.controller_folder import CONTROLLER
from esper.storage.run_folder import require_own
from esper.training.run import load_run


@dataclass(frozen=True, kw_only=True)
class ExportControllerOptions:
    """Save a run's best controller to a folder that can be shared."""

    run: Annotated[str, Positional("RUN")]
    """Folder of the run, or its name in the runs folder."""

    out: str = "controller"
    """Folder to save the controller in."""

    name: Annotated[str | None, Metavar("NAME")] = None
    """Name of the controller; by default the run's name."""

    greedy: bool = False
    """Make it take the most likely action instead of sampling."""

    force: bool = False
    """Replace an existing controller."""


def run_export_controller(args: Sequence[str]) -> int:
    """Save the controller and list the files written."""
    options = parse(ExportControllerOptions, args, command="export-controller")
    found, place = load_run(options.run), Path(options.out)
    require_writable(place)
    CONTROLLER.require_free(place)
    from dataclasses import replace

    from esper.evidence.model_card import claims_of, write_card
    from esper.tamiyo import holds_controller, save_controller
    from esper.tamiyo.controllers.saved import facts_of
    from esper.training.lookup import controller_of

    if holds_controller(place) and not options.force:
        raise UsageError(
            f"{place} already holds a controller; choose another --out, or replace it with --force."
        )
    controller = controller_of(found)
    controller = replace(
        controller,
        name=controller.name if options.name is None else options.name,
        deterministic=controller.deterministic or options.greedy,
    )
    rows = [] if found.summary is None else claims_of(found.summary)
    save_controller(controller, place, card=write_card(facts_of(controller), rows))
    print_columns(
        [
            (str(place), "weights, architecture and origin"),
            (f"{place}/CARD.md", "model card"),
        ]
    )
    return 0


@dataclass(frozen=True, kw_only=True)
class ExportTelemetryOptions:
    """Export a run's telemetry as CSV, one file per table."""

    run: Annotated[str, Positional("RUN")]
    """Folder of the run, or its name in the runs folder."""

    out: Annotated[str | None, Metavar("FOLDER")] = None
    """Folder to write to; by default tables in the run's folder."""


def run_export_telemetry(args: Sequence[str]) -> int:
    """Write the tables and print their paths."""
    options = parse(ExportTelemetryOptions, args, command="export-telemetry")
    found = load_run(options.run)
    folder = Path(options.out) if options.out else require_own(found.path / "tables")
    from esper.telemetry.export import export_csv

    for path in export_csv(found.path, folder):
        print(path)
    return 0
