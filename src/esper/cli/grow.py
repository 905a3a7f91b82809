"""The command ``esper grow``: one host, from its first epoch to a plain module in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.cli.output import (
    line_width,
    print_columns,
    print_json,
    print_wrapped,
    require_writable,
    shows,
)
from esper.cli.parsing import UsageError, parse

if TYPE_CHECKING:
    from esper.growing.grow import GrownHost, TimelineStep
    from esper.tamiyo import SavedController
    from esper.tasks import Task


@dataclass(frozen=True, kw_only=True)
class GrowOptions:
    """Grow one host with a controller, watch its life, and keep it as a plain PyTorch model."""

    task: str | None = None
    """What the host learns; by default what the controller learned on, or digits."""

    controller: str = "shipped"
    """Who decides: shipped, the folder of a run or controller, wait, random, fixed or heuristic."""

    seed: int = 0
    """Decides the host: its data where the task draws them, and its weights."""

    out: str = "grown"
    """The folder that the model is saved in."""

    json: bool = False
    """Print a JSON object in the end, and nothing before."""


def run_grow(words: Sequence[str]) -> int:
    """Grow the host, print its life as it happens, and save what it became."""
    options = parse(GrowOptions, words, command="grow")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}; it must be a whole number of at least 0.")
    require_writable(Path(options.out))
    grown = _grow(options, _Printer(quiet=options.json))
    from esper.growing.grow import save_grown

    place = save_grown(grown, options.out)
    if options.json:
        print_json(_facts(grown, place))
    else:
        _show(grown, place)
    return 0


def _grow(options: GrowOptions, printer: _Printer) -> GrownHost:
    printer.begin(options.controller)
    import torch

    from esper.growing.grow import grow_host
    from esper.tasks import make_task
    from esper.training.lookup import find_saved

    torch.set_num_threads(1)  # the hosts are small
    saved = find_saved(options.controller)
    if saved is None:
        task = make_task(options.task or "digits")
        return grow_host(task, options.controller, seed=options.seed, on_step=printer)
    task = _learned_task(saved) if options.task is None else make_task(options.task)
    return grow_host(task, saved, seed=options.seed, on_step=printer)


def _learned_task(saved: SavedController) -> Task:
    """Return the task that a controller learned on, without variants, with its budget."""
    from esper.tasks import make_task

    origin = saved.origin
    task = make_task(str(origin.get("task", "digits")), **origin.get("task_options", {}))
    return replace(task, budget=saved.budget, variants=())


class _Printer:
    """Prints the epochs of a host's life, one line each, as they happen."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._has_heading = False
        self._last_epoch = 0

    def begin(self, controller: str) -> None:
        """Say what is done, before PyTorch is loaded."""
        if not self._quiet:
            print(f"growing a host with {controller}", flush=True)

    def __call__(self, step: TimelineStep) -> None:
        """Print an epoch."""
        if self._quiet:
            return
        if not self._has_heading:
            print("\nepoch  score  FLOPs  added  decision; slots with their alpha and stage")
            self._has_heading = True
        # An end trains no epoch; the number of the one before would look like a second one.
        epoch = "end" if step.epoch == self._last_epoch else step.epoch
        self._last_epoch = step.epoch
        facts = f"{epoch:>5}  {step.score:5.3f}  {step.flops:5.2f}  {step.seed_parameters:5}  "
        slots = [
            f"{slot} {alpha_bar(step.alphas[slot])} {stage}" for slot, stage in step.stages.items()
        ]
        first, *others = fit([decision_words(step), *slots], len(facts))
        print(f"{facts}{first}", flush=True)
        for line in others:
            print(f"{'':{len(facts)}}{line}", flush=True)


def fit(parts: Sequence[str], indent: int) -> list[str]:
    """Return parts in as few lines as the terminal lets, none of them broken."""
    width, lines = line_width(), [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}; {part}"
        if width is None or indent + len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def decision_words(step: TimelineStep) -> str:
    """Return what was decided in a few words."""
    decision = step.op.replace("_", " ")
    if step.blueprint:
        decision += f" {step.blueprint}"
    if step.slot:
        decision += f" in {step.slot}"
    return f"{decision} ({step.note})" if step.note else decision


def alpha_bar(alpha: float) -> str:
    """Return alpha as a bar of four cells."""
    full, empty = "▮▯" if shows("▮▯") else "#."
    n_full = round(4 * alpha)
    return full * n_full + empty * (4 - n_full)


def _facts(grown: GrownHost, place: Path) -> dict[str, Any]:
    return {
        "folder": str(place),
        "score": grown.score,
        "return": grown.ep_rew,
        "flops": grown.flops,
        "host_parameters": grown.host_parameters,
        "seed_parameters": grown.seed_parameters,
        "timeline": [asdict(step) for step in grown.timeline],
    }


def _show(grown: GrownHost, place: Path) -> None:
    print()
    print_wrapped(
        f"score on the test split {grown.score:.3f}, {grown.flops:.2f} of a reference run's FLOPs, "
        f"{grown.host_parameters:,} parameters + {grown.seed_parameters:,} grown"
    )
    print()
    print_columns(
        [
            (f"{place}/model.pt2", "the network: torch.export.load(file).module()"),
            (f"{place}/model.safetensors", "its weights by name"),
            (f"{place}/growth.json", "this timeline"),
        ]
    )
