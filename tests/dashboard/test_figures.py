"""Figures show the metrics of runs with their reference lines, and the timeline of a training."""

from dataclasses import replace

import pytest

from esper.dashboard.figures import plot_metrics, plot_trace
from esper.growing.decisions import Decision, Trace
from esper.lifecycle.slot_state import SlotState
from esper.telemetry import Metrics, Series

pytest.importorskip("matplotlib")


def test_the_return_is_drawn_with_the_fixed_schedule() -> None:
    metrics: Metrics = {
        "eval/mean_reward": Series(rounds=[5, 10, 15], values=[0.5, 0.6, 0.7]),
        "eval/fixed_reward": Series(rounds=[5, 10, 15], values=[0.65] * 3),
        "eval/score": Series(rounds=[5, 10, 15], values=[0.7, 0.8, 0.9]),
    }
    returns, *others = plot_metrics({"run": metrics}).axes
    lines = {line.get_label(): line for line in returns.lines}
    assert list(lines) == ["held-out", "fixed schedule"]
    assert list(lines["fixed schedule"].get_ydata()) == [0.65, 0.65]
    assert lines["fixed schedule"].get_linestyle() == "--"
    assert "fixed schedule" not in {line.get_label() for axis in others for line in axis.lines}
    del metrics["eval/fixed_reward"]
    assert [line.get_label() for line in plot_metrics({"run": metrics}).axes[0].lines] == [
        "held-out"
    ]


def test_returns_relative_to_the_schedule_have_a_chart_of_their_own() -> None:
    metrics: Metrics = {
        "rollout/ep_rew_mean": _series(-0.01),
        "eval/mean_reward": _series(0.5),
        "eval/fixed_reward": _series(0.6),
    }
    held_out, training, *_ = plot_metrics({"run": metrics}, is_scheduled=True).axes
    assert [line.get_label() for line in held_out.lines] == ["held-out", "fixed schedule"]
    assert [line.get_label() for line in training.lines] == ["training"]
    assert training.get_title(loc="left") == "Return, relative to the fixed schedule"


def _series(value: float) -> Series:
    return Series(rounds=[1, 2], values=[value, value])


def test_every_panel_has_the_lines_with_values() -> None:
    metrics: Metrics = {
        "train/approx_kl": _series(0.01),
        "train/entropy/op": _series(0.5),
        "train/entropy/slot": _series(0.7),
        "train/value_loss": _series(0.1),
        "train/explained_variance": _series(0.9),
        "growth/host_parameters": _series(100.0),
        "growth/flops": _series(0.5),
        "ops/wait": _series(3.0),
    }
    figure = plot_metrics({"run": metrics}, kl_limit=0.045)
    lines = {
        axis.get_title(loc="left").split()[0]: [line.get_label() for line in axis.lines]
        for axis in figure.axes
        if axis.get_title(loc="left")
    }
    assert lines == {
        "Parameters": ["host"],
        "FLOPs,": ["training"],
        "KL": ["mean over heads", "updates stop"],
        "Losses": ["value"],
        "Explained": ["explained variance"],
        "Entropy": ["op", "slot"],
        "Ops": ["wait"],
    }
    (kl,) = (axis for axis in figure.axes if axis.get_title(loc="left").startswith("KL"))
    assert list(kl.lines[-1].get_ydata()) == [0.045, 0.045]


def test_several_runs_are_overlaid_by_their_main_lines() -> None:
    runs: dict[str, Metrics] = {
        "a $x$": {"eval/mean_reward": _series(0.5), "rollout/ep_rew_mean": _series(0.4)},
        "_b": {"rollout/ep_rew_mean": _series(0.6)},
        "none": {},
    }
    (axis, *_) = plot_metrics(runs).axes
    assert [(line.get_label(), line.get_ydata()[0]) for line in axis.lines] == [
        (r"a \$x\$", 0.5),
        (" _b", 0.6),
    ]
    assert plot_metrics({"none": {}}).axes


def _decision(epoch: int, **changes: object) -> Decision:
    values = {
        "epoch": epoch,
        "epochs": 5,
        "train_loss": None,
        "val_loss": None,
        "score": 0.1 * epoch,
        "op": "wait",
        "parameters": 100,
        "seed_parameters": 0,
        "flops": 0.2 * epoch,
    }
    return Decision(**values | changes)  # type: ignore[arg-type]


