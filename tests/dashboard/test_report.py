"""A report has the views of its runs, their evaluations, and episodes of late training."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from esper.dashboard import views
from esper.dashboard.report import collect_data
from esper.errors import ReportError
from esper.telemetry import open_run
from esper.training.run import load_run
from tests.dashboard.report_samples import make_run


def test_the_typical_and_the_best_episode_are_from_the_last_sixth_of_the_rounds(
    tmp_path: Path,
) -> None:
    folder = make_run(tmp_path / "run", n_rounds=60, seed=4)
    with open_run(folder) as telemetry:
        typical, best = views.shown_episodes(telemetry)
        everything = views.episode_list(telemetry, order="recent", limit=9999)["episodes"]
    late = [one for one in everything if one["round"] > 50]
    returns = {(one["env"], one["episode"]): one["ep_rew"] or 0.0 for one in late}
    middle = median(returns.values())
    assert typical["title"].startswith("Typical episode since round 51: environment ")
    assert best["title"].startswith("Best episode since round 51: environment ")
    chosen = (typical["detail"]["env"], typical["detail"]["episode"])
    assert abs(returns[chosen] - middle) == min(abs(one - middle) for one in returns.values())
    assert best["detail"]["result"] is not None
    assert best["detail"]["result"]["ep_rew"] == max(returns.values())
    # The test is only meaningful if an earlier episode was better.
    assert max(one["ep_rew"] or 0.0 for one in everything) > max(returns.values())


def test_runs_of_any_length_give_valid_json(tmp_path: Path) -> None:
    runs = {str(n): make_run(tmp_path / str(n), n_rounds=n) for n in (0, 1, 7)}
    runs["bare"] = make_run(tmp_path / "bare", record_steps=False)
    data = collect_data({name: load_run(path) for name, path in runs.items()})
    json.dumps(data, allow_nan=False)
    assert [one["run"]["name"] for one in data["runs"]] == list(runs)
    for one in data["runs"]:
        assert bool(one["episodes"]) == any(part["n_episodes"] for part in one["learned"]["parts"])


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "telemetry.sqlite").unlink()
    with pytest.raises(ReportError, match="records"):
        collect_data({"run": load_run(folder)})
