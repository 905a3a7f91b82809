"""The recurrent actor-critic for any environment: all heads and the value in one linear layer.

Shapes: ``N`` steps, ``D`` observation size, ``F`` feature size, ``M`` LSTM size, ``P`` choices of
all heads side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from esper.config import PolicyConfig
from esper.lifecycle.action_spec import ActionSpec
from esper.tamiyo.policy.category_columns import CategoryColumns
from esper.tamiyo.policy.observation_normalizer import ObservationNormalizer
from esper.tamiyo.policy.recurrent_trunk import RecurrentTrunk
from esper.tamiyo.policy.steps_last import steps_last_linear


class RecurrentPolicy(RecurrentTrunk):
    """A recurrent policy and its value for observations and actions of one size."""

    def __init__(
        self,
        spec: ActionSpec,
        observation_size: int,
        config: PolicyConfig | None = None,
        *,
        categories: Mapping[int, int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Make the network.

        Args:
            spec: The heads of an action.
            observation_size: Numbers of an observation.
            config: Sizes of the network.
            categories: Columns of the observation that hold a category, with how many there are:
                ``k / n`` is category k of n, 0 is none. Each is replaced by an embedding.
            generator: Decides the first weights.
        """
        super().__init__(spec, observation_size)
        config = config or PolicyConfig()
        self.normalize: ObservationNormalizer | None = None
        if config.normalize_observations:
            self.normalize = ObservationNormalizer(observation_size, categories or ())
        self.embed: CategoryColumns | None = None
        n_inputs = observation_size
        if categories:
            self.embed = CategoryColumns(categories, observation_size, config.embedding_size)
            n_inputs = self.embed.output_size
        self._add_trunk(n_inputs, sum(spec.sizes) + 1, config)
        generator = generator or torch.Generator().manual_seed(0)
        self._initialise_trunk(generator)
        if self.embed is not None:
            self.embed.initialise(generator)

    def logit_bias(self, head: str) -> Tensor:
        """Return what is added to the logits of a head, ``[choices]``; can be changed in place."""
        column = self.spec.index(head)
        first = sum(self.spec.sizes[:column])
        return self.outputs.bias.detach()[first : first + self.spec.sizes[column]]

    def learn_observations(self, observations: Tensor) -> None:
        """Take in observations ``[N, D]`` for their running statistics, if it keeps any."""
        if self.normalize is not None:
            self.normalize.learn(observations)

    def _see(self, observations: Tensor) -> tuple[Tensor, None]:
        if self.normalize is not None:
            observations = self.normalize(observations)
        if self.embed is not None:
            observations = self.embed(observations)
        return self.features(observations), None

    def _answer(self, hidden: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(hidden)
        return outputs[:, :-1], outputs[:, -1]

    def _answer_steps(self, hidden: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = steps_last_linear(hidden, self.outputs.weight, self.outputs.bias)
        logits, values = cast(tuple[Tensor, Tensor], outputs.split([len(outputs) - 1, 1]))
        return logits, values.squeeze(0)
