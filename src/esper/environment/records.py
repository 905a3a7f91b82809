"""The running record of each host's episode. Shapes: N = hosts, S = slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.arrays import Flags, Floats, Integers
from esper.environment.rewards import EpisodeAccount
from esper.growth.sites import SlotSize
from esper.lifecycle.stages import Stage
from esper.populations import SlotArrays
from esper.tamiyo.policy.observations import HISTORY, TENSOR_KINDS, HostFacts, SlotFacts


@dataclass(eq=False)
class EpisodeRecords:
    """The episode of each host so far: ``[N]``, or ``[N, S]`` for facts about slots."""

    draw_seed: Integers
    """Determines the host's data and initial weights."""
    epoch: Integers
    """Epochs trained."""
    n_steps: Integers
    is_over: Flags
    scores: Floats
    """``[N, HISTORY]`` validation scores, the current one last; NaN before the first."""
    best_score: Floats
    train_losses: Floats
    """``[N, HISTORY]`` the current one last; NaN before the first epoch."""
    validation_losses: Floats
    """``[N, HISTORY]`` the current one last; NaN if unknown."""
    first_loss: Floats
    """The first validation loss that is known; NaN before."""
    best_loss: Floats
    """The lowest validation loss; NaN before the first."""
    gradient_norm: Floats
    previous_gradient_norm: Floats
    first_gradient_norm: Floats
    """That of the first epoch with a gradient; NaN before."""
    gradient_noise: Floats
    """Standard deviation of the batches' gradient norms in the last epoch, relative to their
    mean."""
    was_restored: Flags
    was_refused: Flags
    last_op: Integers
    contribution: Floats
    """``[N, S]`` score with the slot's seed minus score without it, as last measured."""
    is_measured: Flags
    seed_gradient_norm: Floats
    seed_parameters: Integers
    """``[N, S]`` parameters of the slot's seed and fossils."""
    settled_epoch: Integers
    """The epoch that counts: the first with the best validation score, 0 for the untrained host."""
    settled_score: Floats
    """Validation score after that epoch, without the blended seeds if that is better."""
    final_score: Floats
    """Score of the same host on samples that the controller never sees."""
    is_settled: Flags
    """``[N, S]`` slots whose seed is part of that host: committed, or blended in and kept."""
    settled_blueprint: Integers
    """``[N, S]`` the blueprint head's choice of each of these seeds, -1 without one."""
    settled_style: Integers
    settled_alpha: Floats
    settled_parameters: Integers
    """``[N, S]`` parameters of these seeds and of the fossils of that host."""
    settled_fossils: Integers
    """``[N, S]`` number of its fossils."""
    settled_fossil_parameters: Integers
    slot_kind: Integers
    """``[N, S]`` index into :data:`TENSOR_KINDS` of what passes through the slot; -1 for a slot
    that the host does not have."""
    slot_hidden: Integers
    """``[N, S]`` hidden units of the block without fossils; 0 if unknown."""
    slot_unit_parameters: Integers
    """``[N, S]`` parameters of one hidden unit; 0 if unknown."""
    n_classes: Integers
    n_samples: Integers
    """Training samples; 0 if not known yet."""
    n_batches: Integers
    """Batches of an epoch; 0 if not known yet."""
    n_parameters: Integers
    n_epochs: Integers
    """Epochs of the budget."""
    flop_price: Floats
    """Price of a reference run's FLOPs."""
    reference_flops: Floats
    """FLOPs of training and validating the reference host for the whole budget."""
    rival_scores: Floats
    """``[N, T]`` validation scores of the host's rival, before training and after each epoch, if
    rewards are relative to one."""
    rival_flops: Floats
    """``[N, T]`` what it has spent by then, as a share of a reference run's FLOPs."""
    rival_final_score: Floats
    paid_progress: Floats
    paid_flops: Floats
    paid_rent: Floats
    paid_penalty: Floats

    @classmethod
    def blank(cls, n_hosts: int, n_slots: int, n_rival: int = 0) -> EpisodeRecords:
        """Return records of hosts that have not started.

        Args:
            n_hosts: The number of hosts.
            n_slots: Their number of slots.
            n_rival: Scores of each host's rival.
        """
        shapes = {
            "scores": (n_hosts, HISTORY),
            "train_losses": (n_hosts, HISTORY),
            "validation_losses": (n_hosts, HISTORY),
            "rival_scores": (n_hosts, n_rival),
            "rival_flops": (n_hosts, n_rival),
            "contribution": (n_hosts, n_slots),
            "is_measured": (n_hosts, n_slots),
            "seed_gradient_norm": (n_hosts, n_slots),
            "seed_parameters": (n_hosts, n_slots),
            "is_settled": (n_hosts, n_slots),
            "settled_blueprint": (n_hosts, n_slots),
            "settled_style": (n_hosts, n_slots),
            "settled_alpha": (n_hosts, n_slots),
            "settled_parameters": (n_hosts, n_slots),
            "settled_fossils": (n_hosts, n_slots),
            "settled_fossil_parameters": (n_hosts, n_slots),
            "slot_kind": (n_hosts, n_slots),
            "slot_hidden": (n_hosts, n_slots),
            "slot_unit_parameters": (n_hosts, n_slots),
        }
        kinds = {"Integers": np.int64, "Floats": np.float64, "Flags": np.bool_}
        arrays: dict[str, Any] = {
            field.name: np.zeros(shapes.get(field.name, (n_hosts,)), kinds[str(field.type)])
            for field in fields(cls)
        }
        return cls(**arrays)

    def clear(self, host: int) -> None:
        """Reset the record of one host."""
        for field in fields(self):
            getattr(self, field.name)[host] = 0
        self.last_op[host] = -1
        for unknown in (self.scores, self.train_losses, self.validation_losses):
            unknown[host] = np.nan
        for unknown in (self.first_loss, self.best_loss, self.first_gradient_norm):
            unknown[host] = np.nan

    @property
    def score(self) -> Floats:
        """The current validation score."""
        return self.scores[:, -1]

    @property
    def account(self) -> EpisodeAccount:
        """The account of each episode; its arrays are those of the records."""
        return EpisodeAccount(
            self.paid_progress, self.paid_flops, self.paid_rent, self.paid_penalty
        )

    def set_slot_sizes(self, host: int, sizes: Sequence[SlotSize]) -> None:
        """Record kind and hidden units of a host's slots; it does not have the slots after them."""
        kinds, n = [TENSOR_KINDS.index(size.kind.name.lower()) for size in sizes], len(sizes)
        self.slot_kind[host, :n], self.slot_kind[host, n:] = kinds, -1
        self.slot_hidden[host, :n] = [size.hidden for size in sizes]
        self.slot_unit_parameters[host, :n] = [size.unit_parameters for size in sizes]

    def start_scores(self, hosts: list[int], scores: Floats, losses: Floats) -> None:
        """Record the validation scores and losses of hosts before their first epoch."""
        self.scores[hosts, -1] = self.best_score[hosts] = scores
        self.validation_losses[hosts, -1] = losses
        self.first_loss[hosts] = self.best_loss[hosts] = losses

    def add_epoch(
        self, hosts: list[int], scores: Floats, losses: Floats, train_losses: Floats, norms: Floats
    ) -> None:
        """Record the results of an epoch for some hosts."""
        histories = self.scores, self.validation_losses, self.train_losses
        for history, now in zip(histories, (scores, losses, train_losses), strict=True):
            history[hosts, :-1] = history[hosts, 1:]
            history[hosts, -1] = now
        self.best_score[hosts] = np.maximum(self.best_score[hosts], scores)
        self.best_loss[hosts] = np.fmin(self.best_loss[hosts], losses)
        firsts = ((self.first_loss, losses), (self.first_gradient_norm, norms))
        for first, now in firsts:
            first[hosts] = np.where(np.isnan(first[hosts]), now, first[hosts])
        self.previous_gradient_norm[hosts] = self.gradient_norm[hosts]
        self.gradient_norm[hosts] = norms
        self.epoch[hosts] += 1

    def settle(
        self,
        hosts: list[int],
        is_kept: Flags,
        scores: Floats,
        final_scores: Floats,
        arrays: SlotArrays,
    ) -> None:
        """Record that the current state of some hosts is the one that counts.

        Args:
            hosts: The hosts, H of them.
            is_kept: ``[H]`` whether their blended seeds are kept.
            scores: ``[H]`` validation scores.
            final_scores: ``[H]`` scores on samples that the controller never sees.
            arrays: The slots of all hosts.
        """
        is_blended = arrays.is_blended[hosts] & is_kept[:, None]
        settled = (arrays.stage[hosts] == Stage.FOSSILIZED) | is_blended
        self.settled_epoch[hosts] = self.epoch[hosts]
        self.settled_score[hosts], self.final_score[hosts] = scores, final_scores
        self.is_settled[hosts] = settled
        self.settled_blueprint[hosts] = np.where(settled, arrays.blueprint[hosts], -1)
        self.settled_style[hosts] = np.where(settled, arrays.style[hosts], 0)
        self.settled_alpha[hosts] = np.where(settled, arrays.alpha[hosts], 0.0)
        of_fossils = arrays.fossil_parameters[hosts]
        self.settled_parameters[hosts] = np.where(settled, self.seed_parameters[hosts], of_fossils)
        self.settled_fossils[hosts] = arrays.n_fossils[hosts]
        self.settled_fossil_parameters[hosts] = of_fossils

    def host_facts(self) -> HostFacts:
        """Return the facts about hosts that observations encode."""
        return HostFacts(
            epoch=self.epoch,
            n_epochs=self.n_epochs,
            first_loss=self.first_loss,
            train_losses=self.train_losses,
            validation_losses=self.validation_losses,
            best_loss=self.best_loss,
            scores=self.scores,
            best_score=self.best_score,
            gradient_norm=self.gradient_norm,
            previous_gradient_norm=self.previous_gradient_norm,
            first_gradient_norm=self.first_gradient_norm,
            gradient_noise=self.gradient_noise,
            flops_used=self.paid_flops,
            was_restored=self.was_restored,
            was_refused=self.was_refused,
            last_op=self.last_op,
            n_samples=self.n_samples,
            n_batches=self.n_batches,
            n_parameters=self.n_parameters,
            flop_price=self.flop_price,
        )

    def slot_facts(self, arrays: SlotArrays) -> SlotFacts:
        """Return the facts about slots that observations encode."""
        return SlotFacts(
            stage=arrays.stage,
            age_epochs=arrays.age_epochs,
            stage_epochs=arrays.stage_epochs,
            alpha=arrays.alpha,
            alpha_target=arrays.alpha_target,
            alpha_at_rest=arrays.alpha_at_rest,
            ramp_epochs_left=arrays.ramp_epochs_left,
            curve=arrays.curve,
            style=arrays.style,
            contribution=self.contribution,
            is_measured=self.is_measured,
            parameters=self.seed_parameters,
            gradient_norm=self.seed_gradient_norm,
            blueprint=arrays.blueprint,
            kind=self.slot_kind,
            first_hidden=self.slot_hidden,
            unit_parameters=self.slot_unit_parameters,
            hidden=np.where(self.slot_hidden > 0, self.slot_hidden + arrays.fossil_units, 0),
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all records as tensors."""
        return {f.name: torch.from_numpy(getattr(self, f.name).copy()) for f in fields(self)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for field in fields(self):
            getattr(self, field.name)[...] = state[field.name].numpy()
