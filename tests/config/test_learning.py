"""Settings of PPO and the policy are validated."""

import subprocess
import sys

import pytest

from esper.config import PPOConfig
from esper.errors import ConfigError


def test_defaults_are_those_of_stable_baselines() -> None:
    # The arguments of stable_baselines3.PPO.
    config, expected = (
        PPOConfig(),
        {
            "learning_rate": 3e-4,
            "batch_size": 64,
            "n_epochs": 10,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "clip_range_vf": None,
            "normalize_advantage": True,
            "ent_coef": 0.0,
            "vf_coef": 0.5,
            "max_grad_norm": 0.5,
            "target_kl": None,
        },
    )
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "n_steps", "n_sequences", "expected"),
    [
        ({"batch_size": 64}, 2048, 2048, 32),
        ({"batch_size": 64}, 2048, 16, 16),
        ({"batch_size": 64}, 40, 40, 1),
        ({"batch_size": 64}, 100, 100, 2),
        ({"batch_size": 64, "n_minibatches": 5}, 2048, 2048, 5),
    ],
)
def test_a_pass_has_the_minibatches_that_batch_size_or_their_number_asks_for(
    settings: dict[str, int], n_steps: int, n_sequences: int, expected: int
) -> None:
    assert PPOConfig(**settings).count_minibatches(n_steps, n_sequences) == expected  # type: ignore


def test_more_minibatches_than_sequences_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_minibatches is 5.*4 sequences"):
        PPOConfig(n_minibatches=5).count_minibatches(2048, 4)


def test_the_kl_limit_is_one_and_a_half_times_the_target() -> None:
    assert PPOConfig(target_kl=0.02).kl_limit == pytest.approx(0.03)
    assert PPOConfig(target_kl=None).kl_limit == float("inf")


def test_importing_settings_does_not_import_torch() -> None:
    code = "import sys, esper, esper.config, esper.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
