"""Stage transitions follow the diagram in the design."""

from itertools import pairwise

from esper.lifecycle.stages import COOLING_STAGES, LIVE_STAGES, TRANSITIONS, Stage, may_follow


def test_a_committed_seed_goes_from_dormant_to_fossilized() -> None:
    path = [
        Stage.DORMANT,
        Stage.GERMINATED,
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    ]
    assert all(may_follow(here, there) for here, there in pairwise(path))


def test_a_seed_can_be_pruned_at_any_live_stage_and_the_slot_becomes_free() -> None:
    assert {stage for stage in Stage if may_follow(stage, Stage.PRUNED)} == LIVE_STAGES
    path = [Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT]
    assert all(may_follow(here, there) for here, there in pairwise(path))
    assert set(path[:-1]) == COOLING_STAGES


def test_a_fossilized_seed_only_frees_its_slot_and_no_seed_skips_training() -> None:
    assert TRANSITIONS[Stage.FOSSILIZED] == frozenset({Stage.DORMANT})
    assert not may_follow(Stage.GERMINATED, Stage.BLENDING)
    assert not may_follow(Stage.DORMANT, Stage.TRAINING)
    assert set(TRANSITIONS) == set(Stage)
