"""The environments view agrees with the last steps in the raw records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard.views import environments, episode_list
from esper.errors import ConfigError
from esper.lifecycle.stages import Stage
from esper.telemetry import open_run
from esper.telemetry.records import EpisodeRecord, Record, SeedEventRecord, StepRecord
from tests.dashboard.made_runs import make_run
from tests.dashboard.views.samples import N_EPOCHS, OPS, SLOTS, run_record, stored
from tests.dashboard.views.simulation import Simulation, simulate
from tests.telemetry.hostile import run_sql


def brute_force(records: list[Record], which: str = "last") -> list[dict[str, Any]]:
    """Return each environment's last episode, by scanning all rows."""
    steps = [one for one in records if isinstance(one, StepRecord)]
    ended = {(one.env, one.episode): one for one in records if isinstance(one, EpisodeRecord)}
    kept = Counter(
        (one.env, one.episode)
        for one in records
        if isinstance(one, SeedEventRecord) and one.to_stage == "fossilized"
    )
    shown = [one for one in steps if which == "last" or (one.env, one.episode) in ended]
    found: list[dict[str, Any]] = []
    for env in sorted({one.env for one in shown}):
        episode = max(one.episode for one in shown if one.env == env)
        own = [one for one in steps if (one.env, one.episode) == (env, episode)]
        slots, result = json.loads(own[-1].slots), ended.get((env, episode))
        found.append(
            {
                "env": env,
                "episode": episode,
                "is_over": result is not None,
                "epoch": own[-1].epoch,
                "score": own[-1].score,
                "scores": [one.score for one in own],
                "stages": [Stage(slot[0]).name.lower() for slot in slots],
                "alphas": [slot[2] for slot in slots],
                "op": OPS[own[-1].op_done],
                "ep_rew": pytest.approx(sum(one.reward for one in own)),
                "seed_parameters": sum(slot[4] for slot in slots),
                "n_kept": (
                    sum(sum(slot[5:6]) + (slot[0] == Stage.FOSSILIZED) for slot in slots)
                    if result is None
                    else kept[env, episode]
                ),
                "final_score": None if result is None else result.final_score,
                "gain": None if result is None else gain_of(result),
                "n_episodes": (
                    sum(of == env for of, _ in ended) if which == "last" else episode + 1
                ),
            }
        )
    return found


def gain_of(result: EpisodeRecord) -> float | None:
    scores = result.final_score, result.no_growth_final_score
    return None if None in scores else result.final_score - result.no_growth_final_score


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


def test_finished_hosts_are_those_whose_episodes_have_ended(tmp_path: Path) -> None:
    records = simulate(n_rounds=5, seed=4, n_envs=4)
    with stored(tmp_path, records) as telemetry:
        finished = environments(telemetry, "finished")["envs"]
        last = environments(telemetry)["envs"]
    assert finished == brute_force(records, "finished")
    assert all(one["is_over"] for one in finished)
    assert not all(one["is_over"] for one in last)


def test_an_unknown_selection_of_hosts_is_rejected(tmp_path: Path) -> None:
    with stored(tmp_path, []) as telemetry, pytest.raises(ConfigError, match="which"):
        environments(telemetry, "first")  # type: ignore[arg-type]


def test_a_run_without_steps_shows_the_results_of_its_last_episodes(tmp_path: Path) -> None:
    records = simulate(n_rounds=3, seed=1, record_steps=False)
    last = {one.env: one for one in records if isinstance(one, EpisodeRecord)}
    with stored(tmp_path / "off", records) as telemetry:
        found = environments(telemetry)
    assert (found["has_steps"], found["slots"]) == (False, SLOTS)
    assert [one["env"] for one in found["envs"]] == sorted(last)
    for one in found["envs"]:
        result = last[one["env"]]
        assert (one["episode"], one["epoch"]) == (result.episode, result.n_epochs)
        assert (one["score"], one["ep_rew"]) == (result.final_score, pytest.approx(result.ep_rew))
        assert (one["stages"], one["scores"], one["op"]) == ([], [], None)
    with stored(tmp_path / "empty", []) as telemetry:
        found = environments(telemetry)
    assert found == {"slots": [], "n_epochs_max": None, "has_steps": False, "envs": []}


def test_a_nan_reward_makes_the_return_none(tmp_path: Path) -> None:
    (first, second, *_) = [one for one in simulate(2) if isinstance(one, StepRecord)]
    broken = [replace(first, reward=float("nan")), replace(second, env=first.env)]
    with stored(tmp_path, [run_record(), *broken]) as telemetry:
        (env,) = environments(telemetry)["envs"]
    assert env["ep_rew"] is None
    assert len(env["scores"]) == 2


def test_text_in_the_place_of_a_number_is_never_sql(tmp_path: Path) -> None:
    run_sql(
        make_run(tmp_path / "a run").telemetry_file,
        "UPDATE episodes SET env = '0) UNION SELECT 1, 2 FROM (SELECT 3'",
    )
    with open_run(tmp_path / "a run") as telemetry:
        assert episode_list(telemetry, order="best")["episodes"]
        assert environments(telemetry, "finished")["envs"]
