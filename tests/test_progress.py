"""Progress is shown in terminals and notebooks without asking, and nowhere else."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper import progress
from esper.config.run import RunConfig
from esper.errors import ConfigError
from esper.progress import Pace, ProgressBar
from esper.simic import PPO, evaluate
from esper.training.output import shown_run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Notebook:
    """What a notebook displays: the outputs of a cell, by id."""

    def __init__(self) -> None:
        self.outputs: dict[str, dict[str, str]] = {}
        self.history: list[str] = []

    def display(self, bundle: Any, *, raw: bool, display_id: str, update: bool = False) -> None:
        assert raw
        assert update == (display_id in self.outputs)
        self.outputs[display_id] = bundle
        self.history.append(bundle["text/plain"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found, ipython, display = Notebook(), ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(display)["display"] = found.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def wait_until(is_so: Callable[[], Any]) -> None:
    end = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_time_left_follows_the_pace_of_work_that_was_not_cached() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    pace.add("first", 0.0)
    pace.add("second", 0.5)  # the first piece was cached
    assert pace.seconds_left is None
    now = 10.0
    pace.add("second", 0.6)
    assert pace.seconds_left == pytest.approx(40.0)
    now = 14.0
    assert pace.seconds_left == pytest.approx(36.0)


def test_a_terminal_shows_a_bar_that_disappears() -> None:
    stream = Terminal()
    with ProgressBar(title="growing", delay=0.0, stream=stream) as bar:
        bar.show("growing", 0.25, ", score 0.5 [bold]\x1b")
        wait_until(lambda: "25%" in stream.getvalue())
    text = stream.getvalue()
    assert "growing, score 0.5 [bold]\\x1b" in text
    assert "\x1b[2K" in text.rpartition("25%")[2]  # erased


def test_short_work_shows_no_bar() -> None:
    stream = Terminal()
    with ProgressBar(title="growing", stream=stream) as bar:
        bar.show("growing", 0.5)
    assert not stream.getvalue()


def test_a_notebook_replaces_its_bar_by_the_time_that_it_took(notebook: Notebook) -> None:
    with ProgressBar(title="growing", delay=0.0) as bar:
        bar.show("growing", 0.25, " <b>")
        wait_until(lambda: any("25%" in text for text in notebook.history))
        (output,) = notebook.outputs.values()
        assert "width:25%" in output["text/html"]
        assert "growing &lt;b&gt;" in output["text/html"]
    (output,) = notebook.outputs.values()
    assert output["text/plain"].startswith("growing: finished in ")


def test_a_notebook_says_after_how_long_work_was_interrupted(notebook: Notebook) -> None:
    def work() -> None:
        with ProgressBar(title="growing", delay=0.0):
            wait_until(lambda: notebook.history)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert notebook.history[-1].startswith("growing: stopped after ")


def test_a_log_gets_progress_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    for wanted in ("auto", False, True):
        stream = io.StringIO()
        with ProgressBar(wanted, title="growing", stream=stream) as bar:
            bar.show("growing", 1.0)
            if wanted is True:
                wait_until(lambda stream=stream: "100%  growing" in stream.getvalue())
        assert ("growing: finished in" in stream.getvalue()) == (wanted is True)


def test_a_dumb_terminal_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressBar(True, title="growing", stream=stream) as bar:
        bar.show("growing", 1.0)
        wait_until(lambda: "100%" in stream.getvalue())
    assert "\x1b" not in stream.getvalue()


def test_another_wish_for_progress_is_rejected() -> None:
    with pytest.raises(ConfigError, match="progress is 'always'"):
        ProgressBar("always", title="growing")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*hosts are too few")
def test_everything_that_takes_long_shows_progress_unless_told_not_to(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    data = (x[:40], y[:40]), (x[40:], y[40:])
    spirals: dict[str, Any] = {"task": "spirals", "n_hosts": 2}
    small: dict[str, Any] = {"envs": 2, "n_steps": 2, "rounds": 1, "ppo": {"n_minibatches": 1}}
    small["first_policy"] = "cautious"
    final = {"n_eval_episodes": 2, "n_final_episodes": 2}
    ppo = PPO("CartPole-v1", n_steps=256)
    works: dict[str, Callable[..., Any]] = {
        "growing": lambda **how: esper.grow(model, *data, 2, controller="fixed", **how),
        "growing a host": lambda **how: esper.grow(
            "spirals", epochs=2, controller="no-growth", **how
        ),
        "comparing": lambda **how: esper.compare(["no-growth", "heuristic"], **spirals, **how),
        "training": lambda **how: esper.train(
            task="spirals", run_dir=tmp_path / str(how), evaluation=final, **small, **how
        ),
        "learning": lambda **how: ppo.learn(256, **how),
        "evaluating": lambda **how: evaluate(ppo, n_episodes=20, **how),
    }
    for title, work in works.items():
        if title != "training":  # which takes a second; the test below is faster
            work(progress=False)
        assert not notebook.history
        for _ in range(20):  # a very short work may end before its bar is drawn
            work()
            if notebook.history:
                break
        assert notebook.history[-1].startswith(f"{title.removesuffix(' a host')}: finished in")
        notebook.history.clear()


def test_a_run_is_not_watched_by_a_bar_that_nobody_sees(notebook: Notebook) -> None:
    with shown_run(False, RunConfig()) as watchers:
        assert not watchers
    with shown_run("auto", RunConfig()) as watchers:
        assert watchers


def test_a_process_without_stderr_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with ProgressBar(True, title="growing") as bar:
        bar.show("growing", 1.0)
    assert not bar.is_shown
