"""One episode in full: its steps, the lives of its seeds, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from esper.reports.views.bars import Bar, make_bars
from esper.reports.views.episodes import Episode, ended_episode
from esper.reports.views.facts import names_of, run_of, settings_of
from esper.reports.views.finding import R, numbers_of_steps, records_among
from esper.reports.views.plain import finite
from esper.reports.views.steps import Step, describe_step
from esper.telemetry import RunTelemetry
from esper.telemetry.records import GovernorRecord, SeedEventRecord, StepRecord


class SeedEvent(TypedDict):
    """A seed that went from one stage to the next."""

    epoch: int
    step: int
    slot: str
    blueprint: str | None
    from_stage: str
    to_stage: str
    alpha: float | None
    contribution: float | None


class Rescue(TypedDict):
    """A host that the governor put back."""

    epoch: int
    step: int
    reason: str


class EpisodeDetail(TypedDict):
    """All that is recorded of one episode."""

    env: int
    episode: int
    draw_seed: str | None
    is_over: bool
    has_steps: bool
    """Whether there are steps; a run can be told not to record them."""
    n_epochs_max: int | None
    result: Episode | None
    slots: list[str]
    steps: list[Step]
    events: list[SeedEvent]
    bars: list[Bar]
    governor: list[Rescue]
    host_parameters: int | None


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The records of one episode."""

    result: Episode | None
    steps: list[StepRecord]
    events: list[SeedEventRecord]
    rescues: list[GovernorRecord]

    @property
    def draw_seed(self) -> str | None:
        """What decided the host, if a record tells it."""
        if self.result is not None:
            return self.result["draw_seed"]
        return next((str(one.draw_seed) for one in (*self.events, *self.rescues)), None)

    @property
    def last_epoch(self) -> int:
        """Epochs that the host has trained, as far as records tell."""
        if self.result is not None:
            return self.result["n_epochs"]
        return max(one.epoch for one in (*self.steps, *self.events, *self.rescues))

    @property
    def finish_step(self) -> int | None:
        """The step in which the host was finished without training another epoch."""
        if self.result is None or self.result["ep_len"] <= self.result["n_epochs"]:
            return None
        return self.result["step"]


def episode_detail(telemetry: RunTelemetry, env: int, episode: int) -> EpisodeDetail | None:
    """Return an episode, also one that goes on, or None if nothing is recorded of it."""
    with telemetry.snapshot():
        rows, run = _find_rows(telemetry, env, episode), run_of(telemetry)
    if rows is None:
        return None
    names = names_of(run)
    steps = [describe_step(record, names) for record in rows.steps]
    bars = make_bars(
        rows.events,
        steps,
        names.slots,
        last_epoch=rows.last_epoch,
        finish_step=rows.finish_step,
    )
    return {
        "env": env,
        "episode": episode,
        "draw_seed": rows.draw_seed,
        "is_over": rows.result is not None,
        "has_steps": bool(steps),
        "n_epochs_max": None if run is None else settings_of(run).budget.n_epochs,
        "result": rows.result,
        "slots": names.slots,
        "steps": steps,
        "events": [_event(one) for one in rows.events],
        "bars": bars,
        "governor": [{"epoch": g.epoch, "step": g.step, "reason": g.reason} for g in rows.rescues],
        "host_parameters": None if rows.result is None else rows.result["host_parameters"],
    }


def _find_rows(telemetry: RunTelemetry, env: int, episode: int) -> _Rows | None:
    """Return the records of an episode: those of its environment since the episode before."""
    result = ended_episode(telemetry, env, episode)
    before = None if episode == 0 else ended_episode(telemetry, env, episode - 1)
    if result is None and before is None and episode != 0:
        return None
    first = 1 if before is None else before["step"] + 1
    last = None if result is None else result["step"]

    def find(kind: type[R]) -> list[R]:
        numbers = numbers_of_steps(telemetry, kind, first, last)
        return list(records_among(telemetry, kind, numbers, env=env, episode=episode))

    steps, events, rescues = find(StepRecord), find(SeedEventRecord), find(GovernorRecord)
    if result is None and not (steps or events or rescues):
        return None
    return _Rows(result=result, steps=steps, events=events, rescues=rescues)


def _event(record: SeedEventRecord) -> SeedEvent:
    return {
        "epoch": record.epoch,
        "step": record.step,
        "slot": record.slot,
        "blueprint": record.blueprint or None,
        "from_stage": record.from_stage,
        "to_stage": record.to_stage,
        "alpha": finite(record.alpha),
        "contribution": finite(record.contribution),
    }
