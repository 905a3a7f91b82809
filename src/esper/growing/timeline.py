"""The timeline of one host: the decision and its effect in each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import torch

from esper.arrays import Integers
from esper.environment import EpisodeResults, GrowthVectorEnv, run_episodes
from esper.environment.episodes import SlotOutcome, StepResult
from esper.formatting import html_table, many, share, whole
from esper.growing.decisions import describe_action, describe_stages
from esper.lifecycle.factored_actions import Op, decode_action
from esper.lifecycle.stages import Stage
from esper.tamiyo import Controller
from esper.tamiyo.controllers.learned import expected_return, expects_gain


@dataclass(frozen=True, kw_only=True)
class TimelineStep:
    """One epoch of a host: the decision and its effect."""

    epoch: int
    """Epochs trained after the step; all but the one that ends a training train one."""
    op: str
    slot: str
    """The slot that the op was applied to; empty for none."""
    blueprint: str
    """The blueprint that germinated; empty for none."""
    note: str
    """Why a gate refused or the governor rolled back; empty otherwise."""
    score: float
    """Validation score after the epoch."""
    flops: float
    """FLOPs spent so far, relative to a reference run."""
    seed_parameters: int
    """Parameters of all seeds, fossils included."""
    stages: dict[str, str]
    """The stage after the epoch of each slot that is not dormant."""
    alphas: dict[str, float]
    """The alpha of each of these slots."""
    fossils: dict[str, int] = field(default_factory=dict[str, int])
    """The number of fossils of each slot that has some: seeds that are part of the block."""
    value: float | None = None
    """The return that the controller expected before the epoch, as in :class:`Decision`."""
    is_gain: bool = False
    """Whether that is relative to training the same model without growth."""

    @property
    def action(self) -> str:
        """What was done and where, such as ``germinate widen in blocks.0``."""
        return describe_action(self.op, self.slot, self.blueprint)

    @property
    def growing(self) -> str:
        """What the slots that are not dormant hold; empty for none."""
        return describe_stages(self.stages, self.alphas)

    def __str__(self) -> str:
        notes = (self.action, f"({self.note})" if self.note else "", self.growing)
        said = "  ".join(filter(None, notes))
        return f"epoch {self.epoch}  score {self.score:.4g}  {said}"

    def __repr__(self) -> str:
        return f"TimelineStep({self})"


_HEADINGS = ("epoch", "decision", "note", "growing", "score", "grown parameters", "FLOPs")


class Timeline(tuple[TimelineStep, ...]):
    """All epochs of a host, in order. Printing it gives a line for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"Timeline of {many(len(self), 'epoch')}\n{self}".rstrip()

    def _repr_html_(self) -> str:
        return self.to_html()

    def figure_html(self, n_epochs: int) -> str:
        """Return the timeline of a task's host as an SVG image.

        Args:
            n_epochs: Epochs of the budget.
        """
        from esper.reports.timeline_svg import Moment, timeline_svg

        moments = [
            Moment(
                start=start,
                end=step.epoch,
                epoch=step.epoch,
                score=step.score,
                slot=step.slot,
                blueprint=step.blueprint,
                is_kept=step.op == "fossilize",
                stages=step.stages,
                alphas=step.alphas,
                seed_parameters=step.seed_parameters,
            )
            for start, step in zip((0, *(one.epoch for one in self)), self, strict=False)
        ]
        return timeline_svg(moments, n_epochs)

    def to_html(self) -> str:
        """Return a table of the epochs as HTML for a notebook."""
        rows = (
            (
                str(step.epoch),
                step.action,
                step.note,
                step.growing,
                f"{step.score:.4f}",
                whole(step.seed_parameters),
                share(step.flops),
            )
            for step in self
        )
        return html_table(_HEADINGS, rows, n_left=4)


OnStep = Callable[[TimelineStep], None]


def ignore_step(_: TimelineStep) -> None:
    """Do nothing after an epoch."""


def run_episode(
    envs: GrowthVectorEnv,
    controller: Controller,
    seed: int,
    on_step: OnStep,
    *,
    largest_counts: bool = False,
) -> tuple[Timeline, EpisodeResults]:
    """Run one episode and return its timeline and results; torch's generator is unchanged.

    The host is left in the state that counts.

    Args:
        envs: An environment of one host, without autoreset.
        controller: The controller.
        seed: Seeds the host and the controller.
        on_step: Called after each epoch.
        largest_counts: Whether only epochs at the largest size count.
    """
    envs.growth.keep_states(largest_counts=largest_counts)
    steps: list[TimelineStep] = []

    def record(actions: Integers, result: StepResult) -> None:
        step = _describe(envs, actions, result)
        value, is_gain = expected_return(controller), expects_gain(controller)
        steps.append(replace(step, value=value, is_gain=is_gain))
        on_step(steps[-1])

    with torch.random.fork_rng(devices=[]):
        results = run_episodes(envs, controller, seed=seed, on_step=record)
    return Timeline(steps), results


class SlotTexts(TypedDict):
    """What a :class:`TimelineStep` says about slots."""

    stages: dict[str, str]
    alphas: dict[str, float]
    fossils: dict[str, int]


def describe_slot_outcome(slot_ids: Sequence[str], outcome: SlotOutcome) -> SlotTexts:
    """Return the stage, the alpha and the fossils of the slots of one host after an epoch."""
    stages = [Stage(stage) for stage in outcome.stage[0]]
    shown = {slot: k for k, slot in enumerate(slot_ids) if stages[k] is not Stage.DORMANT}
    n_fossils = zip(slot_ids, outcome.n_fossils[0].tolist(), strict=True)
    return {
        "stages": {slot: stages[k].name.lower() for slot, k in shown.items()},
        "alphas": {slot: float(outcome.alpha[0, k]) for slot, k in shown.items()},
        "fossils": {slot: n for slot, n in n_fossils if n},
    }


def _describe(envs: GrowthVectorEnv, actions: Integers, result: StepResult) -> TimelineStep:
    config, records = envs.slot_config, envs.growth.records
    action, op = decode_action(actions[0], config), Op(int(result.ops[0]))
    acts = op not in (Op.WAIT, Op.FINISH)
    return TimelineStep(
        epoch=int(records.epoch[0]),
        op=op.name.lower(),
        slot=action.slot if acts else "",
        blueprint=action.blueprint if op is Op.GERMINATE else "",
        note=result.refusals.get(0) or result.interventions.get(0, "") or _end_note(envs, result),
        score=float(records.score[0]),
        flops=float(records.paid_flops[0]),
        seed_parameters=int(records.seed_parameters[0].sum()),
        **describe_slot_outcome(config.slot_ids, result.slots),
    )


def _end_note(envs: GrowthVectorEnv, result: StepResult) -> str:
    """Return which epoch counts if that is not the one in which the episode ended."""
    records = envs.growth.records
    best = int(records.settled_epoch[0])
    is_other = bool(result.terminated[0]) and best != records.epoch[0]
    return end_note(best) if is_other else ""


def end_note(epoch: int) -> str:
    """Return that a training has ended, and which epoch counts; 0 is the given model."""
    return f"the end; epoch {epoch} counts" if epoch else "the end; the given model counts"
