"""Matched arms share with the controller what their names say, and nothing more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.evidence.matched_arms import (
    at_same_epochs,
    at_same_flops,
    committed_seeds,
    first_reaching,
    run_scratch,
)
from esper.lifecycle.factored_actions import Op
from esper.tamiyo import FixedSchedule, NoGrowth, Planting, RandomController
from esper.tasks import make_task
from esper.training.host_runs import HostRuns, join_runs
from esper.training.host_trainer import HostTrainer
from tests.training.test_host_runs import make_trainer

HOSTS = range(6)


@pytest.fixture(scope="module")
def trainer() -> HostTrainer:
    return make_trainer()


@pytest.fixture(scope="module")
def learned(trainer: HostTrainer) -> HostRuns:
    """Return host runs with committed seeds in some hosts and early stops in others."""
    eager = {Op.WAIT: 0.2, Op.FOSSILIZE: 20.0, Op.PRUNE: 0.0, Op.FINISH: 0.1}
    return trainer.run(HOSTS, lambda *_: RandomController(op_weights=eager))


def test_scratch_trains_the_final_architecture_from_the_first_epoch(
    trainer: HostTrainer, learned: HostRuns
) -> None:
    assert (learned.blueprint >= 0).any()
    assert len(set(learned.n_epochs.tolist())) > 1
    scratch = run_scratch(trainer, learned, HOSTS)
    np.testing.assert_array_equal(scratch.parameters, learned.parameters)
    np.testing.assert_array_equal(scratch.blueprint, learned.blueprint)
    np.testing.assert_array_equal(scratch.alpha, learned.alpha)
    assert (scratch.grown == 0).all()
    same = at_same_epochs(scratch, learned)
    np.testing.assert_array_equal(same.n_epochs, learned.n_epochs)
    curves = every_epoch(trainer, learned)
    for host, end in enumerate(learned.n_epochs):
        assert same.score[host] == curves.score_by_epoch[host, end]
        assert same.flops[host] == pytest.approx(curves.flops_by_epoch[host, end])
    untouched = (learned.blueprint < 0).all(1) & (learned.op_counts[:, Op.GERMINATE] == 0)
    np.testing.assert_allclose(same.score[untouched], learned.score[untouched])
    np.testing.assert_allclose(same.flops[untouched], learned.flops[untouched])


def test_equal_flops_are_read_at_the_first_epoch_that_reaches_them(
    trainer: HostTrainer, learned: HostRuns
) -> None:
    curves = every_epoch(trainer.longer(), learned)
    # Some are beyond the budget, one beyond twice the budget.
    wants = curves.flops_by_epoch[:, -1] * np.array([0.3, 0.5, 1.0, 1.4, 1.9, 2.5])
    wanted = replace(learned, flops=wants)
    ends = at_same_flops(run_scratch(trainer, wanted, HOSTS), wanted)
    for host in HOSTS:
        stop = 0
        while 2 * curves.flops_by_epoch[host, stop] < wants[host] - 1e-12 and stop < 18:
            stop += 1
        assert ends.n_epochs[host] == stop
        assert ends.flops[host] == pytest.approx(2 * curves.flops_by_epoch[host, stop])
        assert ends.score[host] == curves.score_by_epoch[host, stop]
    assert ends.n_epochs[2] == 9 < ends.n_epochs[3]
    assert (ends.flops[:5] >= wants[:5] - 1e-9).all()


def test_each_network_from_scratch_is_scored_once_for_each_arm(
    trainer: HostTrainer, learned: HostRuns
) -> None:
    scratch = run_scratch(trainer, learned, HOSTS)
    epochs = np.stack([first_reaching(scratch.flops_by_epoch, learned.flops), learned.n_epochs])
    assert scratch.n_reads.tolist() == [len(set(pair)) for pair in epochs.T.tolist()]
    assert np.isfinite(at_same_flops(scratch, learned).score).all()


def every_epoch(trainer: HostTrainer, learned: HostRuns) -> HostRuns:
    """Train the final architectures from scratch, scored after every epoch."""
    config = trainer.slot_config
    seeds = {host: committed_seeds(learned, host, config) for host in HOSTS}
    return trainer.run(HOSTS, lambda *_: NoGrowth(), seeds=seeds, every_epoch=("final",))


def test_the_last_epoch_counts_where_flops_are_never_reached() -> None:
    curves = np.array([[0.0, 0.1, 0.2], [0.0, 0.1, 0.2], [0.0, 0.1, 0.2]])
    assert first_reaching(curves, np.array([0.0, 0.15, 0.9])).tolist() == [0, 2, 2]


def test_a_network_from_scratch_starts_with_every_seed_of_a_slot_that_grew_again() -> None:
    task = make_task("spirals", n_epochs=16, batches_per_epoch=1)
    trainer = HostTrainer(task, purpose="tuning", final_split="validation")
    twice = [Planting(slot="blocks.0", blueprint="mlp_small", epoch=k) for k in (0, 1)]
    once = [Planting(slot="blocks.1", blueprint="norm")]

    def find(plan: list[Planting]) -> tuple[int, HostRuns]:
        """Return a host whose best epoch has all seeds of the plan."""
        for host in range(24):
            run = trainer.run([host], lambda growth, _: FixedSchedule(growth.layout, plan))
            if run.grown[0] == len(plan):
                return host, run
        raise AssertionError("no host has grown all seeds by its best epoch")

    (first, first_run), (second, second_run) = find(twice), find(once)
    runs = join_runs([first_run, second_run])
    own = [trainer.slot_config.slot_index(name) for name in ("blocks.0", "blocks.1")]
    assert runs.slot.tolist() == [[own[0], own[0]], [own[1], -1]]
    assert runs.number.tolist() == [[0, 1], [0, 0]]
    assert runs.grown.tolist() == [2, 1]
    assert [seed.number for seed in committed_seeds(runs, 0, trainer.slot_config)] == [0, 1]
    scratch = run_scratch(trainer, runs, [first, second])
    np.testing.assert_array_equal(scratch.parameters, runs.parameters)
    np.testing.assert_array_equal(scratch.slot, runs.slot)
    assert scratch.grown.tolist() == [0, 0]


def test_committed_seeds_are_in_the_order_of_germination() -> None:
    task = make_task("spirals", n_epochs=16, batches_per_epoch=1)
    trainer = HostTrainer(task, purpose="tuning", final_split="validation")
    plan = [
        Planting(slot="blocks.1", blueprint="mlp_small", alpha_target=0.5),
        Planting(slot="blocks.0", blueprint="mlp_large", epoch=1),
    ]
    runs = trainer.run(range(12), lambda growth, _: FixedSchedule(growth.layout, plan))
    host = int(np.flatnonzero((runs.alpha[:, :2] == [0.5, 1.0]).all(1))[0])
    seeds = committed_seeds(runs, host, trainer.slot_config)
    assert [(seed.action.slot, seed.number) for seed in seeds] == [("blocks.1", 0), ("blocks.0", 1)]
    assert [seed.action.alpha_target for seed in seeds] == [0.5, 1.0]
    growth = trainer.start([host])
    growth.plant({0: seeds})
    state = growth.hosts.get_state(0)
    assert all(torch.isfinite(tensor).all() for tensor in state.tensors.values())
