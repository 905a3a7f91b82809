"""The charts of how a run learned: which lines each has. No figure is drawn here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from esper.telemetry import Metrics

_OPS = ("germinate", "advance", "set_alpha_target", "prune", "fossilize", "wait", "finish")
_ENTROPY = "train/entropy/"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    metric: str
    label: str
    is_main: bool = False
    """Whether it is the one that stands for a run where several are drawn in one chart."""

    @property
    def has_points(self) -> bool:
        """Whether it has few values, each worth a mark."""
        return self.metric.startswith("eval/")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart."""

    name: str
    """As files and elements of a page are called."""
    title: str
    lines: tuple[Line, ...]
    level: str | None = None
    """A metric whose last value is a level that the lines are held against."""
    level_label: str = ""
    has_limit: bool = False
    """Whether the divergence at which updates stop is drawn."""


def find_panels(metrics: Iterable[str]) -> tuple[Panel, ...]:
    """Return every chart of a run, given the names of its metrics, which name the heads."""
    heads = sorted(name.removeprefix(_ENTROPY) for name in metrics if name.startswith(_ENTROPY))
    entropies = (
        Line(metric=f"{_ENTROPY}{head}", label=head.replace("_", " "), is_main=head == "op")
        for head in heads
    )
    ops = (
        Line(metric=f"ops/{op}", label=op.replace("_", " "), is_main=op == "germinate")
        for op in _OPS
    )
    return (
        *_RESULTS,
        *_UPDATES,
        Panel(
            name="entropy",
            title="Entropy of each head (0 is decided)",
            lines=tuple(entropies),
        ),
        Panel(name="ops", title="Ops of an episode", lines=tuple(ops)),
    )


def shown_lines(panel: Panel, metrics: Metrics, *, main_only: bool = False) -> tuple[Line, ...]:
    """Return the lines of a chart that a run has values for, or the one that stands for it."""
    found = tuple(line for line in panel.lines if line.metric in metrics)
    return tuple(line for line in found if line.is_main) or found[:1] if main_only else found


_RESULTS = (
    Panel(
        name="return",
        title="Return of an episode",
        lines=(
            Line(metric="rollout/ep_rew_mean", label="training"),
            Line(metric="eval/mean_reward", label="held out", is_main=True),
        ),
        level="eval/fixed_reward",
        level_label="fixed schedule",
    ),
    Panel(
        name="score",
        title="Score (accuracy)",
        lines=(
            Line(metric="growth/score", label="grown in training"),
            Line(metric="eval/score", label="held out", is_main=True),
        ),
        level="growth/static_score",
        level_label="held out, left alone",
    ),
    Panel(
        name="parameters",
        title="Parameters",
        lines=(
            Line(metric="growth/host_parameters", label="of hosts"),
            Line(metric="growth/seed_parameters", label="grown", is_main=True),
        ),
    ),
    Panel(
        name="flops",
        title="FLOPs, as a share of the reference host's",
        lines=(
            Line(metric="growth/flops", label="training"),
            Line(metric="eval/flops", label="held out", is_main=True),
        ),
    ),
)

_UPDATES = (
    Panel(
        name="kl",
        title="Move of the policy (KL)",
        lines=(
            Line(metric="train/approx_kl", label="mean over heads", is_main=True),
            Line(metric="train/joint_kl", label="whole action"),
        ),
        has_limit=True,
    ),
    Panel(
        name="losses",
        title="Losses",
        lines=(
            Line(metric="train/value_loss", label="value", is_main=True),
            Line(metric="train/policy_gradient_loss", label="policy"),
        ),
    ),
    Panel(
        name="explained-variance",
        title="Explained variance of the critic (1 is perfect)",
        lines=(Line(metric="train/explained_variance", label="explained variance", is_main=True),),
    ),
)
