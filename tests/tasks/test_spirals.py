"""Points lie on the spiral of their class."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.tasks import make_task
from esper.tasks.spirals import NOISE, TURNS, draw_spirals


@given(seed=st.integers(0, 2**40))
def test_draws_are_within_their_ranges_and_repeatable(seed: int) -> None:
    draw, again = make_task("spirals").sample(seed), draw_spirals(seed)
    assert draw.facts == again.facts
    assert draw.n_classes == draw.facts["n_classes"]
    assert draw.n_classes in (2, 3)
    assert TURNS[0] <= draw.facts["turns"] <= TURNS[1]
    assert NOISE[0] <= draw.facts["noise"] <= NOISE[1]
    assert [len(samples) for _, samples in draw.data.splits()] == [120, 60, 60]
    for (_, mine), (_, theirs) in zip(draw.data.splits(), again.data.splits(), strict=True):
        assert torch.equal(mine.inputs, theirs.inputs)
        assert mine.targets.unique().tolist() == list(range(draw.n_classes))


def test_each_point_is_on_its_spiral_up_to_noise() -> None:
    for seed in range(20):
        draw = draw_spirals(seed)
        turns, noise = draw.facts["turns"], draw.facts["noise"]
        for _, samples in draw.data.splits():
            x, y = samples.inputs.double().unbind(1)
            radius = torch.hypot(x, y)
            # The spiral of class k passes radius r at this angle.
            angle = 2 * math.pi * (turns * radius / 2 + samples.targets / draw.n_classes)
            misses = torch.hypot(x - radius * angle.cos(), y - radius * angle.sin())
            # The noise moves a point off the curve and along the radius, which turns the curve.
            assert float(misses.max()) <= 1e-6 + 5 * noise * (1 + 2 * math.pi * turns)


def test_splits_share_no_point() -> None:
    data = draw_spirals(0).data
    points = torch.cat([samples.inputs for _, samples in data.splits()])
    assert len(points.unique(dim=0)) == len(points)
