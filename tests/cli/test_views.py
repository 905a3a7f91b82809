"""Views show a run as a table with a progress bar, as JSON or not at all."""

import json

import pytest

from esper.cli.views import JsonView, LineView, LineWriter, View, count, make_view
from esper.config.toml import load_preset, override
from esper.progress import ProgressBar
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
from tests.test_progress import Terminal, wait_until

CONFIG = override(load_preset("quick"), {"rounds": 10, "n_steps": 16, "envs": 64})


FULL = (
    run_record(),
    step_record(0),
    round_record(1),
    update_record(1, stopped_early=True),
    round_record(2),
    update_record(2),
    governor_record(2),
    evaluation_record(2),
    evaluation_record(2, arm="no-growth", ep_rew_mean=0.111, fixed_reward=None),
    notice_record(2, "the run [bold]stops"),
)


def line_view(lines: list[str], **changes: object) -> LineView:
    return LineView(override(CONFIG, changes), ProgressBar(False, title=""), lines.append)


@pytest.mark.parametrize("update_first", [True, False])
def test_each_round_is_a_row_with_its_update(update_first: bool) -> None:
    lines: list[str] = []
    view = line_view(lines)
    view.write(evaluation_record(0, arm="no-growth", fixed_reward=None, is_best=False))
    for number in (1, 2):
        pair = [round_record(number), update_record(number, approx_kl=number / 100)]
        for record in reversed(pair) if update_first else pair:
            view.write(record)
        view.write(governor_record(number))
    view.write(round_record(3, n_restored=2))
    view.write(evaluation_record(3))
    view.write(notice_record(3))
    view.watch_note("2 workers")
    view.close()
    view.close()
    assert lines == [
        "training on digits-family: 10 rounds, 64 hosts, 16 steps each",
        "round  return  score  FLOPs  added  seeds     KL  entropy    fps",
        "        0.583  0.872   0.69  no growth on 64 held-out hosts",
        "    1   0.410  0.861   0.71    412   1.25  0.010     4.56    512",
        "    2   0.420  0.861   0.71    412   1.25  0.020     4.56    512",
        "    3   0.430  0.861   0.71    412   1.25                    512",
        "  2 hosts rolled back",
        "        0.583  0.872   0.69  learned on 64 held-out hosts, best so far",
        "  round 3: checkpoint saved",
        "  2 workers",
    ]
    assert max(map(len, lines)) <= 80


def test_a_round_without_an_update_is_printed_on_close() -> None:
    lines: list[str] = []
    view = line_view(lines)
    view.write(round_record(1))
    assert len(lines) == 1
    view.close()
    assert lines[-1].startswith("    1   0.410")


def test_empty_rounds_and_rejected_updates_are_shown() -> None:
    lines: list[str] = []
    view = line_view(lines)
    names = ["ep_rew_mean", "score_mean", "flops_mean", "seed_parameters_mean", "op_germinate"]
    view.write(round_record(1, **dict.fromkeys([*names, "op_fossilize", "op_prune"])))
    view.write(update_record(1, approx_kl=None, entropy=None, was_refused=True, refusal="a NaN"))
    assert lines[-2].split() == ["1", "512"]
    assert lines[-1] == "  update rejected: a NaN"


def test_returns_relative_to_the_schedule_say_so() -> None:
    lines: list[str] = []
    line_view(lines, **{"rewards.reward": "scheduled"})
    assert "relative to the fixed schedule" in lines[0]


def test_a_terminal_also_shows_a_bar() -> None:
    lines: list[str] = []
    stream = Terminal()
    bar = ProgressBar(True, title="training", delay=0.0, stream=stream)
    view = LineView(CONFIG, bar, lines.append, "first-run")
    assert lines[0].startswith("resuming first-run, training on digits-family")
    lessons = TrialProgress(arm="lessons", purpose="lessons", n_hosts=1024, share=0.25)
    view.watch_trial(lessons)
    wait_until(lambda: "lessons before round 1, from 1,024 hosts" in stream.getvalue())
    view.write(round_record(1))
    view.watch_step(24)
    wait_until(lambda: "training, round 2 of 10, return 0.410" in stream.getvalue())
    assert "15%" in stream.getvalue()
    view.watch_trial(TrialProgress(arm="no-growth", purpose="tuning", n_hosts=64, share=0.9))
    wait_until(lambda: "evaluating, round 2 of 10, no growth on" in stream.getvalue())
    view.watch_trial(
        TrialProgress(arm="fixed", purpose="final", n_hosts=8, share=0.5, number=2, n_trials=5)
    )
    wait_until(lambda: "comparing controllers, fixed on 8" in stream.getvalue())
    assert "30%" in stream.getvalue()
    view.close()


def test_the_quiet_view_prints_only_messages(
    capfd: pytest.CaptureFixture[str],
) -> None:
    view = View()
    for record in FULL:
        view.write(record)
    view.tell("SIGINT: saving")
    view.close()
    assert capfd.readouterr() == ("", "esper: SIGINT: saving\n")


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
    assert capsys.readouterr().out.count("\n") == 3
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


def test_counts_are_short() -> None:
    assert [count(value) for value in (0, 987, 1234, 45_600_000)] == ["0", "987", "1.23k", "45.6M"]
