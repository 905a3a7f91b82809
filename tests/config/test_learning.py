"""Settings of PPO and the policy are validated."""

import subprocess
import sys

import pytest

from esper.config import PolicyConfig, PPOConfig
from esper.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, r"learning_rate is 0\.0; .* greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"n_epochs": 0}, "n_epochs is 0; .* at least 1"),
        ({"n_epochs": True}, "n_epochs is True"),
        ({"n_minibatches": 2.0}, r"n_minibatches is 2\.0"),
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


def test_the_kl_limit_is_one_and_a_half_times_the_target() -> None:
    assert PPOConfig(target_kl=0.02).kl_limit == pytest.approx(0.03)
    assert PPOConfig(target_kl=None).kl_limit == float("inf")


def test_importing_settings_does_not_import_torch() -> None:
    code = "import sys, esper, esper.config, esper.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
