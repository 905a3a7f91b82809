"""The values of a report are JSON, and its episodes are from late training."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from esper.evidence.claims import verdict_sentences
from esper.reports import views
from esper.reports.run_report.values import evaluation_values
from esper.telemetry import open_run
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.reports.run_report.samples import make_run, report_of, values_of


def test_the_typical_and_the_best_episode_are_from_the_last_sixth_of_the_rounds(
    tmp_path: Path,
) -> None:
    folder = make_run(tmp_path / "run", n_rounds=60, seed=4)
    run = values_of(folder)
    with open_run(folder) as telemetry:
        everything = views.episode_list(telemetry, order="recent", limit=9999)["episodes"]
    late = [one for one in everything if one["round"] > 50]
    returns = {(one["env"], one["episode"]): one["ep_rew"] or 0.0 for one in late}
    middle = median(returns.values())
    typical, best = run["episodes"]
    assert (typical["since"], best["since"]) == (51, 51)
    chosen = (typical["detail"]["env"], typical["detail"]["episode"])
    assert abs(returns[chosen] - middle) == min(abs(one - middle) for one in returns.values())
    assert best["detail"]["result"] is not None
    assert best["detail"]["result"]["ep_rew"] == max(returns.values())
    # The test is only meaningful if an earlier episode was better.
    assert max(one["ep_rew"] or 0.0 for one in everything) > max(returns.values())


def test_runs_of_any_length_give_valid_json(tmp_path: Path) -> None:
    for n_rounds in (0, 1, 7):
        run = values_of(make_run(tmp_path / str(n_rounds), n_rounds=n_rounds))
        json.dumps(report_of(run), allow_nan=False)
        assert bool(run["episodes"]) == any(part["n_episodes"] for part in run["learned"]["parts"])


def test_the_verdict_of_an_evaluation_is_computed_from_its_measurements() -> None:
    evidence = make_evidence(
        make_arm("learned", make_hosts(2, 30, gain=0.1), kind="learned", grown_share=0.5),
        make_arm("heuristic", make_hosts(1, 30, seed=1), kind="tuned"),
    )
    found = evaluation_values(evidence, "a file")
    assert (found["source"], found["runs"], found["n_hosts"]) == ("a file", ["run0", "run1"], 30)
    assert found["verdict"]["sentences"] == list(verdict_sentences(evidence))
