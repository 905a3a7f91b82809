"""An update with a non-finite number is rolled back; three in a row end the run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.config.toml import override
from esper.errors import TrainingError
from esper.simic.agent import PPOAgent
from esper.storage.state import encode
from esper.telemetry.records import RoundRecord, UpdateRecord
from esper.training.run import load_run
from esper.training.runs import resume, train
from tests.training.stopped_run import make_trainer
from tests.training.tiny import Seen, tiny_config


class Updates:
    """Counts updates and the losses in each, and spoils some of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spoils: Callable[[int, int], bool]) -> None:
        self.number = self.loss = 0
        self.before: dict[int, dict[str, Any]] = {}
        update, loss = PPOAgent.update, PPOAgent.loss

        def counted_update(agent: PPOAgent, buffer: Any) -> Any:
            self.number, self.loss = self.number + 1, 0
            self.before[self.number] = agent.state_dict()
            return update(agent, buffer)

        def spoiled_loss(agent: PPOAgent, batch: Any) -> Any:
            self.loss += 1
            found, terms = loss(agent, batch)
            return found * (math.nan if spoils(self.number, self.loss) else 1.0), terms

        monkeypatch.setattr(PPOAgent, "update", counted_update)
        monkeypatch.setattr(PPOAgent, "loss", spoiled_loss)


def bits(state: dict[str, Any]) -> dict[str, bytes]:
    return {name: b"".join(pieces) for name, pieces in encode(state).items()}


def config_of(n_minibatches: int = 2) -> Any:
    return tiny_config(
        ppo__n_minibatches=n_minibatches,
        ppo__target_kl=None,
        policy__normalize_observations=True,
        budget__n_epochs=3,
        n_steps=3,
        envs=2,
        rounds=4,
        evaluation__eval_freq=4,
    )


@pytest.mark.parametrize(
    ("n_minibatches", "loss"),
    [(2, 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2), (2, 4)))],
)
def test_a_rejected_update_leaves_the_agent_unchanged_and_the_run_continues(
    n_minibatches: int, loss: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = Updates(monkeypatch, lambda number, at: (number, at) == (2, loss))
    after: list[Any] = []

    def look(record: Any) -> None:
        if isinstance(record, UpdateRecord):
            after.append(bits(trainer.parts.agent.state_dict()))

    seen = Seen(look)
    trainer, _, _ = make_trainer(config_of(n_minibatches), seen)
    trainer.run()
    found = [record for record in seen.records if isinstance(record, UpdateRecord)]
    assert [record.was_refused for record in found] == [False, True, False, False]
    assert [record.n_updates for record in found] == [1, 1, 2, 3]
    assert "not finite" in (found[1].refusal or "")
    assert found[1].approx_kl is None
    assert after[1] == bits(updates.before[2])
    assert after[1] != bits(updates.before[1])
    assert after[2] != after[1]


def test_every_update_has_the_rates_of_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[float, float]] = []
    update = PPOAgent.update

    def looked_at(agent: PPOAgent, buffer: Any) -> Any:
        (rate,) = {group["lr"] for group in agent.optimizer.param_groups}
        used.append((rate, agent.config.ent_coef))
        return update(agent, buffer)

    monkeypatch.setattr(PPOAgent, "update", looked_at)
    changes = {
        "rounds": 3,
        "evaluation.eval_freq": 3,
        "ppo.learning_rate": 4e-3,
        "ppo.ent_coef": 0.02,
        "schedule.learning_rate": "linear",
        "schedule.learning_rate_end": 0.5,
        "schedule.ent_coef": "linear",
        "schedule.ent_coef_end": 0.0,
    }
    seen = Seen()
    trainer, _, _ = make_trainer(override(config_of(), changes), seen)
    trainer.run()
    rates, weights = zip(*used, strict=True)
    assert rates == pytest.approx([4e-3, 3e-3, 2e-3])
    assert weights == pytest.approx([0.02, 0.01, 0.0], abs=1e-12)
    rounds = [record for record in seen.records if isinstance(record, RoundRecord)]
    assert [(record.learning_rate, record.ent_coef) for record in rounds] == used


def test_an_update_whose_last_step_makes_a_weight_infinite_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updates = Updates(monkeypatch, lambda *_: False)
    seen = Seen()
    trainer, _, _ = make_trainer(config_of(), seen)
    agent = trainer.parts.agent

    def overshoot(*_: object) -> None:
        if (updates.number, updates.loss) == (1, 4):
            with torch.no_grad():
                next(iter(agent.policy.parameters()))[0, 0] = math.inf

    agent.optimizer.register_step_post_hook(overshoot)
    trainer.run()
    found = [record for record in seen.records if isinstance(record, UpdateRecord)]
    assert [record.was_refused for record in found] == [True, False, False, False]
    assert "weight after the update" in (found[0].refusal or "")
    assert all(bool(p.isfinite().all()) for p in trainer.parts.policy.parameters())


def test_rejections_are_counted_across_checkpoints_and_reset_by_a_good_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Updates(monkeypatch, lambda number, _: number != 3)
    trainer, _, _ = make_trainer(config_of())
    trainer.run()
    assert trainer.parts.progress.refusals_in_a_row == 1
    Updates(monkeypatch, lambda *_: True)
    first, _, checkpoints = make_trainer(config_of())
    with pytest.raises(TrainingError):
        first.run()
    state = checkpoints.state
    assert state["progress"]["refusals_in_a_row"] == 3
    state["progress"]["refusals_in_a_row"] = 1
    second, _, _ = make_trainer(config_of())
    second.load(state)
    second.run()
    assert second.parts.progress.refusals_in_a_row == 2


def test_three_rejections_in_a_row_end_a_run_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    config = tiny_config(
        n_steps=4,
        rounds=4,
        budget__n_epochs=4,
        evaluation__eval_freq=4,
        checkpoints__save_freq=4,
    )
    with monkeypatch.context() as patch:
        Updates(patch, lambda *_: True)
        with pytest.raises(TrainingError, match=r"3 updates .* ppo.learning_rate"):
            train(config, run_dir=folder)
    run = load_run(folder)
    assert (run.state, run.rounds_done) == ("failed", 3)
    assert resume(folder).state == "done"
    with run.telemetry() as telemetry:
        refused = [record.was_refused for record in telemetry.rows(UpdateRecord)]
        kinds = [notice.kind for notice in telemetry.rows("notices")]
        messages = [session.message or "" for session in telemetry.sessions()]
    assert refused == [True, True, True, False]
    assert kinds == ["failed", "comparison"]
    assert "3 updates" in messages[0]
