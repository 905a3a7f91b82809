"""The learning half runs on any device, and never makes the host wait but at its two seams.

Nothing here has a GPU, so the device is ``meta``: it computes shapes and no numbers. A tensor that
was left on the CPU raises there, and so does everything that makes the host wait for a number
(``item``, ``tolist``, ``bool``, ``cpu``, ``nonzero``). Tests replace the two seams at which it may.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from esper.config.learning import NetworkConfig, PPOConfig
from esper.errors import ConfigError, NoLegalActionError
from esper.simic import PPO, ActionSpec, PPOAgent, tensors
from esper.simic.agent.advantages import estimate_advantages
from esper.simic.policy import distribution
from esper.simic.policy.factory import make_policy
from esper.simic.policy.observations import ObservationSpec
from tests.simic.helpers import fill, make_agent, pad_masks

N_ENVS, N_STEPS = 4, 10
VECTOR = spaces.Box(-1.0, 1.0, (5,))
SIGHT = spaces.Dict(
    camera=spaces.Box(0, 255, (16, 16, 3), np.uint8), speed=VECTOR, kind=spaces.Discrete(3)
)
CASES: dict[str, tuple[Any, Any, str, NetworkConfig]] = {
    "mlp": (VECTOR, spaces.Discrete(3), "mlp", NetworkConfig()),
    "masked": (VECTOR, spaces.MultiDiscrete([3, 2, 4]), "mlp", NetworkConfig()),
    "lstm": (VECTOR, spaces.MultiDiscrete([3, 4]), "lstm", NetworkConfig()),
    "box": (VECTOR, spaces.Box(-1.0, 1.0, (2,)), "mlp", NetworkConfig(squash=True)),
    "images": (SIGHT, spaces.Discrete(4), "multi-input", NetworkConfig(image_size=16)),
    "normalised": (VECTOR, VECTOR, "lstm", NetworkConfig(normalize_observations=True)),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace both seams by ones that count, and answer for a device without numbers."""
    found: list[str] = []

    def read_numbers(tensor: Tensor) -> list[float]:
        assert tensor.device.type == "meta"
        found.append(f"numbers[{tensor.numel()}]")
        # The check of a rollout: finite, legal, not everything legal. Nothing is wrong elsewhere.
        return (
            [1.0, 1.0, 0.0]
            if tensor.dtype is torch.bool and len(tensor) == 3
            else [0.0] * len(tensor)
        )

    def to_host(tensor: Tensor) -> Any:
        found.append("actions")
        answer = np.zeros(tensor.shape, np.float32)
        answer[:, -1] = 1.0  # all is sound
        return answer

    monkeypatch.setattr(tensors, "read_numbers", read_numbers)
    monkeypatch.setattr(tensors, "to_host", to_host)
    return found


def make_meta_agent(name: str, **settings: Any) -> PPOAgent:
    space, actions, policy, network = CASES[name]
    spec = ActionSpec.from_space(actions)
    seen = ObservationSpec.from_space(space)
    _, made = make_policy(policy, spec, seen, space, network, 0)
    config = PPOConfig(n_epochs=3, batch_size=10, ent_coef=0.01, clip_range_vf=0.2, **settings)
    return PPOAgent(spec, made, config, device="meta")


def random_masks(spec: ActionSpec, generator: np.random.Generator) -> Any:
    if not spec.sizes:
        return None
    heads = [torch.from_numpy(generator.random((N_ENVS, size)) < 0.7) for size in spec.sizes]
    for head in heads:
        head[:, 0] = True
    return pad_masks(spec, heads)


