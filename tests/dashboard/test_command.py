"""``esper dashboard`` serves until a signal, reports errors in one line and hides its token."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.dashboard import server as addresses
from tests.dashboard.made_runs import make_run

LINK = re.compile(r"http://\S+/login\?token=(\S+)")
TIMEOUT = 60
STOPPED_BY = [
    signal.SIGINT,
    *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGHUP)),
]


class Browser:
    """Follows links and keeps the token like the page."""

    def __init__(self) -> None:
        self.token = ""
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, address: str) -> str:
        with self.listen(address) as answer:
            self.token = answer.url.partition("#token=")[2].partition("&")[0] or self.token
            return answer.read().decode()

    def listen(self, address: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        return self._opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)


@contextmanager
def command(*words: str, python: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """Yield the command as a process, which is killed at the end if it is still running."""
    process = subprocess.Popen(
        [sys.executable, *python, "-m", "esper", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_link(process: subprocess.Popen[str]) -> str:
    """Return the link that a process prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := LINK.search(line):
            return found[0]
    raise AssertionError("no link was printed")


def test_small_answers_are_sent_at_once() -> None:
    # asyncio turns off Nagle's algorithm only for sockets that name their protocol.
    with addresses.open_socket("127.0.0.1", 0, allow_remote=False) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("number", STOPPED_BY)
def test_it_serves_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    make_run(tmp_path / "runs" / "one")
    with command("dashboard", str(tmp_path / "runs"), "--port", "0") as process:
        link = read_link(process)
        place, _, token = link.partition("login?token=")
        browser = Browser()
        assert "<title>" in browser.get(link)
        assert '"id":"one"' in browser.get(f"{place}api/runs")
        browser.listen(f"{place}api/events")
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        assert process.returncode == 0
        assert err == ""
        assert token not in out  # what was printed after the link


def test_it_never_imports_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    words = ("dashboard", str(tmp_path), "--port", "0")
    with command(*words, python=("-X", "importtime")) as process:
        link = read_link(process)
        place, browser = link.partition("login?")[0], Browser()
        browser.get(link)
        for part in ("", "/metrics", "/episodes", "/episodes/0/0", "/environments", "/health"):
            browser.get(f"{place}api/runs/one{part}")
        browser.get(f"{place}api/runs/one/learned")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    imported = {line.rpartition("|")[2].strip() for line in err.splitlines()}
    assert "esper.dashboard.app" in imported
    assert imported.isdisjoint({"torch", "gymnasium", "matplotlib"})


def test_it_starts_without_numpy() -> None:
    script = "import sys, esper.dashboard.server; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "set()")


def test_every_start_has_a_new_token(tmp_path: Path) -> None:
    links: list[str] = []
    for _ in range(2):
        with command("dashboard", str(tmp_path), "--port", "0") as process:
            links.append(read_link(process).partition("token=")[2])
    assert links[0] != links[1]


def test_a_signal_right_after_the_link_stops_it(tmp_path: Path) -> None:
    with command("dashboard", str(tmp_path), "--port", "0") as process:
        read_link(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0


def test_only_the_default_port_falls_back_to_a_free_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", str(tmp_path), "--port", str(port)]) == 2
        printed = capsys.readouterr().err
        assert f"port {port} is taken" in printed
        assert len(printed.splitlines()) == 1
        monkeypatch.setattr(addresses, "DEFAULT_PORT", port)
        with addresses.open_socket("127.0.0.1", None, allow_remote=False) as other:
            assert other.getsockname()[1] not in (0, port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_remote_access_needs_allow_remote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    assert main(["dashboard", str(tmp_path), "--host", host, "--port", "0"]) == 2
    printed = capsys.readouterr().err
    assert "--allow-remote" in printed
    assert len(printed.splitlines()) == 1


def test_a_remote_dashboard_accepts_its_own_address(tmp_path: Path) -> None:
    words = ("dashboard", str(tmp_path), "--host", "0.0.0.0", "--allow-remote", "--port", "0")
    with command(*words) as process:
        link = read_link(process)
        port = link.partition("/login")[0].rpartition(":")[2]
        token = link.partition("token=")[2]
        browser = Browser()
        browser.get(f"http://127.0.0.1:{port}/login?token={token}")
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/runs", headers={"Host": f"evil.example:{port}"}
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asked, timeout=TIMEOUT)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "warning" in err
    assert token not in err


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["nowhere"], "no folder 'nowhere'"),
        ([], "no folder 'runs'"),
        ([".", "--port", "70000"], "--port is 70000"),
        ([".", "--port", "x"], "--port is 'x'"),
        ([".", "--host", "no such host"], "--host is 'no such host'"),
        ([".", "--host", ""], "--host is ''"),
        ([".", "--hots", "x"], "Did you mean '--host'?"),
    ],
)
def test_usage_errors_are_reported_in_one_line(
    words: list[str],
    piece: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_RUNS", raising=False)
    assert main(["dashboard", *words]) == 2
    printed = capsys.readouterr().err
    assert piece in printed
    assert len(printed.splitlines()) == 1


def test_a_browser_is_opened_with_a_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = tmp_path / "opener"
    opener.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n')
    opener.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(opener))
    with command("dashboard", str(tmp_path), "--port", "0", "--open") as process:
        link = read_link(process)
        opened = tmp_path / "opened"
        while not (opened.exists() and opened.read_text().endswith("\n")):
            assert process.poll() is None
        given = opened.read_text().strip()
        assert given.partition("token=")[0] == link.partition("token=")[0]
        assert given != link
        assert "<title>" in Browser().get(given)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            Browser().get(given)
        assert "<title>" in Browser().get(link)


def test_loopback_addresses_are_recognized() -> None:
    assert [addresses.is_loopback(a) for a in ("127.0.0.1", "127.1.2.3", "::1")] == [True] * 3
    others = ("0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "fe80::1", "::ffff:10.0.0.1")
    assert not any(addresses.is_loopback(address) for address in others)


def test_links_are_valid_urls() -> None:
    assert addresses.link_host("localhost", "127.0.0.1") == "127.0.0.1"
    assert addresses.link_host("box.lan", "10.0.0.5") == "box.lan"
    assert addresses.link_host("::1", "::1") == "::1"
    assert addresses.link_host("0.0.0.0", "0.0.0.0") == socket.gethostname().lower()


@pytest.mark.skipif(not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"), reason="IPv6")
def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with command("dashboard", str(tmp_path), "--host", "::1", "--port", "0") as process:
        link = read_link(process)
        assert link.startswith("http://[::1]:")
        assert "<title>" in Browser().get(link)
