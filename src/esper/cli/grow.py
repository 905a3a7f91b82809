"""``esper grow``: grow one host and save it as a plain PyTorch model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esper.cli.output import (
    can_encode,
    line_width,
    print_columns,
    print_json,
    print_wrapped,
    require_writable,
)
from esper.cli.parsing import Switch, UsageError, optional, parse, require_task
from esper.cli.progress_line import ProgressLine
from esper.config.catalogue import SHIPPED
from esper.config.checks import require_trusted_task
from esper.invocation import program
from esper.storage.run_folder import shell_word

if TYPE_CHECKING:
    from esper.growing.grown import Grown, GrowthSummary
    from esper.growing.timeline import TimelineStep
    from esper.tamiyo import SavedController
    from esper.tasks import Task


@dataclass(frozen=True, kw_only=True)
class GrowOptions:
    """Grow one host with a controller and save it as a plain PyTorch model."""

    task: Annotated[str | None, optional("TASK")] = None
    """Task of the host; by default the one the run was trained on, or digits."""

    controller: str = "shipped"
    """Folder of a run or controller, or shipped, wait, random, fixed, heuristic or progressive."""

    target: Annotated[str | None, optional("KIND=N")] = None
    """Size that progressive grows the host to: depth=12 or parameters=100000."""

    fractions: Annotated[tuple[float, ...], optional("FRACTION")] = ()
    """Fractions of the budget at which progressive grows the host."""

    epochs: Annotated[int | None, optional("N")] = None
    """Epochs of training; by default those of the controller or of the task."""

    price: Annotated[float | None, optional("PRICE")] = None
    """Price of the FLOPs of plain training, in score; by default 0 for the shipped controller, so
    that it grows whatever helps, and the task's own for others."""

    seed: int = 0
    """Random seed of the host's weights, and of its data if the task samples them."""

    allow_code: Switch = False
    """Run a task that the run or controller names by module:function."""

    out: str = "grown"
    """Folder to save the model in."""

    verbose: Switch = False
    """Print every epoch: the decision, and alpha and stage of each slot."""

    json: Switch = False
    """Print only a JSON object at the end."""


def run_grow(args: Sequence[str]) -> int:
    """Grow a host, save it, and print what grew."""
    options = parse(GrowOptions, args, command="grow")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}; it must be a whole number of at least 0.")
    if options.epochs is not None and options.epochs < 1:
        raise UsageError(f"--epochs is {options.epochs}; it must be a whole number of at least 1.")
    if options.price is not None and not options.price >= 0.0:
        raise UsageError(f"--price is {options.price}; it must be a number of at least 0.")
    require_task(options.task)
    target = _read_target(options.target)
    require_writable(Path(options.out))
    with ProgressLine(quiet=options.json) as progress:
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
    is_shipped = options.controller == SHIPPED
    controller = "" if is_shipped else f" --controller {shell_word(options.controller)}"
    again = f"  {program()} grow{task}{controller} --seed {options.seed + 1} --verbose"
    print("\nNext:")
    print_columns(
        [
            (again, "another host, epoch by epoch"),
            (f"  {program()} train{task}", "train a controller of your own"),
        ]
    )


def _grow(options: GrowOptions, target: dict[str, int] | None, progress: ProgressLine) -> Grown:
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
        task = make_task(options.task or "digits")
    is_shipped = saved is not None and saved.is_shipped
    return grow(
        task,
        price=0.0 if options.price is None and is_shipped else options.price,
        controller=options.controller if saved is None else saved,
        target=target,
        fractions=options.fractions or None,
        epochs=options.epochs,
        seed=options.seed,
        on_step=lambda step: progress.show_epoch(step, options.epochs or task.budget.n_epochs),
        progress=False,  # shown by the line above
    )


def _read_target(text: str | None) -> dict[str, int] | None:
    """Return a target such as ``depth=12`` as a mapping."""
    if text is None:
        return None
    kind, _, number = text.partition("=")
    if not number.isdecimal():
        raise UsageError(
            f"--target is {text!r}; it must be depth=N or parameters=N with a whole number N."
        )
    return {kind: int(number)}


