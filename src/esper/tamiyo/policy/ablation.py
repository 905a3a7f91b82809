"""Taking choices and observations away from a policy. Shapes: B = hosts, H = heads, K = choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor

from esper.arrays import Features, Integers
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
            self._keep(HEAD_NAMES.index(head), _find_choice(head, choice, names[head]))
        for name in config.blueprints:
            require_choice("a name in ablation.blueprints", name, names["blueprint"])
        if config.blueprints:
            self._keep(_BLUEPRINT, *(names["blueprint"].index(name) for name in config.blueprints))
        if not config.grows:
            self.allowed[_OP, Op.GERMINATE] = False
        self.host, self.slot = _find_features("hidden", config.hidden)
        """Indices of hidden features of hosts and of slots."""

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
        return replace(masks, legal=kept, conditions=tuple(conditions))

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


def _find_choice(head: str, wanted: float | str, names: Sequence[str]) -> int:
    """Return the index of a choice by its name, or by the number in it."""
    for number, name in enumerate(names):
        if not isinstance(wanted, str) and name.split()[0] in (str(wanted), str(float(wanted))):
            return number
    return names.index(require_choice(f"ablation.heads.{head}", wanted, names))


def shuffled_columns(patterns: Sequence[str], n_slots: int) -> list[int]:
    """Return the columns of an observation that patterns name.

    Raises:
        ConfigError: If a pattern names none.
    """
    host, slot = _find_features("shuffled", patterns)
    firsts = [len(HOST_FEATURES) + number * len(SLOT_FEATURES) for number in range(n_slots)]
    return host + [first + feature for first in firsts for feature in slot]


def shuffle_columns(
    observations: Features, hosts: Integers, columns: Sequence[int], rng: np.random.Generator
) -> Features:
    """Return observations ``[N, D]`` with some columns permuted among some hosts."""
    shown, chosen = observations.copy(), np.asarray(columns, np.int64)
    shown[np.ix_(hosts, chosen)] = observations[np.ix_(rng.permutation(hosts), chosen)]
    return shown


def _find_features(setting: str, patterns: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the indices of the features of hosts and of slots that patterns name."""
    known = [*HOST_FEATURES, *SLOT_FEATURES]
    for pattern in patterns:
        if pattern != "slots" and not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(
                f"ablation.{setting} has {pattern!r}, which is not an observation; name one, a "
                f"pattern such as gradient_*, or slots.{did_you_mean(pattern, known)}"
            )

    def find(features: Iterable[str], *, is_slot: bool) -> list[int]:
        return [
            number
            for number, name in enumerate(features)
            if any((is_slot and one == "slots") or fnmatchcase(name, one) for one in patterns)
        ]

    return find(HOST_FEATURES, is_slot=False), find(SLOT_FEATURES, is_slot=True)
