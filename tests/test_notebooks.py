"""What notebooks show of Esper's objects: HTML that is well formed and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import esper
from esper.formatting import html_table
from esper.growing.decisions import MAX_ROWS
from esper.growing.grown import FEW_ROWS
from esper.lifecycle.slot_state import SlotState
from esper.results.evidence import EvidenceList
from esper.simic import PPO, check_env, evaluate
from esper.training.lookup import find_saved
from tests.dashboard.made_runs import make_run

EVIL = "<script>alert('x')</script>"
VOID = {"br", "img"}


class Page(HTMLParser):
    """Reads HTML strictly: every element is closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self.open:
            self.cells[-1] += data


def shown(value: Any) -> Page:
    page = Page(value._repr_html_())
    assert "script" not in page.tags
    return page


def decide(epoch: int, **changes: Any) -> esper.Decision:
    values: dict[str, Any] = {
        "epoch": epoch,
        "epochs": 100,
        "train_loss": None,
        "val_loss": 0.25,
        "score": 0.01 * epoch,
        "op": "wait",
        "parameters": 1000 + epoch,
        "seed_parameters": epoch,
        "flops": 0.5,
    }
    return esper.Decision(**values | changes)


def test_a_table_holds_its_cells_as_text() -> None:
    page = Page(html_table(("a", EVIL), [("1 < 2", "&amp;"), (EVIL, "")], n_left=1))
    assert page.cells == ["1 < 2", "&amp;", EVIL, ""]
    assert page.tags.count("tr") == 3


def test_a_decision_and_a_trace_are_tables_of_what_happened() -> None:
    germinate = decide(
        1,
        op="germinate",
        slot=EVIL,
        blueprint="widen",
        why="a < b",
        probabilities={"germinate": 0.25},
        slots={EVIL: SlotState("blending", "widen", 0.5, None)},
    )
    page = shown(germinate)
    assert f"germinate widen in {EVIL}" in page.cells
    assert {"after epoch 1 of 100", "25%", "a < b", f"{EVIL} blending 0.5", "0.2500"} <= set(
        page.cells
    )
    assert page.tags.count("th") == 9  # without the training loss, which is unknown
    assert shown(esper.Trace([germinate])).cells == page.cells
    assert shown(esper.Trace()).tags == ["p"]


def test_epochs_are_counted_from_one_in_words() -> None:
    trace = esper.Trace([decide(0), decide(1)])
    assert [str(one).split("  ")[0] for one in trace] == [
        "before epoch 1 of 100",
        "after epoch 1 of 100",
    ]
    assert shown(trace).cells[0] == "before epoch 1 of 100"
    assert "epoch 0" not in f"{trace}{trace.to_html()}"


def test_a_long_trace_leaves_out_epochs_in_which_nothing_happened() -> None:
    decisions = [decide(epoch) for epoch in range(1, MAX_ROWS + 2)]
    decisions[5] = decide(6, op="prune", slot="a")
    decisions[7] = decide(8, score=0.9)
    page = shown(esper.Trace(decisions))
    firsts = page.cells[:: page.tags.count("th")]
    assert firsts == [f"after epoch {epoch} of 100" for epoch in (1, 6, 8, MAX_ROWS + 1)]
    assert f"{MAX_ROWS - 3} of {MAX_ROWS + 1} epochs" in page.text


def test_a_trace_is_shown_with_a_figure_where_matplotlib_is_installed() -> None:
    page = shown(esper.Trace([decide(0, op="germinate", slot=EVIL), decide(1)]))
    assert page.tags.count("img") == (find_spec("matplotlib") is not None)


def test_a_grown_model_is_shown_with_its_summary_and_timeline() -> None:
    x = torch.randn(60, 4)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    grown = esper.grow(model, (x[:40], y[:40]), (x[40:], y[40:]), epochs=3, controller="fixed")
    page = shown(grown)
    for sentence in (*grown.summary.facts.values(), *grown.summary.details.splitlines()):
        assert sentence in page.text
    assert page.tags.count("tr") == 1 + len(grown.timeline)
    assert page.tags.count("details") == 1
    assert shown(grown.timeline).cells == page.cells
    assert repr(grown.summary) == f"GrowthSummary\n{grown.summary}"
    assert repr(grown.timeline).startswith("Trace of 3 decisions\nafter epoch 1 of 3  score ")
    long = esper.grow("spirals", epochs=FEW_ROWS + 1, controller="fixed")
    assert shown(long).tags.count("details") == 2


