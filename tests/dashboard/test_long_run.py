"""A run of ten thousand rounds loads in less than 2 MB."""

import json
import math
import posixpath
import re
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, RoundRecord, UpdateRecord
from tests.dashboard.served import Served, serve
from tests.dashboard.views.samples import HEADS, config_text, run_record, trial
from tests.telemetry.samples import example

N_ROUNDS = 10_000
MAX_BYTES = 2_000_000
_ROUND, _UPDATE = example(RoundRecord), example(UpdateRecord)


def floats_of(record: Record) -> list[str]:
    """Return the columns of a record that hold a number with decimals."""
    return [one.name for one in fields(record) if isinstance(getattr(record, one.name), float)]


def round_records(number: int) -> list[Record]:
    """Return the records of a round, all of whose numbers have as many digits as they can."""
    value = 0.5 + 0.4 * math.sin(number / 50) + 0.05 * math.sin(1000 * number)
    by_head = json.dumps({head: value * k for k, head in enumerate(HEADS, start=1)})
    parts = json.dumps({part: value * k for k, part in enumerate("abcdef", start=1)})
    columns = ("approx_kl_by_head", "clip_fraction_by_head", "entropy_by_head")
    update = dict.fromkeys(floats_of(_UPDATE), value) | dict.fromkeys(columns, by_head)
    means = dict.fromkeys(floats_of(_ROUND), value)
    return [
        replace(_ROUND, round=number, seconds_by_part=parts, **means),
        replace(_UPDATE, round=number, **update),
        *([trial(number, "learned", ep_rew_mean=value)] if number % 10 == 0 else []),
    ]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("runs") / "long"
    folder.mkdir()
    (folder / "config.toml").write_text(config_text())
    with TelemetryWriter(folder / "telemetry.sqlite") as writer:
        writer.start_session(first_round=1, threads=1, torch_version="0")
        writer.write_many([run_record(), trial(0, "no-growth"), trial(0, "fixed")])
        for number in range(1, N_ROUNDS + 1):
            writer.write_many(round_records(number))
        writer.end_session("done")
    with serve(folder.parent) as served:
        yield served


def test_the_first_page_of_a_long_run_is_small(long_run: Served) -> None:
    page = long_run.ask("/")
    files = re.findall(rb'href="(static/[^"]+)"', page.body)
    assert len(files) > 50
    asked = [f"/{name.decode()}" for name in files]
    asked += ["/api/runs/long", "/api/runs/long/metrics?after=-1"]
    answers = [page, *map(long_run.ask, asked)]
    assert {answer.status for answer in answers} == {200}
    assert sum(len(answer.body) for answer in answers) < MAX_BYTES


def test_the_health_of_a_long_run_is_small(long_run: Served) -> None:
    health = long_run.ask("/api/runs/long/health")
    assert len(health.body) < MAX_BYTES / 2
    parts = health.json["seconds_by_part"]
    assert {len(values) for values in parts["values"]} == {len(parts["rounds"])}


def test_all_points_of_a_part_can_be_asked_for(long_run: Served) -> None:
    found = long_run.ask("/api/runs/long/metrics?after=9000&until=9100").json
    assert found["series"]["train/approx_kl"]["rounds"] == list(range(9001, 9101))
    assert not found["is_thinned"]
    health = long_run.ask("/api/runs/long/health?after=9000&until=9100").json
    assert health["memory"]["rounds"] == list(range(9001, 9101))
    assert not health["is_thinned"]
    assert long_run.ask("/api/runs/long/health").json["is_thinned"]


def test_all_points_of_a_whole_run_can_be_asked_for(long_run: Served) -> None:
    few, full = (
        long_run.ask(f"/api/runs/long/metrics?points={word}").json for word in ("few", "all")
    )
    assert few["is_thinned"]
    assert not full["is_thinned"]
    assert len(few["series"]["train/approx_kl"]["rounds"]) < N_ROUNDS
    assert full["series"]["train/approx_kl"]["rounds"] == list(range(1, N_ROUNDS + 1))
    assert (
        len(long_run.ask("/api/runs/long/health?points=all").json["memory"]["rounds"]) == N_ROUNDS
    )


def test_the_page_leaves_out_only_what_no_chart_shows(long_run: Served) -> None:
    every, drawn = (
        set(long_run.ask(f"/api/runs/long/metrics?which={word}").json["series"])
        for word in ("all", "drawn")
    )
    left_out = {f"train/{name}/{head}" for name in ("approx_kl", "clip_fraction") for head in HEADS}
    assert every - drawn == left_out
    assert drawn < every


def test_the_page_preloads_every_module_that_it_uses(long_run: Served) -> None:
    page = long_run.ask("/").body.decode()
    waiting, found = ["main.js"], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            text = long_run.ask(f"/static/{name}").body.decode()
            imported = re.findall(r'(?:from|import) ?"(\.[^"]+)"', text)
            waiting += [posixpath.normpath(f"{posixpath.dirname(name)}/{one}") for one in imported]
            waiting = [one.removeprefix("/") for one in waiting]
    assert found == set(re.findall(r'modulepreload" href="static/([^"]+)"', page))
