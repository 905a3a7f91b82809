"""Slots follow the rules of the action masks, and gates report why they block an action."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.config.growth import GrowthConfig
from esper.errors import IllegalActionError, SlotError
from esper.growth.json_values import from_json, to_json
from esper.growth.slot_states import Fossil, SlotLife, SlotStates
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_EPOCHS,
    WAIT,
    AlphaCurve,
    BlendStyle,
    GrowthAction,
    Op,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage, may_follow
from esper.tamiyo.policy.action_masks import ActionMasks, compute_action_masks

FITS = {"a": {"noop", "norm"}, "b": {"norm"}, "c": set[str]()}
CONFIGS = (
    SlotConfig(("a", "b", "c"), blueprints=("noop", "norm"), fits=FITS),
    SlotConfig(("a", "b", "c"), blueprints=("noop", "norm"), fits=FITS, seed_limit=1),
    SlotConfig(
        ("a", "b", "c"),
        blueprints=("noop", "norm"),
        fits=FITS,
        enabled=frozenset({"a", "c"}),
        allow_finish=False,
    ),
)


class Keeper:
    """Records which slots hold a seed and which methods were called."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.full = False
        self.starts_blended = False
        self.can_blend = True
        self.log: list[str] = []
        self.problem: str | None = None

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        assert slot not in self.present
        self.present.add(slot)
        self.log.append(f"add {action.blueprint}")

    def remove_seed(self, slot: str) -> None:
        self.present.remove(slot)
        self.log.append("remove")

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        self.log.append(f"restyle {style.value}")

    def commit_seed(self, slot: str) -> None:
        self.log.append("commit")

    def absorb_seed(self, slot: str) -> int:
        self.present.remove(slot)
        self.log.append("absorb")
        return 3

    def __getitem__(self, slot: str) -> Keeper:
        return self

    def is_full(self) -> bool:
        return self.full

    def find_start_problem(self) -> str | None:
        return self.problem

    def explain_misfit(self, blueprint: str) -> str:
        return "it is another kind"


class Host:
    """A host with one slot."""

    def __init__(self, **growth: Any) -> None:
        self.keeper = Keeper()
        self.lives = SlotStates(SlotConfig(("a",)), GrowthConfig(**growth))

    @property
    def life(self) -> SlotLife:
        return self.lives["a"]

    def do(self, op: Op, **choices: object) -> str:
        choices = {"blueprint": "norm"} | choices
        action = GrowthAction(op=op, slot="a", **choices)  # type: ignore[arg-type]
        outcome = self.lives.apply(action, self.keeper)
        assert outcome.action == action
        assert outcome.was_done == (outcome.reason == "")
        return outcome.reason

    def tick(self, n: int = 1) -> None:
        for _ in range(n):
            self.lives.tick(self.keeper)

    def advance_to(self, stage: Stage, **choices: object) -> None:
        self.do(Op.GERMINATE, **choices)
        while self.life.stage != stage:
            self.tick()
            self.do(Op.ADVANCE)


def test_a_seeds_life_worked_by_hand() -> None:
    host = Host()
    seen: list[tuple[str, int, int, float]] = []

    def note() -> None:
        life = host.life
        alpha = round(life.alpha, 3)
        seen.append((life.stage.name.lower(), life.age_epochs, life.stage_epochs, alpha))

    note()
    host.do(Op.GERMINATE, tempo_epochs=3, alpha_target=0.5)
    note()
    host.do(Op.ADVANCE)
    host.tick()
    note()
    host.do(Op.ADVANCE)
    for _ in range(3):
        note()
        host.tick()
    host.do(Op.ADVANCE)
    note()
    host.do(Op.SET_ALPHA_TARGET, alpha_target=1.0, style=BlendStyle.LEARNED_GATE)
    note()
    host.do(Op.ADVANCE)
    host.tick()
    note()
    host.do(Op.FOSSILIZE)
    host.tick()
    note()
    host.tick()
    note()
    assert seen == [
        ("dormant", 0, 0, 0.0),
        ("germinated", 0, 0, 0.0),
        ("training", 1, 1, 0.0),
        ("blending", 1, 0, 0.167),
        ("blending", 2, 1, 0.333),
        ("blending", 3, 2, 0.5),
        ("holding", 4, 0, 0.5),
        ("blending", 4, 0, 1.0),
        ("holding", 5, 1, 1.0),
        ("fossilized", 6, 1, 1.0),
        ("dormant", 0, 0, 0.0),
    ]
    assert host.keeper.log == ["add norm", "restyle learned gate", "commit", "absorb"]
    assert host.life == SlotLife(fossils=(Fossil("norm", BlendStyle.LEARNED_GATE, 1.0, 3),))


