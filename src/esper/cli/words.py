"""Numbers of a run as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.telemetry.records import EvaluationRecord, RoundRecord

if TYPE_CHECKING:
    from esper.training.output import TrialProgress

OPS = (
    ("op_germinate", "germinate"),
    ("op_advance", "advance"),
    ("op_set_alpha_target", "set alpha"),
    ("op_fossilize", "fossilize"),
    ("op_prune", "prune"),
    ("op_wait", "wait"),
    ("op_finish", "finish"),
)
"""The ops in the order of a seed's life: the field of a round's record, and the word."""

UNKNOWN = "-"
_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: ``1:05`` or ``2:00:07``."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many digits after the point, or a dash if there is none."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """Return a size in three digits: ``987``, ``1.23k``, ``45.6M``."""
    if value is None:
        return UNKNOWN
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def many(number: int, thing: str) -> str:
    """Return a number of things: ``1 round``, ``2 rounds``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def score_words(row: RoundRecord) -> str:
    """Return the score of a round's hosts, and that of others which were left alone.

    They are not the same hosts, so that a difference of the two would mean little.
    """
    if row.score_mean is None or row.static_score is None:
        return number(row.score_mean)
    return f"{row.score_mean:.3f}; held-out hosts left alone {row.static_score:.3f}"


def parameter_words(row: RoundRecord) -> str:
    """Return how large hosts began, and what was grown."""
    return f"{count(row.host_parameters_mean)} host + {count(row.seed_parameters_mean)} seeds"


def op_words(row: RoundRecord) -> str:
    """Return what the controller does in an episode, leaving out what it hardly ever does."""
    done = [(word, getattr(row, name)) for name, word in OPS]
    shown = [f"{word} {times:.1f}" for word, times in done if times is not None and times >= 0.05]
    return ", ".join(shown) or UNKNOWN


def return_words(row: EvaluationRecord) -> str:
    """Return the return of an evaluation, beside the fixed schedule's if that is known."""
    fixed = "" if row.fixed_reward is None else f", fixed schedule {row.fixed_reward:.3f}"
    return f"return {row.ep_rew_mean:.3f}{fixed}"


def evaluation_words(row: EvaluationRecord) -> str:
    """Return how an evaluation went."""
    best = ", best so far" if row.is_best else ""
    return (
        f"{row.arm}: {return_words(row)}, score {row.score_mean:.3f}, "
        f"FLOPs {row.flops_mean:.2f} on {row.n_episodes} hosts{best}"
    )


ARMS = {
    "learned": "the learned controller",
    "wait": "hosts left alone",
    "random": "random legal growth",
    "fixed": "the fixed schedule",
    "heuristic": "the heuristic",
}
"""Controllers as a person calls them."""


def trial_words(trial: TrialProgress) -> str:
    """Return who is being tried, and how far that is."""
    arm = ARMS.get(trial.arm, trial.arm)
    return f"{arm} on {trial.n_hosts} held-out hosts, {trial.share:.0%}"


def bars(values: Sequence[float], width: int) -> str:
    """Return the last values as a row of bars, the lowest and the highest as such."""
    shown = list(values)[-width:]
    if len(shown) < 2:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1) + 0.5)] for value in shown)
