"""One training of a host gives the results of every stopping epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.draws import PURPOSES, draw_seed
from esper.evidence.tuning import Stopping
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import FirstSeed
from esper.tamiyo import FixedSchedule, NoGrowth, Planting, RandomController
from esper.tasks import make_task
from esper.training.host_trainer import BATCH_HOSTS, HostTrainer

N_EPOCHS = 9
HOSTS = range(4)


def make_trainer(task: str = "spirals", **options: object) -> HostTrainer:
    made = make_task(task, n_epochs=N_EPOCHS, batches_per_epoch=2, **options)  # type: ignore[arg-type]
    return HostTrainer(made, purpose="tuning", final_split="validation")


def envs_of(trainer: HostTrainer, n_hosts: int) -> GrowthVectorEnv:
    """Return environments of the same hosts, independent of the trainer."""
    return GrowthVectorEnv(trainer.task, n_hosts, purpose=trainer.purpose, autoreset=False)


PLANTINGS = [
    Planting(slot="blocks.0", blueprint="mlp_small"),
    Planting(slot="blocks.1", blueprint="mlp_small", epoch=1),
]


@pytest.mark.parametrize("task", [pytest.param("spirals", marks=pytest.mark.slow), "digits-family"])
def test_results_by_epoch_equal_those_of_finishing_there(task: str) -> None:
    trainer = make_trainer(task)
    envs = envs_of(trainer, len(HOSTS))
    runs = trainer.run(
        HOSTS, lambda growth, _: FixedSchedule(growth.layout, PLANTINGS), every_epoch=("final",)
    )
    assert runs.grown.max() >= 1
    for stop in range(N_EPOCHS + 1):
        schedule = FixedSchedule(envs.layout, PLANTINGS, finish_after=stop)
        finished = run_episodes(envs, schedule, seed=0)
        np.testing.assert_allclose(runs.score_by_epoch[:, stop], finished.scores, atol=1e-12)
        np.testing.assert_allclose(runs.flops_by_epoch[:, stop], finished.flops, rtol=1e-12)
        sizes = finished.host_parameters + finished.seed_parameters
        np.testing.assert_array_equal(runs.parameters_by_epoch[:, stop], sizes)


def test_results_equal_those_of_episodes_and_stay_constant_after_the_end() -> None:
    trainer = make_trainer()
    random = RandomController(op_weights={Op.FINISH: 0.3})
    runs = trainer.run(HOSTS, lambda *_: random, every_epoch=("final", "validation"))
    results = run_episodes(envs_of(trainer, len(HOSTS)), random, seed=0)
    np.testing.assert_array_equal(runs.score, results.scores)
    np.testing.assert_array_equal(runs.flops, results.flops)
    np.testing.assert_array_equal(runs.n_epochs, results.n_epochs)
    np.testing.assert_array_equal(runs.op_counts, results.op_counts)
    assert len(set(runs.n_epochs.tolist())) > 1
    for host, end in enumerate(runs.n_epochs):
        assert (runs.score_by_epoch[host, end:] == runs.score[host]).all()
        assert (runs.flops_by_epoch[host, end:] == runs.flops[host]).all()
        n_decisions = end + runs.op_counts[host, Op.FINISH]
        assert ((runs.actions[host, :, 0] >= 0).sum()) == n_decisions


def test_each_host_can_stop_at_its_own_epoch() -> None:
    trainer, stops = make_trainer(), np.array([0, 3, N_EPOCHS, 5])
    runs = trainer.run(HOSTS, lambda *_: Stopping(NoGrowth(), stops))
    whole = trainer.run(HOSTS, lambda *_: NoGrowth(), every_epoch=("final",))
    np.testing.assert_array_equal(runs.n_epochs, stops)
    np.testing.assert_allclose(runs.score, whole.score_by_epoch[range(4), stops])
    np.testing.assert_allclose(runs.flops, whole.flops_by_epoch[range(4), stops])
    assert runs.flops[0] == 0.0


def seed_tensors(envs: GrowthVectorEnv) -> dict[str, torch.Tensor]:
    """Return the tensors of the seed in slot blocks.0 of the first host."""
    tensors = envs.growth.hosts.get_state(0).tensors
    return {name: t for name, t in tensors.items() if "blocks.0.seed." in name}


def test_the_number_of_a_committed_seed_reproduces_its_weights() -> None:
    task = make_task("spirals", n_epochs=16, batches_per_epoch=1)
    trainer = HostTrainer(task, purpose="tuning", final_split="validation")
    plantings = [
        Planting(slot="blocks.1", blueprint="mlp_small"),
        Planting(slot="blocks.0", blueprint="mlp_large", epoch=1),
    ]
    runs = trainer.run(range(12), lambda growth, _: FixedSchedule(growth.layout, plantings))
    # In most hosts, the best epoch comes before both seeds are blended in.
    host = int(np.flatnonzero((runs.blueprint >= 0).all(1))[0])
    assert [trainer.slot_config.slot_ids[k] for k in runs.slot[host]] == ["blocks.1", "blocks.0"]
    assert runs.number[host].tolist() == [0, 1]
    envs = envs_of(trainer, 1)
    observations, _ = envs.reset(seed=[host])
    schedule = FixedSchedule(envs.layout, plantings)
    schedule.start(1)
    stages = envs.growth.hosts.slot_arrays().stage
    slot = envs.layout.slot_config.slot_index("blocks.0")
    while stages[0, slot] != Stage.GERMINATED:
        observations, *_ = envs.step(schedule.act(observations, envs.masks, np.zeros(1, np.bool_)))
    grown = seed_tensors(envs)
    envs.reset(seed=[host])
    action = GrowthAction(op=Op.GERMINATE, slot="blocks.0", blueprint="mlp_large")
    envs.growth.plant({0: [FirstSeed(action=action, number=int(runs.number[host, 1]))]})
    planted = seed_tensors(envs)
    assert all(torch.equal(planted[name], tensor) for name, tensor in grown.items())
    assert envs.growth.records.slots.grown_parameters[0, slot] == sum(
        t.numel() for t in grown.values()
    )


def test_a_population_can_be_reused_for_fewer_hosts() -> None:
    trainer = make_trainer()
    trainer.run(range(6), lambda *_: RandomController())
    again = trainer.run([9, 4], lambda *_: RandomController(), every_epoch=("final",))
    fresh = make_trainer().run([9, 4], lambda *_: RandomController(), every_epoch=("final",))
    for name, values in again.arrays().items():
        np.testing.assert_array_equal(values, fresh.arrays()[name], err_msg=name)


def test_the_batch_size_does_not_change_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    whole = trainer.run(range(5), lambda *_: NoGrowth())
    monkeypatch.setattr("esper.training.host_trainer.BATCH_HOSTS", 2)
    parts = make_trainer().run(range(5), lambda *_: NoGrowth())
    np.testing.assert_allclose(parts.score, whole.score)
    np.testing.assert_allclose(parts.flops, whole.flops)
    assert BATCH_HOSTS > 2


def test_purposes_never_share_a_draw_seed() -> None:
    numbers = {
        purpose: {draw_seed(purpose, seed, 0) for seed in range(3000)}  # type: ignore[arg-type]
        for purpose in PURPOSES
    }
    assert not numbers["evaluation"] & (numbers["training"] | numbers["tuning"])
    assert not numbers["tuning"] & numbers["training"]
