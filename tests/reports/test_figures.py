"""The figure of a run shows how it learned, beside what it is held against."""

import pytest

from esper.reports.figures import plot_metrics
from esper.telemetry import Metrics, Series

pytest.importorskip("matplotlib")


def test_the_return_is_drawn_over_the_level_of_the_fixed_schedule() -> None:
    metrics: Metrics = {
        "eval/mean_reward": Series(rounds=[5, 10, 15], values=[0.5, 0.6, 0.7]),
        "eval/fixed_reward": Series(rounds=[5, 10, 15], values=[0.65] * 3),
        "eval/score": Series(rounds=[5, 10, 15], values=[0.7, 0.8, 0.9]),
    }
    returns, *others = plot_metrics(metrics).axes
    lines = {line.get_label(): line for line in returns.lines}
    assert list(lines) == ["held out", "fixed schedule"]
    assert list(lines["fixed schedule"].get_ydata()) == [0.65, 0.65]
    assert lines["fixed schedule"].get_linestyle() == "--"
    assert "fixed schedule" not in {line.get_label() for axis in others for line in axis.lines}
    del metrics["eval/fixed_reward"]
    assert [line.get_label() for line in plot_metrics(metrics).axes[0].lines] == ["held out"]
