"""The event stream sends changes to a limited number of listeners."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard import events
from esper.dashboard.error_log import ErrorLog
from esper.dashboard.events import EventStream, Watch, difference
from esper.storage.run_folder import RunFolder
from esper.telemetry import TelemetryWriter
from esper.training.activity import ActivityFile
from esper.training.output import TrialProgress
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import Served, serve
from tests.reports.views.simulation import Simulation

SOON = 10.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.3)


def parts(stream: HTTPResponse) -> Iterator[list[str]]:
    """Yield the parts of a stream, each as lines."""
    lines: list[str] = []
    while line := stream.readline():
        text = line.decode().rstrip("\n")
        if text:
            lines.append(text)
        else:
            yield lines
            lines = []


def states(stream: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the runs of each event."""
    for lines in parts(stream):
        if lines[0] == "event: state":
            yield json.loads(lines[1].removeprefix("data: "))["runs"]


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
        assert stream.getheader("content-type") == "text/event-stream; charset=utf-8"
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


def test_a_silent_stream_sends_heartbeats_and_a_retry_time(tmp_path: Path) -> None:
    with serve(tmp_path) as served, served.open("/api/events") as stream:
        found = parts(stream)
        first = [next(found) for _ in range(4)]
    assert first[0] == ["retry: 2000"]
    assert first[1] == ["event: state", 'data: {"runs": {}}']
    assert first[2] == first[3] == [": here"]


def test_head_gets_no_stream(served: Served) -> None:
    with served.open("/api/events", "HEAD") as response:
        assert response.status == 200
        wait_for(lambda: served.made.dashboard.watch.n_listeners == 0)


def test_runs_are_polled_only_while_there_are_listeners(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        watch = served.made.dashboard.watch
        with served.open("/api/events") as one, served.open("/api/events") as two:
            assert next(states(one)) == next(states(two)) == {}
            assert watch.n_listeners == 2
            assert watch.is_polling
        wait_for(lambda: watch.n_listeners == 0)
        assert not watch.is_polling


def test_the_number_of_streams_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 2)
    with serve(tmp_path) as served:
        with served.open("/api/events") as one, served.open("/api/events") as two:
            assert next(states(one)) == next(states(two)) == {}
            answer = served.ask("/api/events")
            assert answer.status == 503
            assert "2 pages" in answer.json["error"]
            assert answer.headers["cache-control"] == "no-store"
        wait_for(lambda: served.made.dashboard.watch.n_listeners == 0)
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
            request = f"GET /api/events?key={served.key} HTTP/1.1\r\nHost: {served.host}"
            request += f"\r\nCookie: {served.cookie}"
            still.sendall(f"{request}\r\n\r\n".encode())
            wait_for(lambda: watch.n_listeners == 1)
            time.sleep(1.0)
            with served.open("/api/events") as stream:
                changes = states(stream)
                numbers = [next(changes)["run"]["n"] for _ in range(5)]
            assert numbers == sorted(set(numbers))
            assert served.end() < 5


def test_a_slow_client_gets_the_latest_state() -> None:
    async def scenario() -> list[Any]:
        numbers = iter(range(1000))
        sent: list[Any] = []

        async def read() -> dict[str, dict[str, Any]]:
            return {"run": {"n": next(numbers)}}

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(1.5)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            body = message.get("body", b"")
            if body.startswith(b"event"):
                sent.append(json.loads(body.split(b"data: ")[1])["runs"]["run"]["n"])
                await asyncio.sleep(0.4)

        await EventStream(Watch(read, ErrorLog()))({"type": "http", "method": "GET"}, receive, send)
        return sent

    sent = asyncio.run(scenario())
    assert 2 <= len(sent) <= 5  # of about thirty that there were
    assert min(after - before for before, after in itertools.pairwise(sent)) >= 3


def test_polling_continues_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> bool:
        looks = iter([{}, None, {"run": {"n": 1}}])

        async def read() -> Any:
            found = next(looks)
            if found is None:
                raise ZeroDivisionError("seven")
            return found

        watch = Watch(read, ErrorLog())
        with watch.listening():
            return await watch.wait(SOON) and await watch.wait(SOON)

    assert asyncio.run(scenario())
    assert "ZeroDivisionError: seven" in capsys.readouterr().err


def test_the_difference_has_changed_and_deleted_runs() -> None:
    one, two, three = {"n": 1}, {"n": 2}, {"n": 3}
    before = {"same": one, "other": one, "gone": two}
    after = {"same": one, "other": two, "come": three}
    assert difference(before, after) == {"other": two, "come": three, "gone": None}
    assert difference(after, after) == {}
