"""Bars of seeds agree with the stages of every step."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from esper.dashboard.views.episode import Bar, Step, describe_step, make_bars
from esper.dashboard.views.run import names_of
from esper.lifecycle.stages import Stage
from esper.telemetry.records import EpisodeRecord, SeedEventRecord, StepRecord
from tests.dashboard.views.samples import BLUEPRINTS, FINISH, SLOTS, run_record
from tests.dashboard.views.simulation import simulate
from tests.telemetry.samples import example

NAMES = names_of(run_record())


def bars_of(records: list[Any], env: int, episode: int) -> tuple[list[Bar], list[Step], int | None]:
    """Return the bars, the steps and the step that finished the host."""
    mine = [one for one in records if getattr(one, "env", None) == env and one.episode == episode]
    steps = [one for one in mine if isinstance(one, StepRecord)]
    events = [one for one in mine if isinstance(one, SeedEventRecord)]
    finish = next((one.step for one in steps if one.op == FINISH), None)
    shown = [describe_step(one, NAMES, finish) for one in steps]
    bars = make_bars(events, shown, SLOTS, last_epoch=steps[-1].epoch, finish_step=finish)
    return bars, shown, finish


def painted(bars: list[Bar], slot: str, last_epoch: int) -> list[str]:
    """Return the stage of a slot during each epoch, as its bars show it."""
    found = ["dormant"] * last_epoch
    for bar in bars:
        for part in bar["parts"]:
            for epoch in range(part["from"], part["to"]):
                if bar["slot"] == slot:
                    assert found[epoch] == "dormant", "two parts are on top of each other"
                    found[epoch] = part["stage"]
    return found


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_bars_show_the_stage_in_each_epoch(seed: int) -> None:
    records = simulate(n_rounds=3, seed=seed)
    episodes = {(one.env, one.episode) for one in records if isinstance(one, StepRecord)}
    for env, episode in sorted(episodes):
        bars, steps, finish = bars_of(records, env, episode)
        trained = [one for one in steps if one["step"] != finish]
        for place, slot in enumerate(SLOTS):
            stages = [one["slots"][place]["stage"] for one in trained]
            assert painted(bars, slot, steps[-1]["epoch"]) == stages
            mine = [bar for bar in bars if bar["slot"] == slot]
            assert [bar["seed"] for bar in mine] == list(range(len(mine)))
            alphas = [alpha for bar in mine for alpha in bar["alphas"]]
            assert alphas == [
                (one["epoch"], one["slots"][place]["alpha"])
                for one in trained
                if one["slots"][place]["stage"] != "dormant"
            ]
            last = steps[-1]["slots"][place]["stage"]
            if last != "dormant":
                end = mine[-1]["parts"][-1]
                assert (end["stage"], end["to"]) == (last, steps[-1]["epoch"])
        for bar in bars:
            kind = bar["blueprint"]
            assert bar["parameters"] == (10 * (BLUEPRINTS.index(kind) + 1) if kind else 0)


def event(epoch: int, from_stage: Stage, to_stage: Stage, **changes: Any) -> SeedEventRecord:
    values = {"step": 100 + epoch, "slot": "blocks.0", "blueprint": "norm", "alpha": 0.5}
    stages = {"from_stage": from_stage.name.lower(), "to_stage": to_stage.name.lower()}
    return example(SeedEventRecord, epoch=epoch, **stages, **(values | changes))


def test_a_seed_worked_by_hand() -> None:
    # Germinated in the first epoch, pruned in the fourth, free from the sixth on; then another
    # seed in the seventh, which is given up when the host is finished after eight epochs.
    events = [
        event(1, Stage.DORMANT, Stage.TRAINING),
        event(4, Stage.TRAINING, Stage.PRUNED),
        event(5, Stage.PRUNED, Stage.EMBARGOED, blueprint=""),
        event(6, Stage.EMBARGOED, Stage.DORMANT, blueprint=""),
        event(7, Stage.DORMANT, Stage.BLENDING, blueprint="widen"),
        event(8, Stage.BLENDING, Stage.PRUNED, blueprint="widen", step=109),
    ]
    first, second = make_bars(events, [], SLOTS, last_epoch=8, finish_step=109)
    assert (first["slot"], first["blueprint"], first["seed"]) == ("blocks.0", "norm", 0)
    assert first["parts"] == [
        {"stage": "training", "from": 0, "to": 3},
        {"stage": "pruned", "from": 3, "to": 4},
        {"stage": "embargoed", "from": 4, "to": 5},
    ]
    assert (second["blueprint"], second["seed"]) == ("widen", 1)
    assert second["parts"] == [
        {"stage": "blending", "from": 6, "to": 8},
        {"stage": "pruned", "from": 8, "to": 8},
    ]


def test_each_seed_of_a_slot_that_grows_again_has_a_bar() -> None:
    events = [
        event(1, Stage.DORMANT, Stage.HOLDING),
        event(2, Stage.HOLDING, Stage.FOSSILIZED),
        event(4, Stage.FOSSILIZED, Stage.DORMANT),
        event(5, Stage.DORMANT, Stage.HOLDING, blueprint="widen"),
        # Fossilized and free again in one step.
        event(7, Stage.HOLDING, Stage.FOSSILIZED, blueprint="widen"),
        event(7, Stage.FOSSILIZED, Stage.DORMANT, blueprint="widen"),
    ]
    first, second = make_bars(events, [], SLOTS, last_epoch=8, finish_step=None)
    assert (first["blueprint"], first["seed"]) == ("norm", 0)
    assert first["parts"] == [
        {"stage": "holding", "from": 0, "to": 1},
        {"stage": "fossilized", "from": 1, "to": 3},
    ]
    assert (second["blueprint"], second["seed"]) == ("widen", 1)
    assert second["parts"] == [
        {"stage": "holding", "from": 4, "to": 6},
        {"stage": "fossilized", "from": 6, "to": 6},
    ]


def test_a_seed_lost_in_its_first_step_has_an_unnamed_bar() -> None:
    events = [event(6, Stage.DORMANT, Stage.PRUNED, blueprint="")]
    (bar,) = make_bars(events, [], SLOTS, last_epoch=6, finish_step=None)
    assert bar["blueprint"] is None
    assert bar["parts"] == [{"stage": "pruned", "from": 5, "to": 6}]


def test_simulated_episodes_end_by_finishing_or_at_the_last_epoch() -> None:
    records = simulate(n_rounds=10, seed=5)
    ended = [one for one in records if isinstance(one, EpisodeRecord)]
    finished = [bars_of(records, one.env, one.episode)[2] for one in ended]
    assert [step is not None for step in finished] == [one.ep_len > one.n_epochs for one in ended]
    assert 0 < sum(step is not None for step in finished) < len(ended)