def test_a_trace_is_drawn_with_its_score_its_seeds_and_its_size() -> None:
    grown = {"parameters": 130, "seed_parameters": 30}
    trace = Trace(
        [
            _decision(
                1,
                op="germinate",
                slot="_a$",
                blueprint="widen",
                slots={"_a$": SlotState("germinated", "widen", 0.0, None)},
                **grown,
            ),
            _decision(2, slots={"_a$": SlotState("blending", "widen", 0.6, None)}, **grown),
            _decision(
                3,
                op="fossilize",
                slot="_a$",
                slots={"_a$": SlotState("fossilized", "widen", 1.0, None)},
                **grown,
            ),
            _decision(4, score=0.2, why="the model was rolled back: the loss is nan", **grown),
        ]
    )
    score, lane, size = trace.figure().axes
    assert list(score.lines[0].get_xdata()) == [1, 2, 3, 4]
    assert list(score.lines[0].get_ydata()) == [one.score for one in trace]
    assert score.get_title(loc="right") == "best 0.3 after epoch 3"
    assert [line.get_xdata()[0] for line in score.lines if line.get_linestyle() == ":"] == [4]
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in lane.patches]
    assert bars == [(1, 1, 0.15), (2, 1, 0.6), (3, 1, 1.0)]
    assert [text.get_text() for text in lane.texts] == ["widen", "1 kept"]
    assert lane.get_ylabel() == r" _a\$"
    assert list(size.lines[0].get_ydata()) == [130] * 4
    assert size.get_title(loc="right") == "130, of which 30 grown"
    assert size.get_xlabel() == "epoch"


def test_a_race_is_drawn_with_the_curve_of_each_size_and_where_it_stopped() -> None:
    lanes = ({"x1": 0.5, "x2": 0.4}, {"x1": 0.6, "x2": 0.7}, {"x2": 0.8})
    steps = (replace(_decision(n), lanes=found) for n, found in enumerate(lanes, start=1))
    (axis,) = Trace([*steps]).figure().axes
    drawn = [(str(line.get_label()), list(line.get_ydata())) for line in axis.lines]
    curves = {label: scores for label, scores in drawn if not label.startswith("_")}
    assert curves == {"x1: best 0.6": [0.5, 0.6], "x2: best 0.8": [0.4, 0.7, 0.8]}
    crosses = [line.get_xydata().tolist() for line in axis.lines if line.get_marker() == "X"]
    assert crosses == [[[2.0, 0.6]]]


def test_a_size_that_joins_a_race_late_is_drawn_from_the_epoch_in_which_it_joined() -> None:
    lanes = ({"x1": 0.5}, {"x1": 0.6, "x2": 0.7}, {"x2": 0.8})
    steps = (replace(_decision(n), lanes=found) for n, found in enumerate(lanes, start=1))
    (axis,) = Trace([*steps]).figure().axes
    curves = {line.get_label(): list(line.get_xdata()) for line in axis.lines}
    assert curves["x1: best 0.6"] == [1, 2]
    assert curves["x2: best 0.8"] == [2, 3]
    marks = [
        (line.get_marker(), line.get_xdata()[0])
        for line in axis.lines
        if len(line.get_xdata()) == 1
    ]
    assert marks == [("X", 2), ("o", 2)]


def test_a_trace_without_decisions_or_seeds_can_be_drawn() -> None:
    assert len(Trace().figure().axes) == 2
    assert len(Trace([_decision(1)]).figure().axes) == 2


def test_the_curve_of_training_with_no_growth_is_drawn_beside_any_trace() -> None:
    race = Trace([replace(_decision(1), lanes={"x1": 0.5})])
    for trace in (race, Trace([_decision(1), _decision(2)])):
        axis, *_ = plot_trace(trace, baseline=(0.4, 0.6)).axes
        (line,) = (one for one in axis.lines if one.get_linestyle() == "--")
        assert (line.get_label(), list(line.get_ydata())) == ("no growth: best 0.6", [0.4, 0.6])
