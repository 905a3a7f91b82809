"""Racing sizes of the user's model: its lanes, and the result as :func:`esper.grow` returns it."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from esper.config.memory import available_memory
from esper.growing.decisions import OnStep
from esper.growing.grower import as_schedulers, parameter_limit
from esper.growing.grown import Grown, GrowthSummary, SizeOutcome, SlotGrowth, wants_baseline
from esper.growing.lane import Lane
from esper.growing.measuring import copy_modes
from esper.growing.own_models import OwnModel, find_frozen
from esper.growing.progress import EpochProgress
from esper.growing.race import Race
from esper.growing.sizes import FACTORS, LARGE_MODEL, SizeRule
from esper.growth.dry_run import batch_size_of, first_samples
from esper.growth.export import export
from esper.growth.footprint import training_step_flops
from esper.growth.modules import compiled_like, count_parameters, seeded
from esper.growth.optimizers import as_optimizers, use_fused_kernels
from esper.growth.surgery.twins import TwinMaker
from esper.modes import suitable_threads
from esper.storage.checkpoint_folder import CheckpointFolder

BYTES_PER_LANE_WEIGHT = 40.0
"""A weight of a size: its value, its gradient, two moments, and copies of the last good and of the
best state."""

RACE = "race"
"""The name of a race of sizes among controllers."""


@dataclass(frozen=True, kw_only=True)
class SizeRace:
    """A race of the sizes of a user's model."""

    work: OwnModel
    tolerance: float

    def run(
        self,
        *,
        on_step: OnStep,
        resume: str | os.PathLike[str] | None,
        bar: EpochProgress,
        baseline: bool | str = False,
    ) -> Grown:
        """Train the sizes, and return the right one.

        With ``baseline``, the given size trains to its last epoch, to compare with, and to be
        returned if it is within the tolerance after all.
        """
        work = self.work
        parameter_limit(work.max_parameters, work.given)
        with seeded(work.seed):
            race = Race(
                self._make_lane,
                self.sizes,
                SizeRule(
                    epochs=work.plan.n_epochs,
                    tolerance=self.tolerance,
                    is_better_low=work.objective.is_better_low,
                    has_scale=work.objective.has_scale,
                    is_large=count_parameters(work.given) >= LARGE_MODEL,
                ),
                work.objective,
                (work.train, work.validation),
                work.limits,
                on_step=bar.wrap(on_step),
                on_batch=bar.on_batch,
            )
            folder = None if resume is None else CheckpointFolder(resume, keep_last=1)
            race.run(folder, {} if folder is None else self._identity())
            grown = self._result(race)
            is_known = grown.summary.baseline is not None or race.was_interrupted
            if not is_known and wants_baseline(baseline, grown):
                grown = self._with_baseline(race, grown)
        return grown

    def _with_baseline(self, race: Race, grown: Grown) -> Grown:
        """Train the given size to its end; if it is within the tolerance then, it is the result."""
        spent = {"flops": grown.summary.flops, "total_flops": grown.summary.total_flops}
        lane = race.train_plainly()
        if race.winner is lane:
            grown = self._result(race)
        summary = self._compared(replace(grown.summary, **spent), lane.best.value)
        scores = tuple(race.score(epoch.found) for epoch in lane.epochs)
        return replace(grown, summary=summary, baseline_scores=scores)

    @cached_property
    def twins(self) -> TwinMaker:
        """Makes wider twins of the given model."""
        with suitable_threads(self.work.batch_flops):
            return TwinMaker(self.work.given, first_samples(self.work.first.sample), self.work.at)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that may train: the given one, and those that fit the limit and the memory."""
        return tuple(size for size in self._allowed if size not in self._too_large)

    @cached_property
    def _allowed(self) -> tuple[int, ...]:
        most = self.work.max_parameters or np.inf
        wider = FACTORS[1:] if self.twins.groups else ()
        return 1, *(size for size in wider if self.twins.count_parameters(size) <= most)

    @cached_property
    def _too_large(self) -> tuple[int, ...]:
        """The sizes for which there is no memory, given that all train side by side."""
        counts = [self.twins.count_parameters(size) for size in self._allowed]
        needs = BYTES_PER_LANE_WEIGHT * np.cumsum(counts)
        available = available_memory()
        return tuple(
            s for s, n in zip(self._allowed, needs, strict=True) if s > 1 and n > available
        )

    def _make_lane(self, size: int) -> Lane:
        """Make a copy of the model, or a wider twin, with its optimizer and scheduler."""
        work = self.work
        memo: dict[int, Any] = {}
        model = copy.deepcopy(work.given, memo)
        if not work.given.training:
            model.train()
        is_bound = work.optimizer.is_bound
        optimizer, scheduler = work.optimizer.bind(model, memo, work.settings)
        if size > 1:
            own = optimizer if is_bound else None
            self.twins.make(size, seed=work.seed, model=model, optimizer=own)
            if not is_bound:  # the other one is of the parameters before
                optimizer, scheduler = work.optimizer.bind(model, memo, work.settings)
        use_fused_kernels(optimizer)
        as_schedulers(scheduler)
        as_optimizers(optimizer, model)
        flops = work.batch_flops
        if size > 1:
            sample = first_samples(work.first.sample)
            flops = work.first.size / batch_size_of(sample) * training_step_flops(model, sample)
        return Lane(
            size,
            compiled_like(work.wrapped, model),
            model,
            optimizer,
            scheduler,
            work.objective,
            sample_flops=flops / work.first.size,
            batch_flops=flops,
        )

    def _identity(self) -> dict[str, str]:
        """Return what tells this race from others, to compare with a saved one."""
        return {
            **self.work.identity(self._make_lane(1).optimizer),
            "the controller": RACE,
            "tolerance": str(self.tolerance),
            "the sizes": ", ".join(f"x{size}" for size in self.sizes),
        }

    def _result(self, race: Race) -> Grown:
        work, before = self.work, race.before
        lane = race.winner
        was_kept = lane.kept_epoch > 0 and work.objective.is_better(lane.best.value, before.value)
        model = export(lane.rebuild() if was_kept else work.given)
        copy_modes(work.given, model)
        for parameter in model.parameters():
            parameter.grad = None
        places = self.twins.sizes(lane.factor) if was_kept and lane.factor > 1 else ()
        summary = GrowthSummary(
            metric=work.objective.metric,
            split="validation",
            before=before.value,
            after=lane.best.value if was_kept else before.value,
            grown=lane.best.value if lane.epochs else before.value,
            parameters_before=count_parameters(work.given),
            parameters_after=count_parameters(model),
            flops=race.relative_flops,
            n_epochs=len(race.timeline),
            best_epoch=lane.kept_epoch if was_kept else 0,
            budget_epochs=work.plan.n_epochs,
            growth=tuple(
                SlotGrowth(name, (f"x{lane.factor}",), before, after, unit)
                for name, before, after, unit in places
            ),
            frozen=find_frozen(work.given, model),
            was_kept=was_kept,
            controller=RACE,
            seconds=race.seconds,
            total_flops=race.flops,
            stopped=race.stopped,
            problems=tuple(lane.problems),
            sizes=tuple(self._outcome(race, size) for size in sorted(race.lanes)),
            tolerance=self.tolerance,
            unwidened=self.twins.problem,
            max_parameters=self._limit(lane),
            is_memory_short=bool(self._too_large),
        )
        if plain := self._plain(race):
            summary = self._compared(summary, plain.best.value)
        score = race.score(lane.best if lane.epochs else before)
        return Grown(
            model=model,
            timeline=race.timeline,
            summary=summary,
            score=score,
            episode_return=score,
            sample=work.sample(),
            trace=race.timeline,
        )

    def _compared(self, summary: GrowthSummary, plain: float) -> GrowthSummary:
        is_above = self.work.objective.is_better(summary.after, plain)
        return replace(summary, baseline=plain, is_above_baseline=is_above)

    def _plain(self, race: Race) -> Lane | None:
        """Return the lane of the given model, if it has trained as it would have alone."""
        lane = race.lanes[1]
        return lane if race.has_finished(lane) and 1 not in race.lost else None

    def _outcome(self, race: Race, size: int) -> SizeOutcome:
        lane = race.lanes[size]
        return SizeOutcome(
            factor=size,
            parameters=lane.parameters,
            value=lane.best.value if lane.epochs else None,
            best_epoch=lane.kept_epoch,
            n_epochs=len(lane.epochs),
            lost=race.lost.get(size, ""),
        )

    def _limit(self, winner: Lane) -> int | None:
        """Return the limit of parameters, if it ruled out sizes above the winner."""
        is_largest = winner.factor == self.sizes[-1] and bool(self.twins.groups)
        return (
            self.work.max_parameters if is_largest and len(self._allowed) < len(FACTORS) else None
        )
