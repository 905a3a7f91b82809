"""Figures of a run, with matplotlib."""

from __future__ import annotations

from typing import Any

from esper.errors import ConfigError
from esper.telemetry import Metrics

_OPS = ("germinate", "advance", "set_alpha_target", "prune", "fossilize", "finish")


def empty_figure(width: float, height: float) -> Any:
    """Return a figure of a size in inches, to be drawn in without a screen.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            'matplotlib is not installed; pip install "esper-lite[plot]" to plot runs.'
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_metrics(metrics: Metrics, *, title: str = "") -> Any:
    """Return a figure of how a run learned: return, score, what it did, how the policy moved.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    figure = empty_figure(10, 7)
    axes: Any = figure.subplots(2, 2, sharex=True)
    panels = (
        (
            "Return of an episode",
            {"rollout/ep_rew_mean": "training", "eval/mean_reward": "held out"},
        ),
        (
            "Score",
            {
                "growth/score": "grown",
                "eval/score": "held out",
                "growth/static_score": "left alone",
            },
        ),
        ("Ops of an episode", {f"ops/{op}": op.replace("_", " ") for op in _OPS}),
        (
            "Move of the policy (KL)",
            {"train/approx_kl": "mean over heads", "train/joint_kl": "whole action"},
        ),
    )
    for axis, (name, lines) in zip(axes.flat, panels, strict=True):
        for metric, label in lines.items():
            if metric in metrics:
                series = metrics[metric]
                style = {"marker": "o", "markersize": 4} if metric.startswith("eval/") else {}
                axis.plot(series.rounds, series.values, label=label, **style)
        if "eval/mean_reward" in lines and "eval/fixed_reward" in metrics:
            level = metrics["eval/fixed_reward"].values[-1]
            axis.axhline(level, color="gray", linestyle="--", label="fixed schedule")
        axis.set_title(name, loc="left")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(frameon=False, fontsize="small")
    for axis in axes[1]:
        axis.set_xlabel("round")
    figure.suptitle(title)
    return figure
