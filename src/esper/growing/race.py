"""A race of sizes: which width a model needs, found while it trains.

The given model and wider twins of it train on the same batches, two sizes at a time; a size that
joins later first catches up. One that has lost stops, and the smallest size that is within a
tolerance of the best one is returned, as it was after its best epoch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from esper.errors import BadDataError
from esper.formatting import many
from esper.growing.batches import Batches
from esper.growing.decisions import Decision, OnStep, Trace
from esper.growing.lane import Lane
from esper.growing.objectives import Evaluation, Objective
from esper.growing.sizes import SizeRule
from esper.growing.training_loop import (
    Limits,
    clipped_score,
    require_enough_epochs,
    require_same_training,
)
from esper.modes import suitable_threads
from esper.storage.checkpoint_folder import CheckpointFolder, damage_named, typed


class Race:
    """Trains sizes of a model side by side, until one has won or a limit is reached."""

    def __init__(
        self,
        make: Callable[[int], Lane],
        sizes: Sequence[int],
        rule: SizeRule,
        objective: Objective,
        data: tuple[Batches, Batches],
        limits: Limits,
        *,
        on_step: OnStep,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a race.

        Args:
            make: Makes the lane of a size.
            sizes: How many times as wide as the given model each size is, from 1 up.
            rule: Decides which sizes go on, and which one wins.
            objective: The loss and the metric.
            data: The training and the validation data.
            limits: When it ends, at the latest.
            on_step: Called after each epoch with how the leading size does.
            on_batch: Called after each batch.
        """
        self.rule, self.objective, self.limits = rule, objective, limits
        self.lanes = {1: make(1)}
        """The sizes that have been made."""
        self.lost: dict[int, str] = {}
        """Why sizes stopped before their last epoch."""
        self.timeline = Trace()
        self.stopped = ""
        """Why the race ended early; empty if it did not."""
        self.was_interrupted = False
        self.seconds = 0.0
        self.before: Evaluation
        """How the given model does before training."""
        self._make, self._sizes = make, tuple(sizes)
        self._data, self._validation = data
        self._on_step, self._on_batch = on_step, on_batch
        self._tired: dict[int, str] = {}
        """Why sizes stopped that lost patience; other limits may let them go on."""
        self._epoch_samples = 0
        self._starts: dict[int, Tensor] = {}
        """The state of torch's default generator before each epoch, which orders the data."""
        self._start = time.monotonic()

    @property
    def winner(self) -> Lane:
        """The smallest size that is within the tolerance of the best so far."""
        curves = {size: curve for size, curve in self._curves().items() if curve}
        return self.lanes[self.rule.choose(curves) if curves else 1]

    @property
    def flops(self) -> float:
        """FLOPs of training all sizes so far."""
        return sum(lane.flops for lane in self.lanes.values())

    @property
    def relative_flops(self) -> float:
        """FLOPs of training all sizes, relative to the given one for the whole budget."""
        plain = self._epoch_samples * self.lanes[1].sample_flops * self.limits.epochs
        return self.flops / max(1.0, plain)

    def run(self, checkpoints: CheckpointFolder | None, identity: Mapping[str, str]) -> None:
        """Train; Ctrl-C ends it after the best epoch so far.

        Args:
            checkpoints: Where the race is saved after each epoch, and taken up again.
            identity: What tells this race from others, by name.
        """
        self._start = time.monotonic()
        try:
            if checkpoints is not None and checkpoints.names():
                self._load(checkpoints, identity)
            else:
                with suitable_threads(self._batch_flops([self.lanes[1]])):
                    self.before = self.objective.evaluate(self.lanes[1].model, self._validation)
            while (sizes := self._due()) and not self.stopped:
                self._run_epoch(sizes)
                if checkpoints is not None:
                    self._save(checkpoints, identity)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self.stopped = f"it was interrupted in epoch {len(self.timeline) + 1}"
        self.seconds = time.monotonic() - self._start

    def train_plainly(self) -> Lane:
        """Train the given model to its last epoch, within limits of its own, and return its lane.

        Its training continues where the race left it, or anew if that is within one of its epochs.
        """
        stopped, seconds = self.stopped, self.seconds
        if self.lanes[1].is_cut:
            self.lanes[1] = self._make(1)
        lane = self.lanes[1]
        self.stopped, self._start = "", time.monotonic()
        torch.set_rng_state(self._starts.get(len(lane.epochs), torch.get_rng_state()))
        while not self.has_finished(lane):
            self._train([lane], lane)
            if self.stopped:
                break
        self.stopped, self.seconds = stopped, seconds
        if len(lane.epochs) == self.limits.epochs:
            self.lost.pop(1, None)  # it has trained as it would have alone
        return lane

    def has_finished(self, lane: Lane) -> bool:
        """Return whether a size has trained to its last epoch, or run out of patience."""
        is_last = len(lane.epochs) == self.limits.epochs
        return not lane.is_cut and (is_last or self._has_no_patience(lane))

    def _curves(self) -> dict[int, list[float]]:
        """Return the metric of every size after each epoch."""
        return {
            size: [epoch.found.value for epoch in self.lanes[size].epochs]
            if size in self.lanes
            else []
            for size in self._sizes
        }

    def _due(self) -> tuple[int, ...]:
        """Return the sizes that train in the next epoch."""
        return self.rule.due(self._curves(), self.lost | self._tired)

    def _run_epoch(self, sizes: Sequence[int]) -> None:
        """Train sizes for an epoch and let the rule decide; a size that joins then catches up."""
        lanes = [self._lane(size) for size in sizes]
        self._pass_over(lanes)
        n_epochs, found = len(lanes[0].epochs), self._find_losers()
        while not self.stopped:
            late = [lane for lane in map(self._lane, self._due()) if len(lane.epochs) < n_epochs]
            if not late:
                break
            while len(late[0].epochs) < n_epochs and not self.stopped:
                self._pass_over(late)
            lanes += late
            found |= self._find_losers()
        self._check_limits()
        self._add_step(lanes, found)

    def _lane(self, size: int) -> Lane:
        """Return the lane of a size, which may be new."""
        if size not in self.lanes:
            self.lanes[size] = self._make(size)
        return self.lanes[size]

    def _find_losers(self) -> dict[int, str]:
        """Return the sizes that have just lost, and why."""
        found = self.rule.losers(self._curves(), self.lost | self._tired, self.before.value)
        self.lost |= found
        return found

    def _pass_over(self, lanes: Sequence[Lane]) -> None:
        """Train lanes for the same epoch, on data in the same order whichever lanes they are."""
        epoch = len(lanes[0].epochs)
        torch.set_rng_state(self._starts.setdefault(epoch, torch.get_rng_state()))
        self._train(lanes, self)
        self._starts.setdefault(epoch + 1, torch.get_rng_state())

    def _train(self, lanes: Sequence[Lane], spent: Race | Lane) -> None:
        """Train lanes on the same batches, and validate them; ``spent`` has a limit of FLOPs."""
        n_samples = 0
        batch_flops = sum(lane.batch_flops for lane in lanes)
        with suitable_threads(self._batch_flops(lanes)):
            for number, batch in enumerate(self._data):
                lanes[0].train(batch, number, self._data.name)
                for lane in lanes[1:]:
                    with _own_random_numbers():
                        lane.train(batch, number, self._data.name)
                n_samples += batch.size
                self._on_batch()
                self._check_costs(spent.flops + batch_flops)
                if self.stopped:
                    for lane in lanes:
                        lane.is_cut = True
                    break
            if not n_samples:
                raise BadDataError(f"{self._data.name} has no samples in this epoch.")
            self._epoch_samples = max(self._epoch_samples, n_samples)
            for lane in lanes:
                lane.end_epoch(self._validation)

    def _batch_flops(self, lanes: Sequence[Lane]) -> float:
        return max(lane.batch_flops for lane in lanes)

    def _check_costs(self, flops: float) -> None:
        """Stop if no time is left, or too few FLOPs for the next batch."""
        self.stopped = self.stopped or self.limits.reached(time.monotonic() - self._start, flops)

    def _has_no_patience(self, lane: Lane) -> bool:
        patience = self.limits.patience
        return patience is not None and len(lane.epochs) - lane.kept_epoch >= patience

    def _check_limits(self) -> None:
        """Stop sizes that have not become better for too long, and the race if none is left."""
        for size in self._due():
            lane = self.lanes.get(size)
            if lane is not None and lane.epochs and self._has_no_patience(lane):
                why = f"no epoch was better for {many(self.limits.patience or 0, 'epoch')}"
                self._tired[size] = why
                self.stopped = self.stopped or (why if not self._due() else "")
        if due := [self.lanes[size] for size in self._due() if size in self.lanes]:
            self._check_costs(self.flops + sum(lane.batch_flops for lane in due))

    def _add_step(self, lanes: Sequence[Lane], lost: Mapping[int, str]) -> None:
        """Add a step to the timeline: how the leading size does, and which sizes have stopped."""
        leader = self.winner
        last = leader.epochs[-1]
        size = leader.parameters
        step = Decision(
            epoch=len(self.timeline) + 1,
            epochs=max(self.limits.epochs, len(self.timeline) + 1),
            train_loss=last.train_loss,
            val_loss=last.found.loss,
            score=self.score(last.found),
            op="stop" if lost else "wait",
            slot=", ".join(self.lanes[each].name for each in lost),
            why="; ".join(lost.values()),
            parameters=size,
            seed_parameters=size - self.lanes[1].parameters,
            flops=self.relative_flops,
            lanes={lane.name: self.score(lane.epochs[-1].found) for lane in lanes},
        )
        self.timeline.append(step)
        self._on_step(step)

    def score(self, found: Evaluation) -> float:
        """Return the score of an evaluation: the metric, or the relative drop of the loss."""
        return clipped_score(found, self.before)

    def _save(self, folder: CheckpointFolder, identity: Mapping[str, str]) -> None:
        state = {
            "lanes": {str(size): lane.state_dict() for size, lane in self.lanes.items()},
            "lost": {str(size): why for size, why in self.lost.items()},
            "before": asdict(self.before),
            "starts": {str(epoch): start for epoch, start in self._starts.items()},
            "epoch_samples": self._epoch_samples,
            "timeline": json.dumps(self.timeline.to_json()),
            "seconds": time.monotonic() - self._start,
            "random": torch.get_rng_state(),
            "identity": dict(identity),
        }
        folder.save(state, step=len(self.timeline))

    def _load(self, folder: CheckpointFolder, identity: Mapping[str, str]) -> None:
        with damage_named(folder.path):
            self._restore(folder, identity)

    def _restore(self, folder: CheckpointFolder, identity: Mapping[str, str]) -> None:
        state: Any = folder.latest().state
        require_same_training(folder, state["identity"], identity)
        require_enough_epochs(folder, len(json.loads(state["timeline"])), self.limits.epochs)
        for name, own in state["lanes"].items():
            self._lane(self._sizes[self._sizes.index(int(name))]).load_state_dict(own)
        self.lost = {int(size): typed(why, str) for size, why in state["lost"].items()}
        self.before = Evaluation.read(state["before"])
        self._starts = {int(epoch): typed(at, Tensor) for epoch, at in state["starts"].items()}
        self._epoch_samples = typed(state["epoch_samples"], int)
        self.timeline = Trace.from_json(json.loads(state["timeline"]))
        self._start = time.monotonic() - typed(state["seconds"], float)
        torch.set_rng_state(state["random"])
        self._check_limits()  # which may be others than before


@contextmanager
def _own_random_numbers() -> Generator[None]:
    """Restore the state of torch's default generator, so that others draw as if alone."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
