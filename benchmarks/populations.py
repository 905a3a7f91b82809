"""Training epochs of whole populations: by the kernel, by torch one by one, and in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from esper.config.growth import GrowthConfig
from esper.growth.slot_states import Outcome, SlotStates
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import Population
from host_designs import HOSTS, POPULATION, BareLoop, Builder, make_specs
from rows import Ratio, Row, compare
from timing import Call, Effort, time_side_by_side

GROUP = "populations"
N_HOSTS = (1, 4, 16, 64)
N_HOSTS_BARE = 16
"""Number of hosts for which the plain loop is measured; more would only take longer."""
SIZES = ("1k", "10k", "50k")
ROUNDS = 8
SECONDS = 0.6
"""Time budget for each form of a population."""

ONE_BY_ONE = "one by one"
BARE = "bare loop"

BLUEPRINTS = {
    "MLP": ("widen_medium", "mlp_small", "low_rank"),
    "CNN": ("widen_medium", "conv_light", "attention"),
    "GPT": ("widen_medium", "lora_small", "self_attention"),
}
STAGES = (Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED)


@dataclass(frozen=True)
class Case:
    """A population to measure."""

    design: str
    size: str
    n_hosts: int
    n_threads: int = 1
    is_growing: bool = False
    """Whether every host has a seed, in combinations of three blueprints and three stages."""

    @property
    def name(self) -> str:
        """Return a description of the case."""
        words = f"{self.design} {self.size}, {self.n_hosts} host{'s' if self.n_hosts > 1 else ''}"
        words += ", growing" if self.is_growing else ""
        return words + (f", {self.n_threads} threads" if self.n_threads > 1 else "")

    @property
    def is_short(self) -> bool:
        """Whether the case is fast enough for more than two rounds."""
        thousands = int(self.size.removesuffix("k")) * self.n_hosts
        return self.design == "MLP" or thousands < 10 * 64

    @property
    def target(self) -> float | None:
        """Return the target speedup of the kernel over one by one."""
        if self.is_growing or self.n_threads > 1 or self.size not in ("1k", "10k"):
            return None
        return {("MLP", 16): 5.0, ("MLP", 64): 7.0, ("CNN", 16): 2.0}.get(
            (self.design, self.n_hosts)
        )


def cases() -> list[Case]:
    """Return every population; those with two threads last."""
    usual = [(design, size) for design in HOSTS for size in SIZES]
    found = [Case(design, size, n) for design, size in usual for n in N_HOSTS]
    found += [Case(design, "200k", n) for design in ("MLP", "CNN") for n in (4, 16)]
    found += [Case(design, size, 16, is_growing=True) for design, size in usual if size != "50k"]
    found += [Case(design, size, 16, n_threads=2) for design, size in usual]
    return found


def run(effort: Effort) -> list[Row]:
    """Measure every population."""
    short = replace(
        effort,
        rounds=min(ROUNDS, effort.rounds),
        budget_seconds=min(SECONDS, effort.budget_seconds),
    )
    return [row for case in cases() for row in _run_case(case, short)]


def _run_case(case: Case, effort: Effort) -> list[Row]:
    fewer = replace(effort, rounds=2)
    config = HOSTS[case.design][case.size]
    build, specs = Builder(config), make_specs(config, case.n_hosts)
    growth = GrowthConfig(min_training_epochs=0, min_holding_epochs=0)
    auto = Population(build, specs, POPULATION, growth_config=growth)
    in_torch = Population(build, specs, POPULATION, form="torch", growth_config=growth)
    is_chosen = "compiled" in auto.forms()
    ours = f"{case.name}: {'compiled' if is_chosen else 'auto, one by one'}"
    calls: dict[str, Call] = {ours: auto.train_epoch, ONE_BY_ONE: in_torch.train_epoch}
    if case.is_growing:
        for population in (auto, in_torch):
            plant_seeds(population, BLUEPRINTS[case.design])
    elif case.n_hosts == N_HOSTS_BARE and case.n_threads == 1 and case.size in SIZES:
        calls[BARE] = BareLoop(config, specs).train_epoch
    with _threads(case.n_threads):
        _require_agreement(calls)
        timings = time_side_by_side(calls, effort if case.is_short else fewer)
    faster = partial(compare, timings, ours, group=GROUP, kind=Ratio.SPEEDUP, per_call=case.n_hosts)
    # The kernel must not be slower than torch, one host after another.
    rows = [faster(ONE_BY_ONE, limit=case.target or (1.0 if is_chosen else None))]
    if BARE in timings:
        rows.append(faster(BARE))
    return rows


def plant_seeds(population: Population, blueprints: tuple[str, ...]) -> None:
    """Plant a seed in every host, cycling through blueprints and stages."""
    for host in range(population.n_hosts):
        blueprint = blueprints[host % len(blueprints)]
        stage = STAGES[host // len(blueprints) % len(STAGES)]
        grow_to(stage, blueprint, population.lives(host), partial(population.apply, host))


def grow_to(
    stage: Stage, blueprint: str, lives: SlotStates, apply: Callable[[GrowthAction], Outcome]
) -> None:
    """Bring a seed to a stage, in the first slot that it fits, if no stage has a minimum duration.

    What grows in the host's own layers has no stages before it is committed.
    """
    config = lives.slot_config
    act = partial(
        GrowthAction, slot=next(n for n in config.slot_ids if config.does_fit(blueprint, n))
    )
    actions = [act(op=Op.GERMINATE, blueprint=blueprint, tempo_epochs=0, alpha_target=0.5)]
    actions += [act(op=Op.ADVANCE)] * min(2, STAGES.index(stage) + 1)
    if stage == Stage.FOSSILIZED:
        actions += [act(op=Op.ADVANCE), act(op=Op.FOSSILIZE)]
    for action in actions:
        if action.op == Op.GERMINATE or lives.is_legal(action):
            assert apply(action).was_done, f"{action} was refused"


def _require_agreement(calls: dict[str, Call]) -> None:
    """Raise if the forms learn differently from the same batches."""
    losses = {name: getattr(report := call(), "losses", report) for name, call in calls.items()}
    expected = losses[ONE_BY_ONE]
    for name, found in losses.items():
        error = np.abs(np.asarray(found) - np.asarray(expected)).max()
        if not error <= 1e-4:
            raise AssertionError(f"the losses of {name!r} differ by {error:g}")


@contextmanager
def _threads(n_threads: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
