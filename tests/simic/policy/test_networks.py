"""Encoders show a network what the observations say, and towers are two separate networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from esper.config.learning import NetworkConfig
from esper.errors import ConfigError
from esper.simic.policy.networks import Encoder, EncoderTowers, Towers, initialize
from esper.simic.policy.observations import ObservationSpec


def encode(space: spaces.Space[Any], batch: Any, **settings: Any) -> torch.Tensor:
    spec = ObservationSpec.from_space(space)
    encoder = Encoder(spec, NetworkConfig(**settings))
    initialize(encoder, torch.Generator().manual_seed(0))
    with torch.no_grad():
        encoded = encoder(spec.read(batch))
    assert encoded.shape == (len(encoded), encoder.output_size)
    return encoded


def test_categories_are_shown_one_by_one() -> None:
    assert encode(spaces.Discrete(3, start=5), np.array([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    found = encode(spaces.MultiDiscrete([2, 3]), np.array([[1, 0], [0, 2]]))
    assert found.tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_vectors_and_bits_are_shown_as_they_are() -> None:
    batch = np.arange(12.0, dtype=np.float32).reshape(2, 2, 3)
    found = encode(spaces.Box(-9.0, 99.0, (2, 3)), batch)
    assert found.tolist() == batch.reshape(2, 6).tolist()
    assert encode(spaces.MultiBinary(3), np.array([[1, 0, 1]])).tolist() == [[1.0, 0.0, 1.0]]


def test_the_parts_of_a_dict_stand_side_by_side() -> None:
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0.0, 9.0, (2,))})
    batch = {"a": np.float32([[3.0, 4.0]]), "b": np.array([1])}
    assert encode(space, batch).tolist() == [[3.0, 4.0, 0.0, 1.0]]


@pytest.mark.parametrize("size", [8, 17, 40])
def test_bytes_of_images_are_scaled_to_one(size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), np.uint8)
    from_bytes = encode(spaces.Box(0, 255, (size, size, 3), np.uint8), images)
    scaled = (images / 255.0).astype(np.float32)
    from_floats = encode(spaces.Box(0.0, 1.0, (size, size, 3)), scaled)
    torch.testing.assert_close(from_bytes, from_floats)
    assert float(from_bytes.std()) > 0.0
    assert float(from_bytes.max()) < 30.0


@pytest.mark.parametrize("size", [8, 40])
def test_the_channels_of_an_image_may_come_first_or_last(size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), np.uint8)
    last = encode(spaces.Box(0, 255, (size, size, 3), np.uint8), images)
    first = encode(spaces.Box(0, 255, (3, size, size), np.uint8), images.transpose(0, 3, 1, 2))
    torch.testing.assert_close(first, last)


def test_vectors_are_normalised_by_what_was_seen() -> None:
    space = spaces.Dict({"v": spaces.Box(-99.0, 99.0, (2,)), "k": spaces.Discrete(2)})
    spec = ObservationSpec.from_space(space)
    encoder = Encoder(spec, NetworkConfig(normalize_observations=True))
    seen = spec.read(
        {"v": np.float32([[1.0, 10.0], [3.0, 30.0], [5.0, 50.0]]), "k": np.array([0, 1, 1])}
    )
    encoder.learn_observations(seen)
    encoded = encoder(seen)
    is_vector = (encoded.abs() > 1.0).any(dim=0) | (encoded < 0.0).any(dim=0)
    vector = encoded[:, is_vector]
    deviations = torch.tensor([-1.0, 0.0, 1.0]) / np.sqrt(2.0 / 3.0)
    torch.testing.assert_close(vector, torch.stack([deviations, deviations], dim=1))
    assert encoded[:, ~is_vector].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden_sizes", [(8,), (8, 8), (16, 8, 4)])
@pytest.mark.parametrize("value_sizes", [None, (9,)])
def test_neither_tower_depends_on_the_other(
    hidden_sizes: tuple[int, ...], activation: str, value_sizes: tuple[int, ...] | None
) -> None:
    towers = Towers(5, hidden_sizes, activation, value_sizes)
    initialize(towers, torch.Generator().manual_seed(0))
    inputs = torch.randn(7, 5)
    for_policy, for_value = towers(inputs)
    assert for_policy.shape == (7, hidden_sizes[-1])
    assert for_value.shape == (7, (value_sizes or hidden_sizes)[-1])
    parameters, zeros = list(towers.parameters()), {"materialize_grads": True}
    of_policy = torch.autograd.grad(for_policy.sum(), parameters, retain_graph=True, **zeros)
    of_value = torch.autograd.grad(for_value.sum(), parameters, **zeros)
    assert any(bool(one.any()) for one in of_policy)
    assert any(bool(one.any()) for one in of_value)
    for mine, other in zip(of_policy, of_value, strict=True):
        assert not bool(((mine != 0) & (other != 0)).any())


def test_an_activation_is_what_its_name_says() -> None:
    for activation, function in (("tanh", torch.tanh), ("relu", torch.relu)):
        towers = Towers(3, (4,), activation)
        initialize(towers, torch.Generator().manual_seed(0))
        inputs = torch.randn(6, 3)
        both = torch.cat(towers(inputs), dim=1)
        assert towers.both is not None
        first = towers.both[0]
        expected = [function(inputs @ first.weight[i] + first.bias[i]) for i in (0, 1)]
        torch.testing.assert_close(both, torch.cat(expected, dim=1))


def test_weights_are_orthogonal_and_biases_zero() -> None:
    spec = ObservationSpec.from_space(spaces.Box(-1.0, 1.0, (64,)))
    network = EncoderTowers(spec, NetworkConfig(hidden_sizes=(16, 16)))
    initialize(network, torch.Generator().manual_seed(0))
    for name, parameter in network.named_parameters():
        if "bias" in name:
            assert not bool(parameter.any())
            continue
        for matrix in parameter:
            small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
            torch.testing.assert_close(small @ small.t(), 2.0 * torch.eye(len(small)))


def test_a_network_needs_a_hidden_layer() -> None:
    with pytest.raises(ConfigError, match="hidden_sizes is empty"):
        Towers(3, (), "tanh")
