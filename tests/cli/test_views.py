"""Views show a run in a panel, as lines, as JSON or not at all."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from esper.cli import progress
from esper.cli.live import LiveView, RunPanel
from esper.cli.progress import ProgressState
from esper.cli.views import JsonView, LineView, LineWriter, QuietView, make_view
from esper.config.toml import load_preset, override
from esper.telemetry.records import Record
from esper.training.comparison import OTHERS
from esper.training.output import TrialProgress
from tests.cli.sample_records import (
    evaluation_record,
    governor_record,
    notice_record,
    round_record,
    run_record,
    step_record,
    update_record,
)

CONFIG = override(load_preset("quick"), {"rounds": 10, "n_steps": 16, "envs": 64})


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def picture(state: ProgressState, width: int, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, record=True, force_terminal=True)
    console.print(RunPanel(state))
    return console.export_text()


def state_after(*records: Record) -> ProgressState:
    state = ProgressState(CONFIG)
    for record in records:
        state.take(record)
    return state


FULL = (
    run_record(),
    step_record(0),
    round_record(1),
    update_record(1, stopped_early=True),
    round_record(2),
    update_record(2),
    governor_record(2),
    evaluation_record(2),
    evaluation_record(2, arm="wait", ep_rew_mean=0.111, fixed_reward=None),
    notice_record(2, "the run [bold]stops"),
)


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_fits_its_width(width: int) -> None:
    text = picture(state_after(*FULL), width)
    assert {len(line) for line in text.splitlines()} == {width}
    flat = " ".join(text.replace("│", " ").split())
    for piece in (
        "esper first-run, task digits-family",
        "round 3/10",
        "20%",
        "512 env-steps/s",
        "0.420 ▁█",
        "0.861 (held-out hosts without growth 0.842)",
        "1.87k host + 412 seeds",
        "return 0.583, fixed schedule 0.571",
        "KL 0.0123, entropy 4.56, 1 of 2 stopped early",
        "1 host rolled back, last: the loss",
        "round 2: the run [bold]stops",
    ):
        assert piece in flat, piece
    for piece in ("germinate 1.2", "advance 2.5", "fossilize 0.9", "wait 8.5", "finish 0.6"):
        assert piece in flat
    assert "set alpha" not in flat  # done once in a hundred episodes
    assert "0.111" not in flat  # another controller's
    assert len(text.splitlines()) <= (20 if width == 80 else 14)


def test_the_panel_has_no_sparkline_without_unicode() -> None:
    text = picture(state_after(*FULL), 80, encoding="ascii")
    assert text.isascii()
    assert "0.420" in text


def test_the_panel_shows_progress_within_a_round() -> None:
    assert "starting" in picture(state_after(), 80)
    state = state_after()
    state.take_step(0)
    state.take_step(8)
    assert "5%" in picture(state, 80)
    assert "round 1/10" in picture(state, 80)


def test_empty_rounds_and_rejected_updates_are_shown() -> None:
    nothing = dict.fromkeys(
        ["ep_rew_mean", "ep_len_mean", "score_mean", "static_score", "flops_mean"]
    )
    sizes = dict.fromkeys(["host_parameters_mean", "seed_parameters_mean"])
    ops = dict.fromkeys(name for name, _ in progress.OPS)
    empty = round_record(1, **nothing, **sizes, **ops)
    refused = update_record(
        1, approx_kl=None, entropy=None, explained_variance=None, was_refused=True, refusal="a NaN"
    )
    text = picture(state_after(empty, refused), 80)
    assert "round 1: update rejected, a NaN" in text
    assert "KL -, entropy -" in text
    lines: list[str] = []
    view = LineView(ProgressState(CONFIG), lines.append)
    view.write(empty)
    view.write(refused)
    assert "return -" in lines[-1]
    assert "update rejected: a NaN" in lines[-1]


def test_the_time_left_follows_from_the_speed_of_this_process() -> None:
    clock = Clock()
    state = ProgressState(CONFIG, clock)
    assert state.seconds_left is None
    clock.now += 50  # start-up does not count
    state.take_step(40)  # a resumed run starts in the middle
    clock.now += 6
    state.take_step(60)
    assert state.share == 60 / 160
    assert state.seconds_left == pytest.approx(100 * 6 / 20)
    assert state.steps_per_second == pytest.approx(20 * 64 / 6)
    assert state.seconds == 56


@pytest.mark.parametrize("update_first", [True, False])
def test_a_pipe_gets_one_line_per_round_with_its_update(update_first: bool) -> None:
    lines: list[str] = []
    view = LineView(ProgressState(CONFIG), lines.append)
    for number in (1, 2):
        pair = [round_record(number), update_record(number, approx_kl=number / 100)]
        for record in reversed(pair) if update_first else pair:
            view.write(record)
        view.write(governor_record(number))
    view.write(round_record(3, n_restored=2))
    view.write(evaluation_record(3))
    view.write(notice_record(3))
    view.write(evaluation_record(3, purpose="final", arm="wait", fixed_reward=None))
    view.close()
    view.close()
    assert len(lines) == 7
    assert all("\n" not in line for line in lines)
    assert lines[0] == "training on digits-family: 10 rounds, 64 hosts, 16 steps each"
    for number in (1, 2):
        assert lines[number].startswith(f"round {number}/10  512 env-steps/s")
        assert f"KL {number / 100:.4f}" in lines[number]
    assert "2 hosts rolled back" in lines[3]
    assert "evaluation after round 3, learned: return 0.583, fixed schedule 0.571, " in lines[4]
    assert lines[5] == "  round 3: checkpoint saved"
    assert lines[6].startswith("  comparison after round 3, wait: return 0.583, score")


def test_a_round_without_an_update_is_printed_on_close() -> None:
    lines: list[str] = []
    view = LineView(ProgressState(CONFIG), lines.append)
    view.write(round_record(1))
    assert len(lines) == 1
    view.close()
    assert lines[1].startswith("round 1/10")


def test_the_quiet_view_prints_only_messages(
    capfd: pytest.CaptureFixture[str],
) -> None:
    view = QuietView()
    for record in FULL:
        view.write(record)
    view.tell("SIGINT: saving")
    view.close()
    assert capfd.readouterr() == ("", "esper: SIGINT: saving\n")


def trial(share: float, arm: str = "wait", **changes: Any) -> TrialProgress:
    facts: dict[str, Any] = {"purpose": "tuning", "n_hosts": 64} | changes
    return TrialProgress(arm=arm, share=share, **facts)


def test_a_pipe_gets_a_line_at_least_every_ten_seconds() -> None:
    lines: list[str] = []
    clock = Clock()
    view = LineView(ProgressState(CONFIG, clock), lines.append, clock)
    view.watch_trial(trial(0.0))
    assert lines[1:] == ["  evaluating hosts without growth on 64 held-out hosts, 0%"]
    clock.now += 4
    view.watch_trial(trial(0.4))
    assert len(lines) == 2
    clock.now += 7
    view.watch_trial(trial(0.9))
    assert lines[2:] == ["  evaluating hosts without growth on 64 held-out hosts, 90%"]
    clock.now += 11
    view.watch_trial(trial(0.25, "lessons", purpose="lessons", n_hosts=1024))
    assert lines.pop() == "  lessons from 1,024 hosts grown by every schedule, 25%"
    clock.now += 9
    view.watch_step(4)
    assert len(lines) == 3
    clock.now += 2
    view.watch_step(5)
    view.watch_step(5)
    assert lines[3:] == ["  step 5 of 16 of the round"]
    view.watch_trial(trial(0.0, "learned", purpose="final"))
    assert len(lines) == 4  # a notice announces the comparison


def test_the_panel_shows_the_progress_of_the_comparison() -> None:
    clock = Clock()
    state = ProgressState(CONFIG, clock)
    for record in FULL:
        state.take(record)
    assert state.comparison_share is None
    final: dict[str, Any] = {"purpose": "final", "n_hosts": 256, "n_trials": 5}
    state.take_trial(trial(0.0, "learned", number=1, **final))
    assert state.comparison_share == 0.0
    clock.now += 30
    state.take(evaluation_record(10, purpose="final"))
    state.take_trial(trial(0.5, "wait", number=2, **final))
    assert state.comparison_share == 3 / 10
    assert state.seconds_left == pytest.approx(30 * 7 / 3)
    text = picture(state, 80)
    for piece in (
        "comparing",
        "30%",
        "1:10 left",
        "growth on 256 held-out hosts, 50%",
    ):
        assert piece in text
    for arm in OTHERS:
        state.take(evaluation_record(10, purpose="final", arm=arm))
    assert (state.comparison_share, state.seconds_left) == (1.0, 0.0)


def test_the_panel_shows_lessons_as_a_phase_of_their_own() -> None:
    clock = Clock()
    state = ProgressState(CONFIG, clock)
    state.take(evaluation_record(0, arm="fixed"))
    lessons: dict[str, Any] = {"purpose": "lessons", "n_hosts": 1024}
    state.take_trial(trial(0.0, "lessons", **lessons))
    assert (state.lessons_share, state.lessons_left) == (0.0, None)
    clock.now += 30
    state.take_trial(trial(0.25, "lessons", **lessons))
    text = picture(state, 80)
    for piece in ("lessons ", "25%", "1:30 to round 1", "from 1,024 hosts grown by every schedule"):
        assert piece in text
    for piece in ("evaluating", "round 1/10", "env-steps/s"):
        assert piece not in text
    state.take_step(1)
    assert state.lessons_share is None
    assert "round 1/10" in picture(state, 80)


def test_returns_relative_to_the_schedule_say_so() -> None:
    config = override(CONFIG, {"rewards.reward": "scheduled"})
    lines: list[str] = []
    state = ProgressState(config)
    view = LineView(state, lines.append)
    view.write(round_record(1))
    view.close()
    assert "return 0.410 relative to the fixed schedule  score" in lines[-1]
    assert "0.410 relative to the fixed schedule" in picture(state, 120)


def test_the_time_left_includes_the_comparison() -> None:
    clock = Clock()
    state = ProgressState(CONFIG, clock)
    state.take(evaluation_record(0, arm="wait", n_episodes=64, seconds=2.0))
    state.take(evaluation_record(0, arm="fixed", n_episodes=64, seconds=9.0))
    state.take_step(0)
    clock.now += 10
    state.take_step(80)
    n_final = (1 + len(OTHERS)) * CONFIG.evaluation.n_final_episodes
    assert state.seconds_left == pytest.approx(10 + 2.0 / 64 * n_final)


def test_the_live_view_shows_messages_in_its_panel() -> None:
    file = io.StringIO()
    view = LiveView(ProgressState(CONFIG), Console(file=file, width=80, force_terminal=True))
    view.watch_trial(trial(0.25))
    view.tell("SIGINT: saving")
    view.close()
    assert "SIGINT: saving" in file.getvalue()
    assert "hosts without growth on 64 held-out hosts, 25%" in file.getvalue()


def test_the_json_view_prints_valid_json_lines() -> None:
    lines: list[str] = []
    view = JsonView(lines.append)
    for record in FULL:
        view.write(record)
    view.close()
    view.close()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [event["event"] for event in events] == [
        *["round", "update", "round", "update", "governor", "evaluation", "evaluation"],
        "notice",
    ]
    assert events[0]["ep_rew_mean"] == pytest.approx(0.41)
    assert events[0]["seconds_by_part"] == {"hosts": 1.5}
    assert events[1]["entropy_by_head"] == {"op": None}


def test_the_view_depends_on_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with make_view(CONFIG, quiet=False, json=False) as view:
        view.write(round_record(1))
    assert capsys.readouterr().out.count("\n") == 2
    with make_view(CONFIG, quiet=True, json=False) as view:
        view.write(round_record(1))
    assert capsys.readouterr().out == ""
    with make_view(CONFIG, quiet=False, json=True) as view:
        view.write(round_record(1))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "round"


def test_the_line_writer_stops_after_a_broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def broken(line: str, *, flush: bool) -> None:
        calls.append(line)
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", broken)
    write = LineWriter()
    write("one")
    write("two")
    assert calls == ["one"]


def test_the_live_view_draws_at_once_and_closes_twice() -> None:
    file = io.StringIO()
    view = LiveView(ProgressState(CONFIG), Console(file=file, width=80, force_terminal=True))
    assert "round 1/10" in file.getvalue()
    for record in FULL:
        view.write(record)
    view.close()
    view.close()
    assert "round 3/10" in file.getvalue()


def test_times_counts_and_sparklines_are_formatted() -> None:
    assert [progress.clock_text(seconds) for seconds in (0, 59.6, 65, 7207)] == [
        "0:00",
        "1:00",
        "1:05",
        "2:00:07",
    ]
    assert [progress.count(value) for value in (None, 0, 987, 1234, 45_600_000)] == [
        *["-", "0", "987", "1.23k", "45.6M"]
    ]
    assert progress.bars([1, 2, 3], 2) == "▁█"
    assert progress.bars([5, 5, 5], 9) == "▁▁▁"
    assert progress.bars([5], 9) == ""
