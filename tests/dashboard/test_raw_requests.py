"""The server answers or drops any raw request, logs nothing and keeps running."""

import socket
from pathlib import Path

import pytest

from esper.dashboard.server import HEADERS
from tests.dashboard.served import Served, serve

OWN = "Authorization: Bearer {token}\r\n"
HEAD = f"GET /api/runs HTTP/1.1\r\nConnection: close\r\n{OWN}"


def send(served: Served, text: str) -> str:
    """Return the response to raw bytes, until the server closes the connection."""
    known = {"host": served.host, "token": served.token}
    filled = text.format(**known, end="Connection: close\r\n\r\n")
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(filled.encode("latin-1"))
        parts: list[bytes] = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts).decode("latin-1")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("nonsense\r\n\r\n", "400"),
        ("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400"),
        (f"{HEAD}\r\n", "400"),
        (f"{HEAD}Host: {{host}}\r\nHost: evil.example\r\n\r\n", "400"),
        (f"{HEAD}Host: {{host}}\r\nX: a\r\n b\x00\r\n\r\n", "400"),
        (f"GET /api/runs HTTP/1.0\r\n{OWN}\r\n", "403"),
        ("GET http://evil.example/api/runs HTTP/1.1\r\nHost: evil.example\r\n{end}", "403"),
        (f"GET http://x/api/runs HTTP/1.1\r\nHost: {{host}}\r\n{OWN}{{end}}", "404"),
        (f"GET * HTTP/1.1\r\nHost: {{host}}\r\n{OWN}{{end}}", "404"),
        (f"GET /{'x' * 500_000} HTTP/1.1\r\nHost: {{host}}\r\n{{end}}", "400"),
        (f"{HEAD}Host: {{host}}\r\nOrigin: http://{{host}}\r\nOrigin: http://x\r\n\r\n", "403"),
        (f"{HEAD}Host: {{host}}\r\nCookie: x=y\r\n\r\n", "200"),
        (f"{HEAD}Host: {{host}}\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n\r\n", "400"),
        (f"{HEAD}Host: {{host}}\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n", "400"),
        (f"{HEAD}Host: {{host}}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n", "400"),
    ],
)
def test_malformed_requests_get_an_error_status(
    tmp_path: Path, text: str, status: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve(tmp_path) as served:
        answer = send(served, text)
        assert answer[9:12] == status
        head = answer.partition("\r\n\r\n")[0].lower()
        if status != "400":  # these never reach the application: the answer is a constant text
            assert all(f"\r\n{name}: {value}".lower() in head for name, value in HEADERS.items())
            assert "\r\ncache-control: no-store" in head
        assert served.token not in answer
        assert served.ask("/api/runs").status == 200
    assert capfd.readouterr().err == ""


def test_an_unfinished_request_blocks_nobody(tmp_path: Path) -> None:
    with (
        serve(tmp_path) as served,
        socket.create_connection(("127.0.0.1", served.port)) as half,
    ):
        half.sendall(b"GET /api/runs HTTP/1.1\r\nHost: ")
        assert served.ask("/api/runs").status == 200
        assert served.end() < 5


def test_requests_are_not_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serve(tmp_path) as served:
        for path in served.paths():
            for method in ("GET", "POST"):
                served.ask(f"{path}?token={served.token}", method)
        served.ask("/api/runs", host="evil.example")
    assert capfd.readouterr() == ("", "")


def test_a_malformed_body_after_the_response_closes_the_connection(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    head = f"GET /api/runs HTTP/1.1\r\nHost: {{host}}\r\n{OWN}Transfer-Encoding: chunked\r\n\r\n"
    with serve(tmp_path) as served:
        known = {"host": served.host, "token": served.token}
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
            connection.sendall(head.format(**known).encode())
            assert connection.recv(65536)[9:12] == b"200"
            connection.sendall(b"nonsense\r\n\r\n")
            while connection.recv(65536):
                pass
        assert served.ask("/api/runs").status == 200
    assert capfd.readouterr().err == ""
