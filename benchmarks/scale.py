"""How the cost of a round grows with hosts, shards and workers, and what that predicts.

Run:  python benchmarks/scale.py          as tables; docs/scale.md discusses them

Trains some rounds of the quick preset in each setting. The speed of a setting is that of its median
round. One thread per process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

# The libraries read these when they are loaded.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import torch

from esper.config.run import RunConfig
from esper.config.toml import load_preset
from esper.simic.rollout.jobs import Parcel
from esper.simic.rollout.processes import SharedFile
from esper.storage.state import State, from_nested
from esper.telemetry.records import Record, RoundRecord
from esper.training.trainer import Trainer
from training import train_rounds

WARM_UP = 2
"""Rounds that are not counted."""
HOSTS = (1, 8, 32, 128, 512)
SETTINGS = ((1, 0), (2, 0), (4, 0), (2, 1), (2, 2), (4, 2), (4, 4))
"""Shards and workers of 128 hosts; 0 workers is this process alone."""
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


def run(config: RunConfig, n_workers: int) -> tuple[dict[str, float], Trainer]:
    """Train some rounds; return the speed, the learner's seconds and the trainer."""
    rounds = Rounds()
    trainer = train_rounds(config, rounds, n_workers)
    counted = rounds.rows[WARM_UP:]
    seconds = statistics.median(row.seconds for row in counted)
    update = statistics.median(json.loads(row.seconds_by_part)["update"] for row in counted)
    steps = config.envs * config.n_steps
    return {"seconds": seconds, "update": update, "speed": steps / seconds}, trainer


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


def show_hosts(rounds: int) -> Trainer:
    """Print the speed of one process by number of hosts; return the trainer of 128."""
    rows, kept = [], None
    for hosts in HOSTS:
        found, trainer = run(config_of(hosts, rounds), 0)
        share = f"{found['update'] / found['seconds']:.0%}"
        rows.append((hosts, f"{found['seconds']:.2f}", f"{found['speed']:,.0f}", share))
        kept = trainer if hosts == 128 else kept
    print_table(("hosts", "seconds per round", "env-steps/s", "learner"), rows)
    assert kept is not None, "128 hosts are measured"
    return kept


def show_workers(rounds: int) -> dict[str, float]:
    """Print the speed by shards and workers; return that of one process."""
    rows, alone = [], dict[str, float]()
    for shards, workers in SETTINGS:
        found, _ = run(config_of(128, rounds, shards), workers)
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


def show_messages(trainer: Trainer) -> dict[str, float]:
    """Print sizes and times of what travels; return bytes."""
    parts, config = trainer.parts, trainer.config
    parcels = {
        "weights": Parcel(from_nested(parts.agent.weights())),
        "state of the hosts": Parcel(State(*_merged(parts.rollout.save()))),
        "steps of a round": Parcel(State(parts.buffer.state_dict())),
    }
    file, rows, sizes = SharedFile.create(), [], dict[str, float]()
    for name, parcel in parcels.items():
        start = perf_counter()
        content = parcel.bytes
        packed = perf_counter()
        file.read(file.write({"content": parcel}))
        sent = perf_counter()
        _ = Parcel(content).state
        sizes[name] = len(content)
        per_host = "" if name == "weights" else f"{len(content) / config.envs / 1e3:.1f} kB"
        times = (packed - start, sent - packed, perf_counter() - sent)
        rows.append(
            (name, f"{len(content) / 1e3:,.0f} kB", per_host, *(f"{1e3 * t:.1f}" for t in times))
        )
    print_table(("what", "size", "per host", "pack, ms", "copy, ms", "unpack, ms"), rows)
    return sizes


def _merged(states: Sequence[State]) -> tuple[dict[str, Any], dict[str, Any]]:
    state = states[0]
    assert len(states) == 1, "the hosts are one shard"
    return state.tensors, state.facts


def show_prediction(alone: dict[str, float], sizes: dict[str, float]) -> None:
    """Print what the model predicts for a cluster: 128 hosts for each worker, one shard each."""
    steps = 128 * load_preset("quick").n_steps
    collect, learn = (alone["seconds"] - alone["update"]) / steps, alone["update"] / steps
    rows = []
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
    trainer = show_hosts(rounds)
    sizes = show_messages(trainer)
    alone = show_workers(rounds)
    show_prediction(alone, sizes)


if __name__ == "__main__":
    main()
