"""Silent connections are dropped, and never keep out the user."""

import asyncio
import errno
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard.connections import ConnectionLimits
from esper.dashboard.error_log import MOST_KINDS, SECONDS, ErrorLog
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import serve
from tests.dashboard.test_command import Browser, read_link

QUICK = ConnectionLimits(head_seconds=0.3, stall_seconds=0.3)
N_SILENT = 200


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection; return whether it sent nothing before."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /api/runs HTTP/1.1\r\nHost: "])
def test_a_client_without_a_whole_request_is_dropped(tmp_path: Path, sent: bytes) -> None:
    with serve(tmp_path, limits=QUICK) as served, connect(served.port) as silent:
        silent.sendall(sent)
        start = time.monotonic()
        assert is_closed(silent)
        assert 0.2 < time.monotonic() - start < 5


def test_a_head_that_arrives_byte_by_byte_is_dropped(tmp_path: Path) -> None:
    with serve(tmp_path, limits=QUICK) as served, connect(served.port) as slow:
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


def test_an_unfinished_second_request_is_dropped(tmp_path: Path) -> None:
    with serve(tmp_path, limits=QUICK) as served, connect(served.port) as slow:
        head = f"GET / HTTP/1.1\r\nHost: {served.host}\r\n"
        slow.sendall(f"{head}\r\n{head}".encode())
        answer = b""
        while part := slow.recv(65536):
            answer += part
        assert answer.count(b"HTTP/1.1 401") == 1


def test_a_client_that_never_reads_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "one")
    monkeypatch.setattr("esper.dashboard.app.json_text", lambda _: " " * 20_000_000)
    with serve(tmp_path, limits=QUICK) as served, connect(served.port) as stuck:
        head = f"GET /api/runs HTTP/1.1\r\nHost: {served.host}\r\nX-Esper-Key: {served.key}\r\n"
        stuck.sendall(f"{head}Cookie: {served.cookie}\r\n\r\n".encode())
        state = served.made.server.server_state
        end = time.monotonic() + 20
        while not state.tasks:
            assert time.monotonic() < end
            time.sleep(0.01)
        while state.connections or state.tasks:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_event_streams_outlive_the_time_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.dashboard.events.HEARTBEAT_SECONDS", 0.05)
    with serve(tmp_path, limits=QUICK) as served, served.open("/api/events") as stream:
        lines = [stream.readline() for _ in range(30)]
        assert lines.count(b": here\n") > 10


def test_the_oldest_silent_connection_makes_room(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = ConnectionLimits(n_connections=16)
    assert (limits.n_strangers, limits.n_strangers_of_peer, limits.n_own) == (8, 6, 8)
    with serve(tmp_path, limits=limits) as served, ExitStack() as stack:
        stream = stack.enter_context(served.open("/api/events"))
        silent = [stack.enter_context(connect(served.port)) for _ in range(10)]
        assert all(is_closed(connection) for connection in silent[:4])
        assert served.ask("/api/runs").status == 200
        for connection in silent[5:]:  # the fifth made room for the request
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        assert stream.readline().startswith(b"retry")
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_idle_connections_of_the_user_are_limited_too(tmp_path: Path) -> None:
    with serve(tmp_path, limits=ConnectionLimits(n_connections=8)) as served, ExitStack() as stack:
        head = f"GET /static/main.js HTTP/1.1\r\nHost: {served.host}\r\nCookie: {served.cookie}"
        opened: list[socket.socket] = []
        for _ in range(12):
            opened.append(stack.enter_context(connect(served.port)))
            opened[-1].sendall(f"{head}\r\n\r\n".encode())
            assert opened[-1].recv(12) == b"HTTP/1.1 200"
        assert len(served.made.server.server_state.connections) <= 5


@pytest.mark.parametrize(("n_files", "expected"), [(1 << 20, 256), (128, 64), (20, 8)])
def test_limits_leave_open_files_for_other_things(
    n_files: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (n_files, n_files))
    assert ConnectionLimits.of_process().n_connections == expected


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
        assert stream.readline().startswith(b"retry")
        assert process.poll() is None
    assert '"id":"one"' in browser.get(f"{place}api/runs")
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert len(err.splitlines()) <= 3, err


def test_a_kind_of_error_is_written_once_per_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    log = ErrorLog(clock=lambda: now[0])
    context: dict[str, Any] = {"message": "no files", "exception": OSError(errno.EMFILE, "full")}
    loop = asyncio.new_event_loop()
    for _ in range(1000):
        log.handle(loop, context)
        log.handle(loop, {"message": "no exception"})
        log.write_error(ZeroDivisionError("on\ntwo lines"))
    found = capsys.readouterr().err.splitlines()
    assert len(found) == 3
    assert "full" in found[0]
    assert "no exception" in found[1]
    assert "ZeroDivisionError: on two lines" in found[2]
    now[0] = SECONDS
    log.handle(loop, context)
    assert "full" in capsys.readouterr().err
    for number in range(2 * MOST_KINDS):
        log.write(str(number), "x")
    assert len(log._last) == MOST_KINDS
    loop.close()
