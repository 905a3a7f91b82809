"""Episodes packed side by side are the same steps, in the same states, in fewer rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.simic.agent.minibatches import PreparedRollout
from esper.simic.policy.sequences import lay_out, split_into_sequences
from tests.simic.helpers import fill, make_agent


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n_steps, n_envs = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    lengths = np.array(draw(st.lists(st.integers(0, n_steps), min_size=n_envs, max_size=n_envs)))
    lengths[0] = n_steps
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    starts = generator.random((n_steps, n_envs)) < draw(st.sampled_from([0.0, 0.3, 0.9]))
    starts[0] = False
    return lengths, starts


@given(rollouts(), st.none() | st.integers(1, 5))
def test_every_stored_step_stands_in_one_cell_below_its_predecessor_or_a_reset(
    rollout: tuple[np.ndarray, np.ndarray], sequence_length: int | None
) -> None:
    lengths, starts = rollout
    sequences = split_into_sequences(lengths, sequence_length, starts)
    grid = lay_out(sequences, starts)
    n_envs, (n_rows, n_columns) = starts.shape[1], grid.shape
    stored = {t * n_envs + e for e, n in enumerate(lengths) for t in range(n)}
    cells = range(n_rows * n_columns) if grid.cells is None else grid.cells.tolist()
    at = dict(zip(cells, grid.steps.tolist(), strict=True))
    assert sorted(at.values()) == sorted(stored)
    assert n_rows == (sequences.stop - sequences.start).max()
    resets = np.zeros((n_rows, n_columns), bool) if grid.resets is None else grid.resets.numpy()
    for cell, step in at.items():
        row, column = divmod(cell, n_columns)
        if row == 0:
            assert int(grid.starts[column]) == step
        elif resets[row - 1, column]:
            assert starts.reshape(-1)[step]
        else:
            assert at[cell - n_columns] == step - n_envs
            assert not starts.reshape(-1)[step]
    assert not set(at) & set(np.flatnonzero(resets.reshape(-1)).tolist())


@pytest.mark.parametrize("ends", [0.0, 0.3, 0.8])
def test_the_gradient_of_a_rollout_does_not_depend_on_how_it_is_laid_out(ends: float) -> None:
    agent = make_agent(ent_coef=0.1, n_minibatches=1, normalize_returns=False)
    buffer = fill(agent, n_envs=4, n_steps=13, ends=ends)
    buffer.compute_advantages_and_returns(0.99, 0.95)
    gradients, shapes = [], []
    for n_minibatches in (1, None):
        config = replace(agent.config, n_minibatches=n_minibatches, batch_size=1000)
        rollout = PreparedRollout(buffer, agent.policy, agent.normalizer, config)
        ((batch, _),) = rollout.minibatches(torch.Generator())
        loss, _ = agent.loss(batch.evaluate(agent.policy))
        gradients.append(torch.autograd.grad(loss, list(agent.policy.parameters())))
        shapes.append(batch.inputs.shape[:2])  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-5)
    assert ends == 0.0 or shapes[1][0] < shapes[0][0]


def test_minibatches_of_episodes_have_about_the_batch_size_and_cover_every_step_once() -> None:
    agent = make_agent(batch_size=20)
    buffer = fill(agent, n_envs=8, n_steps=25, ends=0.25)
    buffer.compute_advantages_and_returns(0.99, 0.95)
    rollout = PreparedRollout(buffer, agent.policy, agent.normalizer, agent.config)
    sizes = [len(batch.returns) for batch, _ in rollout.minibatches(torch.Generator())]
    assert sum(sizes) == 200
    assert len(sizes) == 10
    assert max(sizes) < 45
