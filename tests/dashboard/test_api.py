"""The API returns the views of a run's telemetry, and errors in one line."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard import runs as reading
from esper.dashboard import views
from esper.dashboard.runs import RunReader
from esper.errors import RunError
from esper.telemetry import RunTelemetry, TelemetryWriter, open_run
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import Served, serve
from tests.telemetry.samples import notice

RUN = "/api/runs/a%20run"
ASKED: list[tuple[str, Callable[[RunTelemetry], Any]]] = [
    ("metrics", lambda run: views.metric_series(run, -1)),
    ("metrics?after=2", lambda run: views.metric_series(run, 2)),
    ("metrics?after=1&until=3", lambda run: views.metric_series(run, 1, until=3)),
    ("episodes", lambda run: views.episode_list(run, order="recent", limit=50)),
    (
        "episodes?order=best&env=1&first_round=1&last_round=3&limit=2&offset=1",
        lambda run: views.episode_list(
            run, order="best", env=1, first_round=1, last_round=3, limit=2, offset=1
        ),
    ),
    ("episodes/1/0", lambda run: views.episode_detail(run, 1, 0)),
    ("environments", views.environments),
    ("environments?which=finished", lambda run: views.environments(run, "finished")),
    ("health", views.health),
    ("learned", views.learned),
]


@pytest.mark.parametrize(("path", "make"), ASKED, ids=[path for path, _ in ASKED])
def test_routes_return_their_views(
    served: Served, runs_dir: Path, path: str, make: Callable[[RunTelemetry], Any]
) -> None:
    with open_run(runs_dir / "a run") as telemetry:
        expected = json.loads(json.dumps(make(telemetry)))
    assert expected
    for _ in range(2):  # read, then cached
        answer = served.ask(f"{RUN}/{path}")
        assert (answer.status, answer.json) == (200, expected)


def test_a_run_is_returned_with_its_overview(served: Served, runs_dir: Path) -> None:
    found = served.ask(RUN).json
    with open_run(runs_dir / "a run") as telemetry:
        assert found["overview"] == json.loads(json.dumps(views.overview(telemetry)))
        headline = json.loads(json.dumps(views.headline(telemetry)))
    assert {key: found[key] for key in headline} == headline
    assert (found["id"], found["state"], found["problem"]) == ("a run", "done", None)
    assert found["comparison"] is None


def test_runs_are_listed_oldest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("young", "middle", "old")):
        folder = make_run(tmp_path / name, rounds=age)
        os.utime(folder.config_file, (1e9 - age, 1e9 - age))
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").touch()
    with serve(tmp_path) as served:
        found = served.ask("/api/runs").json
    assert found["runs_dir"] == str(tmp_path)
    assert [run["name"] for run in found["runs"]] == ["old", "middle", "young"]
    assert [run["rounds_done"] for run in found["runs"]] == [2, 1, 0]


def test_a_copied_run_keeps_its_start_and_has_its_curve_and_notes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    os.utime(folder.config_file, (1e9, 1e9))
    (folder.path / "notes.md").write_text("slow but steady\n")
    (row,) = RunReader(tmp_path).rows()
    with open_run(folder.path) as telemetry:
        assert row["created_at"] == telemetry.sessions()[0].started_at
        assert row["returns"] == views.held_out_returns(telemetry)
    assert (row["notes"], row["fixed_gap"]) == ("slow but steady", None)


def test_notes_are_written_in_full_or_not_at_all(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one").path
    notes = folder / "notes.md"
    with serve(tmp_path) as served:

        def put(body: str) -> int:
            return served.ask("/api/runs/one/notes", "PUT", body.encode()).status

        assert put("slow, #baseline ✓") == 200
        assert notes.read_text() == "slow, #baseline ✓"
        assert served.ask("/api/runs/one/notes").json == {"notes": "slow, #baseline ✓"}
        assert [put("x" * 4001), put("x" * 20_000)] == [400, 413]
        assert notes.read_text() == "slow, #baseline ✓"
        notes.write_text("x" * 4001)  # the page shows the beginning only
        assert put("short") == 400
        assert notes.stat().st_size == 4001
        notes.write_bytes(b"\xff")
        assert put("short") == 400
        notes.unlink()
        notes.symlink_to(folder / "config.toml")
        assert put("short") == 400
        notes.unlink()
        assert put(" ") == 200
        assert not notes.exists()
        assert served.ask("/api/runs/none/notes", "PUT", b"x").status == 404
        assert served.ask("/api/runs/..%2Fone/notes", "PUT", b"x").status in (404, 405)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("metrics?after=x", "after"),
        ("metrics?after=-2", "after"),
        ("metrics?after=1e9", "after"),
        ("metrics?after=", "after"),
        ("metrics?after=1_0", "after"),
        ("metrics?after=99999999999999999999", "after"),
        ("episodes?limit=501", "limit"),
        ("episodes?limit=0", "limit"),
        ("episodes?limit=%D9%A1", "limit"),
        ("episodes?offset=-1", "offset"),
        ("episodes?env=1.5", "env"),
        ("episodes?order=newest", "order"),
        ("environments?which=all", "which"),
        (f"episodes?order={'x' * 3000}", "order"),
        ("episodes?order=%3Cscript%3E%0A", "order"),
    ],
)
def test_a_bad_query_is_rejected_in_one_line(served: Served, query: str, name: str) -> None:
    answer = served.ask(f"{RUN}/{query}")
    assert answer.status == 400
    message = answer.json["error"]
    assert message.startswith(f"{name} is ")
    assert len(message) < 200
    assert "\n" not in message


@pytest.mark.parametrize("place", ["0/99", "99/0", "x/0", "0/-1", "0/1.5", "0/" + "9" * 400])
def test_a_missing_episode_is_not_found(served: Served, place: str) -> None:
    answer = served.ask(f"{RUN}/episodes/{place}")
    assert answer.status == 404
    assert list(answer.json) == ["error"]


def test_a_run_without_records_is_listed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "begun")
    folder.telemetry_file.unlink()
    make_run(tmp_path / "empty file").telemetry_file.write_bytes(b"")
    with serve(tmp_path) as served:
        for run in served.ask("/api/runs").json["runs"]:
            facts = (run["state"], run["task"], run["rounds_done"], run["rounds"], run["problem"])
            assert facts == ("empty", "spirals", 0, 9, None)
        found = served.ask("/api/runs/begun").json
        assert (found["overview"], found["comparison"]) == (None, None)
        assert served.ask("/api/runs/begun/metrics").status == 404


def test_a_damaged_run_is_reported_and_others_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "whole")
    make_run(tmp_path / "no database").telemetry_file.write_bytes(b"something else" * 100)
    make_run(tmp_path / "no settings").config_file.write_text("rounds = [")
    make_run(tmp_path / "other settings").config_file.write_text("flavour = 3")
    with serve(tmp_path) as served:
        runs = {run["name"]: run for run in served.ask("/api/runs").json["runs"]}
        assert runs["whole"]["state"] == "done"
        for name in ("no database", "no settings", "other settings"):
            assert runs[name]["state"] == "unreadable"
            assert len(runs[name]["problem"].splitlines()) == 1
        assert served.ask("/api/runs/no%20database").json["state"] == "unreadable"
        assert served.ask("/api/runs/no%20database/health").status == 404


def test_a_run_with_malformed_records_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "odd")

    def fail(_: RunTelemetry) -> Any:
        raise KeyError("flavour")

    monkeypatch.setattr(views, "headline", fail)
    (row,) = RunReader(tmp_path).rows()
    assert row["state"] == "unreadable"
    assert "'flavour'" in row["problem"]


def test_a_deleted_run_disappears(tmp_path: Path) -> None:
    make_run(tmp_path / "left")
    make_run(tmp_path / "gone")
    with serve(tmp_path) as served:
        assert len(served.ask("/api/runs").json["runs"]) == 2
        shutil.rmtree(tmp_path / "gone")
        assert [run["id"] for run in served.ask("/api/runs").json["runs"]] == ["left"]
        assert served.ask("/api/runs/gone/metrics").status == 404


def test_runs_that_appear_and_disappear_while_read_cause_no_error(tmp_path: Path) -> None:
    steady = make_run(tmp_path / "runs" / "steady", is_over=False)
    make_run(tmp_path / "model")
    reader, is_done = RunReader(tmp_path / "runs"), threading.Event()

    def change() -> None:
        with TelemetryWriter(steady.telemetry_file) as writer:
            for number in range(20):
                shutil.copytree(tmp_path / "model", tmp_path / "runs" / "unsteady")
                writer.write_many([notice(number)] * 50)
                writer.flush()
                writer.rewind(writer.position - 40)
                # Aside first: a reader may put a file into what is being removed.
                (tmp_path / "runs" / "unsteady").rename(tmp_path / f"gone-{number}")

    def change_and_tell() -> None:
        try:
            change()
        finally:
            is_done.set()

    thread = threading.Thread(target=change_and_tell)
    thread.start()
    states: set[str] = set()
    while not is_done.is_set():
        states |= {row["state"] for row in reader.rows() if row["id"] == "unsteady"}
        for name in ("steady", "unsteady"):
            with suppress(RunError):
                reader.detail(name)
            with suppress(RunError):
                reader.view(name, "health", views.health)
    thread.join()
    assert states <= {"done", "unreadable", "empty"}
    assert [row["state"] for row in reader.rows()] == ["killed"]


def test_a_deleted_folder_has_no_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    with serve(tmp_path / "runs") as served:
        shutil.rmtree(tmp_path / "runs")
        assert served.ask("/api/runs").json["runs"] == []


def test_the_cache_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "one", is_over=False)
    reader = RunReader(tmp_path)
    opened: list[object] = []

    def counting(path: Path) -> RunTelemetry:
        opened.append(path)
        return open_run(path)

    monkeypatch.setattr(reading, "open_run", counting)

    def look() -> tuple[int, int]:
        (row,) = reader.rows()
        return row["position"], reader.view("one", "key", views.headline)["position"]

    for file in folder.path.iterdir():
        os.utime(file, (1e9, 1e9))
    before = look()
    n_opened = len(opened)
    assert look() == before
    assert len(opened) == n_opened
    with TelemetryWriter(folder.telemetry_file) as writer:
        writer.write_many([notice(1), notice(2)])
        assert look()[0] in (before[0], before[0] + 2)
        writer.flush()
        assert look() == (before[0] + 2, before[1] + 2)
        writer.rewind(writer.position - 1)
        assert look() == (before[0] + 1, before[1] + 1)


def test_a_run_in_use_is_not_cached(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    for file in folder.path.iterdir():
        os.utime(file, (1e9, 1e9))
    reader = RunReader(tmp_path)
    with folder.locked():
        os.utime(folder.lock_file, (1e9, 1e9))
        first, second = (reader.view("one", "key", views.overview) for _ in range(2))
        assert [row["state"] for row in reader.rows()] == ["running"]
    assert first is not second
    assert [row["state"] for row in reader.rows()] == ["done"]
    first, second = (reader.view("one", "key", views.overview) for _ in range(2))
    assert first is second


def test_the_cache_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in make_run(tmp_path / "one").path.iterdir():
        os.utime(file, (1e9, 1e9))
    monkeypatch.setattr(reading, "MAX_CACHED", 3)
    reader, made = RunReader(tmp_path), list[int]()

    def ask(key: int) -> None:
        reader.view("one", key, lambda _: made.append(key))

    for key in (1, 2, 3, 1, 2, 3, 4, 1):
        ask(key)
    assert made == [1, 2, 3, 4, 1]


def test_a_bug_is_reported_to_the_client_and_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "one")

    def fail(_: RunTelemetry) -> Any:
        raise AssertionError("seven")

    monkeypatch.setattr(views, "learned", fail)
    with serve(tmp_path) as served:
        answer = served.ask("/api/runs/one/learned?secret=x")
        assert answer.status == 500
        assert "internal error" in answer.json["error"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert served.ask("/api/runs").status == 200
    found = capsys.readouterr().err
    assert "AssertionError (seven)" in found
    assert "secret" not in found


def test_a_bug_in_the_guard_is_an_error_with_headers_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(tmp_path) as served:
        monkeypatch.setattr(served.made.access, "accepts_header", lambda _: 1 // 0)
        for _ in range(20):
            answer = served.ask("/api/runs?secret=x")
            assert answer.status == 500
            assert "internal error" in answer.json["error"]
            assert answer.headers["x-content-type-options"] == "nosniff"
    line, *others = capsys.readouterr().err.splitlines()
    assert others in ([], [line])  # the log of the dashboard that all tests share
    assert "ZeroDivisionError" in line
    assert "secret" not in line


def test_static_files_are_revalidated_by_etag(served: Served) -> None:
    first = served.ask("/static/main.js")
    assert first.headers["content-type"].startswith("text/javascript")
    assert first.headers["cache-control"] == "no-cache"
    again = served.ask("/static/main.js", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert "content-security-policy" in again.headers
