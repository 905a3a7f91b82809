"""Making the parts of a run from its settings: task, environments, agent, seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from esper.config.checks import require_choice
from esper.config.growth import GrowthConfig, RewardConfig
from esper.config.memory import require_memory
from esper.config.run import TASK_OBJECT, RunConfig
from esper.config.toml import SourcedConfig
from esper.environment.vector_env import MIN_HOST_BYTES
from esper.errors import ConfigError, EsperError, TaskError
from esper.growth.host_slots import slots
from esper.lifecycle.factored_actions import choice_names
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.simic.agent import PPOAgent
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task
from esper.tasks.registry import create_task

N_FACT_DRAWS = 8
"""Draws whose hosts show which blueprints a controller meets."""

_STREAMS = ("episodes", "weights", "actions", "lessons", "expectations")

FIRST_LOGITS: dict[str, float] = {
    "wait": 1.0,
    "germinate": -1.0,
    "advance": 1.0,
    "fossilize": 2.0,
    "prune": -3.0,
    "set_alpha_target": -3.0,
    "finish": -1.5,
}
"""The initial logit of each op; those of all other heads are 0.

With equal logits most hosts would be finished or pruned within a few epochs, so that the policy
would hardly see what growth is worth.
"""


def stream_seed(seed: int, stream: str, shard: int = 0) -> int:
    """Return the seed of one random stream; other runs, streams and shards have different seeds."""
    words = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, _STREAMS.index(stream)]
    words += [shard] if shard else []
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def require_room(config: RunConfig) -> None:
    """Reject settings whose hosts cannot fit into memory, before anything is made.

    Raises:
        ConfigError: Naming the setting, what it needs and what is available.
    """
    sizes = {"envs": config.envs, "evaluation.n_eval_episodes": config.evaluation.n_eval_episodes}
    for name, n_hosts in sizes.items():
        require_memory(MIN_HOST_BYTES * n_hosts, **{name: n_hosts})


def make_run_task(config: RunConfig, task: Task | None = None) -> Task:
    """Return the task of a run, with the run's budget.

    Args:
        config: Settings of the run.
        task: The task, if the run was given an object.
    """
    return replace(_make_task(config, task), budget=config.budget)


def make_task_of_worker(config: RunConfig) -> Task:
    """Return the task of a run in a worker process, which makes its own copy."""
    return make_in_worker(config.task, lambda: make_run_task(config))


def make_in_worker(name: str, make: Callable[[], Task]) -> Task:
    """Return a task that a worker process makes by its name.

    Raises:
        TaskError: If the worker cannot make it.
    """
    try:
        return make()
    except EsperError as error:
        raise TaskError(
            f"a worker process cannot make task {name!r}: {error} Name a function that it can "
            "import, as module:function, or use workers = 0 (--workers 0)."
        ) from error


def resolve_task(sourced: SourcedConfig, task: Task | None = None) -> tuple[SourcedConfig, Task]:
    """Make the task of a new run; its own budget applies unless a file or the user gave another.

    Args:
        sourced: The settings.
        task: The task, if it was given as an object.

    Returns:
        The settings and the task, both with the same budget.
    """
    made = _make_task(sourced.config, task)
    sourced = sourced.with_budget_of_task(made.budget)
    return sourced, replace(made, budget=sourced.config.budget)


def _make_task(config: RunConfig, task: Task | None = None) -> Task:
    options = config.task_options
    if "n_epochs" in options:
        raise ConfigError(
            f"task_options.n_epochs is {options['n_epochs']!r}; set budget.n_epochs instead "
            "(--budget.n-epochs)."
        )
    if not config.is_of_task_object:
        return _with_rules(create_task(config.task, options), config)
    name = config.task.removeprefix(TASK_OBJECT)
    if task is None or task.name != name:
        raise TaskError(
            f"the run's task {name!r} was given as an object, which no file can make again; pass "
            "it as task=, in Python."
        )
    return _with_rules(task, config)


def _with_rules(task: Task, config: RunConfig) -> Task:
    """Return a task with the rules of growth that an ablation changes."""
    rules: dict[str, Any] = dict(config.ablation.growth)
    if not rules:
        return task
    own: dict[str, Any] = asdict(task.growth or GrowthConfig())
    for name in rules:
        require_choice("a name in ablation.growth", name, own)
    return replace(task, growth=GrowthConfig(**{**own, **rules}))


def task_facts(task: Task) -> dict[str, Any]:
    """Return what users of a controller should know of the task that it learned on.

    That is whether each host had a price of its own and, if hosts were of many designs, the
    blueprints that fitted slots in a few draws.
    """
    facts: dict[str, Any] = {"draws_price": task.draws_price}
    if task.draws_designs:
        found: set[str] = set()
        for number in range(N_FACT_DRAWS):
            config = slots((task.sample(number).make_host or task.make_host)(number)).slot_config
            found |= {name for slot in config.slot_ids for name in config.fits.get(slot, ())}
        facts["met_blueprints"] = [name for name in BUILTIN_BLUEPRINTS if name in found]
    return facts


def split_evenly(count: int, maximum: int) -> list[int]:
    """Return sizes of about equal parts, none larger than ``maximum``."""
    n_parts = math.ceil(count / maximum)
    ends = [round(count * part / n_parts) for part in range(n_parts + 1)]
    return [end - start for start, end in pairwise(ends)]


def trial_rewards(rewards: RewardConfig) -> RewardConfig:
    """Return the rewards of a run's trials on held-out hosts.

    Where rewards are relative to a schedule, returns of trials are relative to no growth,
    which costs less and means more.
    """
    return replace(rewards, reward="paired") if rewards.reward == "scheduled" else rewards


def make_policy(config: RunConfig, slot_config: SlotConfig) -> SlotPolicy:
    """Return the initial policy of a run, for hosts with these slots."""
    generator = torch.Generator().manual_seed(stream_seed(config.seed, "weights"))
    policy = SlotPolicy(slot_config, config.policy, generator=generator, ablation=config.ablation)
    bias = policy.logit_bias("op")
    for op, name in enumerate(choice_names(slot_config)["op"]):
        bias[op] = FIRST_LOGITS[name]
    return policy


def make_agent(config: RunConfig, slot_config: SlotConfig, *, shard: int = 0) -> PPOAgent:
    """Return the initial agent of a run, which draws the actions of a shard."""
    policy, seed = make_policy(config, slot_config), stream_seed(config.seed, "actions", shard)
    return PPOAgent(policy.spec, policy, config.ppo, seed=seed)
