"""A grown model, how it got there, and saving it."""

from __future__ import annotations

import json
import os
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import safetensors.torch
import torch
from torch import nn

from esper.config.checks import check
from esper.errors import StorageError
from esper.formatting import (
    duration,
    html_details,
    html_lines,
    large_number,
    listed,
    many,
    plain_number,
)
from esper.growing.decisions import Decision, Trace
from esper.growing.sizes import FACTORS
from esper.growth.block_slot import BlockSlot
from esper.growth.dry_run import SampleInput
from esper.growth.host_slots import Slot, slot_size
from esper.storage.files import replacing, write_atomic
from esper.storage.grown_folder import (
    GROWTH_FILE,
    PROGRAM_FILE,
    WEIGHTS_FILE,
    require_grown_folder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 79
"""Columns of a printed summary."""

FEW_SLOTS = 3
"""Slots up to which all are named."""

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

    @property
    def change(self) -> str:
        """What has changed: ``8 to 64 units``, or the blueprints of modules."""
        if self.unit:
            return f"{self.before:,} to {self.after:,} {self.unit}"
        return ", ".join(dict.fromkeys(self.blueprints))

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
class SizeOutcome:
    """How one size did in a race of sizes."""

    factor: int
    """How many times as wide as the given model it is."""
    parameters: int
    value: float | None
    """The metric after its best epoch; None if it has no whole epoch."""
    best_epoch: int
    n_epochs: int
    """Epochs trained."""
    lost: str
    """Why it stopped before its last epoch; empty if it did not."""


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
    """The epoch whose model is kept, the first with the best validation score; 0 if none was better
    than the given model."""
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
    sizes: tuple[SizeOutcome, ...] = ()
    """The sizes that trained in a race of sizes; empty for growth that a controller steered."""
    tolerance: float = 0.0
    """How far the returned size may be from the best one."""
    unwidened: str = ""
    """Why there are no wider sizes; empty if there are."""
    is_memory_short: bool = False
    """Whether sizes were left out because there is no memory for them."""

    @property
    def seeds(self) -> tuple[tuple[str, str], ...]:
        """The slot and the blueprint of each seed in the returned model."""
        return tuple((each.slot, name) for each in self.growth for name in each.blueprints)

    @property
    def full_slots(self) -> tuple[str, ...]:
        """The slots of the returned model that have all that they may have."""
        return tuple(each.slot for each in self.growth if each.is_full)

    @property
    def facts(self) -> dict[str, str]:
        """The score with growth and with no growth, the size, the cost and the best epoch."""
        return {
            f"{self.split.capitalize()} {self.metric}": self._score_fact(),
            "Size": self._size_fact(),
            "Cost": self._cost_fact(),
            "Best epoch": self._epoch_fact(),
        }

    @property
    def details(self) -> str:
        """The facts and what they depend on, in full sentences, one per line."""
        return "\n".join(self._sentences())

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [
            textwrap.fill(
                fact, WIDTH, initial_indent=f"{name:{width}}  ", subsequent_indent=" " * (width + 2)
            )
            for name, fact in self.facts.items()
        ]
        problems = (*self._frozen(), *self._rollbacks())
        return "\n".join([*lines, *(textwrap.fill(each, WIDTH) for each in problems)])

    def __repr__(self) -> str:
        return f"GrowthSummary\n{self}"

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """Return the facts as HTML for a notebook, with the details folded away."""
        facts = [f"{name}: {fact}" for name, fact in self.facts.items()]
        return html_lines(facts, is_headed=True) + html_details(
            "Details", html_lines(self._sentences())
        )

    def _score_fact(self) -> str:
        after = plain_number(self.after)
        if not self.was_kept:
            own = f"{after}, that of the given model, which no epoch improved"
        elif self.baseline is None:
            return f"{after}; {plain_number(self.before)} before training"
        else:
            own = f"{after} {'with growth' if self.growth else '(nothing grown)'}"
        if self.baseline is None:
            return own
        return f"{own}, {plain_number(self.baseline)} with no growth ({self._difference()})"

    def _difference(self) -> str:
        """Return how the metric compares with that of no growth."""
        gap = abs(self.after - cast(float, self.baseline))
        if not gap > 0.0:
            return "no difference"
        if self.metric == "accuracy":
            return f"{'+' if self.is_above_baseline else '-'}{100.0 * gap:.1f} points"
        return f"{'better' if self.is_above_baseline else 'worse'} by {plain_number(gap)}"

    @property
    def factor(self) -> int:
        """How many times as wide as the given model the returned one is, after a race of sizes."""
        known = [each.factor for each in self.sizes if each.parameters == self.parameters_after]
        return known[0] if known and self.was_kept else 1

    def _race(self) -> tuple[str, ...]:
        """Return what was chosen in a race of sizes and why, and what limited it."""
        known = [each for each in self.sizes if each.value is not None]
        tried = [
            f"x{s.factor} {plain_number(cast(float, s.value))} ({many(s.n_epochs, 'epoch')})"
            for s in known
        ]
        stopped = [
            f"{each.lost} after {many(each.n_epochs, 'epoch')}" for each in known if each.lost
        ]
        found = [
            f"The best of the sizes that were tried, in the epochs of each: {listed(tried)}. "
            f"Returned: {self._why()}."
        ]
        if stopped:
            found.append(f"Stopped early: {'; '.join(stopped)}.")
        if self.unwidened:
            found.append(f"No wider size was tried: {self.unwidened.rstrip('.')}.")
        if self.is_memory_short:
            found.append("Wider sizes were left out, because there is no memory for them.")
        if self.max_parameters is not None:
            found.append(f"max_parameters, {self.max_parameters:,}, ruled out wider sizes.")
        elif self.factor == FACTORS[-1]:
            found.append("It is the widest size that is tried; a wider given model may do better.")
        return tuple(found)

    def _why(self) -> str:
        """Return which size is returned."""
        if self.tolerance == 0.0:
            why = "the best of the sizes"
        else:
            why = f"the smallest size within {self.tolerance:g} of the best"
        return why

    def _race_size_fact(self) -> str:
        before, after = self.parameters_before, self.parameters_after
        why = self._why()
        if self.unwidened:
            return f"{many(after, 'parameter')}, as before; nothing can be widened"
        lost = [f"x{one.factor} (epoch {one.n_epochs})" for one in self.sizes if one.lost]
        why += f"; stopped early: {listed(lost)}" * bool(lost)
        if self.factor == 1:
            return f"{many(after, 'parameter')}, as before: {why}"
        limit = ", the widest tried" * (self.factor == FACTORS[-1])
        limit = ", within max_parameters" if self.max_parameters is not None else limit
        return f"{after:,} parameters, {self.factor} times the width of {before:,}{limit}: {why}"

    def _size_fact(self) -> str:
        if self.sizes:
            return self._race_size_fact()
        before, after = self.parameters_before, self.parameters_after
        if not self.growth:
            return f"{many(after, 'parameter')}, as before"
        parts = [
            f"{each.slot}: {each.change}{', the limit' * each.is_full}" for each in self.growth
        ]
        if len(parts) > FEW_SLOTS:
            parts = [*parts[:FEW_SLOTS], f"{len(parts) - FEW_SLOTS} more"]
        limited = ", within max_parameters" * (self.max_parameters is not None)
        return f"{before:,} to {after:,} parameters{limited} ({'; '.join(parts)})"

    def _cost_fact(self) -> str:
        spent = [f"{self.seconds:.1f} s" if self.seconds < 10.0 else duration(self.seconds)]
        spent += [f"{large_number(self.total_flops)} FLOPs"] if self.total_flops else []
        reference = "the reference run" if self.split == "test" else "no growth"
        return f"{', '.join(spent)}: {_times(self.flops)} times those of {reference}"

    def _epoch_fact(self) -> str:
        best = f"{self.best_epoch} of {self.n_epochs}"
        if not self.best_epoch:
            best = f"none of {self.n_epochs} was better than the given model"
        if self.n_epochs < self.budget_epochs:
            why = f": {self.stopped}" if self.stopped else ""
            best += f"; training ended after {self.n_epochs} of {self.budget_epochs} epochs{why}"
        return best

    def _sentences(self) -> tuple[str, ...]:
        """Return the result, the growth, the cost and the comparison, in one sentence each."""
        if self.sizes:
            own = self._result(), *self._race(), self._cost()
            return (*own, *self._frozen(), *self._rollbacks(), *self._comparison())
        return (
            self._result(),
            self._growth(),
            *self._frozen(),
            *self._limits(),
            self._cost(),
            *self._rollbacks(),
            *self._comparison(),
        )

    def _result(self) -> str:
        if not self.was_kept:
            return (
                f"The given model is returned unchanged: its {self.split} {self.metric} is "
                f"{plain_number(self.before)}, and no epoch of training and growing it gave a "
                "better one."
            )
        return (
            f"{self.split.capitalize()} {self.metric} went from {plain_number(self.before)} before "
            f"training to {plain_number(self.after)}."
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
        details = [one.change]
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
        who = "The race of sizes" if self.sizes else f"Controller {self.controller}"
        return f"{who} trained {epochs}{ended}; {best}."

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
            f"The same training with no growth reaches {plain_number(self.baseline)}: {verdict}, "
            f"on this {self.split} data and with one seed.",
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
    score: float
    """The score of the model: the metric, or how much lower the loss is than before."""
    episode_return: float
    """The score minus the costs."""
    sample: SampleInput
    """A few inputs of the model."""
    trace: Trace | None = None
    """What was decided after each epoch and why; None for a host of a task."""
    baseline_scores: tuple[float, ...] = ()
    """Validation score after each epoch of the same training with no growth, with ``baseline``."""

    def __repr__(self) -> str:
        return f"Grown({type(self.model).__name__}, {len(self.timeline)} epochs)\n{self.summary}"

    def _repr_html_(self) -> str:
        from esper.dashboard.figures import figure_html

        table = self.timeline.to_html()
        if len(self.timeline) > FEW_ROWS:
            table = html_details(f"All {len(self.timeline)} decisions", table)
        return self.summary.to_html() + figure_html(self.figure) + table

    def figure(self, *, title: str = "") -> Figure:
        """Return a matplotlib figure of the training, with the curve of its baseline, if any.

        Raises:
            ConfigError: If matplotlib is not installed.
        """
        from esper.dashboard.figures import plot_trace

        return plot_trace(self.trace or self.timeline, title=title, baseline=self.baseline_scores)

    def to_json(self) -> dict[str, Any]:
        """Return the score, the return, the costs and the timeline as JSON values."""
        found = self.summary
        return {
            "score": self.score,
            "return": self.episode_return,
            "flops": found.flops,
            "host_parameters": found.parameters_before,
            "seed_parameters": found.parameters_after - found.parameters_before,
            "timeline": self.timeline.to_json(),
        }


AUTO_SECONDS = 60.0
"""Seconds of growing up to which a baseline is trained unless it is ruled out."""


def wants_baseline(baseline: bool | str, grown: Grown) -> bool:
    """Return whether the same training with no growth is to follow."""
    return baseline is True or (baseline == "auto" and grown.summary.seconds < AUTO_SECONDS)


def add_baseline(grown: Grown, plain: Grown, is_better: Callable[[float, float], bool]) -> Grown:
    """Return the result of growing with its comparison with no growth.

    Args:
        grown: The result of growing.
        plain: That of the same training with no growth.
        is_better: Returns whether one value of the metric is better than another.
    """
    summary = replace(
        grown.summary,
        baseline=plain.summary.grown,
        is_above_baseline=is_better(grown.summary.grown, plain.summary.grown),
    )
    scores = tuple(step.score for step in plain.timeline)
    return replace(grown, summary=summary, baseline_scores=scores)


def _times(ratio: float) -> str:
    """Return a ratio with about two digits."""
    return plain_number(ratio, 2) if ratio < 0.95 else f"{ratio:,.{0 if ratio >= 9.95 else 1}f}"


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


def save_grown(grown: Grown, folder: str | os.PathLike[str]) -> Path:
    """Save a grown model as an exported program for any batch size; return the folder.

    A grown model that the folder already holds is replaced.

    Raises:
        ConfigError: If it is not what :func:`esper.grow` returned.
        SavedModelError: If the folder holds other files; it is unchanged.
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
    require_grown_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with replacing(path / PROGRAM_FILE) as temporary:
            _save_program(grown, temporary)
            write_atomic(path / GROWTH_FILE, "{}\n")  # if killed, none of another model is left
            (path / WEIGHTS_FILE).unlink(missing_ok=True)
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
