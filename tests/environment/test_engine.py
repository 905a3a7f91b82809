"""The rule for the best epoch, against a brute force over everything that was evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from esper.environment.engine import Episodes, HostScores
from esper.growth.slot_states import Outcome
from esper.lifecycle.factored_actions import GrowthAction
from esper.lifecycle.slot_arrays import NO_BLUEPRINT, SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations import EpochTally
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

N, EPOCHS = 40, 6
STAGES = (Stage.DORMANT, Stage.TRAINING, Stage.HOLDING, Stage.FOSSILIZED)


class DrawnHosts:
    """Hosts whose slots and values are drawn at random, some of them NaN."""

    n_hosts, can_measure = N, True

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.arrays = SlotArrays.blank(N, 1)
        self.kept: dict[int, tuple[int, bool]] = {}
        self.epoch = -1
        self.draw()

    def draw(self) -> None:
        """Start the next epoch."""
        self.epoch += 1
        self.values = self.rng.choice([0.1, 0.2, 0.3, math.nan], (2, N))
        stage = self.rng.choice(STAGES, N)
        has_seed = stage != Stage.DORMANT
        self.arrays.stage[:, 0] = stage
        self.arrays.blueprint[:, 0] = np.where(has_seed, 0, NO_BLUEPRINT)
        self.arrays.alpha[:, 0] = np.where(has_seed & (stage != Stage.TRAINING), 1.0, 0.0)

    def slot_arrays(self) -> SlotArrays:
        return self.arrays

    def score(
        self,
        hosts: Sequence[int],
        split: str = "validation",
        *,
        without_slot: int | None = None,
        committed_only: bool = False,
    ) -> HostScores:
        values = self.values[int(committed_only or without_slot is not None), list(hosts)]
        scores = np.nan_to_num(values, nan=-1.0) + (10.0 if split == "final" else 0.0)
        return HostScores(scores, scores, np.ones(len(hosts)), values)

    def keep(self, host: int, *, with_blended: bool) -> None:
        self.kept[host] = self.epoch, with_blended

    def masks(self) -> ActionMasks:
        raise NotImplementedError

    def slot_config_of(self, host: int) -> SlotConfig:
        raise NotImplementedError

    def apply(self, host: int, action: GrowthAction) -> Outcome:
        raise NotImplementedError


@pytest.mark.parametrize("largest_counts", [False, True])
def test_the_first_best_epoch_counts_with_blended_seeds_unless_they_are_worse(
    largest_counts: bool,
) -> None:
    hosts, every = DrawnHosts(), list(range(N))
    episodes = Episodes(hosts, ObservationLayout(SlotConfig(("a",))))
    episodes.keeps_states, episodes.largest_counts = True, largest_counts
    best, expected = np.full(N, -np.inf), {}
    n_best = np.zeros(N)
    for epoch in range(EPOCHS):
        stage, values = hosts.arrays.stage[:, 0].copy(), np.nan_to_num(hosts.values, nan=-np.inf)
        for host in every:
            is_committed = stage[host] == Stage.FOSSILIZED
            is_larger = largest_counts and is_committed > n_best[host]
            if epoch == 0 or values[0, host] > best[host] or is_larger:
                is_blended = stage[host] == Stage.HOLDING
                keeps = not (is_blended and values[1, host] > values[0, host])
                best[host] = max(values[:, host]) if is_blended else values[0, host]
                expected[host] = epoch, keeps
                n_best[host] = is_committed or (is_blended and keeps)
        if epoch == 0:
            episodes.start(every)
        else:
            flops = episodes.end_epoch(every, EpochTally(N, 1))
            contribution = episodes.records.slots.contribution[:, 0]
            is_held = stage == Stage.HOLDING
            scores = np.nan_to_num(hosts.values, nan=-1.0)
            np.testing.assert_array_equal(contribution[is_held], (scores[0] - scores[1])[is_held])
            assert flops.min() >= 1.0
            assert flops.max() <= 3.0
        assert hosts.kept == expected
        hosts.draw()
    records = episodes.records
    assert records.settled_epoch.tolist() == [expected[host][0] for host in every]
    np.testing.assert_array_equal(records.settled_score, best)
    assert records.final_score.min() >= 9.0
