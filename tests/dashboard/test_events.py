"""The event stream sends changes to a limited number of listeners."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import asdict
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard import app, events
from esper.dashboard.events import Watch, difference
from esper.storage.run_folder import RunFolder
from esper.telemetry import TelemetryWriter
from esper.training.output import ActivityFile, TrialProgress
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import Served, serve
from tests.dashboard.views.simulation import Simulation

SOON = 10.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.3)


def states(stream: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the runs of each event."""
    while line := stream.readline():
        if line.strip():
            yield json.loads(line)["runs"]


def wait_for(is_so: Any) -> None:
    end = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_rounds_are_sent_as_they_are_written(tmp_path: Path) -> None:
    make_run(tmp_path / "done", rounds=2)
    live = RunFolder.create(tmp_path / "live", make_run(tmp_path / "x").read_config())
    made = Simulation()
    with (
        serve(tmp_path) as served,
        served.open("/api/events") as stream,
        live.locked(),
        TelemetryWriter(live.telemetry_file) as writer,
    ):
        assert stream.getheader("content-type") == "application/x-ndjson"
        changes = states(stream)
        seen = next(changes)
        assert seen["done"]["rounds_done"] == 2
        assert set(seen) == {"done", "live", "x"}
        writer.write_many(made.first())
        for number in (1, 2, 3):
            writer.write_many(made.round(number))
            writer.flush()
            while seen["live"]["rounds_done"] < number:
                changed = next(changes)
                assert set(changed) == {"live"}
                seen |= changed
            assert seen["live"] == {
                "state": "running",
                "rounds_done": number,
                "position": writer.position,
                "learns": True,
                "grows": True,
                "activity": None,
            }


def test_lessons_are_sent_while_they_last(tmp_path: Path) -> None:
    live = make_run(tmp_path / "live", rounds=0)
    lessons = TrialProgress(arm="lessons", purpose="lessons", n_hosts=64, share=0.25)
    with serve(tmp_path) as served, served.open("/api/events") as stream, live.locked():
        changes = states(stream)
        seen = next(changes)["live"]
        activity = ActivityFile(live.activity_file)
        activity.watch_trial(lessons)
        while seen["activity"] is None:
            seen = next(changes)["live"]
        assert seen["activity"] == asdict(lessons)
        activity.close()
        assert next(changes)["live"]["activity"] is None


def test_new_and_deleted_runs_are_sent(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    with serve(tmp_path) as served, served.open("/api/events") as stream:
        changes = states(stream)
        assert list(next(changes)) == ["one"]
        folder.config_file.rename(tmp_path / "aside")
        assert next(changes) == {"one": None}
        (tmp_path / "aside").rename(folder.config_file)
        assert next(changes)["one"]["state"] == "done"


def test_a_silent_stream_sends_empty_lines(tmp_path: Path) -> None:
    with serve(tmp_path) as served, served.open("/api/events") as stream:
        assert [stream.readline() for _ in range(3)] == [b'{"runs": {}}\n', b"\n", b"\n"]


def test_head_gets_no_stream(served: Served) -> None:
    with served.open("/api/events", "HEAD") as response:
        assert response.status == 200
    assert served.made.dashboard.watch.n_streams == 0


def test_streams_share_one_reading_of_the_runs_and_it_ends_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []

    async def read() -> dict[str, dict[str, Any]]:
        reads.append(time.monotonic())
        return {}

    with serve(tmp_path) as served:
        watch = served.made.dashboard.watch
        monkeypatch.setattr(watch, "_read", read)
        with served.open("/api/events") as one, served.open("/api/events") as two:
            assert next(states(one)) == next(states(two)) == {}
            assert watch.n_streams == 2
            wait_for(lambda: len(reads) > 5)
        assert min(after - before for before, after in itertools.pairwise(reads)) >= 0.05
        wait_for(lambda: watch.n_streams == 0)
        n_reads = len(reads)
        time.sleep(0.3)
        assert len(reads) == n_reads


def test_the_number_of_streams_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_STREAMS", 2)
    with serve(tmp_path) as served:
        with served.open("/api/events") as one, served.open("/api/events") as two:
            assert next(states(one)) == next(states(two)) == {}
            answer = served.ask("/api/events")
            assert answer.status == 503
            assert "2 pages" in answer.json["error"]
            assert answer.headers["cache-control"] == "no-store"
        wait_for(lambda: served.made.dashboard.watch.n_streams == 0)
        assert served.ask("/api/events").status == 200


def test_the_server_stops_at_once_with_open_streams(tmp_path: Path) -> None:
    with serve(tmp_path) as served, served.open("/api/events") as stream:
        next(states(stream))
        assert served.end() < 5
        stream.read()  # raises if it was torn off instead of ended


def test_a_stalled_client_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Events of a megabyte: what the machine takes on behalf of a reader is soon full.
    count = iter(range(10**9))

    async def read() -> dict[str, dict[str, Any]]:
        return {"run": {"n": next(count), "text": "x" * 2**20}}

    with serve(tmp_path) as served:
        watch = served.made.dashboard.watch
        monkeypatch.setattr(watch, "_read", read)
        with socket.create_connection(("127.0.0.1", served.port)) as still:
            still.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request = f"GET /api/events HTTP/1.1\r\nHost: {served.host}"
            request += f"\r\nAuthorization: Bearer {served.token}"
            still.sendall(f"{request}\r\n\r\n".encode())
            wait_for(lambda: watch.n_streams == 1)
            time.sleep(1.0)
            with served.open("/api/events") as stream:
                changes = states(stream)
                numbers = [next(changes)["run"]["n"] for _ in range(5)]
            assert numbers == sorted(set(numbers))
            assert served.end() < 5


def test_a_slow_client_gets_the_latest_state() -> None:
    async def scenario() -> list[int]:
        numbers = iter(range(1000))
        sent: list[int] = []

        async def read() -> dict[str, dict[str, Any]]:
            return {"run": {"n": next(numbers)}}

        watch = Watch(read)
        fast = watch.changes()
        task = asyncio.create_task(_exhaust(fast))
        async for line in watch.changes():
            sent.append(json.loads(line)["runs"]["run"]["n"])
            await asyncio.sleep(0.4)
            if len(sent) == 3:
                break
        task.cancel()
        return sent

    sent = asyncio.run(scenario())
    assert min(after - before for before, after in itertools.pairwise(sent)) >= 3


async def _exhaust(lines: AsyncIterator[str]) -> None:
    async for _ in lines:
        pass


def test_an_error_in_reading_ends_the_stream_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read() -> Any:
        raise ZeroDivisionError("seven")

    with serve(tmp_path) as served:
        monkeypatch.setattr(served.made.dashboard.watch, "_read", read)
        for _ in range(5):
            with served.open("/api/events") as stream, suppress(IncompleteRead):
                assert stream.read() == b""
        assert served.ask("/api/runs").status == 200
        assert served.made.dashboard.watch.n_streams == 0
    line, *others = capsys.readouterr().err.splitlines()
    assert others in ([], [line])  # the log of the dashboard that all tests share
    assert "ZeroDivisionError (seven)" in line


def test_the_difference_has_changed_and_deleted_runs() -> None:
    one, two, three = {"n": 1}, {"n": 2}, {"n": 3}
    before = {"same": one, "other": one, "gone": two}
    after = {"same": one, "other": two, "come": three}
    assert difference(before, after) == {"other": two, "come": three, "gone": None}
    assert difference(after, after) == {}
