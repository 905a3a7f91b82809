"""The command ``esper grow``: one host, from its first epoch to a plain module in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.cli.output import print_columns, print_json
from esper.cli.parsing import UsageError, parse

if TYPE_CHECKING:
    from esper.runs.growing import GrownHost, TimelineStep


@dataclass(frozen=True, kw_only=True)
class Options:
    """Grow one host with a controller, watch its life, and keep it as a plain PyTorch model."""

    task: str | None = None
    """What the host learns; by default what the run learned on, or digits."""

    controller: str = "heuristic"
    """Who decides: the folder of a run, or wait, random, fixed or heuristic."""

    seed: int = 0
    """Decides the host: its data where the task draws them, and its weights."""

    out: str = "grown"
    """The folder that the model is saved in."""

    json: bool = False
    """Print a JSON object in the end, and nothing before."""


def run(words: Sequence[str]) -> int:
    """Grow the host, print its life as it happens, and save what it became."""
    options = parse(Options, words, command="grow")
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}; it must be a whole number of at least 0.")
    print_step = _Printer(quiet=options.json)
    grown = _grow(options, print_step)
    from esper.runs.saving import save_grown

    place = save_grown(grown, options.out)
    if options.json:
        print_json(_facts(grown, place))
    else:
        _show(grown, place)
    return 0


def _grow(options: Options, on_step: _Printer) -> GrownHost:
    import torch

    from esper.runs.growing import grow_host
    from esper.runs.run import load_run
    from esper.simic.training.setup import make_run_task
    from esper.tamiyo import controller_names

    torch.set_num_threads(1)  # the hosts are small
    if options.controller in controller_names():
        task = options.task or "digits"
        on_step.begin(f"{options.controller} on {task}")
        return grow_host(task, options.controller, seed=options.seed, on_step=on_step)
    found = load_run(options.controller)
    task = options.task or make_run_task(found.config)
    on_step.begin(f"the controller of {found.path} on {options.task or found.config.task}")
    return grow_host(task, found, seed=options.seed, on_step=on_step)


class _Printer:
    """Prints the epochs of a host's life, one line each, as they happen."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def begin(self, what: str) -> None:
        if not self._quiet:
            print(f"growing a host: {what}\n")
            print("epoch  score  FLOPs  added  decision and slots", flush=True)

    def __call__(self, step: TimelineStep) -> None:
        if not self._quiet:
            print(
                f"{step.epoch:5}  {step.score:5.3f}  {step.flops:5.2f}  "
                f"{step.seed_parameters:5}  {_words(step)}",
                flush=True,
            )


def _words(step: TimelineStep) -> str:
    """Return what was decided and how the slots are, in a few words."""
    decision = step.op.replace("_", " ")
    if step.blueprint:
        decision += f" {step.blueprint}"
    if step.slot:
        decision += f" in {step.slot}"
    if step.note:
        decision += f" ({step.note})"
    slots = [f"{slot} {_bar(step.alphas[slot])} {stage}" for slot, stage in step.stages.items()]
    return f"{decision:34} {'; '.join(slots)}".rstrip()


def _bar(alpha: float) -> str:
    """Return alpha as a bar of four cells."""
    full = round(4 * alpha)
    return "▮" * full + "▯" * (4 - full)


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
    print(
        f"\nscore on the test split {grown.score:.3f}, "
        f"{grown.flops:.2f} of a reference run's FLOPs, "
        f"{grown.host_parameters:,} parameters + {grown.seed_parameters:,} grown\n"
    )
    print_columns(
        [
            (f"{place}/model.pt2", "the network: torch.export.load(file).module() runs it"),
            (f"{place}/model.safetensors", "its weights by name"),
            (f"{place}/growth.json", "this timeline"),
        ]
    )