def test_proposals_are_a_row_for_each_place() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    proposals = esper.find_slots(model, torch.randn(2, 4))
    page = shown(proposals)
    assert page.cells[::3] == proposals.names
    assert shown(type(proposals)()).text == str(type(proposals)())


def test_evidence_is_shown_with_its_verdict() -> None:
    def arm(name: str, score: float) -> esper.Arm:
        values = score + 0.01 * np.arange(30.0)[None] % 0.07
        return esper.Arm(
            name=name,
            label=name,
            kind="learned" if name == "learned" else "simple",
            score=values,
            returns=values,
            flops=values,
            parameters=values,
            grown_parameters=values,
            n_epochs=values,
        )

    arms = (arm("learned", 0.5), arm(EVIL, 0.4))
    evidence = esper.Evidence(task=EVIL, price=0.0, runs=("one",), arms=arms)
    page = shown(evidence)
    assert page.cells[:: page.tags.count("th")] == ["learned", EVIL]
    assert EVIL in page.text
    assert shown(EvidenceList([evidence, evidence])).cells == 2 * page.cells
    assert EVIL in shown(arms[1]).text
    assert repr(evidence).splitlines()[1:] == list(evidence.sentences)


def test_a_run_is_shown_with_its_state_and_latest_results(tmp_path: Path) -> None:
    run = esper.load_run(make_run(tmp_path / "one", rounds=2).path)
    page = shown(run)
    assert page.cells[:2] == ["one", run.state]
    assert f"2 of {run.config.rounds}" in page.cells
    assert f"{run.metrics()['rollout/ep_rew_mean'].values[-1]:.3f}" in page.cells
    assert page.tags.count("img") == 1
    runs = esper.list_runs(tmp_path)
    assert shown(runs).cells == page.cells[: len(shown(runs).cells)]
    assert shown(esper.list_runs(tmp_path / "none")).text == "There are no runs."
    run.folder.telemetry_file.write_bytes(b"broken")
    assert "telemetry.sqlite" in shown(run).text


def test_a_figure_shows_itself_without_pyplot() -> None:
    pytest.importorskip("matplotlib")
    figure: Any = esper.Trace([decide(1), decide(2)]).figure()
    image, size = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    width, height = (int.from_bytes(image[start : start + 4], "big") for start in (16, 20))
    assert {"width": width // 2, "height": height // 2} == size
    assert figure._repr_html_() is None  # a second form would win over the image


def test_no_object_prints_tensors_arrays_or_addresses(tmp_path: Path) -> None:
    task = esper.make_task("spirals")
    draw, envs = task.sample(0), esper.make_env("spirals", num_envs=2, autoreset=False)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    host = esper.HostData(*[torch.randn(8, 2), torch.zeros(8, dtype=torch.long)] * 2)
    waiting = esper.make_controller("no-growth", envs.layout)
    run = esper.load_run(make_run(tmp_path / "one", rounds=2).path)
    ppo = PPO("CartPole-v1", n_steps=16)
    slotted = esper.add_slots(model, ["0>2"], torch.randn(2, 4))
    with run.telemetry() as telemetry:
        things = [
            *(task, task.metric, draw, draw.data, draw.data.train, host, envs),
            *(esper.make_env("spirals"), waiting, esper.make_controller("heuristic", envs.layout)),
            *(esper.run_episodes(envs, waiting, seed=0), ppo, ppo.agent, evaluate(ppo)),
            *(esper.slots(slotted), esper.slots(slotted)["0>2"].site, find_saved("shipped")),
            *(esper.footprint(slotted, torch.randn(2, 4)), run, run.metrics(), telemetry),
            *(check_env("CartPole-v1", n_steps=50), decide(1)),
            *(esper.find_slots(nn.Sequential(nn.Linear(4, 6)), torch.randn(2, 4)), run.config),
        ]
        for thing in things:
            text = repr(thing)
            assert not re.search(r"tensor\(|array\(| object at 0x|<function", text), text
            maximum = 4000 if isinstance(thing, (dict, esper.RunConfig)) else 1000
            assert len(text) < maximum, text
