"""What the controller learned, in plain sentences that follow from counts alone.

Each compares the last part of training with the first, if there are both.
"""

from __future__ import annotations

from collections.abc import Mapping

from esper.formatting import listed, many, share, span
from esper.reports.views import Learned, LearnedPart

FEW = 20
"""Episodes below which a part is said to be from few."""
NAMED = 3
"""Blueprints that a sentence names, at most."""
SELDOM = 0.05
"""What an episode has less of than this is not told."""

_DOES = {
    "germinate": ("germinates", "germinated", "seeds"),
    "advance": ("advances", "advanced", "seeds"),
    "set_alpha_target": ("changes", "changed", "targets of alpha"),
    "fossilize": ("fossilizes", "fossilized", "seeds"),
    "prune": ("prunes", "pruned", "seeds"),
    "wait": ("waits", "waited", "times"),
}
"""What an op does, in the order of a seed's life: now, before, and to how many of what."""


def learned_sentences(learned: Learned, *, n_epochs: int) -> tuple[str, ...]:
    """Return what is done, what is grown, when it is grown and when training is stopped.

    Args:
        learned: What was done in each part of training.
        n_epochs: Epochs that a host may train.
    """
    parts = [part for part in learned["parts"] if part["n_episodes"]]
    if not parts:
        return ("No episode has ended yet, so nothing can be said of what was learned.",)
    last, first = parts[-1], parts[0] if len(parts) > 1 else None
    told = (
        _about_ops(last, first),
        *_about_blueprints(last, first),
        _about_growing(last, first, n_epochs),
        _about_stopping(last, first, n_epochs),
    )
    few = [part for part in (first, last) if part is not None and part["n_episodes"] < FEW]
    return told + tuple(
        f"{_when(part)} has {many(part['n_episodes'], 'episode')} only; "
        "what is said of it may be chance."
        for part in few
    )


def epoch_by(counts: Mapping[int, int], wanted: float) -> int:
    """Return the first epoch by which a share of all counted things has happened."""
    total, passed = sum(counts.values()), 0
    for epoch in sorted(counts):
        passed += counts[epoch]
        if passed >= wanted * total:
            return epoch
    raise AssertionError("a share of nothing has no epoch")


def _about_ops(last: LearnedPart, first: LearnedPart | None) -> str:
    told = f"In {span(last['first_round'], last['last_round'])} the controller "
    told += f"{_doings(last, 0)} in an episode"
    if first is not None:
        told += f"; in {_when(first, lower=True)} it {_doings(first, 1)}"
    return f"{told}."


def _doings(part: LearnedPart, tense: int) -> str:
    """Return how often each op is done, without those that hardly ever are."""
    done = [
        f"{words[tense]} {part['ops'][op]:.1f} {words[2]}"
        for op, words in _DOES.items()
        if part["ops"].get(op, 0.0) >= SELDOM
    ]
    return listed(done) or ("does nothing", "did nothing")[tense]


def _about_blueprints(last: LearnedPart, first: LearnedPart | None) -> list[str]:
    if not last["blueprints"]:
        return [f"In {_when(last, lower=True)} it germinates nothing."]
    told = f"Of the seeds that it germinates in {_when(last, lower=True)}, "
    told += _shares(last["blueprints"])
    if first is not None and first["blueprints"]:
        often = _order(first["blueprints"])[0]
        told += f"; in {_when(first, lower=True)} the most frequent was {often} with "
        told += share(first["blueprints"][often])
    kept = f"Of those that it keeps there, {_shares(last['committed'])}"
    return [f"{told}.", f"{kept}." if last["committed"] else "None of them is kept there."]


def _shares(shares: Mapping[str, float]) -> str:
    """Return the largest shares with their names, the largest first."""
    return listed([f"{share(shares[name])} are {name}" for name in _order(shares)[:NAMED]])


def _order(shares: Mapping[str, float]) -> list[str]:
    return sorted(shares, key=lambda name: (-shares[name], name))


def _about_growing(last: LearnedPart, first: LearnedPart | None, n_epochs: int) -> str:
    if not last["germination_epochs"]:
        return "So there is no epoch at which it grows."
    half, most = (epoch_by(last["germination_epochs"], part) for part in (0.5, 0.9))
    told = f"Half of its seeds there are germinated by epoch {half} of {n_epochs}, "
    told += f"nine in ten by epoch {most}"
    if first is not None and first["germination_epochs"]:
        half, most = (epoch_by(first["germination_epochs"], part) for part in (0.5, 0.9))
        told += f"; in {_when(first, lower=True)} that was by epochs {half} and {most}"
    return f"{told}."


def _about_stopping(last: LearnedPart, first: LearnedPart | None, n_epochs: int) -> str:
    if not last["finish_epochs"]:
        told = f"It ends no episode itself in {_when(last, lower=True)}: "
        told += f"hosts train all {n_epochs} epochs"
    else:
        ended = sum(last["finish_epochs"].values()) / last["n_episodes"]
        told = f"It ends {share(ended)} of these episodes itself, half of them by epoch "
        told += f"{epoch_by(last['finish_epochs'], 0.5)} of {n_epochs}"
    if first is not None:
        told += f"; in {_when(first, lower=True)} it ended {_ended(first)}"
    return f"{told}."


def _ended(part: LearnedPart) -> str:
    if not part["finish_epochs"]:
        return "none"
    ended = sum(part["finish_epochs"].values()) / part["n_episodes"]
    return f"{share(ended)}, half of them by epoch {epoch_by(part['finish_epochs'], 0.5)}"


def _when(part: LearnedPart, *, lower: bool = False) -> str:
    told = span(part["first_round"], part["last_round"])
    return told if lower else told[:1].upper() + told[1:]
