"""The command ``esper export-controller``: a run's best policy as a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.cli.output import print_columns, require_writable
from esper.cli.parsing import UsageError, parse
from esper.training.run import load_run


@dataclass(frozen=True, kw_only=True)
class ExportControllerOptions:
    """Write the best controller of a run to a folder that can be given away."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    out: str = "controller"
    """The folder that the controller is saved in."""

    name: str | None = None
    """What the controller is called; by default as the run is."""

    greedy: bool = False
    """Let it take the likeliest action instead of drawing one."""

    force: bool = False
    """Replace a controller that is there already."""


def run_export_controller(words: Sequence[str]) -> int:
    """Save the controller and print what was written."""
    options = parse(ExportControllerOptions, words, command="export-controller")
    found, place = load_run(options.run), Path(options.out)
    require_writable(place)
    from dataclasses import replace

    from esper.evidence.model_card import write_card
    from esper.tamiyo import holds_controller, save_controller
    from esper.tamiyo.controllers.saved import facts_of
    from esper.training.lookup import controller_of

    if holds_controller(place) and not options.force:
        raise UsageError(f"{place} holds a controller already; choose another --out, or --force.")
    controller = controller_of(found)
    controller = replace(
        controller,
        name=controller.name if options.name is None else options.name,
        deterministic=controller.deterministic or options.greedy,
    )
    save_controller(controller, place, card=write_card(facts_of(controller), []))
    print_columns(
        [
            (f"{place}/controller.safetensors", "the weights"),
            (f"{place}/controller.json", "what they mean"),
            (f"{place}/CARD.md", "the same for people"),
        ]
    )
    return 0


@dataclass(frozen=True, kw_only=True)
class ExportTelemetryOptions:
    """Write a run's telemetry to a file for each table."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    csv: bool = False
    """As CSV."""

    parquet: bool = False
    """As Parquet; needs pyarrow."""

    out: str | None = None
    """The folder for the files; by default one named tables in the run's folder."""


def run_export_telemetry(words: Sequence[str]) -> int:
    """Write the tables and print the files."""
    options = parse(ExportTelemetryOptions, words, command="export-telemetry")
    if options.csv and options.parquet:
        raise UsageError("--csv and --parquet are both given; choose one of them.")
    if not options.csv and not options.parquet:
        raise UsageError("one of --csv and --parquet is needed.")
    found = load_run(options.run)
    folder = Path(options.out) if options.out else found.path / "tables"
    from esper.telemetry.export import export_csv, export_parquet

    export = export_csv if options.csv else export_parquet
    for path in export(found.path, folder):
        print(path)
    return 0
