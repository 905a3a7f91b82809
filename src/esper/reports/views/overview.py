"""What a run is and who worked on it: what does not change from round to round."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TypedDict, cast

from esper.reports.views.facts import names_of, run_of, settings_of
from esper.telemetry import RunTelemetry


class Session(TypedDict):
    """One process that worked on a run."""

    pid: int
    started_at: str
    ended_at: str | None
    outcome: str | None
    message: str | None
    first_round: int
    threads: int
    torch_version: str
    python_version: str
    esper_version: str
    platform: str


class HostPart(TypedDict):
    """A layer of the task's widest host, or a slot."""

    first_env: int
    """The environment from which on hosts are of this kind."""
    name: str
    kind: str
    parameters: int
    slot: str | None


class Overview(TypedDict):
    """A run's names, settings and sessions; None is what it has not said yet."""

    task: str | None
    slots: list[str]
    blueprints: list[str]
    heads: list[str]
    ops: list[str]
    choices: dict[str, list[str]]
    reads: dict[str, list[str]]
    host: list[HostPart] | None
    config_toml: str | None
    created_at: str | None
    esper_version: str | None
    sessions: list[Session]
    n_envs: int | None
    n_epochs: int | None
    kl_limit: float | None


def sessions_of(telemetry: RunTelemetry) -> list[Session]:
    """Return the processes that worked on a run, in order."""
    return [cast(Session, asdict(session)) for session in telemetry.sessions()]


def overview(telemetry: RunTelemetry) -> Overview:
    """Return what a run is, and who worked on it."""
    with telemetry.snapshot():
        run, sessions = run_of(telemetry), sessions_of(telemetry)
    names = names_of(run)
    settings = None if run is None else settings_of(run)
    kl_limit = math.inf if settings is None else settings.ppo.kl_limit
    return {
        "task": None if run is None else run.task,
        "slots": names.slots,
        "blueprints": names.blueprints,
        "heads": names.heads,
        "ops": names.ops,
        "choices": names.choices,
        "reads": names.reads,
        "host": None if run is None or run.host is None else json.loads(run.host),
        "config_toml": None if run is None else run.config,
        "created_at": None if run is None else run.created_at,
        "esper_version": None if run is None else run.esper_version,
        "sessions": sessions,
        "n_envs": None if settings is None else settings.envs,
        "n_epochs": None if settings is None else settings.budget.n_epochs,
        "kl_limit": kl_limit if math.isfinite(kl_limit) else None,
    }
