"""The end settles: the best validated epoch is kept, with its blended seeds if they help.

The expectation is worked out by hand from a copy of each host after every epoch.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.episodes import StepResult
from esper.growth.export import export
from esper.growth.host_slots import slots
from esper.lifecycle.factored_actions import Op
from esper.populations import Form
from esper.tamiyo import Controller, RandomController, grow_everywhere

N_HOSTS = 4
EAGER = RandomController(op_weights={Op.GERMINATE: 9.0, Op.ADVANCE: 9.0, Op.FINISH: 0.1})


def accuracy(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    with torch.no_grad():
        return (model.eval()(inputs).argmax(1) == targets).double().mean().item()


@dataclass(frozen=True)
class Judged:
    """A host as it would be if its training ended after some epoch."""

    score: float
    """Validation score as it is."""
    settled_score: float
    """Validation score without the blended seeds, if that is better."""
    final_score: float
    parameters: int
    """All parameters of the settled host."""


def judge(model: nn.Module, data: Any) -> Judged:
    validation = data.validation_inputs, data.validation_targets
    blended = [
        name for name, slot in slots(model).items() if slot.life.is_growing and slot.alpha > 0.0
    ]
    score = accuracy(model, *validation)
    with ExitStack() as stack:
        for name in blended:
            stack.enter_context(slots(model)[name].switched_off())
        without = accuracy(model, *validation)
    slots(model).end_growth(keep=score >= without)
    return Judged(
        score=score,
        settled_score=max(score, without),
        final_score=accuracy(model, data.final_inputs, data.final_targets),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def run(
    controller: Controller, seed: int, form: Form, *, keeps_states: bool = False
) -> tuple[GrowthVectorEnv, Any, list[list[Judged]]]:
    envs = GrowthVectorEnv(
        "digits-family",
        N_HOSTS,
        autoreset=False,
        form=form,
        n_epochs=12,
        batches_per_epoch=3,
    )
    if keeps_states:
        envs.growth.keep_states()
    histories: list[list[Judged]] = [[] for _ in range(N_HOSTS)]
    population = envs.growth.hosts

    def watch(_: Any, result: StepResult) -> None:
        for host in np.flatnonzero(result.was_running & (result.op_done != Op.FINISH)).tolist():
            # A host that goes back to its best epoch at the end has nothing new to judge.
            if not (keeps_states and result.terminated[host]):
                histories[host].append(judge(population.model(host), population.specs[host].data))

    envs.reset(seed=seed)
    first = [judge(population.model(h), population.specs[h].data) for h in range(N_HOSTS)]
    results = run_episodes(envs, controller, seed=seed, on_step=watch)
    return envs, results, [[a, *rest] for a, rest in zip(first, histories, strict=True)]


@pytest.mark.parametrize("form", ["torch", "auto"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
)
def test_the_best_validated_epoch_counts_with_the_seeds_that_help(seed: int, form: Form) -> None:
    envs, results, histories = run(EAGER, seed, form)
    records = envs.growth.records
    for host, history in enumerate(histories):
        best = 0
        for epoch, judged in enumerate(history):
            if judged.score > history[best].settled_score:
                best = epoch
        assert records.settled_epoch[host] == best
        assert results.scores[host] == pytest.approx(history[best].final_score, abs=1e-12)
        n_parameters = results.host_parameters[host] + results.seed_parameters[host]
        assert n_parameters == history[best].parameters
    assert any(results.seed_parameters > 0)


def test_a_blended_seed_is_kept_at_the_end_without_ever_being_fossilized() -> None:
    kept = []
    for seed in range(4):
        envs = GrowthVectorEnv("spirals", 4, autoreset=False, n_epochs=5, batches_per_epoch=4)
        controller = grow_everywhere(envs.layout, blueprint="widen_large", every=0)
        results = run_episodes(envs, controller, seed=seed)
        assert results.op_counts[:, Op.FOSSILIZE].max() == 0
        kept += results.seed_parameters.tolist()
    assert max(kept) > 0


@pytest.mark.parametrize("form", ["torch", "auto"])
def test_a_host_that_keeps_its_state_ends_as_it_is_scored(form: Form) -> None:
    envs, results, _ = run(EAGER, 1, form, keeps_states=True)
    population = envs.growth.hosts
    for host in range(N_HOSTS):
        data = population.specs[host].data
        model = export(population.model(host), committed_only=True)
        found = accuracy(model, data.final_inputs, data.final_targets)
        assert found == pytest.approx(results.scores[host], abs=1e-12)


def test_the_rewards_of_an_episode_sum_to_the_settled_score_minus_its_costs() -> None:
    envs, results, _ = run(EAGER, 3, "auto")
    price = envs.task.budget.flop_price
    records = envs.growth.records
    costs = price * results.flops - records.paid_rent - records.paid_penalty
    # Shaping telescopes to minus the potential of the start, which is zero.
    np.testing.assert_allclose(results.returns, results.scores - costs, atol=1e-9)
