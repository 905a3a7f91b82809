"""A grown model, how it got there, and saving it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import safetensors.torch
import torch
from torch import nn

from esper.config.checks import check
from esper.environment import EpisodeResults
from esper.errors import StorageError
from esper.formatting import duration, html_details, html_lines, listed, many
from esper.growing.decisions import Decision, Trace
from esper.growth.dry_run import SampleInput
from esper.growth.host_slots import Slot, slot_size
from esper.growth.surgery_slots import BlockSlot
from esper.storage.files import replacing, write_atomic

ENDED_BY_CONTROLLER = "the controller ended it"
"""Why training ended early if no limit ended it."""


class SlotGrowth(NamedTuple):
    """What has grown in one slot of a returned model."""

    slot: str
    blueprints: tuple[str, ...]
    """The blueprint of each seed, in order."""
    before: int = 0
    """Units of each place, or blocks, of the given model; 0 for modules beside a block."""
    after: int = 0
    unit: str = ""
    """What is counted: ``units``, ``heads`` or ``blocks``; empty for modules."""
    is_full: bool = False
    """Whether it has all that it may have."""

    @classmethod
    def of(cls, slot: Slot) -> SlotGrowth:
        """Return what has grown in a slot."""
        site, blueprints = slot.site, tuple(seed.blueprint for seed in slot.life.committed)
        before, after, unit = site.size, slot_size(slot).hidden, site.what
        if isinstance(slot, BlockSlot) and site.blocks is not None:
            before, after = site.blocks.n_residual, slot.blocks.n_residual
        if site.group is not None and site.group.heads is not None:
            unit = "heads"
        unit = "" if unit == "module" else unit
        return cls(slot.name, blueprints, before, after, unit, slot.is_full())


@dataclass(frozen=True, kw_only=True)
class GrowthSummary:
    """The outcome of growing a model. Printing it gives sentences.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(80, 4), torch.randint(3, (80,))
        >>> data = (x[:60], y[:60]), (x[60:], y[60:])
        >>> grown = esper.grow(model, *data, epochs=4, controller="heuristic", progress=False)
        >>> print(grown.summary)  # doctest: +SKIP
    """

    metric: str
    """The name of the metric."""
    split: str
    """The data that the metric is measured on: ``validation``, or ``test`` for a task."""
    before: float
    """The metric of the initial model."""
    after: float
    """The metric of the returned model."""
    grown: float
    """The metric of the model after its best validated epoch, returned or not."""
    parameters_before: int
    parameters_after: int
    """Parameters of the returned model."""
    flops: float
    """FLOPs spent, relative to training the initial model for the whole budget."""
    n_epochs: int
    """Epochs trained."""
    best_epoch: int
    """The epoch that counts, the first with the best validation score; 0 if none was better than
    the given model."""
    budget_epochs: int
    """Epochs of the budget."""
    growth: tuple[SlotGrowth, ...] = ()
    """What has grown in the returned model, by slot."""
    germinated_after: tuple[int, ...] = ()
    """Epochs trained before each seed germinated; empty if that is unknown."""
    frozen: tuple[str, ...] = ()
    """Frozen parameters of the returned model with new entries, which did not train."""
    max_widening: float | None = None
    """How many times its given units or blocks a slot may have; None for no limit."""
    max_parameters: int | None = None
    """The largest number of parameters, if it ruled out seeds; None if it did not."""
    was_kept: bool
    """Whether the trained model is returned; if not, it is no better and the given one is."""
    controller: str
    """The name of the controller."""
    expected_gain: float | None = None
    """What the controller expected growth to gain over training the given model as it is, in
    return: the score minus the costs. It is what such models gained on the tasks that the
    controller learned on; None without an estimate of the gain."""
    gain: float | None = None
    """What growth gained over training the given model as it is, in return too, on validation;
    None if it is unknown."""
    has_costs: bool = False
    """Whether the FLOPs or the parameters have a price."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds that it took."""
    total_flops: float = 0.0
    """FLOPs of training; 0 if they were not counted."""
    stopped: str = ""
    """Why training ended before its last epoch; empty if it did not."""
    problems: tuple[str, ...] = ()
    """Why the model was rolled back, for each epoch in which it was."""
    baseline: float | None = None
    """The metric of the best epoch of the given model with no growth; None if unknown."""
    is_above_baseline: bool = False
    """Whether the returned model is better than that."""

    @property
    def seeds(self) -> tuple[tuple[str, str], ...]:
        """The slot and the blueprint of each seed in the returned model."""
        return tuple((each.slot, name) for each in self.growth for name in each.blueprints)

    @property
    def full_slots(self) -> tuple[str, ...]:
        """The slots of the returned model that have all that they may have."""
        return tuple(each.slot for each in self.growth if each.is_full)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result, the growth, the cost and the comparison, in one sentence each."""
        return (
            self._result(),
            self._growth(),
            *self._frozen(),
            *self._limits(),
            self._cost(),
            *([self.expectation] if self.expectation else []),
            *self._rollbacks(),
            *self._comparison(),
        )

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return f"GrowthSummary\n{self}"

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """Return the sentences as HTML for a notebook."""
        return html_lines(self.sentences, is_headed=True)

    def _result(self) -> str:
        if not self.was_kept:
            return (
                f"The given model is returned unchanged: its {self.split} {self.metric} is "
                f"{self.before:.4g}, and no epoch of training and growing it gave a better one."
            )
        return (
            f"{self.split.capitalize()} {self.metric} went from {self.before:.4g} to "
            f"{self.after:.4g}."
        )

    def _growth(self) -> str:
        if not self.was_kept:
            return f"It has {self.parameters_after:,} parameters, as before."
        if not self.growth:
            return f"Nothing was grown: the model has {self.parameters_after:,} parameters."
        added = self.parameters_after - self.parameters_before
        return (
            f"Grew {', '.join(map(self._slot_growth, self.growth))}: "
            f"{self.parameters_before:,} parameters became {self.parameters_after:,} ({added:+,})."
        )

    def _slot_growth(self, one: SlotGrowth) -> str:
        """Return a slot's growth, such as ``layers.*.mlp twice (64 to 256 units, epoch 1)``."""
        details = list(dict.fromkeys(one.blueprints))
        if one.unit:
            details = [f"{one.before:,} to {one.after:,} {one.unit}"]
        if self.germinated_after:
            own = [slot == one.slot for slot, _ in self.seeds]
            germinated = zip(self.germinated_after, own, strict=True)
            epochs = dict.fromkeys(str(epoch + 1) for epoch, is_own in germinated if is_own)
            details.append(f"epoch{'s' * (len(epochs) > 1)} {listed(list(epochs))}")
        times = len(one.blueprints)
        often = {1: "", 2: " twice"}.get(times, f" {times} times")
        return f"{one.slot}{often} ({', '.join(details)})"

    def _frozen(self) -> tuple[str, ...]:
        if not self.frozen:
            return ()
        return (
            f"New entries of frozen parameters did not train: {listed(list(self.frozen))}; set "
            "requires_grad if they should.",
        )

    def _limits(self) -> tuple[str, ...]:
        found: list[str] = []
        if self.full_slots and self.max_widening is not None:
            found.append(
                f"{listed(list(self.full_slots))} hit the size limit ({self.max_widening:g} times "
                "the given size). To raise it, add the slots before growing: "
                "esper.add_slots(model, ..., growth_config=GrowthConfig(max_widening=...))."
            )
        if self.max_parameters is not None:
            found.append(
                f"max_parameters limited growth: seeds that would have made more than "
                f"{self.max_parameters:,} parameters were ruled out."
            )
        return tuple(found)

    def _cost(self) -> str:
        best = "no epoch was better than the given model"
        if self.best_epoch:
            best = f"the result is from epoch {self.best_epoch}, the best on validation"
        epochs = f"{self.n_epochs} of {self.budget_epochs} epochs"
        ended = f" (ended early: {self.stopped})" if self.stopped else ""
        total = f" ({self.total_flops:.2g} FLOPs, {duration(self.seconds)})" * bool(self.seconds)
        times = f"{self.flops:.2g}" if self.flops < 10.0 else f"{self.flops:,.0f}"
        return (
            f"Controller {self.controller} trained {epochs}{ended}; {best}. Cost: {times} times "
            f"the compute of training the given model for {self.budget_epochs} epochs{total}."
        )

    @property
    def expectation(self) -> str:
        """The gain that the controller predicted and the actual one, in a sentence.

        Empty unless both are known, if a limit that the controller is not told cut growth or
        training short, and for a gain net of costs, most of which is what ending early saves.
        """
        is_cut_short = self.max_parameters is not None or self.stopped not in (
            "",
            ENDED_BY_CONTROLLER,
        )
        if self.expected_gain is None or self.gain is None or self.has_costs or is_cut_short:
            return ""
        predicted, actual = f"{self.expected_gain:.3f}", f"{self.gain:.3f} in score"
        if self.metric in ("accuracy", "loss"):
            unit = "points" if self.metric == "accuracy" else "% of the first loss"
            space = " " * (self.metric == "accuracy")
            predicted, actual = (
                f"{100.0 * gain:.1f}{space}{unit}" for gain in (self.expected_gain, self.gain)
            )
        return f"Gain over no growth predicted before training: {predicted}; actual: {actual}."

    def _rollbacks(self) -> tuple[str, ...]:
        if not self.problems:
            return ()
        return (
            f"In {len(self.problems)} of {many(self.n_epochs, 'epoch')} {self.problems[0]}; check "
            "the data, the loss and the learning rate.",
        )

    def _comparison(self) -> tuple[str, ...]:
        if self.baseline is None:
            return ()
        if self.after == self.baseline:
            verdict = "growing made no difference"
            verdict += " (with a price it grows less)" * self.has_costs
        else:
            verdict = "growing was " + ("better" if self.is_above_baseline else "worse")
        return (
            f"The same training with no growth reaches {self.baseline:.4g}: {verdict}, on this "
            "validation data and with one seed.",
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Grown:
    """A grown model and how it got there.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(80, 4), torch.randint(3, (80,))
        >>> data = (x[:60], y[:60]), (x[60:], y[60:])
        >>> grown = esper.grow(model, *data, epochs=4, controller="heuristic", progress=False)
        >>> len(grown.timeline)
        4
    """

    model: nn.Module
    """A plain module without anything of Esper."""
    timeline: Trace
    """Each epoch: the decision and its effect. Printing it gives a line for each."""
    summary: GrowthSummary
    """The outcome; printing it gives sentences."""
    results: EpisodeResults
    """The score, the return and the costs of the episode, of one host."""
    sample: SampleInput
    """A few inputs of the model."""
    trace: Trace | None = None
    """What was decided after each epoch and why; None for a host of a task."""

    def __repr__(self) -> str:
        return f"Grown({type(self.model).__name__}, {len(self.timeline)} epochs)\n{self.summary}"

    def _repr_html_(self) -> str:
        from esper.dashboard.figures import figure_html

        table = self.timeline.to_html()
        if len(self.timeline) > FEW_ROWS:
            table = html_details(f"All {len(self.timeline)} decisions", table)
        return self.summary.to_html() + figure_html((self.trace or self.timeline).figure) + table

    def to_json(self) -> dict[str, Any]:
        """Return the score, the return, the costs and the timeline as JSON values."""
        return {
            "score": float(self.results.scores[0]),
            "return": float(self.results.returns[0]),
            "flops": float(self.results.flops[0]),
            "host_parameters": int(self.results.host_parameters[0]),
            "seed_parameters": int(self.results.seed_parameters[0]),
            "timeline": self.timeline.to_json(),
        }


def germination_epochs(
    timeline: Sequence[Decision], seeds: Sequence[tuple[str, str]], last_epoch: int
) -> tuple[int, ...]:
    """Return the epochs trained before each seed germinated; nothing if one is unknown.

    The seeds are those of the model as it was kept after ``last_epoch``: the slot and the blueprint
    of each, those of a slot in order.
    """
    by_slot: dict[str, list[int]] = {}
    before: Decision | None = None
    for step in timeline[:last_epoch]:
        if step.op == "germinate":
            mine = by_slot.setdefault(step.slot, [])
            if before is not None:  # what was not committed has been pruned
                slot = before.slots.get(step.slot)
                is_committed = slot is not None and slot.stage == "fossilized"
                del mine[(slot.n_fossils if slot is not None else 0) + is_committed :]
            mine.append(step.epoch - 1)
        before = step
    epochs = {slot: iter(found) for slot, found in by_slot.items()}
    known = [next(epochs.get(slot, iter(())), None) for slot, _ in seeds]
    # A training interrupted after it kept an epoch has no step for that one.
    return () if None in known else tuple(cast("list[int]", known))


FEW_ROWS = 6
"""Decisions up to which a table of them is not folded away."""

PROGRAM_FILE = "model.pt2"
WEIGHTS_FILE = "model.safetensors"
GROWTH_FILE = "growth.json"


def save_grown(grown: Grown, folder: str | os.PathLike[str]) -> Path:
    """Save a grown model as an exported program for any batch size; return the folder.

    Raises:
        ConfigError: If it is not what :func:`esper.grow` returned.
        StorageError: If it cannot be written.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(80, 4), torch.randint(3, (80,))
        >>> data = (x[:60], y[:60]), (x[60:], y[60:])
        >>> grown = esper.grow(model, *data, epochs=4, controller="heuristic", progress=False)
        >>> folder = esper.save_grown(grown, "grown")
        >>> sorted(path.name for path in folder.iterdir())
        ['growth.json', 'model.pt2', 'model.safetensors']
    """
    grown, path = check("grown", grown, Grown), Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with replacing(path / PROGRAM_FILE) as temporary:
            _save_program(grown, temporary)
        weights = {name: t.detach().contiguous() for name, t in grown.model.state_dict().items()}
        write_atomic(path / WEIGHTS_FILE, safetensors.torch.save(weights))
        write_atomic(path / GROWTH_FILE, json.dumps(grown.to_json(), indent=1) + "\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return path


def _save_program(grown: Grown, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    model = grown.model.eval()
    with warnings.catch_warnings():  # PyTorch warns about its own internals
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model, (grown.sample,), dynamic_shapes=({0: batch},), strict=False
        )
        with path.open("wb") as file:  # given a path, PyTorch wants the name to end in .pt2
            torch.export.save(program, file)
