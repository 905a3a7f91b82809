"""The factored distribution agrees with one categorical per head, and never leaves the masks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from torch.distributions import Categorical

from esper.errors import (
    ActionSpecError,
    DtypeError,
    NoLegalActionError,
    NonFiniteError,
    ShapeError,
)
from esper.lifecycle.factored_actions import Op, growth_action_spec
from esper.lifecycle.legality import SlotMaskState, may_apply
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.lifecycle.stages import Stage
from esper.simic.policy.action_spec import ActionSpec, all_choices
from esper.simic.policy.distribution import draw_actions, masked_log_softmax
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.mask_reader import as_choice_masks
from esper.simic.policy.masks import (
    ChoiceMasks,
    Condition,
    layout_of,
)
from esper.tamiyo.policy.action_masks import compute_batch_masks

CPU = torch.device("cpu")
SPEC = ActionSpec.independent([3, 5, 1, 4])


def evaluate_actions(
    spec: ActionSpec, logits: Tensor, legal: Tensor | None, actions: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of actions, and the entropies of their heads."""
    distribution = ActionHeads(spec).distribution(logits, legal)
    return distribution.log_probs(actions, None), distribution.entropies()


def draw(
    spec: ActionSpec, logits: torch.Tensor, masks: ChoiceMasks, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return draw_actions(layout_of(spec, CPU), logits, masks, generator)


def random_masks(spec: ActionSpec, n: int, generator: torch.Generator) -> torch.Tensor:
    """Random masks with at least one legal choice for every head."""
    masks = torch.zeros(n, spec.n_heads, spec.n_choices, dtype=torch.bool)
    for head, size in enumerate(spec.sizes):
        legal = torch.rand(n, size, generator=generator) < 0.5
        legal[torch.arange(n), torch.randint(size, (n,), generator=generator)] = True
        masks[:, head, :size] = legal
    return masks


def random_legal_actions(masks: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    scores = torch.rand(masks.shape, generator=generator).masked_fill(~masks, -1.0)
    return scores.argmax(dim=-1)


@given(st.integers(0, 10_000), st.sampled_from([0.1, 3.0, 40.0, 300.0]))
def test_log_probs_and_entropies_are_those_of_masked_categoricals(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = random_masks(SPEC, 6, generator)
    actions = random_legal_actions(masks, generator)
    logits = scale * torch.randn(6, sum(SPEC.sizes), generator=generator, dtype=torch.float64)
    log_probs, entropies = evaluate_actions(SPEC, logits, masks, actions)
    for head, part in enumerate(logits.split(SPEC.sizes, dim=1)):
        size = SPEC.sizes[head]
        reference = Categorical(logits=part.masked_fill(~masks[:, head, :size], -torch.inf))
        torch.testing.assert_close(log_probs[:, head], reference.log_prob(actions[:, head]))
        # Categorical's own entropy multiplies 0 by -inf; the definition does not.
        terms = torch.special.entr(reference.probs)
        torch.testing.assert_close(entropies[:, head], terms.sum(dim=-1), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("illegal_logit", [0.0, 1e4, -1e4, 3e38, float("inf"), float("-inf")])
def test_illegal_choices_have_probability_zero_and_finite_zero_gradients(
    dtype: torch.dtype, illegal_logit: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    masks = random_masks(SPEC, 32, generator)
    actions = random_legal_actions(masks, generator)
    flat = torch.cat([masks[:, h, :s] for h, s in enumerate(SPEC.sizes)], dim=1)
    logits = torch.randn(flat.shape, generator=generator).masked_fill(~flat, illegal_logit)
    logits = logits.to(dtype).requires_grad_()

    log_p = masked_log_softmax(SPEC, logits.detach(), masks)
    assert bool((log_p.exp()[~masks] == 0.0).all())
    assert bool(torch.isfinite(log_p).all())
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(32, SPEC.n_heads))

    log_probs, entropies = evaluate_actions(SPEC, logits, masks, actions)
    (1e3 * log_probs.sum() + 1e3 * entropies.sum()).backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    assert bool(torch.isfinite(logits.grad).all())
    assert bool((logits.grad[~flat] == 0.0).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_legal_logit_that_is_not_finite_is_not_hidden(bad: float) -> None:
    logits, actions = torch.zeros(3, 13), torch.zeros(3, 4, dtype=torch.long)
    logits[1, 4] = bad
    log_probs, entropies = evaluate_actions(SPEC, logits, None, actions)
    assert bool(torch.isnan(log_probs[1, 1]))
    assert bool(torch.isnan(entropies[1, 1]))
    assert bool(torch.isfinite(log_probs[[0, 2]]).all())


def test_gradients_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    masks = random_masks(SPEC, 4, generator)
    actions = random_legal_actions(masks, generator)
    logits = torch.randn(4, sum(SPEC.sizes), generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: evaluate_actions(SPEC, x, masks, actions), (logits,))


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    spec = ActionSpec.independent([4])
    n = 40_000
    legal = torch.tensor([True, False, True, True]).expand(n, 1, 4)
    logits = torch.tensor([0.3, 5.0, -0.7, 1.1]).expand(n, 4)
    generator = torch.Generator().manual_seed(3)
    actions, log_probs, drawn_from = draw(spec, logits, ChoiceMasks(legal), generator)
    counts = torch.bincount(actions[:, 0], minlength=4)
    p = torch.softmax(torch.tensor([0.3, -0.7, 1.1]), dim=0)
    assert counts[1] == 0
    assert (
        chisquare(counts[[0, 2, 3]].numpy(), (p.double() / p.double().sum() * n).numpy()).pvalue
        > 0.01
    )
    assert torch.equal(drawn_from, legal)
    torch.testing.assert_close(
        log_probs[:10, 0], p.log()[torch.tensor([0, 9, 1, 2])[actions[:10, 0]]]
    )


def test_the_mode_is_the_likeliest_op_and_then_the_likeliest_rest() -> None:
    # Head 1 would rather be 2, but op 0, the likeliest, allows only 0 and 1 there.
    spec = ActionSpec.independent([2, 3])
    table = torch.tensor([[True, True, False], [True, True, True]])
    masks = ChoiceMasks(torch.ones(1, 2, 3, dtype=torch.bool), (Condition(1, 0, table),))
    masks.legal[0, 0, 2] = False
    logits = torch.tensor([[1.0, 0.5, 0.1, 0.2, 9.0]])
    actions, log_probs, legal = draw(spec, logits, masks, generator=None)
    assert actions.tolist() == [[0, 1]]
    assert legal[0, 1].tolist() == [True, True, False]
    expected = torch.log_softmax(torch.tensor([0.1, 0.2]), dim=0)[1]
    torch.testing.assert_close(log_probs[0, 1], expected)


CONFIG = SlotConfig(
    ("map", "map_2", "vector"),
    seed_limit=2,
    fits={"map": ["norm", "conv_small"], "map_2": ["conv_heavy"], "vector": ["mlp_small"]},
)


def random_hosts(n: int, seed: int) -> list[list[SlotMaskState | None]]:
    generator = torch.Generator().manual_seed(seed)
    stage = torch.randint(0, len(Stage), (n, 3), generator=generator)
    stage[torch.rand(n, 3, generator=generator) < 0.5] = 0
    age = torch.randint(0, 3, (n, 3), generator=generator)
    rest = torch.rand(n, 3, generator=generator) < 0.6
    return [
        [SlotMaskState(Stage(int(s)), int(a), bool(r)) for s, a, r in zip(*row, strict=True)]
        for row in zip(stage, age, rest, strict=True)
    ]


@pytest.mark.parametrize("is_greedy", [False, True])
def test_no_illegal_combination_of_op_slot_and_blueprint_is_ever_drawn(
    is_greedy: bool,
) -> None:
    spec, hosts = growth_action_spec(CONFIG), random_hosts(2_000, seed=4)
    masks = compute_batch_masks(hosts, CONFIG).for_policy()
    generator = torch.Generator().manual_seed(5)
    seen: set[Op] = set()
    for _ in range(1 if is_greedy else 10):
        logits = 3.0 * torch.randn(len(hosts), sum(spec.sizes), generator=generator)
        source = None if is_greedy else generator
        actions, _, legal = draw(spec, logits, masks, source)
        assert bool(legal.gather(-1, actions.unsqueeze(-1)).all())
        for host, action in zip(hosts, actions.tolist(), strict=True):
            op, slot = Op(action[spec.op_index]), CONFIG.slot_ids[action[0]]
            assert may_apply(op, slot, host, CONFIG)
            if op == Op.GERMINATE:
                assert CONFIG.does_fit(BUILTIN_BLUEPRINTS[action[1]], slot)
            seen.add(op)
    assert seen == set(Op)


def test_an_environment_without_a_legal_choice_is_named() -> None:
    masks = torch.ones(4, 4, 5, dtype=torch.bool)
    masks[2, 1] = False
    with pytest.raises(NoLegalActionError, match="head 'head_1' of environment 2"):
        draw(SPEC, torch.zeros(4, 13), ChoiceMasks(masks), torch.Generator())


def test_a_choice_ruled_out_by_another_is_named_too() -> None:
    table = torch.ones(3, 5, dtype=torch.bool)
    table[1] = False
    legal = all_choices(SPEC, CPU).repeat(4, 1, 1)
    logits = torch.zeros(4, 13)
    logits[2, 1] = 100.0
    masks = ChoiceMasks(legal, (Condition(1, 0, table),))
    with pytest.raises(NoLegalActionError, match="head 'head_1' of environment 2"):
        draw(SPEC, logits, masks, None)


def test_padding_that_a_user_left_open_is_never_drawn() -> None:
    choices = as_choice_masks(SPEC, torch.ones(500, 4, 5, dtype=torch.bool), 500, CPU)
    actions, _, legal = draw(SPEC, torch.zeros(500, 13), choices, torch.Generator())
    assert bool((actions < torch.tensor(SPEC.sizes)).all())
    assert torch.equal(legal[0], all_choices(SPEC, CPU))
    with pytest.raises(ShapeError, match="'head_0'"):  # an array may be of another space
        as_choice_masks(SPEC, np.ones((4, 4, 5), bool), 4, CPU)


def test_conditions_that_cannot_be_applied_are_named() -> None:
    legal = torch.ones(4, 4, 5, dtype=torch.bool)

    def read(*conditions: Condition, spec: ActionSpec = SPEC) -> None:
        as_choice_masks(spec, ChoiceMasks(legal, conditions), 4, CPU)

    good = Condition(1, 0, torch.ones(3, 5, dtype=torch.bool))
    after = Condition(3, 1, torch.ones(4, 5, 4, dtype=torch.bool))
    read(good, after)
    with pytest.raises(ActionSpecError, match="'head_1'"):
        read(after, good)
    # Where the op decides which heads matter, it is drawn first and cannot be restricted.
    backwards = Condition(0, 1, torch.ones(5, 3, dtype=torch.bool))
    read(backwards)
    with pytest.raises(ActionSpecError, match="'head_0'"):
        read(backwards, spec=replace(SPEC, relevance=((True, False, True, True),) * 3))
    with pytest.raises(ShapeError, match=r"'head_1' on 'head_0' has shape \(5, 3\)"):
        read(Condition(1, 0, torch.ones(5, 3, dtype=torch.bool)))
    with pytest.raises(DtypeError, match=r"'head_1' .*torch\.float32"):
        read(Condition(1, 0, torch.ones(3, 5)))


def test_logits_that_are_not_finite_are_refused() -> None:
    logits = torch.zeros(4, 13)
    logits[1, 3] = torch.nan
    legal = torch.ones(4, 4, 5, dtype=torch.bool)
    with pytest.raises(NonFiniteError, match="not finite"):
        draw(SPEC, logits, ChoiceMasks(legal), torch.Generator())
