"""How the cost of a round grows with hosts, shards and workers, and what that predicts.

Run:  python benchmarks/scale.py          as tables; docs/workers.md discusses them

Trains some rounds of the quick preset in each setting. The speed of a setting is that of its median
round. One thread per process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import torch
from torch import Tensor, nn

from esper.config.growth import MLPHostConfig, PopulationConfig
from esper.config.run import RunConfig
from esper.config.toml import load_preset
from esper.environment import GrowthVectorEnv
from esper.growth.hosts import make_host
from esper.storage.state import from_bytes, to_bytes
from esper.tamiyo import make_controller
from esper.tasks import make_task
from esper.telemetry.records import Record, RoundRecord
from esper.training.trainer import Trainer
from training import trained_rounds

WARM_UP = 2
"""Rounds that are not counted."""
HOSTS = (1, 8, 32, 128, 512)
SETTINGS = ((1, 0), (2, 0), (4, 0), (2, 1), (2, 2), (4, 2), (4, 4))
"""Shards and workers of 128 hosts; 0 workers is this process alone."""
DESIGNS = ((1, 12), (3, 12), (12, 12), (3, 24), (3, 48), (3, 96))
"""Slots, and width of blocks and of what is between them, of MLP hosts."""
WORKERS = (1, 2, 10, 100, 1000)
"""Numbers of workers that the model predicts."""
NETWORK = 1.25e9
"""Bytes per second between machines, for predictions: 10 Gbit/s."""


class Rounds:
    """Keeps the seconds of each round, by part."""

    def __init__(self) -> None:
        self.rows: list[RoundRecord] = []

    def write(self, record: Record) -> None:
        """Store a round."""
        if isinstance(record, RoundRecord):
            self.rows.append(record)

    def close(self) -> None:
        """Do nothing; all is in memory."""


@contextmanager
def measured(config: RunConfig, n_workers: int = 0) -> Generator[tuple[dict[str, float], Trainer]]:
    """Train some rounds; yield the speed, the learner's seconds and the trainer."""
    rounds = Rounds()
    with trained_rounds(config, rounds, n_workers) as trainer:
        counted = rounds.rows[WARM_UP:]
        seconds = statistics.median(row.seconds for row in counted)
        update = statistics.median(json.loads(row.seconds_by_part)["update"] for row in counted)
        steps = config.envs * config.n_steps
        yield {"seconds": seconds, "update": update, "speed": steps / seconds}, trainer


