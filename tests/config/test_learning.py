"""Settings of PPO and the policy are validated."""

import subprocess
import sys

import pytest

from esper.config import PolicyConfig, PPOConfig
from esper.config.learning import NetworkConfig
from esper.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1.0}, r"learning_rate is -1\.0; it must be a finite number at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"n_epochs": 0}, "n_epochs is 0; .* at least 1"),
        ({"n_epochs": True}, "n_epochs is True"),
        ({"n_minibatches": 2.0}, r"n_minibatches is 2\.0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"clip": "heads"}, "clip is 'heads'"),
        ({"sequence_length": 0}, "sequence_length is 0"),
        ({"gamma": 1.5}, r"gamma is 1\.5; .* \[0, 1\]"),
        ({"gae_lambda": "0.9"}, "gae_lambda is '0.9'"),
        ({"clip_range_vf": -1.0}, r"clip_range_vf is -1\.0"),
        ({"ent_coef": -0.1}, r"ent_coef is -0\.1; .* at least 0"),
        ({"target_kl": 0.0}, r"target_kl is 0\.0"),
        ({"normalize_returns": 1}, "normalize_returns is 1"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPOConfig(**settings)  # type: ignore[arg-type]


def test_the_policy_needs_room_for_a_feature_and_the_reset() -> None:
    with pytest.raises(ConfigError, match=r"feature_size is 1; .* at least 2"):
        PolicyConfig(feature_size=1)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_sizes": 64}, r"hidden_sizes is 64.*\(64, 64\)"),
        ({"hidden_sizes": (64, 0)}, "hidden_sizes is 0"),
        ({"activation": "gelu"}, "activation is 'gelu'"),
        ({"squash": 1}, "squash is 1"),
        ({"log_std_init": float("inf")}, "log_std_init is inf"),
    ],
)
def test_bad_networks_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NetworkConfig(**settings)  # type: ignore[arg-type]


def test_the_kl_limit_is_one_and_a_half_times_the_target() -> None:
    assert PPOConfig(target_kl=0.02).kl_limit == pytest.approx(0.03)
    assert PPOConfig(target_kl=None).kl_limit == float("inf")


def test_importing_settings_does_not_import_torch() -> None:
    code = "import sys, esper, esper.config, esper.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
