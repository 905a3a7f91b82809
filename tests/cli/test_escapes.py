"""Strings of runs, controllers and tasks never reach the terminal as commands to it."""

import json
import shutil
import sqlite3
import unicodedata
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.cli.views import LineView, LineWriter, print_to_stderr
from esper.config.toml import read_toml
from esper.errors import EsperError, UnknownTaskError
from esper.progress import ProgressBar
from esper.results.files import read_summary, write_summary
from esper.tamiyo import save_controller
from esper.training.output import TrialProgress
from tests.tamiyo.fresh_controllers import fresh_controller
from tests.test_progress import Terminal, wait_until
from tests.training.tiny import tiny_config

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\u202e\u2066\x7f[bold]loud[/bold]"
SHOWN = repr(EVIL.partition("[bold]")[0])[1:-1]


def is_control(character: str) -> bool:
    """Return whether Unicode calls a character a control or an invisible format character."""
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf")


def printed(words: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 0) -> str:
    """Run a command and return its output, which must be harmless."""
    assert main(words) == code
    told = capsys.readouterr()
    both = told.out + told.err
    assert [character for character in both if is_control(character)] == []
    return both


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a finished run with control characters in its name and its strings."""
    folder = Path(shutil.copytree(finished_run, tmp_path / "runs" / f"run {EVIL.replace('/', '')}"))
    summary = read_summary(folder / "summary.json")
    write_summary(folder / "summary.json", replace(summary, notes=(EVIL,), split=EVIL))
    with closing(sqlite3.connect(folder / "telemetry.sqlite")) as connection:
        connection.execute("UPDATE sessions SET message = ?", (EVIL,))
        connection.execute("UPDATE runs SET name = ?, task = ?", (EVIL, EVIL))
        connection.commit()
    return folder


def test_a_runs_strings_are_shown_escaped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(printed(["show", str(run)], capsys).split())
    assert f": {SHOWN}" in shown
    assert "[bold]loud[/bold]" in shown
    assert SHOWN in printed(["runs", str(run.parent)], capsys)
    assert SHOWN in printed(["resume", str(run)], capsys)
    printed(["report", str(run), "--out", "report.html"], capsys)
    printed(["export-controller", str(run), "--out", "kept"], capsys)
    for words in (["show", str(run), "--json"], ["runs", str(run.parent), "--json"]):
        values = json.loads(printed(words, capsys))
        one = values if isinstance(values, dict) else values[0]
        assert one["name"] == run.name


def test_a_controllers_strings_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    origin = {"task": "spirals", "task_options": {"batches_per_epoch": 1}, "comparison": [EVIL]}
    evil = replace(fresh_controller(n_epochs=2), name=EVIL, origin=origin)
    folder = str(save_controller(evil, tmp_path / "evil"))
    printed(["grow", "--controller", folder], capsys)
    few = ["--hosts", "2", "--tuning-runs", "2", "--arms", "no-growth"]
    printed(["evaluate", folder, *few], capsys)
    assert SHOWN in printed(["compare", folder, "no-growth", "--hosts", "2"], capsys)
    save_controller(replace(evil, origin={"task": EVIL}), tmp_path / "evil")
    assert "error" in printed(["grow", "--controller", folder], capsys, code=2)


@pytest.mark.parametrize("words", [[], ["--help"], ["--print-config"]])
def test_a_settings_files_strings_are_shown_escaped(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("evil.toml").write_text(f"task = {json.dumps(EVIL)}\n")
    assert "task is" in printed(["train", "--config", "evil.toml", *words], capsys, code=2)
    text = f"task = '[bold]loud'\n[task_options]\nname = {json.dumps(EVIL)}\n"
    Path("evil.toml").write_text(text)
    code = 0 if words == ["--help"] else 2  # no such task
    assert "[bold]loud" in printed(["train", "--config", "evil.toml", *words], capsys, code=code)


def test_a_toml_file_keeps_control_characters_as_escapes() -> None:
    config = tiny_config(task_options={"name": EVIL})
    text = esper.config.toml.write_toml(config)
    assert not any(map(is_control, text))
    assert read_toml(text, source="here") == config


def test_the_lines_and_the_bar_of_a_run_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    bar = ProgressBar(True, title="training", delay=0.0, stream=stream)
    view = LineView(tiny_config(task="[bold]loud"), bar, LineWriter(), EVIL)
    view.watch_note(EVIL)
    view.watch_trial(TrialProgress(arm=EVIL, purpose="final", n_hosts=1, share=0.5))
    wait_until(lambda: "comparing" in stream.getvalue())
    view.close()
    assert "\x1b]0" not in stream.getvalue()
    shown = capsys.readouterr().out
    assert not any(map(is_control, shown))
    assert shown.count(SHOWN) == 2
    assert "[bold]loud:" in shown


def test_quoted_and_unquoted_names_look_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = EVIL.partition("[bold]")[0]
    quoted = printed(["show", name], capsys, code=2)
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.toml").write_text("task = [")
    unquoted = printed(["show", name], capsys, code=2)
    assert SHOWN in quoted
    assert SHOWN in unquoted


def test_messages_escape_what_they_quote(capfd: pytest.CaptureFixture[str]) -> None:
    assert str(EsperError(f"no {EVIL}", 3).args[0]).startswith(f"no {SHOWN}")
    assert not any(map(is_control, str(UnknownTaskError(EVIL))))
    assert str(EsperError("a\tb\nc")) == "a\tb\nc"
    print_to_stderr(EVIL)
    assert SHOWN in capfd.readouterr().err
