"""A grown model, how it got there, and saving it."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import nn

from esper.environment import EpisodeResults
from esper.errors import StorageError
from esper.formatting import duration, html_lines, listed, many
from esper.growing.decisions import Trace, folded
from esper.growing.objectives import LOSS_SCALE
from esper.growing.timeline import Timeline, TimelineStep
from esper.growth.dry_run import SampleInput
from esper.storage.files import replacing, write_atomic

GUESS = "Before training, going by the tasks that it learned on, the controller expected"
"""How an expectation begins: the controller has not seen the model learn yet."""

ENDED_BY_CONTROLLER = "the controller ended it"
"""Why training ended early if no limit ended it."""

MOST_PERCENT = 10.0
"""Costs from this multiple on are shown as a multiple."""


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
    seeds: tuple[tuple[str, str], ...]
    """The slot and the blueprint of each seed in the returned model."""
    germinated_after: tuple[int, ...] = ()
    """Epochs trained before each of them germinated; empty if that is unknown."""
    widened_beside: tuple[str, ...] = ()
    """The slots of the returned model where widening added a branch beside the block, whose own
    layers are as wide as before."""
    full_slots: tuple[str, ...] = ()
    """The slots of the returned model that have all hidden units that they may have."""
    max_widening: float | None = None
    """How many times its own hidden units a block or pair may have; None for no limit."""
    max_parameters: int | None = None
    """The largest number of parameters, if it ruled out seeds; None if it did not."""
    was_kept: bool
    """Whether the trained model is returned; if not, it is no better and the given one is."""
    controller: str
    """The name of the controller."""
    expected_score: float | None = None
    """The score that the controller expected before the first epoch; None without an estimate."""
    expected_gain: float | None = None
    """What the controller expected growth to gain over training the given model as it is, in
    return: the score minus the costs. It is what such models gained on the tasks that the
    controller learned on; None if it expected a score or nothing."""
    gain: float | None = None
    """What growth gained over training the given model as it is, in return too, on validation;
    None if it is unknown."""
    has_costs: bool = False
    """Whether the FLOPs or the parameters have a price."""
    score: float | None = None
    """The score that came of it, of the epoch that counts and on the same split."""
    scale: str = ""
    """What the score is, in words; empty if it is the metric."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds that it took."""
    total_flops: float = 0.0
    """FLOPs of training; 0 if they were not counted."""
    stopped: str = ""
    """Why training ended before its last epoch; empty if it did not."""
    problems: tuple[str, ...] = ()
    """Why the model was rolled back, for each epoch in which it was."""
    baseline: float | None = None
    """The metric of the best epoch of the given model, trained without growth; None if unknown."""
    is_above_baseline: bool = False
    """Whether the returned model is better than that."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result, the growth, the cost and the comparison, in one sentence each."""
        return (
            self._result(),
            self._growth(),
            *self._beside(),
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
        if not self.seeds:
            return f"Nothing was grown: the model has {self.parameters_after:,} parameters."
        by_seed: dict[str, list[int]] = {}
        for number, (slot, blueprint) in enumerate(self.seeds):
            epochs = by_seed.setdefault(f"{blueprint} in {slot}", [])
            epochs += self.germinated_after[number : number + 1]
        counts = Counter(f"{blueprint} in {slot}" for slot, blueprint in self.seeds)
        seeds = ", ".join(
            (f"{n} x {seed}" if n > 1 else seed) + _epochs_text(by_seed[seed])
            for seed, n in counts.items()
        )
        added = self.parameters_after - self.parameters_before
        return (
            f"Grown: {seeds}; {self.parameters_before:,} parameters became "
            f"{self.parameters_after:,} ({added:+,})."
        )

    def _beside(self) -> tuple[str, ...]:
        if not self.widened_beside:
            return ()
        return (
            f"Widening in {listed(list(self.widened_beside))} added a branch beside it, so its own "
            "width is as before; esper.find_slots lists pairs of layers, such as 'a>b', that can "
            "be widened themselves.",
        )

    def _limits(self) -> tuple[str, ...]:
        found: list[str] = []
        if self.full_slots and self.max_widening is not None:
            found.append(
                f"The limit, {self.max_widening:g} times the given hidden units, was reached in "
                f"{listed(list(self.full_slots))}; to set another, add the slots before growing: "
                "esper.add_slots(model, ..., growth_config=GrowthConfig(max_widening=...))."
            )
        if self.max_parameters is not None:
            found.append(
                f"max_parameters limited growth: seeds that would have made more than "
                f"{self.max_parameters:,} parameters were ruled out."
            )
        return tuple(found)

    def _cost(self) -> str:
        spent = f"{self.flops:.0%} of" if self.flops < MOST_PERCENT else f"{self.flops:,.0f} times"
        total = f" ({self.total_flops:.2g} in all, {duration(self.seconds)})" * bool(self.seconds)
        ended = f" Training ended early: {self.stopped}." if self.stopped else ""
        best = (
            f"of which epoch {self.best_epoch} was the best and counts"
            if self.best_epoch
            else "none of which was better than the given model"
        )
        return (
            f"Controller {self.controller} used {self.n_epochs} of {self.budget_epochs} epochs, "
            f"{best}, and {spent} the FLOPs of training the initial model for all of them{total}."
            f"{ended}"
        )

    @property
    def expectation(self) -> str:
        """What the controller expected and what came of it, in a sentence.

        Empty without an estimate, for a metric beyond the scores that controllers know, if a limit
        that the controller is not told cut growth or training short, and for a gain net of costs,
        most of which is what ending early saves.
        """
        if self.score is None or not -1.0 <= self.score <= 1.0:
            return ""
        if self.max_parameters is not None or self.stopped not in ("", ENDED_BY_CONTROLLER):
            return ""
        if self.expected_gain is not None:
            return "" if self.has_costs else self._expected_growth(self.expected_gain)
        if self.expected_score is None:
            return ""
        named = "a score of " if self.scale else f"{self.metric} "
        scale = f" (the score is {self.scale})" if self.scale else ""
        return (
            f"{GUESS} {named}{self.expected_score:.2f} by the end; it got "
            f"{self.score:.2f} on {self.split}{scale}."
        )

    def _expected_growth(self, expected: float) -> str:
        """Return the gain that the controller expected and what came of it, in a sentence."""
        is_loss, is_accuracy = self.scale == LOSS_SCALE, self.metric == "accuracy"

        def size(gain: float) -> str:
            percent = f"{abs(gain):.1%}"
            return percent if is_loss else percent[:-1] if is_accuracy else f"{abs(gain):.3f}"

        if is_loss:
            unit, scale = "of the first loss", ""
        elif is_accuracy:
            unit, scale = "points of accuracy", ""
        elif self.scale:
            unit, scale = "in score", f" (the score is {self.scale})"
        else:
            unit, scale = f"in {self.metric}", ""
        if self.gain is not None:
            verb = "gained" if self.gain >= 0.0 else "lost"
            outcome = f"it {verb} {size(self.gain)} on {self.split}"
        else:
            advice = ", and baseline=True would show the gain"
            outcome = (
                f"{self.split} {self.metric} went from {self.before:.4g} to {self.grown:.4g}"
                f"{advice * (self.split == 'validation')}"
            )
        return (
            f"{GUESS} growth to {'gain' if expected >= 0.0 else 'lose'} "
            f"{size(expected)} {unit} compared with training the model as it is; {outcome}{scale}."
        )

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
            verdict = "growing it made no difference"
            verdict += " (with a price it grows less)" * self.has_costs
        else:
            verdict = "growing it was " + ("better" if self.is_above_baseline else "worse")
        ratio = self.flops * self.budget_epochs / max(1, self.n_epochs)
        # If all epochs were used, the cost above is the same ratio.
        much = "as many" if 0.95 < ratio < 1.05 else f"{ratio:.2g} times the"
        cost = f" Growing took {much} FLOPs." * (self.n_epochs < self.budget_epochs)
        return (
            f"The given model, trained without growth for as many epochs with the same seeds, "
            f"reaches {self.baseline:.4g}: {verdict}, on this validation data and with one seed."
            f"{cost}",
        )


def _epochs_text(n_before: Sequence[int]) -> str:
    """Return the first epochs of seeds, counted from 1, in brackets; empty for none.

    Args:
        n_before: Epochs trained before each of them germinated.
    """
    listed = ", ".join(str(n + 1) for n in dict.fromkeys(n_before))
    return f" (from epoch{'s' * (',' in listed)} {listed})" if listed else ""


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
    timeline: Timeline
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
        if self.trace is None:
            figure = self.timeline.figure_html(self.summary.budget_epochs)
        else:
            figure = self.trace.figure_html()
        table = folded(self.timeline.to_html(), len(self.timeline))
        return self.summary.to_html() + figure + table

    def to_json(self) -> dict[str, Any]:
        """Return the score, the return, the costs and the timeline as JSON values."""
        return {
            "score": float(self.results.scores[0]),
            "return": float(self.results.returns[0]),
            "flops": float(self.results.flops[0]),
            "host_parameters": int(self.results.host_parameters[0]),
            "seed_parameters": int(self.results.seed_parameters[0]),
            "timeline": [asdict(step) for step in self.timeline],
        }


def germination_epochs(
    timeline: Sequence[TimelineStep], seeds: Sequence[tuple[str, str]], last_epoch: int
) -> tuple[int, ...]:
    """Return the epochs trained before each seed germinated; nothing if one is unknown.

    Args:
        timeline: All epochs.
        seeds: The slot and the blueprint of each seed of a model, those of a slot in order.
        last_epoch: The epoch after which the model was kept.
    """
    by_slot: dict[str, list[int]] = {}
    before: TimelineStep | None = None
    for step in timeline[:last_epoch]:
        if step.op == "germinate":
            mine = by_slot.setdefault(step.slot, [])
            if before is not None:  # what was not committed has been pruned
                is_committed = before.stages.get(step.slot) == "fossilized"
                del mine[before.fossils.get(step.slot, 0) + is_committed :]
            mine.append(step.epoch - 1)
        before = step
    epochs = {slot: iter(found) for slot, found in by_slot.items()}
    known = [next(epochs.get(slot, iter(())), None) for slot, _ in seeds]
    # A training interrupted after it kept an epoch has no step for that one.
    return () if None in known else tuple(cast("list[int]", known))


def expected_score(timeline: Sequence[TimelineStep], results: EpisodeResults) -> float | None:
    """Return the score that a controller expected before the first epoch, if it expected one.

    It expects a return, the score minus costs; costs that were paid are added to compare it.
    """
    first = timeline[0] if timeline else None
    if first is None or first.value is None or first.is_gain:
        return None
    return first.value + float(results.scores[0] - results.returns[0])


def expected_gain(timeline: Sequence[TimelineStep]) -> float | None:
    """Return what a controller expected growth to gain before the first epoch, if it did."""
    return timeline[0].value if timeline and timeline[0].is_gain else None


PROGRAM_FILE = "model.pt2"
WEIGHTS_FILE = "model.safetensors"
GROWTH_FILE = "growth.json"


def save_grown(grown: Grown, folder: str | os.PathLike[str]) -> Path:
    """Save a grown model as an exported program for any batch size; return the folder.

    Raises:
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
    path = Path(folder)
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