def test_a_slot_grows_again_and_keeps_its_fossils_whatever_happens_to_later_seeds() -> None:
    host = Host(embargo_epochs=3)
    for alpha in (0.5, 1.0):
        host.advance_to(Stage.HOLDING, alpha_target=alpha)
        host.tick()
        host.do(Op.FOSSILIZE)
        host.tick(2)
        with pytest.raises(IllegalActionError, match="a fossilized"):
            host.do(Op.GERMINATE)
        host.tick()
    first, second = (Fossil("norm", BlendStyle.ADD_LINEAR, alpha, 3) for alpha in (0.5, 1.0))
    assert host.life == SlotLife(fossils=(first, second))
    assert host.life.units == 6
    host.advance_to(Stage.TRAINING)
    assert host.life.fossils == (first, second)
    host.do(Op.PRUNE)
    while host.life.stage != Stage.DORMANT:
        host.tick()
    assert host.life == SlotLife(fossils=(first, second))
    assert host.keeper.log.count("absorb") == 2
    assert from_json(SlotLife, json.loads(json.dumps(to_json(host.life)))) == host.life


def test_a_life_with_a_field_missing_is_rejected_by_its_name() -> None:
    values = to_json(SlotLife())
    del values["age_epochs"]
    with pytest.raises(ValueError, match="age_epochs"):
        from_json(SlotLife, values)


def test_only_a_fossilized_seed_can_become_part_of_its_block() -> None:
    host = Host()
    host.advance_to(Stage.HOLDING)
    with pytest.raises(SlotError, match="'a' is holding"):
        host.lives.absorb("a", host.keeper)


def test_a_pruned_seed_fades_out_and_the_slot_is_embargoed() -> None:
    host = Host(embargo_epochs=2)
    host.advance_to(Stage.HOLDING, alpha_target=1.0)
    host.do(Op.PRUNE, alpha_speed_epochs=3)
    seen = []
    for _ in range(8):
        seen.append((host.life.stage.name.lower(), round(host.life.alpha, 3), host.life.has_seed))
        assert (host.keeper.present == {"a"}) == host.life.has_seed
        host.tick()
    assert seen == [
        ("pruned", 0.667, True),
        ("pruned", 0.333, True),
        ("embargoed", 0.0, False),
        ("embargoed", 0.0, False),
        ("resetting", 0.0, False),
        ("dormant", 0.0, False),
        ("dormant", 0.0, False),
        ("dormant", 0.0, False),
    ]
    assert host.lives["a"] == SlotLife()


@pytest.mark.parametrize("embargo", [1, 2, 5])
def test_a_slot_is_blocked_for_the_embargo_and_an_epoch_on_either_side(embargo: int) -> None:
    host = Host(embargo_epochs=embargo)
    host.do(Op.GERMINATE)
    host.tick()
    host.do(Op.PRUNE, alpha_speed_epochs=8)  # alpha is already 0: nothing to fade
    assert host.keeper.present == set()
    for _ in range(embargo + 2):
        with pytest.raises(IllegalActionError):
            host.do(Op.GERMINATE)
        host.tick()
    host.do(Op.GERMINATE)


@pytest.mark.parametrize("curve", list(AlphaCurve))
def test_ramps_follow_the_speed_and_curve_of_the_action(curve: AlphaCurve) -> None:
    host = Host()
    host.advance_to(Stage.HOLDING, alpha_target=0.5)
    host.do(Op.SET_ALPHA_TARGET, alpha_target=1.0, alpha_speed_epochs=5, alpha_curve=curve)
    alphas = []
    while not host.life.schedule.is_at_rest:
        alphas.append(host.life.alpha)
        host.tick()
    assert len(alphas) == 4
    assert all(0.5 < alpha < 1.0 for alpha in alphas)
    assert alphas == sorted(alphas)
    # Curves are symmetric about the middle.
    assert alphas[0] + alphas[3] == pytest.approx(1.5)
    assert host.life.alpha == 1.0


