"""Legal growth actions as masks, for one host, many hosts, or arrays of slot states.

Shapes: ``B`` hosts, ``S`` slots, ``O`` ops, ``H`` heads, ``K`` choices of the widest head, ``C``
state codes.

Three entry points, one rule (:mod:`esper.lifecycle.legality`): :func:`compute_action_masks` for one
host, :func:`compute_batch_masks` for many, :func:`compute_array_masks` for environments that keep
slot states as tensors. The number of tensor operations does not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.config.checks import check
from esper.errors import ConfigError, DeviceError, SlotError
from esper.lifecycle.factored_actions import HEADS_READ_BY, Op, growth_action_spec
from esper.lifecycle.legality import (
    BLOCKING_STAGES,
    DORMANT_CODE,
    STATES,
    SlotMaskState,
    does_state_allow,
    state_code,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import LIVE_STAGES, Stage
from esper.simic.policy.action_spec import all_choices
from esper.simic.policy.masks import ChoiceMasks, Condition
from esper.simic.tensors import INTEGERS, check_tensor

SLOT_BY_OP = "slot_by_op"

__all__ = [
    "ActionMasks",
    "JointMasks",
    "SlotConfig",
    "SlotMaskState",
    "compute_action_masks",
    "compute_array_masks",
    "compute_batch_masks",
]


class ActionMasks(Mapping[str, Tensor]):
    """Legal choices by head name, ``[size]`` or ``[B, size]`` bool, and ``"slot_by_op"``.

    A head's mask is the union over ops: the choices that some legal action contains (a head that
    no legal op reads allows all of its choices). ``slot_by_op``, ``[O, S]`` or ``[B, O, S]``, says
    which slots each op may be applied to.
    """

    __slots__ = ("_tables", "blueprint_fits", "choices", "slot_by_op")

    def __init__(
        self,
        choices: Tensor,
        slot_by_op: Tensor,
        tables: MaskTables,
        blueprint_fits: Tensor | None = None,
    ) -> None:
        self.choices = choices
        """``[H, K]`` or ``[B, H, K]`` bool, every head padded to one width."""
        self.slot_by_op = slot_by_op
        self._tables = tables
        self.blueprint_fits = tables.fits if blueprint_fits is None else blueprint_fits
        """The blueprints that fit each slot: ``[S, blueprints]`` bool for all hosts, or
        ``[B, S, blueprints]`` for hosts of several designs."""

    def __getitem__(self, name: str) -> Tensor:
        if name == SLOT_BY_OP:
            return self.slot_by_op
        spec = self._tables.spec
        column = spec.index(name)
        return self.choices[..., column, : spec.sizes[column]]

    def __iter__(self) -> Iterator[str]:
        yield from self._tables.spec.names
        yield SLOT_BY_OP

    def __len__(self) -> int:
        return self._tables.spec.n_heads + 1

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={tuple(mask.shape)}" for name, mask in self.items())
        return f"ActionMasks({shapes})"

    def are_legal(self, actions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each combination of choices ``[B, H]`` is legal, ``[B]``.

        Only the heads that the op reads count: the slot of all ops but wait and finish, and the
        blueprint of germinate. All choices of the other heads are legal.
        """
        spec, hosts = self._tables.spec, np.arange(len(actions))
        op, slot, blueprint = (actions[:, spec.index(n)] for n in ("op", "slot", "blueprint"))
        # Wait and finish are open for all slots alike.
        is_open = self.slot_by_op.numpy(force=True)[hosts, op, slot]
        fits = self.blueprint_fits.numpy(force=True)
        fits = fits[slot, blueprint] if fits.ndim == 2 else fits[hosts, slot, blueprint]
        return is_open & ((op != Op.GERMINATE) | fits)

    def of_host(self, host: int) -> ActionMasks:
        """Return the masks of one host of a batch."""
        return self._select(host)

    def of_hosts(self, first: int, end: int) -> ActionMasks:
        """Return the masks of the hosts ``first`` to ``end - 1`` of a batch."""
        return self._select(slice(first, end))

    def _select(self, rows: int | slice) -> ActionMasks:
        fits = self.blueprint_fits
        fits = fits[rows] if fits.ndim == 3 else fits
        return ActionMasks(self.choices[rows], self.slot_by_op[rows], self._tables, fits)

    def within(self, slot_config: SlotConfig) -> ActionMasks:
        """Return the masks ``[B, ...]`` of the same hosts with other blueprints.

        A slot that no blueprint fits does not allow germinate.

        Raises:
            ConfigError: If the hosts are of several designs.
        """
        if self.blueprint_fits.ndim == 3:
            raise ConfigError(
                "the hosts are of several designs, but the blueprints are for the slots "
                f"{', '.join(slot_config.slot_ids)} of one; use a controller for each design."
            )
        tables = mask_tables(slot_config, self.choices.device)
        slot_by_op = self.slot_by_op.clone()
        slot_by_op[:, Op.GERMINATE] &= tables.is_germinable
        return _add_head_masks(tables, slot_by_op)

    def for_policy(self) -> ChoiceMasks:
        """Return the masks in the form that a policy samples from: op, then slot, then the rest."""
        tables, spec = self._tables, self._tables.spec
        choices, slot_by_op = self.choices, self.slot_by_op
        if choices.ndim == 2:
            choices, slot_by_op = choices.unsqueeze(0), slot_by_op.unsqueeze(0)
        slot, op = spec.index("slot"), spec.op_index
        conditions = [Condition(slot, op, slot_by_op)]
        if self.blueprint_fits is not tables.fits or not tables.does_everything_fit:
            conditions.append(Condition(spec.index("blueprint"), slot, self.blueprint_fits))
        return ChoiceMasks(choices, tuple(conditions))


