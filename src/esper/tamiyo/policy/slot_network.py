"""The recurrent actor-critic for growth, whose weights serve any number of slots.

Shapes: ``N`` steps, ``S`` slots, ``D`` observation size, ``W`` slot embedding size, ``F`` feature
size, ``M`` LSTM size, ``P`` choices of all heads, concatenated.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.config import PolicyConfig
from esper.config.ablation import AblationConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.mask_reader import as_choice_masks
from esper.simic.policy.normalizers import ObservationNormalizer
from esper.simic.policy.policy import Decision, Observations
from esper.simic.policy.recurrent import RecurrentTrunk
from esper.tamiyo.policy.ablation import Ablation
from esper.tamiyo.policy.observations import (
    HOST_FEATURES,
    KIND_NAMES,
    SLOT_FEATURES,
    ObservationLayout,
)

_N_HOST, _N_SLOT = len(HOST_FEATURES), len(SLOT_FEATURES)
_FIRST_KIND = list(SLOT_FEATURES).index(KIND_NAMES[0])
_BLUEPRINT = list(SLOT_FEATURES).index("blueprint")


class BlueprintEmbedding(nn.Module):
    """Replaces the feature that holds a slot's blueprint, ``k / n`` for k of n, by an embedding.

    0 stands for no blueprint.
    """

    def __init__(self, n_blueprints: int, size: int) -> None:
        super().__init__()
        self.n_blueprints = n_blueprints
        self.tables = nn.ModuleDict({str(n_blueprints): nn.Embedding(n_blueprints + 1, size)})
        self.output_size = _N_SLOT - 1 + size
        """Features of a slot after it is replaced."""

    @property
    def table(self) -> nn.Embedding:
        """The embeddings."""
        return cast(nn.Embedding, self.tables[str(self.n_blueprints)])

    def initialize(self, generator: torch.Generator) -> None:
        """Draw embeddings of about the size of other features."""
        nn.init.normal_(self.table.weight, std=0.5, generator=generator)

    def forward(self, slots: Tensor) -> Tensor:
        """Return the other features, then the embedding: ``[..., F]`` to ``[..., output size]``."""
        # Cells of a grid that only reset the state may show anything.
        numbers = (slots[..., _BLUEPRINT] * self.n_blueprints).round().long()
        known = self.table(numbers.clamp_(0, self.n_blueprints))
        return torch.cat([slots[..., :_BLUEPRINT], slots[..., _BLUEPRINT + 1 :], known], dim=-1)


class SlotPolicy(RecurrentTrunk):
    """A recurrent policy and value function for observations of :class:`ObservationLayout`.

    A shared encoder embeds each slot. The LSTM sees the host's features and the mean and maximum
    of the embeddings. Its output includes a *query*, whose dot product with the embedding of a
    slot is that slot's logit. The weights therefore do not depend on the number of slots, and
    permuting the slots permutes their logits. Absent slots affect nothing.
    """

    def __init__(
        self,
        slot_config: SlotConfig,
        config: PolicyConfig | None = None,
        *,
        generator: torch.Generator | None = None,
        ablation: AblationConfig | None = None,
    ) -> None:
        """Create the network.

        Args:
            slot_config: The slots of the hosts; the weights fit any with as many blueprints.
            config: Sizes of the network.
            generator: Draws the initial weights.
            ablation: What the policy may not choose and does not see.
        """
        layout = ObservationLayout(slot_config)
        super().__init__(growth_action_spec(slot_config), layout.size)
        self.config = config = config or PolicyConfig()
        self.slot_size = config.slot_size
        self.ablation: Ablation | None = None
        if ablation is not None and ablation != AblationConfig():
            self.ablation = Ablation(ablation, slot_config)
        self.normalize_host: ObservationNormalizer | None = None
        self.normalize_slot: ObservationNormalizer | None = None
        if config.normalize_observations:
            self.normalize_host = ObservationNormalizer(_N_HOST)
            self.normalize_slot = ObservationNormalizer(_N_SLOT, [_BLUEPRINT])
        n_weights = config.embedding_size * (layout.n_blueprints + config.slot_size)
        require_memory(
            BYTES_PER_WEIGHT * n_weights,
            embedding_size=config.embedding_size,
            slot_size=config.slot_size,
        )
        self.embed = BlueprintEmbedding(layout.n_blueprints, config.embedding_size)
        self.encode = nn.Linear(self.embed.output_size, config.slot_size)
        n_choices = sum(self.spec.sizes) - layout.n_slots
        self._add_trunk(_N_HOST + 2 * config.slot_size, config.slot_size + n_choices + 1, config)
        self._initialize_with(generator)

    def logit_bias(self, head: str) -> Tensor:
        """Return the bias of a head's logits, ``[choices]``, which may be changed in place."""
        column = self.spec.index(head)
        if head == "slot":
            raise ConfigError(
                "head 'slot' has no bias, because its logits come from the slots' features; the "
                f"heads with one are {', '.join(self.spec.names[1:])}."
            )
        first = self.slot_size + sum(self.spec.sizes[1:column])
        return self.outputs.bias.detach()[first : first + self.spec.sizes[column]]

    def act(
        self,
        observations: Observations,
        masks: Any,
        state: Tensor,
        generator: torch.Generator | None,
    ) -> Decision:
        """Choose an action for each host, among those that are not taken away."""
        if self.ablation is not None:
            device = self.outputs.weight.device
            masks = self.ablation.narrow(as_choice_masks(self.spec, masks, len(state), device))
        return super().act(observations, masks, state, generator)

    def learn_observations(self, observations: Tensor) -> None:
        """Update the running statistics with observations ``[N, D]``, if it normalizes them."""
        if self.normalize_host is not None and self.normalize_slot is not None:
            self.normalize_host.learn(observations[:, :_N_HOST])
            slots = observations[:, _N_HOST:].reshape(-1, _N_SLOT)
            self.normalize_slot.learn(slots[_is_present(slots)])

    def _encode(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``[N, F]`` before their ReLU, and slot embeddings ``[S, N, W]``."""
        host, slots = observations[:, :_N_HOST], observations[:, _N_HOST:]
        # Slots first, so that operations shared by all slots run over contiguous steps.
        slots = slots.reshape(len(slots), -1, _N_SLOT).transpose(0, 1)
        is_present = _is_present(slots).unsqueeze(2)
        if self.normalize_host is not None and self.normalize_slot is not None:
            host, slots = self.normalize_host(host), self.normalize_slot(slots)
        if self.ablation is not None:
            host, slots = self.ablation.hide(host, slots)
        known = torch.relu_(self.encode(self.embed(slots))) * is_present
        mean = known.sum(0) / is_present.sum(0).clamp_(min=1)
        pooled = torch.cat([host, mean, known.amax(0)], dim=1)
        return self.features(pooled), known

    def _output(self, hidden: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        assert extra is not None
        outputs, size = self.outputs(hidden), self.slot_size
        slots = _point(extra, outputs[:, :size])
        return torch.cat([slots.t(), outputs[:, size:-1]], dim=1), outputs[:, -1]

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights."""
        self._initialize_trunk(generator)
        nn.init.orthogonal_(self.encode.weight, gain=2**0.5, generator=generator)
        nn.init.zeros_(self.encode.bias)
        self.embed.initialize(generator)


def _is_present(slots: Tensor) -> Tensor:
    """Return which slots ``[...]`` the hosts have, from features ``[..., F]``."""
    kinds = slots[..., _FIRST_KIND : _FIRST_KIND + len(KIND_NAMES)]
    return kinds.sum(-1) > 0.5


def _point(known: Tensor, query: Tensor) -> Tensor:
    """Return the logits ``[S, N]`` of slot embeddings ``[S, N, W]`` for queries ``[N, W]``."""
    return (known * query).sum(2)
