"""The state of a run is complete: leaving out any part of it changes the run."""

from collections.abc import Callable
from functools import cache

import pytest

from esper.errors import OtherVersionError
from esper.storage.state import State
from tests.training.stopped_run import Leaf, StoppedRun, make_trainer
from tests.training.tiny import state_digest, tiny_config

EVERY_STEP = "every step sets it before anything reads it"
UNUSED_OPTION = "updates call the fused step, which does not read it"
SETTING = "a missing one counts as the setting, which runs do not change"
NOT_MISSED = {
    "shards/*/envs/records/previous_gradient_norm": EVERY_STEP,
    "shards/*/envs/records/gradient_noise": EVERY_STEP,
    "shards/*/envs/records/last_op": EVERY_STEP,
    "shards/*/envs/records/was_refused": EVERY_STEP,
    "shards/*/envs/records/is_measured": EVERY_STEP,
    "shards/*/envs/records/slots/gradient_norm": EVERY_STEP,
    "shards/*/envs/records/seed_parameters": EVERY_STEP,
    "shards/*/envs/made_with/growth": "a missing one counts as None, which it is",
    "shards/*/envs/made_with/max_episode_steps": "a missing one counts as None, which it is",
    "shards/*/envs/made_with/episode_seconds": "a missing one counts as None, which it is",
    "best_policy/blueprints/*": "describes the controller to others",
    "best_policy/observations": "describes the controller to others",
    "best_policy/growth": "describes the controller to others",
    "best_policy/returns/return_mean": "describes the controller to others",
    "best_policy/returns/return_std": "describes the controller to others",
    "shards/*/envs/elapsed/*": "wall time, for a limit that runs do not have",
    "buffer/bootstrap_values": "for truncated steps, which a run does not have",
    "agent/optimizer/param_groups/0/lr": "every update sets it first",
    "agent/optimizer/param_groups/0/amsgrad": UNUSED_OPTION,
    "agent/optimizer/param_groups/0/capturable": UNUSED_OPTION,
    "agent/optimizer/param_groups/0/decoupled_weight_decay": UNUSED_OPTION,
    "agent/optimizer/param_groups/0/differentiable": UNUSED_OPTION,
    "agent/optimizer/param_groups/0/foreach": UNUSED_OPTION,
    "agent/optimizer/param_groups/0/maximize": UNUSED_OPTION,
    "agent/rates/clip_range": SETTING,
    "agent/rates/ent_coef": SETTING,
    "agent/rates/learning_rate": SETTING,
    "shards/*/tally/n_steps": "divided by seconds, which differ anyway",
}
"""What may be missing from a state without an effect, and why."""

# test_only_listed_leaves_may_be_missing covers every leaf.
SAMPLE = [
    "agent/policy/normalize_slot.variance",
    "agent/optimizer/state/*/exp_avg_sq",
    "agent/normalizer/std",
    "shards/*/generator",
    "shards/*/envs/records/flops_used",
    "shards/*/envs/hosts/*/optimizer/exp_avg/*",
    "shards/*/envs/hosts/*/batch_order/generator/state/state",
    "shards/*/collector/state",
    "buffer/log_probs",
    "shards/*/tally/ended_ops",
    "progress/fixed_return",
    "progress/telemetry_position",
    "best_policy/weights/outputs.weight",
]


@cache
def stopped() -> StoppedRun:
    return StoppedRun()


@cache
def stopped_in_long_episodes() -> StoppedRun:
    return StoppedRun(16, **{"budget.n_epochs": 30, "task_options.batches_per_epoch": 4})


def is_missed(run: StoppedRun, change: Callable[[Leaf], State], leaves: list[Leaf]) -> bool:
    return any(run.outcome_of(change(leaf)) != "same" for leaf in leaves)


def is_missed_everywhere(run: StoppedRun, kind: str) -> bool:
    """Return whether both removing and resetting a leaf have an effect."""
    leaves = run.leaves().get(kind, [])
    changed = [leaf for leaf in leaves if run.is_changed(leaf)]
    return is_missed(run, run.without, leaves) and (
        not changed or is_missed(run, run.forgetting, changed)
    )


def test_a_resumed_run_equals_an_uninterrupted_one() -> None:
    run = stopped()
    stages = {
        life["stage"]
        for host in run.state["shards"][0]["envs"]["facts"]["hosts"]
        for life in host["lives"].values()
    }
    assert {"blending", "training"} <= stages
    assert 0 < len(run.state["buffer"]["rewards"]) < 6
    assert run.state["shards"][0]["tally"]["n_episodes"] > 0
    assert run.outcome_of(run.state) == "same"


def test_a_loaded_state_is_saved_again_bit_for_bit() -> None:
    run = stopped()
    trainer, _, _ = make_trainer(run.trainer.config)
    trainer.load(run.state)
    assert state_digest(trainer.parts.save()) == state_digest(run.state)
    assert state_digest(run.fresh) != state_digest(run.state)


def test_a_saved_state_is_a_copy() -> None:
    run = stopped()
    trainer, _, _ = make_trainer(run.trainer.config)
    trainer.load(run.state)
    saved = trainer.parts.save()
    before = state_digest(saved)
    trainer.run()
    assert state_digest(saved) == before


def test_a_state_that_lacks_something_is_of_another_version() -> None:
    run = stopped()
    state = run.without(("progress", "fixed_stop"))
    with pytest.raises(OtherVersionError, match="fixed_stop"):
        run.trainer.load(state)


@pytest.mark.parametrize("kind", SAMPLE)
def test_removing_or_resetting_a_leaf_changes_the_run(kind: str) -> None:
    run = stopped()
    leaves = [leaf for leaf in run.leaves()[kind] if run.is_changed(leaf)]
    assert is_missed(run, run.without, leaves[:1])
    assert is_missed(run, run.forgetting, leaves)


@pytest.mark.slow
def test_only_listed_leaves_may_be_missing() -> None:
    run, other = stopped(), stopped_in_long_episodes()
    kinds = dict.fromkeys([*run.leaves(), *other.leaves()])
    unmissed = [kind for kind in kinds if not is_missed_everywhere(run, kind)]
    unmissed = [kind for kind in unmissed if not is_missed_everywhere(other, kind)]
    assert set(unmissed) <= set(NOT_MISSED)
    assert len(kinds) > 200
    assert run.outcome_of(run.state) == other.outcome_of(other.state) == "same"


def test_no_checkpoint_is_ahead_of_the_flushed_telemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config(rounds=1, n_steps=3, budget__n_epochs=3, checkpoints__save_freq=2)
    trainer, records, checkpoints = make_trainer(config)
    acknowledged, saved = [0], list[int]()

    def flush() -> None:
        acknowledged.append(records.position)

    def save(state: State, **_: object) -> None:
        position = state["progress"]["telemetry_position"]
        assert position == records.position == acknowledged[-1]
        saved.append(position)

    monkeypatch.setattr(records, "flush", flush)
    monkeypatch.setattr(checkpoints, "save", save)
    trainer.run()
    assert len(saved) >= 3
    assert saved == sorted(saved)
    assert saved[-1] == len(records.kept)