def compute_action_masks(
    slot_states: Sequence[SlotMaskState | None],
    slot_config: SlotConfig,
    device: torch.device | str = "cpu",
) -> ActionMasks:
    """Return the masks of one host.

    Args:
        slot_states: The state of each slot, in the order of ``slot_config``; None when dormant.
        slot_config: The host's slots.
        device: The device of the masks.

    Raises:
        SlotError: If the number of states is not the number of slots.
    """
    return compute_batch_masks([slot_states], slot_config, device).of_host(0)


def compute_batch_masks(
    batch_slot_states: Sequence[Sequence[SlotMaskState | None]],
    slot_config: SlotConfig,
    device: torch.device | str = "cpu",
) -> ActionMasks:
    """Return the masks of many hosts; row i equals :func:`compute_action_masks` of host i.

    Args:
        batch_slot_states: For each host, what :func:`compute_action_masks` takes.
        slot_config: The hosts' slots.
        device: The device of the masks.

    Raises:
        SlotError: If there are no hosts, or a host has a wrong number of states.
    """
    check("slot_config", slot_config, SlotConfig)
    n_slots = slot_config.max_slots
    try:
        if not batch_slot_states:
            raise SlotError("batch_slot_states is empty; it must have at least one host.")
        for host, states in enumerate(batch_slot_states):
            if len(states) != n_slots:
                raise SlotError(
                    f"host {host} has {len(states)} slot states; "
                    f"the slot configuration has {n_slots} slots."
                )
        every = [state for states in batch_slot_states for state in states]
        codes = bytearray([DORMANT_CODE if state is None else state.code for state in every])
    except (TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise SlotError(
            f"the slot states are {batch_slot_states!r}; they must be a list for each host, of "
            "SlotMaskState or None for each slot."
        ) from error
    tensor = torch.frombuffer(codes, dtype=torch.uint8).view(-1, n_slots)
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DeviceError(f"device is {device!r}; it must be one of PyTorch's.") from error
    tables = mask_tables(slot_config, place)
    return _masks_of_codes(tables, tensor.to(tables.device))


def compute_array_masks(
    stage: Tensor,
    age_epochs: Tensor,
    alpha_at_rest: Tensor,
    slot_config: SlotConfig,
    is_gate_open: Tensor | None = None,
) -> ActionMasks:
    """Return the masks of hosts whose slot states are kept as tensors, on the tensors' device.

    Args:
        stage: ``[B, S]`` integer, the :class:`~esper.lifecycle.stages.Stage` of each slot.
        age_epochs: ``[B, S]`` integer, epochs since the seed germinated.
        alpha_at_rest: ``[B, S]`` bool, whether alpha has reached its target.
        slot_config: The hosts' slots.
        is_gate_open: ``[B, S]`` bool, False where a seed is known to have spent too few epochs in
            its stage to leave it; None for all open.

    Raises:
        TensorError: If a tensor has the wrong shape or dtype, or the devices differ.
        SlotError: If a stage does not exist, naming host and slot.
    """
    check_tensor("stage", stage, ("batch", slot_config.max_slots), INTEGERS)
    check_tensor("age_epochs", age_epochs, stage.shape, INTEGERS, stage.device)
    check_tensor("alpha_at_rest", alpha_at_rest, stage.shape, torch.bool, stage.device)
    if is_gate_open is not None:
        check_tensor("is_gate_open", is_gate_open, stage.shape, torch.bool, stage.device)
    tables = mask_tables(slot_config, stage.device)
    if stage.is_cpu:
        for host, slot in ((stage < 0) | (stage >= len(Stage))).nonzero():
            raise SlotError(
                f"stage of host {int(host)}, slot {slot_config.slot_ids[slot]!r} is "
                f"{int(stage[host, slot])}; the stages are 0 to {len(Stage) - 1}."
            )
    gates = True if is_gate_open is None else is_gate_open
    return _masks_of_codes(tables, state_code(stage, gates, age_epochs >= 1, alpha_at_rest))


class MaskTables:
    """Lookup tables for the masks of hosts with these slots."""

    def __init__(self, slot_config: SlotConfig, device: torch.device) -> None:
        self.device = device
        self.spec = growth_action_spec(slot_config)
        limit = slot_config.seed_limit
        self.seed_limit = slot_config.max_slots + 1 if limit is None else limit

        def table(rows: object) -> torch.Tensor:
            return torch.tensor(rows, dtype=torch.bool, device=device)

        self.state_allows = table(
            [
                [
                    does_state_allow(
                        op,
                        stage,
                        is_gate_open=is_gate_open,
                        is_aged=is_aged,
                        alpha_at_rest=at_rest,
                    )
                    and (op != Op.FINISH or slot_config.allow_finish)
                    for op in Op
                ]
                for stage, is_gate_open, is_aged, at_rest in STATES
            ]
        )
        """``[C, O]``: the ops that a slot's state allows."""
        self.is_live = table([stage in LIVE_STAGES for stage, *_ in STATES])
        self.is_blocking = table([stage in BLOCKING_STAGES for stage, *_ in STATES])
        slots = slot_config.slot_ids
        self.is_germinable = table([slot_config.is_enabled(slot) for slot in slots])
        self.fits = table(
            [
                [slot_config.does_fit(name, slot) for name in slot_config.blueprints]
                for slot in slots
            ]
        )
        """``[S, blueprints]``: the blueprints that fit each slot."""
        self.does_everything_fit = bool(self.fits.all())
        acting = [int(op) for op in Op if "slot" in HEADS_READ_BY[op]]
        self.ops_that_read_slot = torch.tensor(acting, device=device)
        self.all_choices = all_choices(self.spec, device)
        """``[H, K]``: every choice of every head, False where a head is padded."""


class JointMasks:
    """Computes the masks of hosts of several designs, which have equally many slots."""

    def __init__(self, slot_config: SlotConfig, n_hosts: int) -> None:
        """Prepare for hosts that have no slots yet.

        Args:
            slot_config: Names as many slots as every host has, and all blueprints.
            n_hosts: The number of hosts, B.
        """
        device = torch.device("cpu")
        self._tables = mask_tables(replace(slot_config, allow_finish=True), device)
        n_slots, n_blueprints = slot_config.max_slots, len(slot_config.blueprints)
        self._is_germinable = torch.zeros(n_hosts, n_slots, dtype=torch.bool)
        self._fits = torch.zeros(n_hosts, n_slots, n_blueprints, dtype=torch.bool)
        self._may_finish = torch.zeros(n_hosts, 1, dtype=torch.bool)

    def set_slots(self, hosts: slice, slot_config: SlotConfig) -> None:
        """Give some hosts other slots, with the same blueprints."""
        tables = mask_tables(slot_config, self._tables.device)
        self._is_germinable[hosts], self._fits[hosts] = tables.is_germinable, tables.fits
        self._may_finish[hosts] = slot_config.allow_finish

    def compute(
        self, stage: Tensor, age_epochs: Tensor, alpha_at_rest: Tensor, is_gate_open: Tensor
    ) -> ActionMasks:
        """Return the masks of the hosts in these states, like :func:`compute_array_masks`."""
        codes = state_code(stage, is_gate_open, age_epochs >= 1, alpha_at_rest)
        by_slot = _allowed_ops(self._tables, codes, self._is_germinable)
        by_slot[..., Op.FINISH] &= self._may_finish
        slot_by_op = by_slot.transpose(-1, -2).contiguous()
        return _add_head_masks(self._tables, slot_by_op, self._fits)


@lru_cache(maxsize=1024)
def mask_tables(slot_config: SlotConfig, device: torch.device) -> MaskTables:
    """Return the tables of a slot configuration on a device, cached."""
    return MaskTables(slot_config, device)


def _masks_of_codes(tables: MaskTables, codes: Tensor) -> ActionMasks:
    """Return the masks of hosts whose slots have the state codes ``[B, S]``."""
    by_slot = _allowed_ops(tables, codes, tables.is_germinable)
    return _add_head_masks(tables, by_slot.transpose(-1, -2).contiguous())


def _allowed_ops(tables: MaskTables, codes: Tensor, is_germinable: Tensor) -> Tensor:
    """Return the ops that each slot allows, ``[B, S, O]``."""
    codes = codes.long()
    by_slot = tables.state_allows[codes]
    may_germinate = tables.is_live[codes].sum(-1) < tables.seed_limit
    may_germinate &= ~tables.is_blocking[codes].any(-1)
    by_slot[..., Op.GERMINATE] &= may_germinate.unsqueeze(-1) & is_germinable
    return by_slot


def _add_head_masks(
    tables: MaskTables, slot_by_op: Tensor, fits: Tensor | None = None
) -> ActionMasks:
    """Return the masks with the legal choices of each head added to ``slot_by_op``.

    Args:
        tables: The tables of the hosts' slots.
        slot_by_op: ``[B, O, S]``
        fits: ``[B, S, blueprints]`` if the hosts differ in what fits.
    """
    spec = tables.spec
    slot = slot_by_op.index_select(1, tables.ops_that_read_slot).any(1)
    masks = {"slot": slot | ~slot.any(-1, keepdim=True), "op": slot_by_op.any(-1)}
    # If everything fits everywhere, every blueprint is legal or the head does not matter.
    if fits is not None or not tables.does_everything_fit:
        own = tables.fits if fits is None else fits
        fitting = (slot_by_op[:, Op.GERMINATE].unsqueeze(-1) & own).any(-2)
        masks["blueprint"] = fitting | ~fitting.any(-1, keepdim=True)
    choices = tables.all_choices.repeat(len(slot_by_op), 1, 1)
    for name, mask in masks.items():
        column = spec.index(name)
        choices[:, column, : spec.sizes[column]] = mask
    return ActionMasks(choices, slot_by_op, tables, fits)