def test_the_first_ramp_of_the_sigmoid_style_is_a_sigmoid() -> None:
    hosts = {style: Host() for style in BlendStyle}
    for style, host in hosts.items():
        host.advance_to(Stage.BLENDING, style=style, tempo_epochs=5)
    assert hosts[BlendStyle.ADD_LINEAR].life.alpha == pytest.approx(0.2)
    assert hosts[BlendStyle.ADD_SIGMOID].life.alpha < 0.1


def test_a_ramp_to_the_current_alpha_does_not_change_it() -> None:
    host = Host()
    host.advance_to(Stage.HOLDING, alpha_target=0.7)
    host.do(Op.SET_ALPHA_TARGET, alpha_target=0.7, alpha_speed_epochs=8)
    assert host.life.alpha == pytest.approx(0.7)


def test_gates_block_actions_with_a_reason() -> None:
    host = Host(min_training_epochs=2, min_holding_epochs=1)
    host.do(Op.GERMINATE)
    host.keeper.problem = "the output is not finite"
    assert host.do(Op.ADVANCE) == "the output is not finite"
    assert host.life.stage == Stage.GERMINATED
    host.keeper.problem = None
    assert host.do(Op.ADVANCE) == ""
    host.tick()
    assert "training for 1 of at least 2 epochs" in host.do(Op.ADVANCE)
    host.tick()
    assert host.do(Op.ADVANCE) == ""
    assert "alpha is 0.333" in host.do(Op.ADVANCE)
    assert host.life.stage == Stage.BLENDING
    host.tick(2)
    assert host.do(Op.ADVANCE) == ""
    assert "holding for 0 of at least 1 epochs" in host.do(Op.FOSSILIZE)
    assert host.life.stage == Stage.HOLDING
    host.tick()
    assert host.do(Op.FOSSILIZE) == ""


def test_seeds_that_advance_automatically_are_held_as_soon_as_gates_allow() -> None:
    host = Host(min_training_epochs=1, min_holding_epochs=0, advances_alone=True)
    assert host.do(Op.GERMINATE, tempo_epochs=3) == ""
    seen: list[tuple[str, float]] = []
    for _ in range(4):
        seen.append((host.life.stage.name.lower(), round(host.life.alpha, 3)))
        host.tick()
    assert seen == [("training", 0.0), ("blending", 0.333), ("blending", 0.667), ("holding", 1.0)]
    assert host.do(Op.SET_ALPHA_TARGET, alpha_target=0.5, alpha_speed_epochs=3) == ""
    host.tick(3)
    assert (host.life.stage, host.life.alpha) == (Stage.HOLDING, 0.5)
    assert host.do(Op.FOSSILIZE) == ""
    host.tick()
    assert host.life.stage == Stage.FOSSILIZED


def test_without_isolated_training_automatic_seeds_are_blended_immediately() -> None:
    host = Host(min_training_epochs=0, min_holding_epochs=0, advances_alone=True)
    host.do(Op.GERMINATE, tempo_epochs=3)
    assert (host.life.stage, round(host.life.alpha, 3)) == (Stage.BLENDING, 0.333)


def test_automatic_advancing_waits_for_its_gate() -> None:
    host = Host(min_training_epochs=0, advances_alone=True)
    host.keeper.problem = "the output is not finite"
    host.do(Op.GERMINATE)
    host.tick()
    assert host.life.stage == Stage.GERMINATED
    host.keeper.problem = None
    host.tick()
    assert host.life.stage == Stage.BLENDING


def test_a_live_seed_can_be_abandoned_at_any_age() -> None:
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING):
        host = Host(min_training_epochs=0)
        host.advance_to(stage)
        host.lives.abandon("a", host.keeper)
        assert host.life.stage == Stage.PRUNED
        assert host.life.alpha == 0.0
        assert host.keeper.present == set()
        host.tick()
        assert host.life.stage == Stage.EMBARGOED
        with pytest.raises(SlotError, match="slot 'a' is embargoed"):
            host.lives.abandon("a", host.keeper)


