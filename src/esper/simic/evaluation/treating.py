"""Hosts that are each treated by a candidate of their own, side by side. Shapes: N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from esper.growth.populations.host_data import Split
from esper.simic.environment.episodes import GrowthEpisodes
from esper.simic.evaluation.bench import Bench, OnShare
from esper.simic.evaluation.candidates import Candidate
from esper.simic.evaluation.host_runs import HostRuns, Integers
from esper.simic.evaluation.steering import Side, Stopping
from esper.tamiyo import Controller


def treat(
    bench: Bench,
    pairs: Sequence[tuple[Candidate, int]],
    *,
    stops: Integers | None = None,
    every_epoch: Sequence[Split] = (),
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Train hosts, each by its candidate.

    Args:
        bench: Where they are trained.
        pairs: The candidate and the number of each host.
        stops: ``[N]`` epochs after which each host is finished; None for the end of the budget.
        every_epoch: Splits to score by after every epoch.
        on_share: Told how far it is.
    """

    def make(growth: GrowthEpisodes, part: slice) -> Controller:
        own = [candidate for candidate, _ in pairs[part]]
        groups = [(candidate, len(list(same))) for candidate, same in groupby(own)]
        controllers = [candidate.make(growth.layout) for candidate, _ in groups]
        together = Side(controllers, [size for _, size in groups])
        return together if stops is None else Stopping(together, np.asarray(stops)[part])

    return bench.run(
        [host for _, host in pairs],
        make,
        seeds={place: candidate.first_seeds() for place, (candidate, _) in enumerate(pairs)},
        every_epoch=every_epoch,
        on_share=on_share,
    )
