"""Ten thousand rounds are as fast to browse as a hundred, and updates shift nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.dashboard.views.samples import HEADS, config_text, run_record, trial
from tests.slow.browser.conftest import Visit
from tests.slow.browser.processes import Dashboard, dashboard
from tests.slow.browser.visitor import BOXES, ROUND, WATCH, Visitor
from tests.telemetry.samples import example

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, RoundRecord, UpdateRecord

pytestmark = pytest.mark.slow

LENGTHS = {"short": 100, "long": 10_000, "odd": 20}
N_MOVES = 40
MAX_TIMES = 2.5
"""How many times the CPU time of the short run the long one may take."""

_ROUND = replace(example(RoundRecord), n_refused=0, n_illegal=0)  # they must not exceed the steps
_UPDATE = example(UpdateRecord)


def wave(number: int, kind: int) -> float:
    """Return a value that oscillates, differently for each kind."""
    return 0.5 + 0.4 * math.sin(number / (50 + kind)) + 0.05 * math.sin(number * (kind + 1))


def records(number: int, scale: float = 1.0) -> list[Record]:
    """Return the records of a round, with numbers times a scale (at most 1 for mean scores)."""
    value = [scale * wave(number, kind) for kind in range(10)]
    score = [max(-1.0, min(1.0, scale)) * wave(number, kind) for kind in range(5)]
    entropy = json.dumps(dict(zip(HEADS, value, strict=False)))
    parts = json.dumps(dict(zip("abcdef", value, strict=False)))
    means = {"ep_rew_mean": score[0], "score_mean": score[1], "flops_mean": score[2]}
    losses = {"approx_kl": value[3], "value_loss": value[4], "policy_loss": value[5]}
    found: list[Record] = [
        replace(_UPDATE, round=number, entropy_by_head=entropy, **losses),
        replace(_ROUND, round=number, seconds_by_part=parts, op_wait=value[6], **means),
    ]
    if number % 10 == 0:
        found.append(trial(number, "learned", ep_rew_mean=score[3], score_mean=score[4]))
    return found


class Writing:
    """A run that the test writes round by round."""

    def __init__(self, folder: Path, n_rounds: int) -> None:
        folder.mkdir()
        (folder / "config.toml").write_text(config_text())
        self.n_rounds = 0
        self.writer = TelemetryWriter(folder / "telemetry.sqlite")
        self.writer.start_session(first_round=1, threads=1, torch_version="0")
        self.writer.write_many([run_record(), trial(0, "no-growth"), trial(0, "fixed")])
        self.add(n_rounds)

    def add(self, n_rounds: int = 1, scale: float = 1.0) -> int:
        """Write more rounds, and return their total number."""
        for number in range(self.n_rounds + 1, self.n_rounds + n_rounds + 1):
            self.writer.write_many(records(number, scale))
        self.writer.flush()
        self.n_rounds += n_rounds
        return self.n_rounds


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Writing]]]:
    """Return a folder of unfinished runs, and their writers."""
    place = tmp_path_factory.mktemp("runs")
    with ExitStack() as stack:
        runs = {name: Writing(place / name, length) for name, length in LENGTHS.items()}
        for run in runs.values():
            stack.callback(run.writer.close)
        yield place, runs


@pytest.fixture(scope="module")
def served(browser: object, written: tuple[Path, object]) -> Iterator[Dashboard]:
    with dashboard(written[0]) as found:
        yield found


def open_run(visitor: Visitor, served: Dashboard, name: str) -> None:
    visitor.open(served.link)
    visitor.go(f"#/run/{name}")
    visitor.page.locator("[data-test=chart-ops] canvas").wait_for()


class Meter:
    """Measures the CPU time of a page's main thread, which other processes don't affect."""

    def __init__(self, visitor: Visitor) -> None:
        self._session = visitor.context.new_cdp_session(visitor.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.seconds: dict[str, float] = {}
        self._last = self._now()

    def _now(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def start(self) -> None:
        self._last = self._now()

    def stop(self, name: str, times: int = 1) -> None:
        """Record the time of an action, or the minimum if it is repeated."""
        taken = (self._now() - self._last) / times
        self.seconds[name] = min(taken, self.seconds.get(name, math.inf))


def settle(visitor: Visitor) -> None:
    """Wait until pending drawing is done."""
    visitor.page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def wait_for_round(visitor: Visitor, number: int) -> None:
    """Wait until a round and its values are drawn."""
    visitor.until(f"(number) => ({ROUND})() === number", number)
    visitor.until(
        "(end) => document.querySelector('[data-test=chart-return] [role=img]')"
        ".getAttribute('aria-label').includes(end)",
        f"in round {number};",
    )
    settle(visitor)


def measure(visitor: Visitor, run: Writing) -> dict[str, float]:
    """Return the CPU seconds that using a run's overview takes."""
    meter = Meter(visitor)
    for _ in range(8):
        meter.start()
        wait_for_round(visitor, run.add())
        meter.stop("to take in a round")
    box = visitor.find("chart-return").locator(".u-over").bounding_box()
    assert box is not None
    left, middle, width = box["x"] + 10, box["y"] + box["height"] / 2, box["width"] - 20
    meter.start()
    for move in range(N_MOVES):
        visitor.page.mouse.move(left + width * move / N_MOVES, middle)
    settle(visitor)
    meter.stop("to follow the mouse", times=N_MOVES)
    for _ in range(3):
        visitor.page.mouse.move(left + 0.3 * width, middle)
        meter.start()
        visitor.page.mouse.down()
        visitor.page.mouse.move(left + 0.6 * width, middle, steps=3)
        visitor.page.mouse.up()
        visitor.page.locator(".zoom-words", has_text="rounds ").wait_for()
        settle(visitor)
        meter.stop("to zoom")
        meter.start()
        visitor.page.get_by_role("button", name="Reset zoom").click()
        settle(visitor)
        meter.stop("to show all again")
    return meter.seconds


