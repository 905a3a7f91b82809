"""Small runs in which every stage occurs, and hashes of their outcomes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.config.growth import Budget
from esper.config.learning import PolicyConfig, PPOConfig
from esper.config.run import CheckpointConfig, EvaluationConfig, RunConfig
from esper.config.toml import override
from esper.lifecycle.factored_actions import Op
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.state import from_bytes, to_bytes
from esper.telemetry import open_run
from esper.telemetry.records import Record
from esper.training import setup

OP_LOGITS = {
    Op.WAIT: 0.0,
    Op.GERMINATE: 2.0,
    Op.FOSSILIZE: 4.0,
    Op.ADVANCE: 2.0,
    Op.PRUNE: 0.5,
    Op.SET_ALPHA_TARGET: 0.0,
    Op.FINISH: -2.5,
}
"""Initial logits of the ops with which short episodes see every stage of a seed's life."""


def tiny_config(**changes: Any) -> RunConfig:
    """Return the settings of a run of 18 steps and 4 hosts; ``a__b`` changes setting ``a.b``."""
    config = RunConfig(
        task="spirals",
        task_options={"batches_per_epoch": 2},
        seed=3,
        rounds=3,
        envs=4,
        n_steps=6,
        budget=Budget(n_epochs=10),
        policy=PolicyConfig(feature_size=12, lstm_size=8),
        ppo=PPOConfig(gamma=1.0, n_epochs=2, learning_rate=3e-3, ent_coef=0.01, target_kl=0.02),
        evaluation=EvaluationConfig(eval_freq=1, n_eval_episodes=2, n_final_episodes=2),
        checkpoints=CheckpointConfig(save_freq=1),
    )
    return override(config, {name.replace("__", "."): value for name, value in changes.items()})


def lively(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a policy maker so that its policies tend to grow."""

    def make_policy(*args: Any, **kwargs: Any) -> Any:
        policy = make(*args, **kwargs)
        with torch.no_grad():
            ops = policy.outputs.bias[-1 - len(Op) : -1]
            for op, logit in OP_LOGITS.items():
                ops[op] = logit
        return policy

    return make_policy


@pytest.fixture
def lively_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "make_policy", lively(setup.make_policy))


@contextmanager
def liveliness() -> Iterator[None]:
    """Make lively policies within the context."""
    kept = setup.make_policy
    setup.make_policy = lively(kept)
    try:
        yield
    finally:
        setup.make_policy = kept


class Seen:
    """A watcher that keeps every record and calls a function on it."""

    def __init__(self, act: Callable[[Record], None] = lambda _: None) -> None:
        self.records: list[Record] = []
        self.is_closed = False
        self._act = act

    def write(self, record: Record) -> None:
        self.records.append(record)
        self._act(record)

    def close(self) -> None:
        self.is_closed = True


def state_digest(state: Mapping[str, Any]) -> str:
    """Return a hash of all that a run depends on, except wall-clock times."""
    plain = from_bytes(to_bytes(state))
    for shard in plain["shards"]:
        shard["envs"]["facts"].pop("elapsed", None)
    plain["best_policy"] = plain["best_policy"]["weights"]  # the rest describes it to others
    return hashlib.sha256(to_bytes(plain)).hexdigest()


def run_digests(folder: Path) -> dict[str, str]:
    """Return hashes of a finished run's records, last state and summary."""
    with open_run(folder) as telemetry:
        recorded = telemetry.digest()
    return {
        "telemetry": recorded,
        "state": state_digest(CheckpointFolder(folder / "checkpoints").latest().state),
        "summary": hashlib.sha256((folder / "summary.json").read_bytes()).hexdigest(),
    }
