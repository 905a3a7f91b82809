"""The command ``esper export-controller``: a run's best policy as a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.cli.grow import require_writable
from esper.cli.output import print_columns
from esper.cli.parsing import UsageError, parse
from esper.training.run import load_run


@dataclass(frozen=True, kw_only=True)
class Options:
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


def run(words: Sequence[str]) -> int:
    """Save the controller and print what was written."""
    options = parse(Options, words, command="export-controller")
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
