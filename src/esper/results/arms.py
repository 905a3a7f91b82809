"""The result of one controller, host by host. Shapes: R = training runs, N = hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from esper.arrays import Floats
from esper.config.catalogue import CONTROLLERS
from esper.config.checks import NonNegativeInt, PositiveInt, check, types_of
from esper.errors import ConfigError, EvidenceError
from esper.formatting import html_table, many

Kind = Literal["learned", "tuned", "simple", "same_epochs", "same_flops", "ablation"]
"""The kind of an arm, which determines what can be claimed against it:

learned      a trained controller
tuned        a rule or setting that was tuned with host runs of its own
simple       a rule without tuning
same_epochs  the learned arm's final architecture from scratch, for as many epochs
same_flops   the learned arm's final architecture from scratch, for as many FLOPs
ablation     the learned arm with something removed
"""

LEARNED, NO_GROWTH = "learned", "no-growth"
LABELS = {
    LEARNED: "the learned controller",
    NO_GROWTH: "no growth",
    "random": "random growth",
    "fixed": "the fixed schedule",
    "heuristic": "the heuristic",
    "progressive": "progressive growth",
    "fixed-size": "the best fixed size",
    "scratch-same-epochs": "the same size from scratch for as many epochs",
    "scratch-same-flops": "the same size from scratch with as many FLOPs",
    "shuffled": "itself with shuffled observations",
    "wrong-task": "its own actions of other hosts",
}
"""Controllers and arms in words."""
BASELINES = CONTROLLERS
"""The controllers that a learned one is compared with at the end of a run."""

DIGITS = 6
"""Decimals of all results, in memory and in files, so that both give the same verdict."""

PER_HOST = ("score", "returns", "flops", "parameters", "grown_parameters", "n_epochs")


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """The result of one controller, or arm, on the hosts that all arms share.

    Arms that do not depend on training runs have R = 1. Values are rounded to six decimals.

    Raises:
        EvidenceError: If shapes do not match or a value is invalid.
    """

    name: str
    """A short name, such as ``heuristic``."""
    label: str
    """The arm in a sentence, such as "the tuned heuristic"."""
    kind: Kind = "simple"
    """Its relation to the learned arm."""
    setting: str = ""
    """The tuned setting, such as "widen_large in blocks.0 from the start, stop after 7"."""
    score: Floats
    """``[R, N]`` the task's metric on the test split."""
    returns: Floats
    """``[R, N]`` score minus costs."""
    flops: Floats
    """``[R, N]`` total training FLOPs, as a share of the reference run's."""
    parameters: Floats
    """``[R, N]`` parameters of the final network."""
    grown_parameters: Floats
    """``[R, N]`` those of them that were grown during training."""
    n_epochs: Floats
    """``[R, N]`` epochs that the host trained."""
    tuning_runs: NonNegativeInt = 0
    """Host runs spent on tuning; for learned arms the episodes of training, mean over runs."""
    test_reads: PositiveInt | None = None
    """Maximum number of times a host was scored on the test split; None if not counted."""

    def __post_init__(self) -> None:
        if not self.name or not self.label:
            raise EvidenceError(
                f"an arm has name {self.name!r} and label {self.label!r}; give both."
            )
        try:
            for name, kind in types_of(Arm).items():
                if name in PER_HOST:
                    self._store(name, getattr(self, name))
                else:
                    check(f"{name} of arm {self.name}", getattr(self, name), kind)
        except ConfigError as error:
            raise EvidenceError(str(error)) from error

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {text}" for name, text in self.means().items())
        return f"Arm({self.name!r}, {many(self.n_hosts, 'host')}: mean {means})"

    def _repr_html_(self) -> str:
        heads = ("", f"{self.name}, mean of {many(self.n_hosts, 'host')}")
        setting = [("setting", self.setting)] if self.setting else []
        return html_table(heads, [("kind", self.kind), *setting, *self.means().items()], n_left=2)

    def means(self) -> dict[str, str]:
        """Return the mean of each result as text."""
        initial = float((self.parameters - self.grown_parameters).mean())
        return {
            "score": f"{self.score.mean():.3f}",
            "FLOPs": f"{self.flops.mean():.3f}",
            "parameters": f"{self.parameters.mean():,.0f}",
            "added parameters": f"{self.grown_parameters.mean() / max(initial, 1.0):+.0%}",
            "epochs": f"{self.n_epochs.mean():.1f}",
        }

    @property
    def n_runs(self) -> int:
        """Number of training runs; 1 for arms that do not depend on training."""
        return self.score.shape[0]

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.score.shape[1]

    @property
    def grown_share(self) -> float:
        """Share of hosts that were grown."""
        return float((self.grown_parameters > 0.0).mean())

    def _store(self, name: str, values: ArrayLike) -> None:
        """Store values as a rounded, read-only array of the shape of the scores."""
        array = np.round(np.asarray(values, np.float64), DIGITS)
        if array.ndim != 2 or 0 in array.shape or array.shape != np.shape(self.score):
            raise EvidenceError(
                f"arm {self.name} has {name} of shape {array.shape} and score of "
                f"{np.shape(self.score)}; both must be runs by hosts."
            )
        if not np.isfinite(array).all():
            raise EvidenceError(
                f"arm {self.name} has {name} that is not finite; leave out arms that failed."
            )
        if name not in ("score", "returns") and (array < 0.0).any():
            raise EvidenceError(
                f"arm {self.name} has {name} down to {array.min():g}; it must be at least 0."
            )
        array.setflags(write=False)
        object.__setattr__(self, name, array)
