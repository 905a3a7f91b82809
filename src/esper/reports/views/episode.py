"""One episode in full: its steps, the lives of its seeds, and what came of it."""

from __future__ import annotations

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


def episode_detail(telemetry: RunTelemetry, env: int, episode: int) -> EpisodeDetail | None:
    """Return an episode, also one that goes on, or None if nothing is recorded of it."""
    with telemetry.snapshot():
        result = ended_episode(telemetry, env, episode)
        before = None if episode == 0 else ended_episode(telemetry, env, episode - 1)
        if result is None and before is None and episode != 0:
            return None
        first = 1 if before is None else before["step"] + 1
        last = None if result is None else result["step"]

        def rows(kind: type[R]) -> list[R]:
            numbers = numbers_of_steps(telemetry, kind, first, last)
            return list(records_among(telemetry, kind, numbers, env=env, episode=episode))

        records, events, rescues = rows(StepRecord), rows(SeedEventRecord), rows(GovernorRecord)
        run = run_of(telemetry)
    if result is None and not (records or events or rescues):
        return None
    names = names_of(run)
    steps = [describe_step(record, names) for record in records]
    draw_seed = next((str(one.draw_seed) for one in (*events, *rescues)), None)
    return {
        "env": env,
        "episode": episode,
        "draw_seed": draw_seed if result is None else result["draw_seed"],
        "is_over": result is not None,
        "has_steps": bool(steps),
        "n_epochs_max": None if run is None else settings_of(run).budget.n_epochs,
        "result": result,
        "slots": names.slots,
        "steps": steps,
        "events": [_event(one) for one in events],
        "bars": make_bars(
            events,
            steps,
            names.slots,
            last_epoch=(
                max(one.epoch for one in (*records, *events, *rescues))
                if result is None
                else result["n_epochs"]
            ),
            finish_step=_finish_step(result),
        ),
        "governor": [{"epoch": g.epoch, "step": g.step, "reason": g.reason} for g in rescues],
        "host_parameters": None if result is None else result["host_parameters"],
    }


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


def _finish_step(result: Episode | None) -> int | None:
    """Return the step in which a host was finished without training another epoch."""
    if result is None or result["ep_len"] == result["n_epochs"]:
        return None
    return result["step"]
