"""The environments view agrees with the last steps in the raw records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.lifecycle.stages import Stage
from esper.reports.views import environments
from esper.telemetry import open_run
from esper.telemetry.records import EpisodeRecord, Record, StepRecord
from tests.reports.views.samples import N_EPOCHS, OPS, SLOTS, age, run_record, stored, write
from tests.reports.views.simulation import Simulation, simulate


def brute_force(records: list[Record]) -> list[dict[str, Any]]:
    """Return each environment's last episode, by scanning all rows."""
    steps = [one for one in records if isinstance(one, StepRecord)]
    ended = {(one.env, one.episode) for one in records if isinstance(one, EpisodeRecord)}
    found: list[dict[str, Any]] = []
    for env in sorted({one.env for one in steps}):
        episode = max(one.episode for one in steps if one.env == env)
        own = [one for one in steps if (one.env, one.episode) == (env, episode)]
        slots = json.loads(own[-1].slots)
        found.append(
            {
                "env": env,
                "episode": episode,
                "is_over": (env, episode) in ended,
                "epoch": own[-1].epoch,
                "score": own[-1].score,
                "scores": [one.score for one in own],
                "stages": [Stage(slot[0]).name.lower() for slot in slots],
                "alphas": [slot[2] for slot in slots],
                "op": OPS[own[-1].op_done],
                "ep_rew": pytest.approx(sum(one.reward for one in own)),
                "seed_parameters": sum(slot[4] for slot in slots),
                "n_episodes": sum(of == env for of, _ in ended),
            }
        )
    return found


def test_environments_show_their_last_step_wherever_the_records_end(tmp_path: Path) -> None:
    simulation, is_over = Simulation(seed=4, n_envs=4), set[bool]()
    records = simulation.first()
    for number in range(1, 6):
        records += simulation.round(number)
    # The last step is written in part, in some environments and not yet in others.
    for k, end in enumerate((len(records), 150, 149, 148, 147, 146, 90, 20, 5, 4)):
        with stored(tmp_path / str(k), records[:end]) as telemetry:
            found = environments(telemetry)
        json.dumps(found, allow_nan=False)
        assert found["envs"] == brute_force(records[:end])
        assert (found["slots"], found["n_epochs_max"]) == (SLOTS, N_EPOCHS)
        is_over |= {one["is_over"] for one in found["envs"]}
    assert is_over == {True, False}


def test_a_run_without_steps_has_no_environments(tmp_path: Path) -> None:
    records = simulate(n_rounds=3, seed=1, record_steps=False)
    with stored(tmp_path / "off", records) as telemetry:
        found = environments(telemetry)
    assert (found["has_steps"], found["envs"], found["slots"]) == (False, [], SLOTS)
    with stored(tmp_path / "empty", []) as telemetry:
        found = environments(telemetry)
    assert found == {"slots": [], "n_epochs_max": None, "has_steps": False, "envs": []}


def test_earlier_versions_have_no_seed_parameters(tmp_path: Path) -> None:
    records = simulate(n_rounds=3, seed=1)
    age(write(tmp_path, records), 2)
    with open_run(tmp_path) as telemetry:
        envs = environments(telemetry)["envs"]
    expected = [one | {"seed_parameters": None} for one in brute_force(records)]
    assert envs == expected


def test_a_nan_reward_makes_the_return_none(tmp_path: Path) -> None:
    (first, second, *_) = [one for one in simulate(2) if isinstance(one, StepRecord)]
    broken = [replace(first, reward=float("nan")), replace(second, env=first.env)]
    with stored(tmp_path, [run_record(), *broken]) as telemetry:
        (env,) = environments(telemetry)["envs"]
    assert env["ep_rew"] is None
    assert len(env["scores"]) == 2