def config_of(hosts: int, rounds: int, shards: int = 1) -> RunConfig:
    """Return the quick preset with other hosts and shards, and without evaluations to speak of."""
    config = load_preset("quick")
    few = replace(config.evaluation, eval_freq=10**6, n_eval_episodes=2)
    ppo = replace(config.ppo, n_minibatches=min(config.ppo.n_minibatches or 1, hosts))
    return replace(
        config,
        envs=hosts,
        envs_per_shard=-(-hosts // shards),
        rounds=WARM_UP + rounds,
        evaluation=few,
        ppo=ppo,
    )


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print("| " + " | ".join(headings) + " |")
    print("|" + "---:|" * len(headings))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


def show_hosts(rounds: int) -> dict[str, float]:
    """Print the speed of one process by number of hosts; return the bytes that 128 would send."""
    rows: list[Sequence[object]] = []
    messages: list[Sequence[object]] = []
    sizes: dict[str, float] = {}
    for hosts in HOSTS:
        with measured(config_of(hosts, rounds)) as (found, trainer):
            share = f"{found['update'] / found['seconds']:.0%}"
            rows.append((hosts, f"{found['seconds']:.2f}", f"{found['speed']:,.0f}", share))
            if hosts == 128:
                messages, sizes = describe_messages(trainer)
    print_table(("hosts", "seconds per round", "env-steps/s", "learner"), rows)
    print_table(("what", "size", "per host", "pack, ms", "unpack, ms"), messages)
    return sizes


def show_designs(n_steps: int = 32, n_hosts: int = 64) -> None:
    """Print the speed of an environment by slots and size of its hosts."""
    rows: list[Sequence[object]] = []
    for slots, width in DESIGNS:
        config = MLPHostConfig(width=width, hidden=width, n_blocks=slots)
        task = replace(
            make_task("digits"), make_host=partial(_make, config), training=PopulationConfig()
        )
        speeds: list[str] = []
        size = 0
        for name in ("no-growth", "random"):
            envs = GrowthVectorEnv(task, n_hosts)
            controller = make_controller(name, envs.layout)
            observations, _ = envs.reset(seed=0)
            controller.start(n_hosts, seed=0)
            starts = np.ones(n_hosts, np.bool_)
            seconds: list[float] = []
            for _ in range(n_steps):
                actions = controller.act(observations, envs.growth.masks(), starts)
                start = process_time()
                observations, _, ended, cut, _ = envs.step(actions)
                seconds.append(process_time() - start)
                starts = ended | cut
            speeds.append(f"{n_hosts / statistics.median(seconds):,.0f}")
            size = int(envs.growth.records.n_parameters[0])
        rows.append((slots, width, f"{size:,}", *speeds))
    print_table(
        ("slots", "width", "parameters", "steps/s, waiting", "steps/s, random growth"), rows
    )


def _make(config: MLPHostConfig, _: int) -> nn.Module:
    return make_host(config)


def show_workers(rounds: int) -> dict[str, float]:
    """Print the speed by shards and workers; return that of one process."""
    rows: list[Sequence[object]] = []
    alone: dict[str, float] = {}
    for shards, workers in SETTINGS:
        with measured(config_of(128, rounds, shards), workers) as (found, _):
            alone = alone or found
        rows.append(
            (
                shards,
                workers or "this process",
                f"{found['speed']:,.0f}",
                f"{found['speed'] / alone['speed']:.2f}x",
            )
        )
    print_table(("shards", "workers", "env-steps/s", "against one process"), rows)
    return alone


def describe_messages(
    trainer: Trainer,
) -> tuple[list[Sequence[object]], dict[str, float]]:
    """Return sizes and times of what travels, as a table and in bytes."""
    parts, config = trainer.parts, trainer.config
    (hosts,) = parts.rollout.save()  # they are one shard
    states = {
        "weights": parts.agent.weights(),
        "state of the hosts": hosts,
        "steps of a round": _steps_of_a_round(trainer),
    }
    sizes: dict[str, float] = {}
    rows: list[Sequence[object]] = []
    for name, state in states.items():
        start = perf_counter()
        content = to_bytes(state)
        packed = perf_counter()
        from_bytes(content)
        sizes[name] = len(content)
        per_host = "" if name == "weights" else f"{len(content) / config.envs / 1e3:.1f} kB"
        times = (packed - start, perf_counter() - packed)
        rows.append(
            (name, f"{len(content) / 1e3:,.0f} kB", per_host, *(f"{1e3 * t:.1f}" for t in times))
        )
    return rows, sizes


def _steps_of_a_round(trainer: Trainer) -> dict[str, Tensor]:
    """Return tensors like those that hold a round's steps; the buffer is empty after an update."""
    found = trainer.parts.buffer.state_dict()
    n_steps = trainer.config.n_steps
    return {name: tensor.new_zeros(n_steps, *tensor.shape[1:]) for name, tensor in found.items()}


def show_prediction(alone: dict[str, float], sizes: dict[str, float]) -> None:
    """Print what the model predicts for a cluster: 128 hosts for each worker, one shard each."""
    steps = 128 * load_preset("quick").n_steps
    collect, learn = (alone["seconds"] - alone["update"]) / steps, alone["update"] / steps
    rows: list[Sequence[object]] = []
    for workers in WORKERS:
        n_steps = workers * steps
        seconds = {
            "collecting": steps * collect,
            "learning": n_steps * learn,
            "weights": workers * sizes["weights"] / NETWORK,
            "states and steps": workers
            * (sizes["state of the hosts"] + sizes["steps of a round"])
            / NETWORK,
        }
        total = sum(seconds.values())
        longest = max(seconds, key=seconds.__getitem__)
        rows.append(
            (
                f"{workers:,}",
                f"{workers * 128:,}",
                *(f"{value:.2f}" for value in seconds.values()),
                f"{n_steps / total:,.0f}",
                longest,
            )
        )
    headings = ("workers", "hosts", "collecting, s", "learning, s", "weights, s")
    print_table((*headings, "states and steps, s", "env-steps/s", "limited by"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="rounds that count, per setting")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    show_designs()
    sizes = show_hosts(rounds)
    alone = show_workers(rounds)
    show_prediction(alone, sizes)


if __name__ == "__main__":
    main()
