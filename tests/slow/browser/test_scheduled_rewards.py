"""Runs whose rewards are relative to the fixed schedule say so, and show lessons as a phase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.dashboard.made_runs import make_run
from tests.dashboard.report_samples import make_run as make_dense_run
from tests.dashboard.views.samples import config_text, write
from tests.dashboard.views.simulation import simulate
from tests.slow.browser.conftest import Visit
from tests.slow.browser.processes import Dashboard, dashboard

from esper.storage.run_folder import RunFolder
from esper.telemetry.records import EpisodeRecord, Record, RunRecord
from esper.training.output import ActivityFile, TrialProgress

pytestmark = pytest.mark.slow


def with_schedule(record: Record) -> Record:
    """Return a record of a run with scheduled rewards; episode 0 of each environment is older."""
    if isinstance(record, RunRecord):
        return replace(record, config=scheduled(record.config))
    if not isinstance(record, EpisodeRecord) or record.episode == 0:
        return record
    scores = [0.1 * epoch for epoch in range(record.n_epochs + 1)]
    return replace(
        record, final_score=0.75, schedule_scores=json.dumps(scores), schedule_final_score=0.5
    )


def scheduled(config: str) -> str:
    assert 'reward = "dense"' in config
    return config.replace('reward = "dense"', 'reward = "scheduled"')


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_dense_run(place / "dense")
    folder = place / "scheduled"
    folder.mkdir()
    (folder / "config.toml").write_text(scheduled(config_text()))
    write(folder, [with_schedule(one) for one in simulate(n_rounds=8, seed=0)])
    return place


@pytest.fixture(scope="module")
def served(browser: object, runs_dir: Path) -> Iterator[Dashboard]:
    with dashboard(runs_dir) as found:
        yield found


def test_returns_relative_to_different_things_have_charts_of_their_own(
    served: Dashboard, visit: Visit
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go("#/run/scheduled")
    for name, relative, label in (
        ("training-return", "relative to the fixed schedule", "training"),
        ("return", "relative to no growth", "held-out"),
    ):
        chart = visitor.find(f"chart-{name}")
        chart.locator("canvas").wait_for()
        assert relative in chart.locator("figcaption").inner_text()
        labels = chart.locator(".legend-item > span:first-of-type").all_inner_texts()
        assert labels == [label, "fixed schedule"]
    visitor.go("#/run/dense")
    visitor.find("chart-return").get_by_text("training").first.wait_for()
    assert visitor.find("chart-training-return").count() == 0


def test_compare_does_not_rank_returns_relative_to_different_things(
    served: Dashboard, visit: Visit
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go("#/compare?runs=dense,scheduled")
    verdict = visitor.find("compare-verdict")
    verdict.wait_for()
    assert "relative to different things" in verdict.inner_text()
    for name in ("return", "rollout"):
        visitor.find(f"chart-{name}").get_by_text("not comparable").wait_for()


def test_growth_shows_the_same_host_grown_by_the_schedule(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go("#/run/scheduled/growth/0/1")
    visitor.find("timeline").get_by_text("fixed schedule", exact=True).wait_for()
    outcome = visitor.page.locator(".outcome").last.inner_text()
    assert "relative to the fixed schedule" in outcome
    assert "grown by the fixed schedule 0.500, difference +0.250" in outcome
    assert visitor.find("missing-baseline").count() == 0
    visitor.go("#/run/scheduled/growth/0/0")
    visitor.find("missing-baseline").get_by_text("did not record it").wait_for()
    assert visitor.page.locator(".baseline").count() == 0


def test_lessons_are_a_phase_with_progress(visit: Visit, tmp_path: Path) -> None:
    folder: RunFolder = make_run(tmp_path / "taught", rounds=0, is_over=False)
    with folder.locked(), dashboard(tmp_path) as found:
        activity = ActivityFile(folder.activity_file)
        lessons = TrialProgress(arm="lessons", purpose="lessons", n_hosts=1024, share=0.25)
        activity.watch_trial(lessons)
        visitor = visit()
        visitor.open(found.link)
        visitor.find("run-row").get_by_text("lessons, 25%").wait_for()
        visitor.go("#/run/taught")
        panel = visitor.find("activity")
        panel.get_by_text("25%").wait_for()
        assert "Lessons before round 1" in panel.inner_text()
        assert "1,024 hosts" in panel.inner_text()
        activity.close()
        visitor.page.get_by_text("No rounds yet.").wait_for()
        visitor.page.close()
