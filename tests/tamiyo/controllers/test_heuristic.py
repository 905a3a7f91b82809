"""The heuristic grows on a plateau, keeps seeds that help and prunes the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from esper.errors import ConfigError
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo import Heuristic, HeuristicConfig
from tests.tamiyo.controllers.simulated_hosts import SimulatedHosts

ONE = SlotConfig(("a",))
TWO = SlotConfig(("a", "b"))


def run(
    slots: SlotConfig,
    n_epochs: int,
    *,
    host: dict[str, Any] | None = None,
    scores: tuple[float, float] = (0.0, 0.0),
    slot: dict[str, Any] | None = None,
    **settings: Any,
) -> SimulatedHosts:
    """Return a host after an episode; its score is constant unless told otherwise."""
    hosts = SimulatedHosts(slots)
    hosts.host_facts |= host or {}
    hosts.score, hosts.older_score = scores
    hosts.slot_facts |= slot or {}
    hosts.run(Heuristic(hosts.layout, HeuristicConfig(**settings)), n_epochs)
    return hosts


def test_seeds_that_help_are_committed_one_slot_after_another() -> None:
    hosts = run(TWO, 15, slot={"contribution": 0.01})
    # Of 16 epochs 8 are left in epoch 8: six decisions to commit a seed, and two to profit.
    assert hosts.log[0] == [
        *["wait"] * 2,
        *["germinate a", "advance a", "advance a", "wait", "advance a", "fossilize a"],
        *["germinate b", "advance b", "advance b", "wait", "advance b", "fossilize b"],
        "finish",
    ]
    kept = [seed.blueprint for _, life in hosts.lives[0].items() for seed in life.committed]
    assert kept == ["widen_large", "widen_large"]


@pytest.mark.parametrize("embargo_epochs", [1, 2])
def test_a_slot_grows_again_and_a_committed_seed_is_not_lost(embargo_epochs: int) -> None:
    hosts = SimulatedHosts(ONE, embargo_epochs=embargo_epochs)
    hosts.host_facts["n_epochs"] = 40
    hosts.slot_facts["contribution"] = 0.01
    log = hosts.run(Heuristic(hosts.layout, HeuristicConfig(max_prunes=1)), 30)
    life = ["germinate a", "advance a", "advance a", "wait", "advance a", "fossilize a"]
    pause = ["wait"] * (embargo_epochs - 1)
    assert log[2:] == [*life, *pause, *life, *pause, *life, *pause, *life, *pause, *life][:28]


def test_several_seeds_can_be_alive_at_once() -> None:
    log = run(TWO, 6, slot={"contribution": 0.01}, max_live_seeds=2).log[0]
    assert log[2:] == ["germinate a", "advance a", "advance a", "germinate b"]


def test_no_seed_germinates_too_late_to_be_committed() -> None:
    assert "germinate b" not in run(TWO, 14, host={"n_epochs": 15}, slot={"contribution": 1}).log[0]
    assert "germinate a" in run(ONE, 3, host={"n_epochs": 10}).log[0]
    late = run(ONE, 5, host={"n_epochs": 9}, finish_patience=None).log[0]
    assert late == ["wait"] * 5
    assert "germinate a" in run(ONE, 3, host={"n_epochs": 9}, profit_epochs=1).log[0]
    assert "germinate a" in run(ONE, 3, host={"n_epochs": 900}).log[0]


@pytest.mark.parametrize("n_epochs", [1000, 1001, 5000, 300_000])
@pytest.mark.parametrize(("left", "grows"), [(8, True), (7, False)])
def test_the_remaining_epochs_of_long_budgets_are_estimated(
    n_epochs: int, left: int, grows: bool
) -> None:
    hosts = SimulatedHosts(ONE)
    heuristic = Heuristic(hosts.layout, HeuristicConfig(finish_patience=None))
    heuristic.start(1)
    n_done = n_epochs - left
    hosts.host_facts |= {"n_epochs": n_epochs}
    heuristic._epochs._epochs[:] = n_done
    hosts.host_facts["epoch"] = np.array([n_done])
    hosts.step(heuristic.act(hosts.observe(), hosts.masks(), np.array([False])))
    assert ("germinate a" in hosts.log[0]) == grows


@pytest.mark.parametrize("contribution", [-0.01, 0.0])
def test_a_seed_that_does_not_help_is_pruned(contribution: float) -> None:
    hosts = run(ONE, 9, slot={"contribution": contribution})
    assert hosts.log[0][6:] == ["advance a", "wait", "prune a"]
    assert hosts.lives[0]["a"].alpha == 0.0


def test_a_contribution_at_the_threshold_is_not_enough() -> None:
    for contribution, end in ((0.02, "prune a"), (0.021, "fossilize a")):
        hosts = run(ONE, 9, slot={"contribution": contribution}, min_contribution=0.02)
        assert end in hosts.log[0]


def test_a_seed_is_held_for_the_configured_epochs() -> None:
    log = run(ONE, 11, slot={"contribution": 1.0}, holding_epochs=3, judging_epochs=4).log[0]
    assert log[6:10] == ["advance a", "wait", "wait", "fossilize a"]
    log = run(ONE, 11, slot={"contribution": -1.0}, holding_epochs=3, judging_epochs=4).log[0]
    assert log[6:] == ["advance a", "wait", "wait", "wait", "prune a"]


def test_each_pruned_seed_is_followed_by_the_next_blueprint() -> None:
    slots = SlotConfig(("a",), fits={"a": ["norm", "widen_small", "mlp_large"]})
    hosts = SimulatedHosts(slots)
    hosts.host_facts["n_epochs"] = 40
    heuristic = Heuristic(hosts.layout, HeuristicConfig(max_prunes=3))
    heuristic.start(1)
    planted = []
    for epoch in range(40):
        rows = heuristic.act(hosts.observe(), hosts.masks(), np.array([epoch == 0]))
        if rows[0, -1] == Op.GERMINATE:
            planted.append(slots.blueprints[rows[0, 1]])
        hosts.step(rows)
        if rows[0, -1] == Op.FINISH:
            break
    assert planted == ["widen_small", "mlp_large", "norm"]
    assert hosts.log[0].count("prune a") == 3
    assert hosts.log[0][-1] == "finish"


def test_nothing_germinates_while_the_score_rises() -> None:
    for rise, grows in ((0.019, True), (0.021, False), (0.5, False)):
        log = run(ONE, 4, scores=(0.5, 0.5 - rise)).log[0]
        assert ("germinate a" in log) == grows


def test_a_seed_with_a_vanishing_gradient_is_pruned() -> None:
    log = run(ONE, 9, slot={"gradient_norm": 0.002}).log[0]
    assert log[2:] == ["germinate a", "advance a", "wait", "wait", "wait", "prune a", "wait"]
    assert run(ONE, 5, slot={"gradient_norm": 0.004}).log[0][4] == "advance a"


def test_a_seed_is_not_blended_in_while_the_loss_rises() -> None:
    hosts = SimulatedHosts(ONE)
    hosts.host_facts["first_loss"] = 2.5
    hosts.loss, hosts.older_loss = 2.0, 1.45
    heuristic = Heuristic(hosts.layout)
    heuristic.start(1)
    for epoch in range(7):
        if epoch == 6:
            # A rise of 0.48 is 0.19 of the first loss.
            hosts.older_loss = 1.52
        hosts.step(heuristic.act(hosts.observe(), hosts.masks(), np.array([epoch == 0])))
    assert hosts.log[0][3:] == ["advance a", "wait", "wait", "advance a"]


def steer(
    hosts: SimulatedHosts, n_epochs: int, restored_after: set[int], **settings: Any
) -> list[str]:
    """Return the blueprints planted in a host that the governor rolls back in some epochs."""
    heuristic = Heuristic(hosts.layout, HeuristicConfig(**settings))
    heuristic.start(1)
    planted = []
    for epoch in range(n_epochs):
        rows = heuristic.act(hosts.observe(), hosts.masks(), np.array([epoch == 0]))
        if rows[0, -1] == Op.GERMINATE:
            planted.append(hosts.config.blueprints[rows[0, 1]])
        hosts.step(rows)
        hosts.host_facts["was_restored"] = epoch in restored_after
        if epoch in restored_after:
            hosts.restore()
    return planted


RANKED = SlotConfig(("a",), fits={"a": ["norm", "widen_small", "mlp_large"]})


# A seed is germinated in epoch 2; the governor may come in that epoch or in any later one.
@pytest.mark.parametrize("epoch", [2, 3, 4, 6])
def test_a_seed_removed_by_the_governor_counts_as_pruned(epoch: int) -> None:
    hosts = SimulatedHosts(RANKED)
    hosts.host_facts["n_epochs"] = 40
    hosts.slot_facts["contribution"] = 1.0
    assert steer(hosts, 20, {epoch})[:2] == ["widen_small", "mlp_large"]
    assert "prune a" not in hosts.log[0]
    assert hosts.lives[0]["a"].committed[0].blueprint == "mlp_large"


def test_nothing_germinates_after_max_prunes_losses() -> None:
    hosts = SimulatedHosts(RANKED)
    hosts.host_facts["n_epochs"] = 40
    assert steer(hosts, 20, {3}, max_prunes=1) == ["widen_small"]
    assert "finish" in hosts.log[0]
    assert "prune a" not in hosts.log[0]


def test_a_loss_is_counted_once_and_never_for_a_committed_seed() -> None:
    # The heuristic prunes in epoch 8, in which the governor steps in as well.
    hosts = SimulatedHosts(RANKED)
    hosts.host_facts["n_epochs"] = 40
    assert steer(hosts, 16, {8, 9}, max_prunes=2) == ["widen_small", "mlp_large"]
    assert hosts.log[0][8] == "prune a"
    hosts = SimulatedHosts(TWO)
    hosts.host_facts["n_epochs"] = 40
    hosts.slot_facts["contribution"] = 1.0
    planted = steer(hosts, 16, {7, 8, 9}, max_prunes=2)
    assert hosts.log[0][7:9] == ["fossilize a", "germinate b"]
    # The first seed was committed, so only the second was lost.
    assert planted == ["widen_large", "widen_large", "widen_medium"]


def test_losses_are_reset_between_episodes() -> None:
    hosts = SimulatedHosts(RANKED)
    hosts.host_facts["n_epochs"] = 40
    heuristic = Heuristic(hosts.layout, HeuristicConfig(max_prunes=1, warmup_epochs=0))
    heuristic.start(1)
    ops = []
    for epoch in range(9):
        rows = heuristic.act(hosts.observe(), hosts.masks(), np.array([epoch in (0, 7)]))
        ops.append(Op(rows[0, -1]))
        hosts.step(rows)
        if epoch == 0:
            hosts.restore()
    assert ops[0] == ops[7] == Op.GERMINATE
    assert Op.GERMINATE not in ops[1:7]


def test_a_seed_alive_at_the_end_of_an_episode_is_not_a_loss() -> None:
    heuristic = Heuristic(SimulatedHosts(RANKED).layout, HeuristicConfig(warmup_epochs=0))
    heuristic.start(1)
    for _ in range(2):
        hosts = SimulatedHosts(RANKED)
        for epoch in range(3):
            hosts.step(heuristic.act(hosts.observe(), hosts.masks(), np.array([epoch == 0])))
        assert hosts.stages() == [Stage.BLENDING]
        assert hosts.lives[0]["a"].blueprint == "widen_small"


def test_a_host_is_finished_when_it_is_stuck_and_nothing_can_grow() -> None:
    closed = SlotConfig(("a",), enabled=frozenset())
    assert run(closed, 8, finish_patience=4).log[0].index("finish") == 2 + 3
    assert "finish" not in run(closed, 15, finish_patience=None).log[0]
    still = run(closed, 15, scores=(0.5, 0.479)).log[0]
    assert still == ["wait"] * 15
    assert "finish" not in run(ONE, 8, slot={"contribution": 1.0}).log[0]


def test_the_patience_is_reset_between_episodes() -> None:
    hosts = SimulatedHosts(SlotConfig(("a",), enabled=frozenset()))
    heuristic = Heuristic(hosts.layout, HeuristicConfig(warmup_epochs=0, finish_patience=4))
    heuristic.start(1)
    for epoch in range(7):
        hosts.step(heuristic.act(hosts.observe(), hosts.masks(), np.array([epoch in (0, 3)])))
    assert hosts.log[0] == ["wait"] * 6 + ["finish"]


def test_hosts_are_independent() -> None:
    hosts = SimulatedHosts(ONE, 3)
    hosts.slot_facts["contribution"] = np.array([[0.1], [-0.1], [0.0]])
    hosts.older_score = np.array([0.0, 0.0, -0.5])
    hosts.run(Heuristic(hosts.layout), 9)
    assert [log[-2] for log in hosts.log] == ["fossilize a", "wait", "wait"]
    assert [log[-1] for log in hosts.log] == ["wait", "prune a", "wait"]
    assert [len(hosts.lives[host]["a"].fossils) for host in (0, 2)] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_epochs": -1}, "warmup_epochs is -1"),
        ({"training_epochs": 0}, "training_epochs is 0"),
        ({"training_patience": 2, "training_epochs": 3}, "training_patience is 2; .* 3"),
        ({"holding_epochs": 0}, "holding_epochs is 0"),
        ({"judging_epochs": 0}, "judging_epochs is 0"),
        ({"finish_patience": 0}, "finish_patience is 0"),
        ({"finish_rise": 0.03}, r"0\.02; .*finish_rise, which is 0\.03"),
        ({"min_gradient_ratio": -1.0}, r"min_gradient_ratio is -1\.0"),
        ({"max_loss_rise": float("nan")}, "max_loss_rise is nan"),
        ({"max_live_seeds": 0}, "max_live_seeds is 0"),
        ({"max_prunes": 1.5}, r"max_prunes is 1\.5"),
        ({"blueprints": "norm"}, "blueprints is 'norm'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HeuristicConfig(**settings)


def test_settings_that_do_not_fit_the_host_are_rejected() -> None:
    layout = SimulatedHosts(ONE).layout
    with pytest.raises(ConfigError, match="tempo_epochs is 4"):
        Heuristic(layout, HeuristicConfig(tempo_epochs=4))
    with pytest.raises(ConfigError, match=r"'widen'; .* 'widen_"):
        Heuristic(layout, HeuristicConfig(blueprints=("widen",)))