@pytest.mark.parametrize(
    ("name", "clip"),
    [*((name, "per-head") for name in CASES), ("masked", "joint"), ("lstm", "joint")],
)
def test_acting_storing_and_learning_never_leave_the_device(
    name: str, clip: str, reads: list[str]
) -> None:
    agent = make_meta_agent(name, clip=clip, target_kl=0.02)
    space, spec = CASES[name][0], agent.spec
    generator = np.random.default_rng(0)
    seen = ObservationSpec.from_space(space)
    buffer = agent.make_buffer(N_ENVS, N_STEPS)
    state = agent.initial_state(N_ENVS)
    starts = torch.zeros(N_ENVS, dtype=torch.bool, device="meta")
    for t in range(N_STEPS):
        batch: Any = seen.zeros(N_ENVS, device="meta")
        masks = random_masks(spec, generator)
        masks = None if masks is None else masks.to("meta")
        decision = agent.act(batch, masks, state, starts)
        actions, numbers = decision.read(spec)
        assert actions.shape == (N_ENVS, spec.n_discrete)
        assert (numbers is None) == (not spec.dims)
        ends = np.array([t == 3, t == 5, False, False])
        cut = np.array([False, t == 5, False, False])
        values = agent.value(batch, decision.next_state) if cut.any() else None
        rewards = np.ones(N_ENVS, np.float32)
        buffer.add(
            batch, decision, rewards=rewards, dones=ends, truncated=cut, bootstrap_values=values
        )
        state, starts = decision.next_state, torch.from_numpy(ends).to("meta")
    buffer.finish(agent.value(seen.zeros(N_ENVS, device="meta"), state))
    assert reads == ["actions"] * N_STEPS
    reads.clear()
    report = agent.update(buffer)
    agent.policy.learn_observations(buffer.flat("observations"))
    assert report.gradient_steps == 12
    # Two checks of the rollout, one read per epoch, and one at the end.
    assert len(reads) == 2 + 3 + 1
    assert all(p.device.type == "meta" for p in agent.policy.parameters())


def test_a_tensor_left_on_the_cpu_or_a_hidden_wait_would_be_noticed(reads: list[str]) -> None:
    agent = make_meta_agent("mlp")
    seen, state = torch.zeros(N_ENVS, 5, device="meta"), agent.initial_state(N_ENVS)
    decision = agent.act(seen, None, state)
    with pytest.raises((RuntimeError, NotImplementedError)):
        decision.values.sum().item()
    with pytest.raises(RuntimeError):
        decision.values + torch.zeros(N_ENVS)


@pytest.mark.parametrize("seed", range(3))
def test_the_tensor_path_gives_the_numbers_of_the_compiled_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[list[Tensor], Any]:
        agent = make_agent(seed, n_epochs=2, n_minibatches=2)
        report = agent.update(fill(agent, ends=0.3, seed=seed))
        return [p.detach().clone() for p in agent.policy.parameters()], report

    compiled, report = run()
    monkeypatch.setattr(distribution, "_kernel", None)
    by_tensors, same = run()
    torch.testing.assert_close(compiled, by_tensors, atol=1e-6, rtol=1e-5)
    assert report.approx_kl == pytest.approx(same.approx_kl, rel=1e-3, abs=1e-7)


def test_advantages_on_a_device_are_a_scan_of_its_tensors() -> None:
    shape = (3, 7)
    floats = [torch.zeros(shape, device="meta") for _ in range(3)]
    flags = [torch.zeros(shape, dtype=torch.bool, device="meta") for _ in range(2)]
    found = estimate_advantages(
        *floats, terminated=flags[0], truncated=flags[1], gamma=0.9, gae_lambda=0.9
    )
    assert all(one.device.type == "meta" and one.shape == shape for one in found)


def test_a_head_without_a_legal_choice_is_named_when_actions_are_read() -> None:
    # As on an accelerator: the draw does not look, the transfer does.
    agent = make_agent()
    decision = agent.act(torch.zeros(2, 5), None, agent.initial_state(2))
    log_probs, legal = decision.log_probs.clone(), decision.legal.clone()
    log_probs[1, 0], legal[1, 0] = torch.nan, False
    with pytest.raises(NoLegalActionError, match="head 'door' of environment 1"):
        distribution.raise_unsound(agent.spec, log_probs, legal)


@pytest.mark.parametrize("name", ["cuda", "mps", "tpu", 3.5])
def test_a_device_that_is_not_there_is_named(name: Any) -> None:
    if name in ("cuda", "mps") and tensors.choose_device("auto").type == name:
        pytest.skip("it is there")
    with pytest.raises(ConfigError, match="cannot be used here"):
        PPO("CartPole-v1", device=name)


def test_a_model_saved_on_one_device_continues_on_another(tmp_path: Path) -> None:
    model = PPO("CartPole-v1", n_steps=32, n_envs=2, device="auto").learn(64)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", device="cpu")
    state = loaded.agent.state_dict()
    # One kind of random generator whatever the device, or its state could not be loaded.
    assert loaded.agent.generator.device.type == "cpu"
    assert torch.equal(state["generator"], model.agent.state_dict()["generator"])
    agent = make_meta_agent("mlp")
    other = make_meta_agent("mlp")
    other.load_state_dict(agent.state_dict())
