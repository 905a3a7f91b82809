"""Silent connections are closed and never keep out the user for long; errors are written once."""

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from esper.dashboard import server
from esper.dashboard.server import MAX_ERRORS, ErrorLog
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import serve
from tests.dashboard.test_command import Browser, read_link

N_SILENT = 200


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.4)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection; return whether it sent nothing before."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("sent", [b"", b"GET /api/runs HTTP/1.1\r\nHost: "])
def test_a_client_without_a_whole_request_is_dropped(tmp_path: Path, sent: bytes) -> None:
    with serve(tmp_path) as served, connect(served.port) as silent:
        silent.sendall(sent)
        start = time.monotonic()
        assert is_closed(silent)
        assert 0.2 < time.monotonic() - start < 5


@pytest.mark.usefixtures("_quick")
def test_a_head_that_arrives_byte_by_byte_is_dropped(tmp_path: Path) -> None:
    with serve(tmp_path) as served, connect(served.port) as slow:
        start = time.monotonic()
        slow.setblocking(False)
        is_open = True
        while is_open:
            assert time.monotonic() - start < 5
            time.sleep(0.02)
            try:
                slow.sendall(b"X")
                is_open = slow.recv(1) != b""
            except BlockingIOError:
                continue
            except ConnectionError:
                is_open = False


@pytest.mark.usefixtures("_quick")
def test_an_unfinished_second_request_is_dropped(tmp_path: Path) -> None:
    with serve(tmp_path) as served, connect(served.port) as slow:
        head = f"GET / HTTP/1.1\r\nHost: {served.host}\r\n"
        slow.sendall(f"{head}\r\n{head}".encode())
        answer = b""
        while part := slow.recv(65536):
            answer += part
        assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.usefixtures("_quick")
def test_a_client_that_never_reads_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "one")
    monkeypatch.setattr("esper.dashboard.app.json_text", lambda _: " " * 20_000_000)
    with serve(tmp_path) as served, connect(served.port) as stuck:
        head = f"GET /api/runs HTTP/1.1\r\nHost: {served.host}\r\n"
        stuck.sendall(f"{head}Authorization: Bearer {served.token}\r\n\r\n".encode())
        state = served.made.server_state
        end = time.monotonic() + 20
        while not state.total_requests:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert state.connections  # the rest of the response waits for the client
        while state.connections or state.tasks:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.usefixtures("_quick")
def test_event_streams_outlive_the_time_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.dashboard.events.HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr("esper.dashboard.events.POLL_SECONDS", 0.05)
    with serve(tmp_path) as served, served.open("/api/events") as stream:
        lines = [stream.readline() for _ in range(30)]
        assert lines.count(b"\n") > 10


@pytest.mark.usefixtures("_quick")
def test_a_connection_in_use_stays_open(tmp_path: Path) -> None:
    with serve(tmp_path) as served, connect(served.port) as used:
        for _ in range(8):
            used.sendall(f"HEAD / HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode())
            assert used.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(0.15)


def test_the_oldest_silent_connections_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_IDLE", 4)
    with serve(tmp_path) as served, ExitStack() as stack:
        stream = stack.enter_context(served.open("/api/events"))
        old = [stack.enter_context(connect(served.port)) for _ in range(4)]
        time.sleep(0.3)
        new = [stack.enter_context(connect(served.port)) for _ in range(4)]
        assert all(is_closed(connection) for connection in old)
        for connection in new:
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        assert served.ask("/api/runs").status == 200
        assert stream.readline().startswith(b"{")


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a dashboard that may open 128 files, and its link."""
    make_run(tmp_path / "runs" / "one")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128));"
        "from esper.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "dashboard", str(tmp_path / "runs"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process, read_link(process)
        finally:
            process.kill()


def test_the_user_gets_in_while_silent_connections_use_up_the_files(
    few_files: tuple[subprocess.Popen[str], str],
) -> None:
    process, link = few_files
    place = link.partition("login")[0]
    port = int(place.rstrip("/").rpartition(":")[2])
    browser = Browser()
    with ExitStack() as stack:
        for _ in range(N_SILENT):
            stack.enter_context(closing(connect(port)))
        assert "<title>" in browser.get(link)
        stream = stack.enter_context(browser.listen(f"{place}api/events"))
        for number in range(N_SILENT):  # and again, while the page is open
            stack.enter_context(closing(connect(port)))
            if number % 50 == 0:
                assert '"id":"one"' in browser.get(f"{place}api/runs")
                assert '"rounds"' in browser.get(f"{place}api/runs/one/metrics")
        assert stream.readline().startswith(b'{"runs"')
        assert process.poll() is None
    assert '"id":"one"' in browser.get(f"{place}api/runs")
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert len(err.splitlines()) <= 3, err


def test_the_same_error_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    log, logger = ErrorLog(), logging.Logger("own")
    logger.addHandler(log)
    for _ in range(1000):
        logger.error("no exception")
        logger.warning("not an error")
        logger.error("raised", exc_info=ZeroDivisionError("on\ntwo lines"))
    first, second = capsys.readouterr().err.splitlines()
    assert "no exception" in first
    assert "ZeroDivisionError (on two lines)" in second
    for number in range(2 * MAX_ERRORS):
        logger.error("%d", number)
    assert len(capsys.readouterr().err.splitlines()) == MAX_ERRORS - 2


def test_errors_of_the_event_loop_are_written_while_it_serves() -> None:
    log = ErrorLog()
    with log.attached():
        assert log in logging.getLogger("asyncio").handlers
    assert log not in logging.getLogger("asyncio").handlers
