"""A run's folder says what the run is doing while it makes no records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esper.dashboard.views import read_activity
from esper.training.output import ActivityFile, TrialProgress
from tests.telemetry.samples import notice
from tests.training.stopped_run import make_trainer
from tests.training.tiny import tiny_config


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def trial(share: float, **changes: Any) -> TrialProgress:
    facts: dict[str, Any] = {"arm": "lessons", "purpose": "lessons", "n_hosts": 64}
    return TrialProgress(share=share, **(facts | changes))


def test_the_progress_of_lessons_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "activity.json", Clock()
    activity = ActivityFile(path, clock)
    shares: list[float | None] = []
    for share in (0.0, 0.1, 0.2):
        activity.watch_trial(trial(share))
        found = read_activity(tmp_path)
        shares.append(None if found is None else found["share"])
        clock.now += 0.6
    assert shares == [0.0, 0.0, 0.2]
    activity.watch_trial(trial(0.5, arm="fixed", purpose="tuning"))
    assert read_activity(tmp_path) == {
        "arm": "fixed",
        "purpose": "tuning",
        "n_hosts": 64,
        "share": 0.5,
        "number": 1,
        "n_trials": 1,
    }


def test_the_file_goes_with_the_next_record_step_or_end(tmp_path: Path) -> None:
    path = tmp_path / "activity.json"
    path.write_text("left by a killed process")
    activity = ActivityFile(path)
    ends = (lambda: activity.write(notice(1)), lambda: activity.watch_step(1), activity.close)
    for end in ends:
        assert not path.exists()
        activity.watch_trial(trial(0.5))
        assert path.exists()
        end()
    assert not path.exists()


def test_a_folder_that_cannot_be_written_does_not_stop_a_run(tmp_path: Path) -> None:
    activity = ActivityFile(tmp_path / "missing" / "activity.json")
    activity.watch_trial(trial(0.5))
    activity.close()


def test_the_evaluations_before_the_first_round_are_seen(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    class Watched(ActivityFile):
        def watch_trial(self, trial: TrialProgress) -> None:
            super().watch_trial(trial)
            found = read_activity(tmp_path)
            assert found is not None
            seen.append((found["purpose"], found["arm"]))

    activity = Watched(tmp_path / "activity.json")
    trainer, _, _ = make_trainer(tiny_config(rounds=1), activity)
    trainer.run()
    assert [("tuning", arm) for arm in ("no-growth", "fixed", "learned")] == list(
        dict.fromkeys(seen)
    )
    assert read_activity(tmp_path) is None
