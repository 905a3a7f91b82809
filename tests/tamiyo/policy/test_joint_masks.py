"""Joined masks of several designs equal the masks of each design."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.errors import ConfigError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.distribution import draw_actions
from esper.simic.policy.mask_reader import as_choice_masks
from esper.simic.policy.masks import layout_of
from esper.tamiyo.controllers.simple import draw_rows
from esper.tamiyo.policy.action_masks import (
    ActionMasks,
    JointMasks,
    SlotMaskState,
    compute_batch_masks,
)

DENSE = SlotConfig(("a", "b"), fits={"a": ["norm", "mlp_small"], "b": ["low_rank"]})
IMAGE = SlotConfig(("c", "d"), fits={"c": ["conv_small"], "d": ["norm", "conv_light"]})
FREE = SlotConfig(("e", "f"))
DORMANT: list[SlotMaskState | None] = [None, None]
_OP, _SLOT, _BLUEPRINT = (HEAD_NAMES.index(name) for name in ("op", "slot", "blueprint"))


def dormant(config: SlotConfig, n_hosts: int) -> ActionMasks:
    return compute_batch_masks([DORMANT] * n_hosts, config)


def join(*parts: tuple[SlotConfig, int]) -> ActionMasks:
    """Return the masks of so many hosts of each design, all dormant."""
    n_hosts, first = sum(count for _, count in parts), 0
    masks = JointMasks(parts[0][0], n_hosts)
    for config, count in parts:
        masks.set_slots(slice(first, first + count), config)
        first += count
    stage, flags = torch.zeros(n_hosts, 2, dtype=torch.int64), torch.ones(n_hosts, 2).bool()
    return masks.compute(stage, stage, flags, flags)


def joint() -> ActionMasks:
    return join((DENSE, 3), (IMAGE, 2), (FREE, 1))


def germinations(rng: np.random.Generator, n_hosts: int) -> np.ndarray:
    sizes = growth_action_spec(DENSE).sizes
    rows = rng.integers(0, sizes, (n_hosts, len(sizes)))
    rows[:, _OP] = np.where(rng.random(n_hosts) < 0.7, Op.GERMINATE, rows[:, _OP])
    return rows


def test_joined_masks_concatenate_the_parts() -> None:
    parts = [dormant(DENSE, 3), dormant(IMAGE, 2), dormant(FREE, 1)]
    masks = joint()
    assert list(masks) == list(parts[0])
    for name in masks:
        assert torch.equal(masks[name], torch.cat([part[name] for part in parts])), name


def test_each_host_has_the_choices_of_its_design() -> None:
    masks = joint()
    for host, config in enumerate([DENSE, DENSE, DENSE, IMAGE, IMAGE, FREE]):
        alone = dormant(config, 1).of_host(0)
        for name in alone:
            assert torch.equal(masks.of_host(host)[name], alone[name])
        assert torch.equal(masks.of_host(host).blueprint_fits, alone.blueprint_fits)
    with pytest.raises(IndexError):
        masks.of_host(6)


def test_a_range_of_hosts_can_be_selected() -> None:
    masks = joint()
    for first in range(6):
        for end in range(first + 1, 7):
            some = masks.of_hosts(first, end)
            assert torch.equal(some.choices, masks.choices[first:end])
            fits = some.blueprint_fits
            fits = fits if fits.ndim == 3 else fits.expand(end - first, -1, -1)
            assert torch.equal(fits, masks.blueprint_fits[first:end])


def test_legality_follows_the_design_of_each_host() -> None:
    rng, masks, n_legal = np.random.default_rng(0), joint(), 0
    for _ in range(200):
        rows = germinations(rng, 6)
        is_legal = masks.are_legal(rows)
        for host, config in enumerate([DENSE, DENSE, DENSE, IMAGE, IMAGE, FREE]):
            op, slot, blueprint = rows[host, [_OP, _SLOT, _BLUEPRINT]]
            fits = config.does_fit(config.blueprints[blueprint], config.slot_ids[slot])
            is_open = op in (Op.WAIT, Op.FINISH) or (op == Op.GERMINATE and fits)
            assert is_legal[host] == is_open
            n_legal += is_open
    assert 0 < n_legal < 1200


@pytest.mark.parametrize("method", ["sampled", "likeliest", "random"])
def test_drawn_actions_are_legal_for_each_design(method: str) -> None:
    masks, spec = joint(), growth_action_spec(DENSE)
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    seen: set[tuple[int, int, int]] = set()
    for _ in range(300):
        logits = torch.randn(6, sum(spec.sizes), generator=generator)
        if method == "random":
            weights = np.ones(len(Op))
            rows = draw_rows(masks, weights, rng.random((6, spec.n_heads)))
        else:
            choices = as_choice_masks(spec, masks, len(logits), logits.device)
            source = generator if method == "sampled" else None
            layout = layout_of(spec, logits.device)
            rows = draw_actions(layout, logits, choices, source)[0].numpy()
        assert masks.are_legal(rows).all()
        germinated = np.flatnonzero(rows[:, _OP] == Op.GERMINATE)
        seen |= {(h, *rows[h, [_SLOT, _BLUEPRINT]].tolist()) for h in germinated.tolist()}
    fitting = sum(int(fits.sum()) for fits in masks.blueprint_fits)
    assert len(seen) > 0.7 * fitting


def test_other_designs_do_not_change_the_draws_of_one() -> None:
    spec, hosts = growth_action_spec(DENSE), dormant(DENSE, 4)
    parts = join((DENSE, 3), (DENSE, 1))
    logits = torch.randn(4, sum(spec.sizes), generator=torch.Generator().manual_seed(1))
    layout = layout_of(spec, logits.device)
    drawn = [
        draw_actions(
            layout,
            logits,
            as_choice_masks(spec, masks, len(logits), logits.device),
            torch.Generator().manual_seed(2),
        )
        for masks in (hosts, parts)
    ]
    for own, other in zip(*drawn, strict=True):
        assert torch.equal(own, other)


def test_hosts_may_differ_in_whether_they_may_finish() -> None:
    masks = join((replace(DENSE, allow_finish=False), 1), (IMAGE, 1))
    assert masks["op"][:, Op.FINISH].tolist() == [False, True]


def test_controllers_with_other_blueprints_are_rejected() -> None:
    with pytest.raises(ConfigError, match="several designs"):
        joint().within(DENSE)