def test_ten_thousand_rounds_are_as_fast_as_a_hundred(
    served: Dashboard, visit: Visit, written: tuple[Path, dict[str, Writing]]
) -> None:
    seconds: dict[str, dict[str, float]] = {}
    for name in ("short", "long"):
        visitor = visit()
        open_run(visitor, served, name)
        seconds[name] = measure(visitor, written[1][name])
        visitor.page.close()
    for what, taken in seconds["long"].items():
        minimum = seconds["short"][what]
        assert taken <= MAX_TIMES * minimum, f"{what}: {taken:.3f} s, not {minimum:.3f} s"


def picture(visitor: Visitor) -> str:
    settle(visitor)
    canvas = visitor.find("chart-return").locator("canvas")
    return canvas.evaluate("(canvas) => canvas.toDataURL()")


def test_a_zoom_into_a_long_run_asks_for_every_round(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    open_run(visitor, served, "long")
    whole = picture(visitor)
    last = visitor.page.evaluate(ROUND)
    with visitor.page.expect_response(lambda answer: "until=" in answer.url) as found:
        visitor.page.get_by_role("button", name="last 100").click()
    rounds = found.value.json()["series"]["rollout/ep_rew_mean"]["rounds"]
    assert rounds == list(range(last - 100, last + 1))
    assert picture(visitor) != whole
    visitor.page.get_by_role("button", name="Reset zoom").click()
    assert picture(visitor) == whole


def test_a_zoom_into_the_health_of_a_long_run_asks_for_every_round(
    served: Dashboard, visit: Visit
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go("#/run/long/health")
    chart = visitor.find("chart-memory")
    chart.locator("canvas").wait_for()
    with visitor.page.expect_response(lambda answer: "until=" in answer.url) as found:
        visitor.page.get_by_role("button", name="last 100").click()
    rounds = found.value.json()["memory"]["rounds"]
    assert rounds == list(range(rounds[-1] - 100, rounds[-1] + 1))
    settle(visitor)
    chart.scroll_into_view_if_needed()  # the button is at the top
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    pointed: list[str] = []
    for number in range(40, 50):
        left = box["x"] + box["width"] * number / 100
        visitor.page.mouse.move(left, box["y"] + box["height"] / 2)
        pointed.append(chart.locator(".chart-tip strong").inner_text())
    assert pointed == [f"round {rounds[0] + number}" for number in range(40, 50)]


def test_a_zoom_asks_for_every_round_of_compared_runs(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go("#/compare?runs=long,short")
    visitor.page.locator("[data-test=chart-rollout] canvas").wait_for()
    visitor.page.get_by_role("button", name="last 100").wait_for()
    with visitor.page.expect_response(lambda answer: "until=" in answer.url) as found:
        visitor.page.get_by_role("button", name="last 100").click()
    assert "/runs/long/" in found.value.url  # the short run has all points already
    rounds = found.value.json()["series"]["rollout/ep_rew_mean"]["rounds"]
    assert rounds == list(range(rounds[-1] - 100, rounds[-1] + 1))


@pytest.mark.parametrize(
    ("screen", "chart"),
    [("run/long", "kl"), ("run/long/health", "memory"), ("compare?runs=long,short", "rollout")],
)
def test_a_file_of_numbers_has_every_round_of_a_long_run(
    served: Dashboard, visit: Visit, screen: str, chart: str
) -> None:
    visitor = visit(accept_downloads=True)
    visitor.open(served.link)
    visitor.go(f"#/{screen}")
    visitor.find(f"chart-{chart}").locator("canvas").wait_for()
    with visitor.page.expect_download() as found:
        visitor.find(f"chart-{chart}").get_by_role("button", name="CSV").click()
    _, *rows = Path(found.value.path()).read_text("utf-8").splitlines()
    rounds = [int(row.split(",")[0]) for row in rows]
    assert len(rounds) >= LENGTHS["long"]
    assert rounds == list(range(1, len(rounds) + 1))


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_longer_numbers_do_not_shift_the_layout(
    served: Dashboard, visit: Visit, written: tuple[Path, dict[str, Writing]], size: str
) -> None:
    visitor = visit(size)
    open_run(visitor, served, "odd")
    visitor.page.evaluate(WATCH)
    before = visitor.page.evaluate(BOXES, "[data-test^=chart-], .legend li")
    for scale in (-1.0, 1e-4, -1e-5, -400.0, 1e5, 1.0):
        wait_for_round(visitor, written[1]["odd"].add(scale=scale))
        assert visitor.page.evaluate(BOXES, "[data-test^=chart-], .legend li") == before
    assert visitor.page.evaluate("window.moved") == []
