"""The dashboard of a training run is a separate process, which ends with the run's command."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from esper.dashboard import companion
from esper.dashboard.companion import companion_dashboard
from esper.telemetry import TelemetryWriter
from tests.dashboard.made_runs import make_run
from tests.dashboard.test_command import Browser


def is_there(link: str) -> bool:
    try:
        urllib.request.urlopen(link.partition("login")[0], timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_it_serves_within_the_context(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    messages: list[str] = []
    with companion_dashboard(tmp_path / "runs", "one", messages.append):
        (line,) = messages
        link = line.split()[2]
        browser = Browser()
        assert "<title>" in browser.get(link)
        assert '"id":"one"' in browser.get(f"{link.partition('login')[0]}api/runs")
    assert not is_there(link)


def test_the_link_opens_the_run(tmp_path: Path) -> None:
    messages: list[str] = []
    with companion_dashboard(tmp_path, "a run & more", messages.append):
        browser = Browser()
        with browser.listen(messages[0].split()[2]) as page:
            assert page.url.partition("&")[2] == "run=a%20run%20%26%20more"


def test_a_page_hears_of_the_end_of_a_run_before_it_is_over(tmp_path: Path) -> None:
    make_run(tmp_path / "one", is_over=False)
    messages: list[str] = []
    with companion_dashboard(tmp_path, "one", messages.append):
        link, browser = messages[0].split()[2], Browser()
        place = link.partition("login")[0]
        browser.get(link)
        stream = browser.listen(f"{place}api/events")
        assert "killed" in read_event(stream)
        with TelemetryWriter(tmp_path / "one" / "telemetry.sqlite") as writer:
            writer.start_session(first_round=5, threads=1, torch_version="0")
            writer.end_session("interrupted")
    assert "interrupted" in read_event(stream)


def read_event(stream: Iterable[bytes]) -> str:
    return next(line.decode() for line in stream if line.strip())


def test_waiting_ends_with_a_signal_or_the_process(tmp_path: Path) -> None:
    messages: list[str] = []
    with companion_dashboard(tmp_path, "one", messages.append) as companion:
        threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
        companion.wait(messages.append)
        assert companion.link is not None
        assert messages[1] == f"dashboard at {companion.link} until you press Ctrl-C"
        assert is_there(companion.link)
    start = time.monotonic()
    with companion_dashboard(tmp_path, "one", messages.append) as companion:
        companion.process.kill()
        companion.wait(messages.append)
    assert time.monotonic() - start < 15


def test_later_runs_are_shown(tmp_path: Path) -> None:
    messages: list[str] = []
    with companion_dashboard(tmp_path / "runs", "one", messages.append):
        link, browser = messages[0].split()[2], Browser()
        browser.get(link)
        runs = f"{link.partition('login')[0]}api/runs"
        assert '"runs":[]' in browser.get(runs)
        make_run(tmp_path / "runs" / "later")
        assert '"id":"later"' in browser.get(runs)


def test_a_run_continues_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(companion, "MODULE", "esper.dashboard.no_such_module")
    with companion_dashboard(tmp_path, "one", messages.append):
        assert messages[0] == "cannot start the dashboard; training continues without it"


SCRIPT = """
import signal, sys
from pathlib import Path
from esper.dashboard.companion import companion_dashboard
signal.signal(signal.SIGINT, signal.SIG_IGN)
with companion_dashboard(Path(sys.argv[1]), "one", lambda line: print(line, flush=True)):
    sys.stdin.read()
"""


@contextmanager
def other_process(runs_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process with a dashboard that runs until its input ends, and the link."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(runs_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[2]
        finally:
            process.kill()


def test_ctrl_c_does_not_reach_it(tmp_path: Path) -> None:
    with other_process(tmp_path) as (process, link):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.5)
        assert "<title>" in Browser().get(link)
        process.communicate("", timeout=30)
        assert process.returncode == 0
        assert not is_there(link)


def test_it_ends_when_the_run_is_killed(tmp_path: Path) -> None:
    with other_process(tmp_path) as (process, link):
        assert is_there(link)
        process.kill()
        process.wait(30)
        wait_for(lambda: not is_there(link))


def test_the_run_does_not_import_the_server() -> None:
    script = (
        "import sys, esper.dashboard.companion; print({'uvicorn', 'starlette'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "set()")
