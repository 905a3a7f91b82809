"""Sequences hold every stored step once, in order, with a reset before each new episode."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.simic.policy.sequences import Sequences, lay_out, split_into_sequences


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int | None]:
    lengths = np.array(draw(st.lists(st.integers(0, 12), min_size=1, max_size=5)))
    if not lengths.any():
        lengths[0] = 1
    shape = (int(lengths.max()), len(lengths))
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    starts = generator.random(shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    starts[0] = False
    return lengths, starts, draw(st.none() | st.integers(1, 13))


@given(rollouts())
def test_a_grid_holds_each_stored_step_once(
    drawn: tuple[np.ndarray, np.ndarray, int | None],
) -> None:
    lengths, starts, longest = drawn
    n_envs = len(lengths)
    sequences = split_into_sequences(lengths, longest)
    assert all(sequences.stop - sequences.start <= (longest or lengths.max()))
    grid = lay_out(sequences, starts)
    expected = {t * n_envs + e for e in range(n_envs) for t in range(lengths[e])}
    assert sorted(grid.steps.tolist()) == sorted(expected)


@given(rollouts())
def test_walking_down_a_column_meets_the_steps_in_order_with_resets_between_episodes(
    drawn: tuple[np.ndarray, np.ndarray, int | None],
) -> None:
    lengths, starts, longest = drawn
    n_envs = len(lengths)
    sequences = split_into_sequences(lengths, longest)
    grid = lay_out(sequences, starts)
    n_rows, n_columns = grid.shape
    is_step = torch.zeros(n_rows * n_columns, dtype=torch.bool)
    is_step[slice(None) if grid.cells is None else grid.cells] = True
    is_step, source = is_step.view(grid.shape), grid.source.view(grid.shape)
    resets = torch.zeros(grid.shape, dtype=torch.bool) if grid.resets is None else grid.resets
    assert not bool((resets & is_step).any())
    for column in range(n_columns):
        env, t = int(sequences.env[column]), int(sequences.start[column])
        assert int(grid.starts[column]) == t * n_envs + env
        for row in range(n_rows):
            if is_step[row, column]:
                must_reset = bool(starts[t, env]) and t > sequences.start[column]
                assert (row > 0 and bool(resets[row - 1, column])) == must_reset
                assert int(source[row, column]) == t * n_envs + env
                t += 1
        assert t == sequences.stop[column]


def test_a_full_rollout_of_one_episode_each_is_the_storage_itself() -> None:
    grid = lay_out(split_into_sequences(np.array([4, 4, 4]), None), np.zeros((4, 3), np.bool_))
    assert grid.shape == (4, 3)
    assert grid.resets is None
    assert grid.cells is None
    assert grid.steps.tolist() == list(range(12))


def test_some_sequences_can_be_taken() -> None:
    sequences = split_into_sequences(np.array([5, 2]), 2)
    assert sequences.env.tolist() == [0, 0, 0, 1]
    assert sequences.start.tolist() == [0, 2, 4, 0]
    assert sequences.stop.tolist() == [2, 4, 5, 2]
    part = sequences.take(np.array([3, 1]))
    assert isinstance(part, Sequences)
    assert lay_out(part, np.zeros((5, 2), np.bool_)).steps.tolist() == [1, 4, 3, 6]
