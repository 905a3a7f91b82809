"""Training a model with a Grower, keeping the epoch with the best validation score."""

from __future__ import annotations

import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from esper.config.checks import PositiveFloat, PositiveInt, Settings
from esper.errors import GrowerError, UnsupportedHostError, blame_user_code
from esper.formatting import many, plain_number
from esper.growing.batches import Batch, Batches
from esper.growing.decisions import Decision, OnStep, Trace, end_note
from esper.growing.epoch_results import relative_drop
from esper.growing.grower import Grower
from esper.growing.grown import ENDED_BY_CONTROLLER, SlotGrowth
from esper.growing.measuring import require_finite_batch
from esper.growing.objectives import Evaluation, Objective
from esper.growth.export import export
from esper.growth.host_slots import remove_slots, slots, unwrapped
from esper.growth.modules import named_tensors
from esper.growth.saved_models import describe_slots, restore_slots
from esper.modes import suitable_threads
from esper.storage.checkpoint_folder import CheckpointFolder, damage_named, typed

PER_BATCH = (OneCycleLR, CyclicLR)
"""Schedulers that are stepped after every batch instead of every epoch."""

WORST_SCORE = -1.0
"""The score of a model whose metric is not a number."""


@dataclass(frozen=True, kw_only=True)
class Limits(Settings):
    """When training ends, whatever comes first."""

    epochs: int
    max_flops: PositiveFloat | None = None
    max_seconds: PositiveFloat | None = None
    patience: PositiveInt | None = None
    """Epochs without a better one after which training ends."""

    def reached(self, seconds: float, flops: float) -> str:
        """Return which limit these costs are beyond; empty if none."""
        if self.max_flops is not None and flops > self.max_flops:
            return f"max_flops of {plain_number(self.max_flops)} was reached"
        if self.max_seconds is not None and seconds > self.max_seconds:
            return f"max_seconds of {plain_number(self.max_seconds)} was reached"
        return ""


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch so far."""

    epoch: int
    evaluation: Evaluation
    growth: str
    """The slots and their seeds, as JSON."""
    tensors: dict[str, Tensor]
    keeps_blended: bool
    """Whether seeds that are blended in are part of it."""

    def rebuild(self, template: nn.Module) -> ExportedEpoch:
        """Return the model of this epoch as a plain module, and what has grown in it.

        Args:
            template: A model of the given architecture, whose slots if any are empty.
        """
        twin = copy.deepcopy(template)
        remove_slots(twin)
        restore_slots(twin, json.loads(self.growth))
        with torch.no_grad():
            for name, tensor in named_tensors(twin).items():
                tensor.copy_(self.tensors[name])
        grown = slots(twin)
        grown.end_growth(keep=self.keeps_blended)
        growth = tuple(SlotGrowth.of(slot) for slot in grown.values() if slot.life.committed)
        return ExportedEpoch(export(twin, committed_only=True), growth)


class ExportedEpoch(NamedTuple):
    """The model of an epoch."""

    model: nn.Module
    """A plain module."""
    growth: tuple[SlotGrowth, ...]
    """What has grown in it."""


class TrainingLoop:
    """Trains a model until its limits, while a Grower grows it."""

    def __init__(
        self,
        grower: Grower,
        objective: Objective,
        train: Batches,
        validation: Batches,
        limits: Limits,
        *,
        on_step: OnStep,
        largest_counts: bool = False,
        checkpoints: CheckpointFolder | None = None,
        identity: Mapping[str, str] | None = None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self.grower = grower
        self.objective = objective
        self.limits = limits
        self.timeline = Trace()
        self.stopped = ""
        """Why training ended before its last epoch; empty if it did not."""
        self.seconds = 0.0
        self._model = grower.model
        self._train, self._validation = train, validation
        self._on_step, self._on_batch = on_step, on_batch
        self._largest_counts = largest_counts
        self._checkpoints = checkpoints
        self._identity = dict(identity or {})
        """What tells this training from others, by name."""
        self.was_interrupted = False
        self.problems: list[str] = []
        """Why the model was rolled back, for each epoch in which it was."""
        self._start = time.monotonic()
        self._batch_flops = grower.batch_flops
        self.before: Evaluation
        """How the model did before training."""
        self.kept: BestEpoch
        self._found: Evaluation
        """How the model did after the last epoch."""
        self._last: Evaluation
        """The last evaluation, maybe of the model without some seeds."""
        self._follow_episode()

    def run(self) -> None:
        """Train; Ctrl-C ends it after the best epoch so far."""
        self._start = time.monotonic() - self.seconds
        try:
            decision = self._begin()
            while self.grower.epoch < self.limits.epochs and not self.stopped:
                decision = self._run_epoch(decision)
        except KeyboardInterrupt:
            self.was_interrupted = True
            self.stopped = f"it was interrupted in epoch {self.grower.epoch + 1}"
        self.seconds = time.monotonic() - self._start

    def _begin(self) -> Decision:
        if self._checkpoints is not None and self._checkpoints.names():
            self._load(self._checkpoints)
            return self.grower.trace[-1]
        with suitable_threads(self._batch_flops):
            self.before = self._found = self._evaluate()
            decision = self.grower.begin(**self._shown(self.before))
            self._batch_flops = self.grower.batch_flops
        return decision

    def _run_epoch(self, before: Decision) -> Decision:
        """Train an epoch after a decision, and return the next decision."""
        if before.op == "finish":
            self.stopped = ENDED_BY_CONTROLLER
            self._add_step(before, before)
            return before
        with suitable_threads(self._batch_flops):
            self._train_epoch()
            found = self._found = self._evaluate()
            decision = self.grower.end_epoch(
                **self._shown(found), validate=lambda: self.score(self._evaluate())
            )
            self._batch_flops = self.grower.batch_flops  # a model may outgrow one thread
        self._step_scheduler(found)
        if self.grower.was_rolled_back:
            self.problems.append(decision.why)
        self._add_step(before, decision)
        self._check_limits()
        if self._checkpoints is not None:
            self._save(self._checkpoints)
        return decision

    def _train_epoch(self) -> None:
        for number, batch in enumerate(self._train):
            report = self.grower.step(backward(self._model, self.objective, batch))
            if report is not None and self.grower.epoch == 0:
                require_finite_batch(batch, number, self._train.name)
            for scheduler in self._schedulers(per_batch=True):
                step_scheduler(scheduler)
            self._on_batch()
            self._check_costs((number + 1) * self._batch_flops)
            if self.stopped:
                return

    def _follow_episode(self) -> None:
        """Let the Grower's episode look for the best epoch by the metric."""
        episode, sign = self.grower.episode, -1.0 if self.objective.is_better_low else 1.0
        episode.settles = episode.keeps_states = True
        episode.largest_counts = self._largest_counts
        episode.hosts.find_value = lambda _: sign * self._last.value
        episode.hosts.on_keep = self._keep

    def _keep(self, with_blended: bool) -> None:
        """Keep the model as it is; without its blended seeds it was evaluated last."""
        tensors = named_tensors(unwrapped(self._model))
        self.kept = BestEpoch(
            epoch=int(self.grower.episode.records.settled_epoch[0]),
            evaluation=self._found if with_blended else self._last,
            growth=json.dumps(describe_slots(self.grower.slots)),
            tensors={name: tensor.detach().clone() for name, tensor in tensors.items()},
            keeps_blended=with_blended,
        )

    def _evaluate(self) -> Evaluation:
        self._last = self.objective.evaluate(self._model, self._validation)
        return self._last

    def score(self, found: Evaluation) -> float:
        """Return the score of an evaluation in the form that the Grower expects."""
        return clipped_score(found, self.before)

    def _shown(self, found: Evaluation) -> dict[str, float]:
        """Return what the Grower receives about an evaluation."""
        return {"score": self.score(found), "val_loss": found.loss}

    def _schedulers(self, *, per_batch: bool) -> list[LRScheduler]:
        return [each for each in self.grower.schedulers if isinstance(each, PER_BATCH) == per_batch]

    def _step_scheduler(self, found: Evaluation) -> None:
        for scheduler in self._schedulers(per_batch=False):
            step_scheduler(
                scheduler, *([found.loss] if isinstance(scheduler, ReduceLROnPlateau) else [])
            )

    def _check_costs(self, flops: float = 0.0) -> None:
        """Stop if no time is left, or too few FLOPs for a batch after those of this epoch."""
        spent = self.grower.flops + flops + self._batch_flops
        self.stopped = self.limits.reached(time.monotonic() - self._start, spent)

    def _check_limits(self) -> None:
        limit = self.limits.patience
        if limit is not None and self.grower.epoch - self.kept.epoch >= limit:
            self.stopped = self.stopped or f"no epoch was better for {many(limit, 'epoch')}"
        if not self.stopped:
            self._check_costs()

    def _add_step(self, before: Decision, after: Decision) -> None:
        """Add a step to the timeline: what was decided before an epoch, and its outcome."""
        note = after.why if self.grower.was_rolled_back else before.why
        if after.should_stop and self.kept.epoch != self.grower.epoch:
            note = note or end_note(self.kept.epoch)
        slots, n_grown = self.grower.last_slots, after.seed_parameters
        if after is before:  # the controller ended the training: what is not committed goes
            slots = {n: slot.without_seed() for n, slot in after.slots.items() if slot.n_fossils}
        else:  # before the next decision, which is that of the next step
            n_grown = sum(slot.grown_parameters for slot in slots.values())
        step = replace(
            before,
            epoch=self.grower.epoch,
            train_loss=after.train_loss,
            val_loss=after.val_loss,
            score=after.score,
            why=note,
            parameters=before.parameters - before.seed_parameters + n_grown,
            seed_parameters=n_grown,
            flops=after.flops,
            slots=slots,
        )
        self.timeline.append(step)
        self._on_step(step)

    def _save(self, folder: CheckpointFolder) -> None:
        state = {
            "grower": self.grower.state_dict(),
            "before": asdict(self.before),
            "kept": {**vars(self.kept), "evaluation": asdict(self.kept.evaluation)},
            "timeline": json.dumps(self.timeline.to_json()),
            "seconds": time.monotonic() - self._start,
            "identity": self._identity,
            "problems": self.problems,
        }
        folder.save(state, step=self.grower.epoch)

    def _load(self, folder: CheckpointFolder) -> None:
        with damage_named(folder.path):
            self._restore(folder)

    def _restore(self, folder: CheckpointFolder) -> None:
        state = folder.latest().state
        require_same_training(folder, state["identity"], self._identity)
        require_enough_epochs(folder, int(state["grower"]["epoch"]), self.limits.epochs)
        self.problems = [typed(problem, str) for problem in state["problems"]]
        self.grower.load_state_dict(state["grower"])
        self._follow_episode()
        self._batch_flops = self.grower.batch_flops
        self.before = Evaluation.read(state["before"])
        kept: dict[str, Any] = state["kept"]
        self.kept = BestEpoch(
            epoch=typed(kept["epoch"], int),
            evaluation=Evaluation.read(kept["evaluation"]),
            growth=typed(kept["growth"], str),
            tensors=dict(kept["tensors"]),
            keeps_blended=typed(kept["keeps_blended"], bool),
        )
        self.timeline = Trace.from_json(json.loads(state["timeline"]))
        self.seconds = typed(state["seconds"], float)
        self._start = time.monotonic() - self.seconds
        self._check_limits()  # which may be others than before


