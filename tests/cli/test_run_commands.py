"""Runs can be listed, shown, exported and resumed; errors are reported in one line."""

import csv
import json
import os
import shlex
import shutil
import sqlite3
import sys
import warnings
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.cli.main import main
from esper.results.files import write_summary
from esper.storage.checkpoint_folder import CheckpointWarning
from esper.storage.run_folder import RunFolder
from esper.telemetry import TelemetryWarning, open_run
from esper.telemetry.records import StepRecord
from esper.training.runs import _notes  # pyright: ignore[reportPrivateUsage]
from esper.training.state import Progress
from tests.cli.conftest import TINY


def refused(words: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 2) -> str:
    """Return the one-line error message of a command."""
    assert main(words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("esper: error: ")
    return line


def test_a_run_ends_with_a_comparison_and_working_next_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "it's my run"
    assert main(["train", *TINY, "--run-dir", str(folder)]) == 0
    told = capsys.readouterr()
    assert "esper: " not in told.err
    lines = told.out.splitlines()
    assert lines[0] == "training on spirals: 2 rounds, 4 hosts, 6 steps each"
    assert lines[1].startswith("round  return  score")
    assert lines[2].endswith("no growth on 2 held-out hosts")
    summary = json.loads((folder / "summary.json").read_text())["verdicts"][0]
    names = [arm["label"] if arm["name"] == "no-growth" else arm["name"] for arm in summary["arms"]]
    start = next(number for number, line in enumerate(lines) if "minus each:" in line)
    for name in names:
        rows = [line for line in lines[start + 1 :] if line.startswith(f"{name}  ")]
        assert len(rows) == (name != "learned")
    assert summary["sentences"][0] in " ".join(told.out.split())
    commands = [shlex.split(line) for line in lines if line.startswith("  esper ")]
    offered = ["dashboard", "show", "grow"]
    assert [words[1] for words in commands] == offered
    assert "has seen only spirals" in " ".join(told.out.split())
    assert main(["show", *commands[1][2:4]]) == 0
    lines = (told := capsys.readouterr().out).splitlines()
    printed = " ".join(told.split())
    for arm in summary["arms"]:
        rows = [line for line in lines if line.startswith(f"{arm['name']}  ")]
        assert f"  {arm['returns']['mean']:.3f}  " in rows[-1]
    lines = [one["sentence"] for one in summary["findings"]]
    assert all(f"- {sentence}" in printed for sentence in (*lines, *summary["notes"]))
    assert all(sentence in printed for sentence in summary["sentences"])


def test_quiet_prints_one_line_and_json_one_object_per_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TINY, "--json", "--run-dir", "a run"]) == 0
    told = capsys.readouterr()
    events = [json.loads(line) for line in told.out.splitlines()]
    assert told.err == ""
    assert [event["event"] for event in events].count("round") == 2
    assert [event["event"] for event in events].count("end") == 1
    end = events[-1]
    assert (end["event"], end["state"], end["run"]) == ("end", "done", "a run")
    stored = json.loads((tmp_path / "a run/summary.json").read_text())
    assert [end["summary"]] == stored["verdicts"]
    assert main(["resume", "a run", "--quiet"]) == 0
    told = capsys.readouterr()
    (line,) = told.out.splitlines()
    assert line == f"a run: {end['summary']['sentences'][0]}"
    assert told.err == "esper: a run is done; nothing to resume\n"


