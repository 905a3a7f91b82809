"""``esper report`` writes the page of one or more runs and never overwrites other files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.dashboard import views
from esper.results.files import evidence_text, read_evidence_file
from esper.results.sentences import verdict_sentences
from esper.storage.run_folder import RunFolder
from esper.telemetry import open_run
from tests.cli.test_run_commands import refused
from tests.dashboard.report_samples import data_of
from tests.evidence.examples import make_arm, make_evidence, make_hosts


def evaluation_of(*runs: str) -> str:
    """Return the file of a small evaluation of runs."""
    arms = (
        make_arm("learned", make_hosts(len(runs), 30, gain=0.05), kind="learned", grown_share=0.9),
        make_arm("heuristic", make_hosts(1, 30, seed=1), kind="tuned"),
    )
    return evidence_text([make_evidence(*arms, runs=runs)])


def test_the_page_is_written_to_the_run_folder_and_replaces_itself(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["report", str(copied_run)]) == 0
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == (f"{copied_run / 'report.html'}\n", "")
        (run,) = data_of(copied_run / "report.html")["runs"]
        assert run["run"]["name"] == "copied run"
    (verdict,) = json.loads((copied_run / "summary.json").read_text())["verdicts"]
    assert run["run"]["comparison"]["sentences"] == verdict["sentences"]


def test_several_runs_share_a_page_in_the_working_folder(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(finished_run, tmp_path / "other run")
    assert main(["report", str(finished_run), str(other)]) == 0
    assert capsys.readouterr().out == "report.html\n"
    found = data_of(tmp_path / "report.html")["runs"]
    assert [one["run"]["name"] for one in found] == ["first run", "other run"]


def test_the_page_contains_the_views_of_the_run(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(finished_run), "--out", "r.html"]) == 0
    capsys.readouterr()
    found = data_of(Path("r.html"))
    (run,) = found["runs"]
    with open_run(finished_run) as telemetry:
        overview = views.overview(telemetry)
        expected = {
            "metrics": views.metric_series(telemetry, after=-1, without=views.WITHOUT_CHART),
            "learned": views.learned(telemetry),
            "health": views.health(telemetry),
            "episodes": views.shown_episodes(telemetry),
        }
    assert {name: run[name] for name in expected} == json.loads(json.dumps(expected))
    assert run["run"]["overview"] == json.loads(json.dumps(overview))
    assert run["run"]["comparison"] == json.loads(json.dumps(views.comparison_view(finished_run)))
    assert (run["run"]["name"], run["run"]["state"]) == ("first run", "done")
    assert found["evaluations"] == []


def test_other_files_are_never_overwritten(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(finished_run), "--out", "notes"]
    (tmp_path / "notes").write_text("my notes\n")
    assert "notes exists and is not a report" in refused(words, capsys)
    assert (tmp_path / "notes").read_text() == "my notes\n"
    (tmp_path / "notes").unlink()
    assert main(words) == main(words) == 0
    capsys.readouterr()
    (tmp_path / "folder").mkdir()
    assert "folder is a folder" in refused([*words[:-1], "folder"], capsys)
    message = refused([*words[:-1], "nowhere/report"], capsys, code=1)
    assert "nowhere/report: No such file or directory" in message
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "folder"}


def test_usage_errors_are_reported_in_one_line(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished_run)
    assert "RUN is missing" in refused(["report"], capsys)
    assert "'x'" in refused(["report", "x"], capsys)
    assert "is given twice" in refused(["report", run, run], capsys)
    printed = refused(["report", run, "--evaluation", "x.json"], capsys)
    assert "x.json: No such file or directory" in printed
    (tmp_path / "bad.json").write_text("{}")
    printed = refused(["report", run, "--evaluation", "bad.json"], capsys)
    assert "bad.json" in printed
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(finished_run / "config.toml", empty)
    assert "empty has no records" in refused(["report", "empty"], capsys)


def test_evaluations_are_found_in_or_next_to_the_runs_or_by_path(
    copied_run: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "evaluation").mkdir()
    alone = evaluation_of("copied run")
    (copied_run / "evaluation/evaluation.json").write_text(alone)
    assert main(["report", str(copied_run)]) == 0
    (run,) = data_of(copied_run / "report.html")["runs"]
    (found,) = run["run"]["comparison"]["evaluations"]
    assert found["file"].endswith("copied run/evaluation/evaluation.json")
    assert found["sentences"] == list(verdict_sentences(read_evidence_file(Path(found["file"]))[0]))
    other = shutil.copytree(finished_run, tmp_path / "other run")
    both = evaluation_of("copied run", "other run")
    (tmp_path / "evaluation.json").write_text(both)
    (tmp_path / "of others").mkdir()
    of_others = evaluation_of("copied run", "a third run")
    (tmp_path / "of others/evaluation.json").write_text(of_others)
    for words in ([], ["--evaluation", "."], ["--evaluation", "evaluation.json"]):
        assert main(["report", str(copied_run), str(other), "--out", "r.html", *words]) == 0
        capsys.readouterr()
        found = data_of(Path("r.html"))["evaluations"]
        assert [one["runs"] for one in found] == [["copied run", "other run"]]


@pytest.mark.parametrize("name", ["summary.json", "evaluation.json", "evaluation/evaluation.json"])
def test_a_damaged_file_is_named_and_the_rest_reported(
    name: str, copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / name).parent.mkdir(exist_ok=True)
    (copied_run / name).write_text("{")
    assert main(["report", str(copied_run), "--out", "written"]) == 2
    told = capsys.readouterr()
    assert told.out == "written\n"
    (line,) = told.err.splitlines()
    assert line.count(str(copied_run / name)) == 1
    (run,) = data_of(Path("written"))["runs"]
    (problem,) = run["run"]["comparison"]["problems"]
    assert problem.startswith(name)
    with pytest.warns(esper.errors.EsperWarning, match=name):
        assert esper.report(copied_run, out="again") == Path("again")


def test_running_and_interrupted_runs_are_reported_as_such(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "summary.json").unlink()
    with RunFolder(copied_run).locked():
        assert main(["report", str(copied_run)]) == 0
    assert data_of(copied_run / "report.html")["runs"][0]["run"]["state"] == "running"
    with esper.telemetry.TelemetryWriter(copied_run / "telemetry.sqlite") as writer:
        writer.start_session(first_round=3, threads=1, torch_version="2")
        writer.end_session("interrupted", "Stopped by SIGINT.")
    assert main(["report", str(copied_run)]) == 0
    capsys.readouterr()
    (found,) = data_of(copied_run / "report.html")["runs"]
    assert found["run"]["state"] == "interrupted"
    assert len(found["run"]["overview"]["sessions"]) == 2
    assert found["run"]["comparison"] is None


def test_markup_in_the_name_of_a_run_is_escaped(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "<script>alert(1)<\u2028script>"
    shutil.copytree(finished_run, tmp_path / name)
    assert main(["report", name, "--out", "report.html"]) == 0
    capsys.readouterr()
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "<script>alert" not in text
    assert "<title>&lt;script&gt;alert(1)&lt;\u2028script&gt; · Esper</title>" in text


def test_a_folder_name_that_is_not_utf8_has_a_report(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / os.fsdecode(b"odd-\xff")
    shutil.copytree(finished_run, odd)
    assert main(["report", str(odd), "--out", "report"]) == 0
    capsys.readouterr()
    assert "odd-" in (tmp_path / "report").read_text("utf-8")


def test_reports_can_be_written_from_python(finished_run: Path, tmp_path: Path) -> None:
    run = esper.load_run(finished_run)
    assert run.report(out=tmp_path / "r.html") == tmp_path / "r.html"
    assert esper.report([run], out="again.html") == Path("again.html")
    assert data_of(tmp_path / "again.html")["runs"][0]["run"]["name"] == run.name
    with pytest.raises(esper.errors.ReportError, match="run"):
        esper.report([])


def test_figures_show_learning_or_an_episode(finished_run: Path) -> None:
    pytest.importorskip("matplotlib")
    run = esper.load_run(finished_run)
    assert len(run.plot().axes) == 9
    score, *lanes = run.plot("timeline").axes
    with open_run(finished_run) as telemetry:
        slots = views.overview(telemetry)["slots"]
        detail = views.episode_detail(telemetry, 1, 0)
    assert [axis.get_ylabel() for axis in lanes] == slots
    assert detail is not None
    score, *_ = run.plot("timeline", env=1, episode=0).axes
    drawn = [float(value) for value in score.lines[0].get_ydata()]
    assert drawn == [step["score"] for step in detail["steps"]]
    with pytest.raises(esper.errors.RunError, match="no episode 99 of environment 0"):
        run.plot("timeline", episode=99)
    with pytest.raises(esper.errors.ConfigError, match="what is 'lines'"):
        run.plot("lines")
