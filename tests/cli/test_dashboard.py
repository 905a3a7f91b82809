"""``--dashboard`` serves the dashboard while a run trains, and then until Ctrl-C."""

import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from esper.cli import views
from esper.cli.main import main
from tests.cli.conftest import TINY

LINK = re.compile(r"^esper: dashboard at (http://\S+/)(login\?token=\S+)")


class Visitor:
    """A line writer that follows a run in its dashboard, and presses Ctrl-C when it is done."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.place = self.page = ""
        self.states: list[str] = []
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        """Record a line, and visit the dashboard at the first evaluation."""
        self.lines.append(line)
        if '"event": "evaluation"' in line and not self.states:
            found = LINK.match(self._capfd.readouterr().err)
            assert found is not None
            self.place = found[1]
            threading.Thread(target=self._follow, args=(found[2],), daemon=True).start()
            wait_for(lambda: self.states)

    def _follow(self, login: str) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.place}{login}", timeout=30) as page:
            token, _, self.page = page.url.partition("#token=")[2].partition("&")
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.place}api/runs", headers=headers)
        while self.states[-1:] != ["done"]:
            with opener.open(request, timeout=30) as answer:
                (state,) = (run["state"] for run in json.load(answer)["runs"])
            self.states += [state] if self.states[-1:] != [state] else []
            time.sleep(0.05)
        time.sleep(0.5)  # results are printed, and then the dashboard is served
        signal.raise_signal(signal.SIGINT)


def wait_for(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def visitor(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Visitor:
    made = Visitor(capfd)
    monkeypatch.setattr(views, "LineWriter", lambda: made)
    return made


def require_gone(visitor: Visitor) -> None:
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(visitor.place, timeout=10)


def test_a_run_is_served_while_it_trains_and_then_until_ctrl_c(
    visitor: Visitor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *TINY, "--json", "--dashboard", "--run-dir", str(tmp_path / "runs" / "one")]
    assert main(words) == 0
    assert visitor.states == ["running", "done"]
    assert visitor.page == "run=one"
    require_gone(visitor)
    out, err = capfd.readouterr()
    assert err.endswith(" until you press Ctrl-C\n")
    assert [json.loads(line)["event"] for line in (*visitor.lines, *out.splitlines())][-1] == "end"


@pytest.mark.slow
def test_a_run_in_the_default_folder_is_served(visitor: Visitor) -> None:
    assert main(["train", *TINY, "--json", "--dashboard"]) == 0
    assert visitor.states == ["running", "done"]
    require_gone(visitor)


@pytest.mark.slow
def test_a_resumed_run_is_served(visitor: Visitor, copied_run: Path) -> None:
    (copied_run / "summary.json").unlink()
    assert main(["resume", str(copied_run), "--json", "--dashboard"]) == 0
    assert visitor.states == ["running", "done"]
    require_gone(visitor)


def test_a_dashboard_that_cannot_start_does_not_stop_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("esper.dashboard.companion.MODULE", "esper.dashboard.no_such_module")
    assert main(["train", *TINY, "--quiet", "--dashboard", "--run-dir", "run"]) == 0
    out, err = capfd.readouterr()
    assert err.endswith("esper: cannot start the dashboard; training continues without it\n")
    assert len(out.splitlines()) == 1
