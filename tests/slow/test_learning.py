"""PPO solves the example's task from every seed."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ppo_on_your_environment.py"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_seed_reaches_the_best_possible_return(seed: int) -> None:
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    before, after, best = example.main(steps=50_000, n_episodes=5000, seed=seed)
    assert before < 0.5 * best
    assert after > 0.97 * best