def test_the_folder_of_a_study_is_told_from_a_run(
    finished_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(finished_run, tmp_path / "all/my study/base-s0")
    monkeypatch.setenv("ESPER_RUNS", "all")
    offered = "esper runs 'all/my study'"
    for name in ("all/my study", "my study"):
        line = refused(["show", name], capsys)
        assert "there is no run" not in line
        assert offered in line
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  {offered}"
    assert main(["runs", "all/my study"]) == 0
    told = capsys.readouterr().out
    assert "all/my study/base-s0" in told
    assert "esper runs" not in told
    assert main(["show", "my study/base-s0"]) == 0


@pytest.mark.parametrize("best_round", [0, 1])
def test_a_controller_that_ppo_did_not_improve_is_named(
    best_round: int, copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = esper.load_run(copied_run)
    assert found.summary is not None
    progress = Progress(best_round=best_round, fixed_return=0.5)
    write_summary(found.folder.summary_file, replace(found.summary, notes=_notes(progress)))
    for words in (["resume", str(copied_run)], ["show", str(copied_run), "--verbose"]):
        assert main(words) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert told.count("round 0: as taught, before any round of PPO") == (best_round == 0)


def test_runs_are_listed_with_their_states(
    finished_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in runs; start one with esper train\n"
    assert "'nowhere'" in refused(["runs", "nowhere"], capsys)
    monkeypatch.setenv("ESPER_RUNS", str(finished_run.parent))
    assert main(["runs"]) == 0
    table, _, about = capsys.readouterr().out.partition("\n\n")
    _, row = table.splitlines()
    assert "those of the final comparison" in " ".join(about.split())
    assert row.split("  ")[0] == str(finished_run)
    assert "done" in row
    assert "2 of 2" in row
    assert main(["runs", str(finished_run.parent), "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    summary = esper.load_run(finished_run.name).summary
    assert summary is not None
    plain = summary.arm("no-growth")
    assert facts["score"] == pytest.approx(summary.own.score.mean())
    assert facts["return"] == pytest.approx(summary.own.returns.mean())
    assert facts["no_growth_score"] == pytest.approx(plain.score.mean())
    assert "  score, no growth" in table.splitlines()[0]
    values = (facts["return"], facts["score"], plain.score.mean())
    assert row.split()[-3:] == [f"{value:.3f}" for value in values]
    assert (facts["state"], facts["rounds_done"]) == ("done", 2)


def test_a_run_is_shown_within_eighty_columns(
    finished_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["show", str(finished_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": done, spirals, round 2 of 2, seed 0")
    assert max(map(len, lines[1:])) <= 80
    heading = next(line for line in lines if line.startswith("round"))
    assert heading.split() == [
        *["round", "return", "score", "FLOPs", "added", "seeds"],
        *["KL", "entropy", "fps"],
    ]
    metrics = esper.load_run(finished_run).metrics()
    row = lines[lines.index(heading) + 2].split()
    assert row[:2] == ["2", f"{metrics['rollout/ep_rew_mean'].values[-1]:.3f}"]
    assert row[-2] == f"{-metrics['train/entropy_loss'].values[-1]:.2f}"


def test_a_run_is_shown_as_json_and_as_a_figure(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(finished_run), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["sessions"][0]["outcome"] == "done"
    assert facts["summary"]["n_hosts"] == 4
    pytest.importorskip("matplotlib")
    assert main(["show", str(finished_run), "--plot", "figure.png"]) == 0
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "png" in refused(["show", str(finished_run), "--plot", "figure.xyz"], capsys)
    words = ["show", str(finished_run), "--plot", "nowhere/figure.png"]
    assert "nowhere/figure.png" in refused(words, capsys, code=1)


def test_missing_matplotlib_is_reported_with_its_install_command(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = refused(["show", str(finished_run), "--plot", "figure.png"], capsys)
    assert 'pip install "esper-lite[plot]"' in told


def test_telemetry_is_exported_row_by_row(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export-telemetry", str(finished_run), "--out", "tables"]) == 0
    assert "tables/steps.csv" in capsys.readouterr().out.splitlines()
    with (tmp_path / "tables/steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with open_run(finished_run) as telemetry:
        steps = telemetry.rows(StepRecord)
    assert [float(row["reward"]) for row in rows] == [step.reward for step in steps]


def test_the_documented_query_counts_each_op_of_a_round_once(
    finished_run: Path,
) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/telemetry.md").read_text()
    section = page.partition("Steps of each op by round")[2]
    query = section.partition("```sql")[2].partition("```")[0]
    with closing(sqlite3.connect(finished_run / "telemetry.sqlite")) as database:
        found = [(number, op, n) for number, op, n in database.execute(query)]
    with open_run(finished_run) as telemetry:
        names = json.loads(telemetry.run.ops)
        counted = Counter((row.round, names[row.op_done]) for row in telemetry.rows(StepRecord))
    assert {(number, op): n for number, op, n in found} == counted
    assert len(found) == len(counted)


def test_missing_runs_and_used_folders_are_rejected(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["show", "x"], ["resume", "x"], ["export-telemetry", "x"]):
        assert "'x'" in refused(words, capsys)
    told = refused(["train", *TINY, "--run-dir", str(finished_run)], capsys)
    assert f"esper resume {shlex.quote(str(finished_run))}" in told


def test_an_unknown_task_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Did you mean 'digits'?" in refused(["train", "--task", "digts"], capsys)
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_created_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    told = refused(["train", *TINY, "--run-dir", "file/run"], capsys, code=1)
    assert "file/run" in told
    assert "Not a directory" in told


def test_a_running_run_cannot_be_resumed(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "summary.json").unlink()
    with RunFolder(copied_run).locked():
        assert main(["runs", str(copied_run.parent)]) == 0
        assert "  running  " in capsys.readouterr().out
        assert f"{os.getpid()}" in refused(["resume", str(copied_run)], capsys)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.toml", "task = ["),
        ("summary.json", "{"),
    ],
)
def test_a_damaged_file_is_named(
    file: str, content: str, copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / file).write_text(content)
    assert file in refused(["show", str(copied_run)], capsys)
    assert file in refused(["resume", str(copied_run)], capsys)
    assert main(["runs", str(copied_run.parent)]) == 0


def test_a_finished_run_with_other_settings_is_not_called_done(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied_run / "config.toml"
    path.write_text(path.read_text().replace("\nseed = 0", "\nseed = 7"))
    line = refused(["resume", str(copied_run)], capsys)
    assert "seed is 7 in config.toml but was 0" in line
    with pytest.raises(esper.errors.CheckpointError, match="seed is 7"):
        esper.resume(copied_run)


@pytest.mark.parametrize("name", ["config.toml", "checkpoints", "telemetry.sqlite", "lock"])
def test_a_finished_run_with_a_link_in_place_of_a_file_is_refused(
    name: str, copied_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / name).rename(tmp_path / "elsewhere")
    (copied_run / name).symlink_to(tmp_path / "elsewhere")
    line = refused(["resume", str(copied_run)], capsys)
    assert f"{copied_run / name} is a link" in line
    with pytest.raises(esper.errors.RunError, match=name):
        esper.resume(copied_run)


def test_a_finished_run_needs_no_checkpoints(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copied_run / "checkpoints")
    assert main(["resume", str(copied_run), "--quiet"]) == 0
    assert "nothing to resume" in capsys.readouterr().err


def test_damaged_telemetry_is_named_and_the_rest_shown(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for leftover in copied_run.glob("telemetry.*"):
        leftover.unlink()
    (copied_run / "telemetry.sqlite").write_bytes(b"no database" * 99)
    assert main(["show", str(copied_run)]) == 2
    told = capsys.readouterr()
    assert "unreadable, spirals, round ? of 2" in told.out
    assert "Return on 4 held-out hosts" in told.out
    (line,) = told.err.splitlines()
    assert "telemetry.sqlite" in line
    assert "file is not a database" in line
    assert main(["show", str(copied_run), "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["problem"] in told.err
    assert main(["runs", str(copied_run.parent)]) == 0
    assert "file is not a database" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("default", TelemetryWarning)
        assert main(["resume", str(copied_run), "--quiet"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "telemetry-damaged-1.sqlite" in line
    assert main(["show", str(copied_run)]) == 0
    assert "telemetry-damaged-1.sqlite" in capsys.readouterr().out


@pytest.mark.parametrize("is_json", [False, True])
def test_damaged_sessions_are_named_and_the_rest_shown(
    is_json: bool, copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(copied_run / "telemetry.sqlite")) as connection:
        connection.execute("UPDATE sessions SET threads = 'many'")
        connection.commit()
    assert main(["show", str(copied_run), *["--json"] * is_json]) == 2
    told = capsys.readouterr()
    assert "unreadable" in told.out
    (line,) = told.err.splitlines()
    assert "sessions.threads is 'many'" in line


@pytest.mark.parametrize("name", ["telemetry.sqlite-wal", "telemetry.sqlite-journal"])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "words", [["show"], ["report"], ["export-telemetry"]], ids=lambda words: words[0]
)
def test_a_link_in_the_place_of_a_log_is_named(
    words: list[str],
    exists: bool,
    name: str,
    copied_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if exists:
        (tmp_path / "elsewhere").write_text("mine")
    (copied_run / name).unlink(missing_ok=True)
    (copied_run / name).symlink_to(tmp_path / "elsewhere")
    assert f"{copied_run / name} is a link" in refused([*words, str(copied_run)], capsys)
    assert (tmp_path / "elsewhere").exists() == exists


def test_resuming_repeats_a_missing_comparison(
    finished_run: Path, copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "summary.json").unlink()
    assert main(["show", str(copied_run)]) == 0
    assert f"Resume with: esper resume {shlex.quote(str(copied_run))}" in capsys.readouterr().out
    assert main(["resume", str(copied_run)]) == 0
    assert capsys.readouterr().out.startswith("resuming copied run, training on spirals")
    summaries = [(path / "summary.json").read_bytes() for path in (copied_run, finished_run)]
    assert summaries[0] == summaries[1]


def test_a_warning_is_one_line_without_source_code(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "summary.json").unlink()
    newest = max((copied_run / "checkpoints").glob("step-*"))
    (newest / "state.json").write_text("{}")
    with warnings.catch_warnings():
        warnings.simplefilter("default", CheckpointWarning)
        assert main(["resume", str(copied_run), "--quiet"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"esper: warning: checkpoint {newest} is damaged: state.json")


def test_a_failed_run_prints_an_end_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise esper.errors.StorageError("the disk is full")

    monkeypatch.setattr("esper.training.runs.train", fail)
    assert main(["train", *TINY, "--json"]) == 1
    told = capsys.readouterr()
    end = json.loads(told.out)
    assert (end["state"], end["message"]) == ("failed", "the disk is full")
    assert told.err == "esper: error: the disk is full\n"


def test_unusual_folder_names_work(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("-x", "a 'b' \"c\" $d", "ünï [bold]", "%s{x}"):
        shutil.copytree(finished_run, tmp_path / name)
    assert main(["runs", "."]) == 0
    rows = capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) == 4
    for row in rows:
        path = row.partition("  ")[0]
        words = shlex.split(f"esper show {esper.storage.run_folder.shell_word(path)}")
        assert main(words[1:]) == 0


@pytest.mark.parametrize("name", ["tables", "evaluation", "evaluation/cache"])
def test_a_link_in_a_run_leads_no_results_elsewhere(
    name: str, copied_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (copied_run / name).parent.mkdir(exist_ok=True)
    (copied_run / name).symlink_to(tmp_path / "elsewhere")
    words = ["evaluate"] if name.startswith("evaluation") else ["export-telemetry"]
    assert f"{copied_run / name} is a link" in refused([*words, str(copied_run)], capsys)
    assert list((tmp_path / "elsewhere").iterdir()) == []