def test_a_fading_seed_can_be_abandoned_and_a_committed_one_cannot() -> None:
    host = Host(min_holding_epochs=0)
    host.advance_to(Stage.HOLDING)
    host.do(Op.PRUNE, alpha_speed_epochs=8)
    host.lives.abandon("a", host.keeper)
    assert host.keeper.present == set()
    host = Host(min_holding_epochs=0)
    host.advance_to(Stage.HOLDING)
    host.do(Op.FOSSILIZE)
    with pytest.raises(SlotError, match="slot 'a' is fossilized"):
        host.lives.abandon("a", host.keeper)


def test_errors_name_the_illegal_op_and_the_slot() -> None:
    lives, keeper = SlotStates(CONFIGS[2]), Keeper()

    def attempt(op: Op, slot: str, blueprint: str = "norm") -> None:
        lives.apply(GrowthAction(op=op, slot=slot, blueprint=blueprint), keeper)

    with pytest.raises(IllegalActionError, match=r"'noop' .*slot 'b'.*norm"):
        attempt(Op.GERMINATE, "b", "noop")
    with pytest.raises(IllegalActionError, match=r"finish .*allow_finish"):
        attempt(Op.FINISH, "a")
    attempt(Op.GERMINATE, "a")
    with pytest.raises(IllegalActionError, match=r"prune .*slot 'a' .*a germinated"):
        attempt(Op.PRUNE, "a")
    with pytest.raises(SlotError, match="there is no slot 'd'"):
        attempt(Op.ADVANCE, "d")
    with pytest.raises(SlotError, match="there is no slot 'd'"):
        lives["d"]


ALL_ACTIONS = [
    GrowthAction(op=op, slot=slot, blueprint=blueprint)
    for op, slot, blueprint in itertools.product(Op, ("a", "b", "c"), ("noop", "norm"))
]


def masked_in(masks: ActionMasks, config: SlotConfig, action: GrowthAction) -> bool:
    """Return whether the masks allow every head of an action that the op reads."""
    if not masks["op"][action.op]:
        return False
    if action.op in (Op.WAIT, Op.FINISH):
        return True
    slot = config.slot_index(action.slot)
    if not (masks["slot_by_op"][action.op, slot] and masks["slot"][slot]):
        return False
    blueprint = config.blueprint_index(action.blueprint)
    fits = action.blueprint in FITS[action.slot]
    return action.op != Op.GERMINATE or bool(masks["blueprint"][blueprint] and fits)


@given(st.sampled_from(CONFIGS), st.randoms(use_true_random=False))
def test_an_action_is_accepted_exactly_if_the_masks_allow_it(config, rng) -> None:
    lives, keeper = SlotStates(config, GrowthConfig(embargo_epochs=1)), Keeper()
    for _ in range(14):
        legal = []
        before = json.dumps(lives.to_json())
        masks = compute_action_masks(lives.mask_states, config)
        for action in ALL_ACTIONS:
            if masked_in(masks, config, action):
                assert lives.is_legal(action)
                legal.append(action)
                continue
            assert not lives.is_legal(action)
            try:
                outcome = lives.apply(action, keeper)
            except IllegalActionError:
                continue
            # Of all that is masked, only what a gate is known to refuse can be tried; it waits.
            assert action.op in (Op.ADVANCE, Op.FOSSILIZE)
            assert not outcome.was_done
            assert outcome.reason
        assert json.dumps(lives.to_json()) == before
        chosen = rng.choice([each for each in legal if each.op != Op.WAIT] or legal)
        stages = {slot: life.stage for slot, life in lives.items()}
        outcome = lives.apply(
            GrowthAction(
                op=chosen.op,
                slot=chosen.slot,
                blueprint=chosen.blueprint,
                style=rng.choice(STYLES),
                tempo_epochs=rng.choice(TEMPO_EPOCHS),
                alpha_target=rng.choice(ALPHA_TARGETS),
                alpha_speed_epochs=rng.choice(ALPHA_SPEED_EPOCHS),
                alpha_curve=rng.choice(ALPHA_CURVES),
            ),
            keeper,
        )
        assert outcome.was_done
        for slot, life in lives.items():
            is_same = stages[slot] == life.stage
            assert is_same or may_follow(stages[slot], life.stage)
        for _ in range(rng.randrange(3)):
            lives.tick(keeper)
        assert keeper.present == {slot for slot, life in lives.items() if life.has_seed}
        assert all(0.0 <= life.alpha <= 1.0 for _, life in lives.items())


