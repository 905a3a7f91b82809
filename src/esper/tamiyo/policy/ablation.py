"""Taking choices and observations away from a policy. Shapes: B = hosts, H = heads, K = choices."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from esper.config.ablation import AblationConfig
from esper.config.checks import require_choice
from esper.errors import ConfigError, did_you_mean
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, choice_names, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.masks import ChoiceMasks
from esper.tamiyo.policy.observations import HOST_FEATURES, SLOT_FEATURES

FREE_HEADS = ("style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
"""Heads that can be fixed."""
_BLUEPRINT, _SLOT, _OP = (HEAD_NAMES.index(name) for name in ("blueprint", "slot", "op"))


class Ablation:
    """What a policy may not choose and does not see."""

    def __init__(self, config: AblationConfig, slot_config: SlotConfig) -> None:
        """Find the choices and features that settings name.

        Raises:
            ConfigError: If a head, a choice, a blueprint or an observation is unknown.
        """
        names, spec = choice_names(slot_config), growth_action_spec(slot_config)
        self.allowed = torch.ones(len(HEAD_NAMES), spec.n_choices, dtype=torch.bool)
        """``[H, K]`` choices that are left."""
        for head, choice in config.heads.items():
            require_choice("a name in ablation.heads", head, FREE_HEADS)
            require_choice(f"ablation.heads.{head}", choice, names[head])
            self._keep(HEAD_NAMES.index(head), names[head].index(choice))
        for name in config.blueprints:
            require_choice("a name in ablation.blueprints", name, names["blueprint"])
        if config.blueprints:
            self._keep(_BLUEPRINT, *(names["blueprint"].index(name) for name in config.blueprints))
        if not config.grows:
            self.allowed[_OP, Op.GERMINATE] = False
        self.host = _find_hidden(config.hidden, list(HOST_FEATURES))
        """Indices of hidden features of hosts."""
        self.slot = _find_hidden(config.hidden, list(SLOT_FEATURES), "slots")
        """Indices of hidden features of slots."""

    def narrow(self, masks: ChoiceMasks) -> ChoiceMasks:
        """Return masks without the choices that are taken away.

        A head whose only legal choices were taken away keeps them. A slot that no blueprint fits
        any more cannot germinate.
        """
        allowed, legal = self.allowed.to(masks.legal.device), masks.legal
        kept = legal & allowed
        is_lost = legal.any(-1, keepdim=True) & ~kept.any(-1, keepdim=True)
        kept = torch.where(is_lost, legal, kept)
        conditions = list(masks.conditions)
        fits = next((one.table for one in conditions if one.child == _BLUEPRINT), None)
        if fits is not None:
            n_blueprints = fits.shape[-1]
            can_grow = (fits & allowed[_BLUEPRINT, :n_blueprints]).any(-1)
            for number, one in enumerate(conditions):
                if (one.child, one.parent) == (_SLOT, _OP):
                    table = one.table.clone()
                    table[..., Op.GERMINATE, :] &= can_grow
                    conditions[number] = replace(one, table=table)
                    kept[:, _OP, Op.GERMINATE] &= table[..., Op.GERMINATE, :].any(-1)
        return replace(masks, legal=kept, conditions=tuple(conditions), is_everything=False)

    def hide(self, host: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalized features ``[..., F]`` with those that are hidden at their mean."""
        if self.host:
            host = host.index_fill(-1, torch.tensor(self.host, device=host.device), 0.0)
        if self.slot:
            slots = slots.index_fill(-1, torch.tensor(self.slot, device=slots.device), 0.0)
        return host, slots

    def _keep(self, head: int, *choices: int) -> None:
        self.allowed[head] = False
        self.allowed[head, list(choices)] = True


def _find_hidden(patterns: tuple[str, ...], features: list[str], group: str = "") -> list[int]:
    """Return the indices of the features that patterns name."""
    known = [*HOST_FEATURES, *SLOT_FEATURES]
    for pattern in patterns:
        if pattern != "slots" and not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(
                f"ablation.hidden has {pattern!r}, which is not an observation; name one, a "
                f"pattern such as gradient_*, or slots.{did_you_mean(pattern, known)}"
            )
    return [
        number
        for number, name in enumerate(features)
        if any(pattern == group or fnmatchcase(name, pattern) for pattern in patterns)
    ]