def _learned_task(saved: SavedController, *, allow_code: bool) -> Task:
    """Return the task a controller was trained on, with its budget and without variants."""
    from esper.tasks import make_task

    name = str(saved.origin.get("task", "digits"))
    task_options = dict(saved.origin.get("task_options", {}))
    source = f"controller {saved.name!r}"
    require_trusted_task(name, task_options, source=source, allow_code=allow_code)
    task = make_task(name, **task_options)
    return replace(task, budget=saved.budget, variants=())


def _print_timeline(timeline: Sequence[TimelineStep]) -> None:
    """Print one line per epoch."""
    print("epoch  score  FLOPs  added  decision; alpha and stage of each slot")
    last_epoch = 0
    for step in timeline:
        # Finishing trains no epoch, so it would repeat the number of the one before.
        epoch = "end" if step.epoch == last_epoch else step.epoch
        last_epoch = step.epoch
        facts = f"{epoch:>5}  {step.score:5.3f}  {step.flops:5.2f}  {step.seed_parameters:5}  "
        first, *others = fit([decision_text(step), *slot_texts(step)], len(facts))
        print(f"{facts}{first}")
        for line in others:
            print(f"{'':{len(facts)}}{line}")


def _print_growth(timeline: Sequence[TimelineStep], summary: GrowthSummary) -> None:
    """Print the decisions that changed the host, one line each."""
    rows = [
        (
            f"{step.epoch:>7}",
            f"{step.score:.3f}",
            decision_text(step) + ("" if is_kept(step, summary) else "; not kept"),
        )
        for step in timeline
        if step.op in ("germinate", "fossilize", "prune")
    ]
    if rows:
        print_columns([("  epoch", "score", "decision"), *rows])
        print()


def is_kept(step: TimelineStep, summary: GrowthSummary) -> bool:
    """Return whether the saved model has what a step did."""
    if step.epoch > summary.best_epoch:
        return False
    if step.op != "germinate" or (summary.seeds and not summary.germinated_after):
        return True
    kept = zip(summary.seeds, summary.germinated_after, strict=False)
    return ((step.slot, step.blueprint), step.epoch - 1) in kept


def fit(parts: Sequence[str], indent: int) -> list[str]:
    """Join parts into as few lines as fit the terminal, without breaking a part."""
    width, lines = line_width(), [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}; {part}"
        if width is None or indent + len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def decision_text(step: TimelineStep) -> str:
    """Return a decision as text: ``germinate mlp in block1``."""
    decision = step.op.replace("_", " ")
    if step.blueprint:
        decision += f" {step.blueprint}"
    if step.slot:
        decision += f" in {step.slot}"
    return f"{decision} ({step.note})" if step.note else decision


def slot_texts(step: TimelineStep) -> list[str]:
    """Return each slot in use as text: ``block1 ▮▮▯▯ blending on 1 fossil``."""
    texts = {slot: f"{alpha_bar(step.alphas[slot])} {stage}" for slot, stage in step.stages.items()}
    for slot, n in step.fossils.items():
        fossils = f"{n} fossil{'s' if n > 1 else ''}"
        texts[slot] = f"{texts[slot]} on {fossils}" if slot in texts else fossils
    return [f"{slot} {text}" for slot, text in texts.items()]


def alpha_bar(alpha: float) -> str:
    """Return alpha as a bar of four cells."""
    full, empty = "▮▯" if can_encode("▮▯") else "#."
    n_full = round(4 * alpha)
    return full * n_full + empty * (4 - n_full)


def _show(grown: Grown, place: Path, *, verbose: bool) -> None:
    facts = grown.to_json()
    print()
    print_wrapped(
        f"test score {facts['score']:.3f}, {facts['flops']:.2f} of the reference run's FLOPs, "
        f"{facts['host_parameters']:,} parameters + {facts['seed_parameters']:,} grown, after "
        f"epoch {grown.summary.best_epoch}, the best on validation"
    )
    if grown.summary.expectation:
        print_wrapped(grown.summary.expectation)
    print()
    if verbose:
        _print_timeline(grown.timeline)
        print()
    else:
        _print_growth(grown.timeline, grown.summary)
    print_columns(
        [
            (f"{place}/model.pt2", "model; load it with torch.export.load(file).module()"),
            (f"{place}/model.safetensors", "weights by name"),
            (f"{place}/growth.json", "timeline of growth"),
        ]
    )