@given(st.randoms(use_true_random=False))
def test_lives_loaded_from_json_continue_identically(rng) -> None:
    config = CONFIGS[0]
    lives, keeper = SlotStates(config), Keeper()

    def step(lives: SlotStates, keeper: Keeper, choice: float) -> None:
        legal = [each for each in ALL_ACTIONS if lives.is_legal(each)]
        lives.apply(legal[int(choice * len(legal))], keeper)
        lives.tick(keeper)

    for _ in range(rng.randrange(20)):
        step(lives, keeper, rng.random())
    twin, twin_keeper = SlotStates(config), Keeper()
    twin.load_json(json.loads(json.dumps(lives.to_json())))
    twin_keeper.present = set(keeper.present)
    assert twin.items() == lives.items()
    for _ in range(6):
        choice = rng.random()
        step(lives, keeper, choice)
        step(twin, twin_keeper, choice)
    assert twin.items() == lives.items()


def test_waiting_changes_nothing_and_needs_no_slot() -> None:
    lives = SlotStates(CONFIGS[0])
    assert lives.apply(WAIT, Keeper()).was_done
    assert lives.items() == SlotStates(CONFIGS[0]).items()


@pytest.mark.parametrize("advances_alone", [False, True])
def test_a_new_seed_can_be_committed_immediately(advances_alone: bool) -> None:
    host = Host(min_training_epochs=0, advances_alone=advances_alone)
    host.do(Op.GERMINATE, alpha_target=0.7)
    host.lives.commit("a", host.keeper)
    assert (host.life.stage, host.life.alpha) == (Stage.FOSSILIZED, 0.7)
    assert host.keeper.log == ["add norm", "commit"]
    with pytest.raises(SlotError, match="slot 'a' is fossilized"):
        host.lives.commit("a", host.keeper)


def test_a_slot_whose_block_is_full_stays_fossilized() -> None:
    host = Host(min_training_epochs=0, min_holding_epochs=0, embargo_epochs=1, commits_at_once=True)
    host.keeper.starts_blended, host.keeper.full = True, True
    host.do(Op.GERMINATE)
    for _ in range(5):
        host.lives.tick(host.keeper)
        assert host.life.stage == Stage.FOSSILIZED
    host.keeper.full = False
    host.lives.tick(host.keeper)
    assert host.life.stage == Stage.DORMANT


def test_units_and_blocks_are_blended_in_as_soon_as_they_germinate() -> None:
    host = Host(embargo_epochs=1, commits_at_once=False)
    host.keeper.starts_blended = True
    host.do(Op.GERMINATE, tempo_epochs=3, alpha_target=1.0)
    assert (host.life.stage, round(host.life.alpha, 3)) == (Stage.BLENDING, 0.333)
    host.tick(2)
    host.do(Op.ADVANCE)
    host.tick()
    host.do(Op.FOSSILIZE)
    host.tick()
    assert host.life == SlotLife(fossils=(Fossil("norm", BlendStyle.ADD_LINEAR, 1.0, 3),))


@pytest.mark.parametrize(("commits_at_once", "can_blend"), [(True, True), (False, False)])
def test_units_and_blocks_that_cannot_be_scaled_are_committed_as_they_germinate(
    commits_at_once: bool, can_blend: bool
) -> None:
    host = Host(commits_at_once=commits_at_once)
    host.keeper.starts_blended, host.keeper.can_blend = True, can_blend
    host.do(Op.GERMINATE, alpha_target=0.7)
    assert (host.life.stage, host.life.alpha) == (Stage.FOSSILIZED, 0.7)
    assert host.keeper.log == ["add norm", "commit"]


def test_growth_that_would_change_the_model_stays_germinated() -> None:
    host = Host()
    host.keeper.starts_blended, host.keeper.problem = True, "a weight is not finite"
    host.do(Op.GERMINATE)
    assert host.life.stage == Stage.GERMINATED
    assert host.do(Op.ADVANCE) == "a weight is not finite"
