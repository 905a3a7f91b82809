"""The dashboard of a training run is a separate process that ends with the run."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from esper.dashboard import companion
from esper.dashboard.companion import companion_dashboard
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


def test_it_serves_within_the_context(tmp_path: Path, state_home: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    messages: list[str] = []
    with companion_dashboard(tmp_path / "runs", messages.append):
        (line,) = messages
        link = line.split()[2]
        browser = Browser()
        assert "<title>" in browser.get(link)
        assert '"id":"one"' in browser.get(f"{link.partition('login')[0]}api/runs")
        assert len(list((state_home / "esper").iterdir())) == 1
    assert not is_there(link)
    assert list((state_home / "esper").iterdir()) == []


def test_later_runs_are_shown(tmp_path: Path) -> None:
    messages: list[str] = []
    with companion_dashboard(tmp_path / "runs", messages.append):
        link, browser = messages[0].split()[2], Browser()
        browser.get(link)
        runs = f"{link.partition('login')[0]}api/runs"
        assert '"runs":[]' in browser.get(runs)
        make_run(tmp_path / "runs" / "later")
        assert '"id":"later"' in browser.get(runs)


def test_a_run_continues_without_it(
    tmp_path: Path, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    state_home.write_text("a file")
    with companion_dashboard(tmp_path, messages.append):
        assert messages[0].startswith("training continues without the dashboard: ")
        assert "XDG_STATE_HOME" in messages[0]
    monkeypatch.setattr(companion, "MODULE", "esper.dashboard.no_such_module")
    with companion_dashboard(tmp_path, messages.append):
        assert messages[1] == "cannot start the dashboard; training continues without it"


SCRIPT = """
import signal, sys
from pathlib import Path
from esper.dashboard.companion import companion_dashboard
signal.signal(signal.SIGINT, signal.SIG_IGN)
with companion_dashboard(Path(sys.argv[1]), lambda line: print(line, flush=True)):
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


def test_it_ends_when_the_run_is_killed(tmp_path: Path, state_home: Path) -> None:
    with other_process(tmp_path) as (process, link):
        assert is_there(link)
        process.kill()
        process.wait(30)
        wait_for(lambda: not is_there(link))
        wait_for(lambda: not any((state_home / "esper").iterdir()))


def test_the_run_does_not_import_the_server() -> None:
    script = (
        "import sys, esper.dashboard.companion; print({'uvicorn', 'starlette'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "set()")
