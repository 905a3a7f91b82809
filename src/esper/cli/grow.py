"""``esper grow``: grow a network and save it as a plain PyTorch model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from esper.cli.arguments import Metavar, UsageError, parse, require_task
from esper.cli.output import (
    command_progress,
    print_columns,
    print_json,
    require_writable,
)
from esper.config.catalogue import LEARNED
from esper.config.checks import (
    NonNegativeFloat,
    PositiveInt,
    Seed,
    UnitInterval,
    require_trusted_task,
)
from esper.invocation import program
from esper.storage.grown_folder import require_grown_folder
from esper.storage.run_folder import shell_word

if TYPE_CHECKING:
    from esper.growing.decisions import Decision
    from esper.growing.grown import Grown, GrowthSummary
    from esper.progress import ProgressBar
    from esper.tamiyo import SavedController
    from esper.tasks import Task


@dataclass(frozen=True, kw_only=True)
class GrowOptions:
    """Grow a network with a controller and save it as a plain PyTorch model."""

    task: str | None = None
    """Task of the host; by default the one the run was trained on, or digits-family."""

    controller: str = "learned"
    """Folder of a run or controller, or learned, no-growth, random, fixed, heuristic or
    progressive."""

    target: Annotated[str | None, Metavar("KIND=N")] = None
    """Size that progressive grows the host to: depth=12 or parameters=100000."""

    fractions: Annotated[tuple[UnitInterval, ...], Metavar("FRACTION")] = ()
    """Fractions of the budget at which progressive grows the host."""

    epochs: PositiveInt | None = None
    """Epochs of training; by default those of the controller or of the task."""

    price: Annotated[NonNegativeFloat | None, Metavar("PRICE")] = None
    """How much score one plain training run costs; higher for smaller models. By default 0 for the
    learned controller, and the task's own for others."""

    seed: Seed = 0
    """Random seed of the host's weights, and of its data if the task samples them."""

    baseline: Literal["auto", "yes", "no"] = "auto"
    """Train the same host with no growth, too, and compare; auto does if growing took less than a
    minute."""

    allow_code: bool = False
    """Run a task that the run or controller names by module:function."""

    out: str = "grown"
    """Folder to save the model in."""

    verbose: bool = False
    """Print every epoch, not only those in which something grew."""

    json: bool = False
    """Print only a JSON object at the end."""


def run_grow(args: Sequence[str]) -> int:
    """Grow a host, save it, and print what grew."""
    options = parse(GrowOptions, args, command="grow")
    require_task(options.task)
    target = _read_target(options)
    require_writable(Path(options.out))
    require_grown_folder(Path(options.out))
    with command_progress("growing", quiet=options.json) as progress:
        progress.show("loading PyTorch", 0.0)
        grown = _grow(options, target, progress)
        from esper.growing.grown import save_grown

        progress.show("saving the model", 1.0)
        place = save_grown(grown, options.out)
    if options.json:
        print_json({"folder": str(place), **grown.to_json()})
    else:
        _show(grown, place, verbose=options.verbose)
        _show_next_steps(options)
    return 0


def _show_next_steps(options: GrowOptions) -> None:
    """Print commands to try next."""
    task = "" if options.task is None else f" --task {shell_word(options.task)}"
    is_default = options.controller == LEARNED
    words = "" if is_default else f" --controller {shell_word(options.controller)}"
    words += "" if options.target is None else f" --target {options.target}"
    if options.fractions:
        words += f" --fractions {' '.join(f'{one:g}' for one in options.fractions)}"
    words += " --allow-code" if options.allow_code else ""
    again = f"  {program()} grow{task}{words} --seed {options.seed + 1} --verbose"
    print("\nNext:")
    print_columns(
        [
            (again, "another host, epoch by epoch"),
            (f"  {program()} train{task}", "train a controller of your own"),
        ]
    )


def _grow(options: GrowOptions, target: dict[str, int] | None, progress: ProgressBar) -> Grown:
    from esper.growing.grow import grow
    from esper.tasks import make_task
    from esper.training.lookup import controller_label, find_saved

    progress.show("preparing the host", 0.0)
    saved = find_saved(options.controller)
    if not options.json:
        print(f"growing a host with controller {controller_label(options.controller)}", flush=True)
    if saved is not None and options.task is None and not saved.is_shipped:
        task = _learned_task(saved, allow_code=options.allow_code)
    else:
        task = make_task(options.task or "digits-family")
    is_shipped = saved is not None and saved.is_shipped
    n_epochs = options.epochs or task.budget.n_epochs
    return grow(
        task,
        price=0.0 if options.price is None and is_shipped else options.price,
        controller=options.controller if saved is None else saved,
        target=target,
        fractions=options.fractions or None,
        epochs=options.epochs,
        seed=options.seed,
        baseline="auto" if options.baseline == "auto" else options.baseline == "yes",
        on_step=lambda step: progress.show(
            "growing", step.epoch / n_epochs, f", epoch {step.epoch}, score {step.score:.3f}"
        ),
        progress=False,  # shown by the line above
    )


def _read_target(options: GrowOptions) -> dict[str, int] | None:
    """Return a target such as ``depth=12`` as a mapping."""
    for flag, value in (("--target", options.target), ("--fractions", options.fractions)):
        if value and options.controller != "progressive":
            raise UsageError(f"{flag} is given; it needs --controller progressive.")
    text = options.target
    if text is None:
        return None
    kind, _, number = text.partition("=")
    if kind not in ("depth", "parameters") or not number.isdecimal():
        raise UsageError(
            f"--target is {text!r}; it must be depth=N or parameters=N with a whole number N."
        )
    return {kind: int(number)}


def _learned_task(saved: SavedController, *, allow_code: bool) -> Task:
    """Return the task a controller was trained on, with its budget."""
    from esper.tasks.registry import create_task

    name = str(saved.origin.get("task", "digits"))
    task_options = dict(saved.origin.get("task_options", {}))
    source = f"controller {saved.name!r}"
    require_trusted_task(name, task_options, source=source, allow_code=allow_code)
    task = create_task(name, task_options)
    return replace(task, budget=saved.budget)


def _print_growth(timeline: Sequence[Decision], summary: GrowthSummary) -> None:
    """Print the decisions that changed the host, one line each."""
    rows = [
        (f"{step.epoch:>7}", f"{step.score:.3f}", step.action + remark(step, summary))
        for step in timeline
        if step.op in ("germinate", "fossilize", "prune")
    ]
    if rows:
        print_columns([("  epoch", "score", "decision"), *rows])
        print()


def remark(step: Decision, summary: GrowthSummary) -> str:
    """Return words about a step whose effect the saved model does not have, otherwise nothing."""
    if step.epoch > summary.best_epoch:
        return " (after the best epoch, so not in the result)"
    if step.op != "germinate" or (summary.seeds and not summary.germinated_after):
        return ""
    kept = zip(summary.seeds, summary.germinated_after, strict=False)
    is_kept = ((step.slot, step.blueprint), step.epoch - 1) in kept
    return "" if is_kept else " (not in the result)"


def _show(grown: Grown, place: Path, *, verbose: bool) -> None:
    print(f"\n{grown.summary}\n")
    if verbose:
        print(f"{grown.timeline}\n")
    else:
        _print_growth(grown.timeline, grown.summary)
    print_columns(
        [
            (f"{place}/model.pt2", "model; load it with torch.export.load(file).module()"),
            (f"{place}/model.safetensors", "weights by name"),
            (f"{place}/growth.json", "timeline of growth"),
        ]
    )