def clipped_score(found: Evaluation, before: Evaluation) -> float:
    """Return the score of an evaluation: the metric, or how much lower the loss is than before."""
    score = relative_drop(before.loss, found.loss) if found.score is None else found.score
    return score if math.isfinite(score) else WORST_SCORE


def require_same_training(
    folder: CheckpointFolder, known: Mapping[str, str], now: Mapping[str, str]
) -> None:
    """Reject a folder that holds another training.

    Raises:
        GrowerError: Naming the first argument that differs.
    """
    for name, own in now.items():
        if known.get(name) != own:
            raise GrowerError(
                f"{folder.path} holds another training: {name} was {known.get(name)}, and now is "
                f"{own}; give the same arguments, or another folder."
            )


def require_enough_epochs(folder: CheckpointFolder, n_trained: int, n_epochs: int) -> None:
    """Reject a folder that holds more epochs than are to be trained.

    Raises:
        GrowerError: Naming both numbers.
    """
    if n_trained > n_epochs:
        raise GrowerError(
            f"epochs is {n_epochs}, but {n_trained} are trained in {folder.path}; give at least "
            "as many, or another folder."
        )


def backward(model: nn.Module, objective: Objective, batch: Batch) -> Tensor:
    """Compute the gradients of the loss of a batch, and return that.

    Raises:
        UnsupportedHostError: If the model or its loss fails.
    """
    try:
        loss = objective.loss(batch.run(model), batch.targets)
        loss.backward()
    except Exception as error:
        advice = "fix its forward() or the loss."
        if batch.size == 1:  # has no statistics that a norm could take
            advice = "if other batches are larger, give the DataLoader drop_last=True."
        where = f"in training, on a batch of {many(batch.size, 'sample')}; {advice}"
        blame_user_code(UnsupportedHostError, error, "the model or its loss", where)
    return loss


def step_scheduler(scheduler: Any, *metrics: float) -> None:
    """Step a scheduler."""
    with warnings.catch_warnings():
        # A scheduler marks its optimizer's step, and copies of both do not have the mark.
        warnings.filterwarnings("ignore", r"Seems like `optimizer.step\(\)` has been overridden")
        scheduler.step(*metrics)
