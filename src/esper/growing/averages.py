"""Moving averages of a model's weights, such as ``AveragedModel``, that grow with the model."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.errors import ConfigError, type_of
from esper.growth.host_slots import HostSlots, own_slots, slots, unwrapped
from esper.growth.modules import named_modules, named_tensors
from esper.growth.surgery.edits import Edits, Replacement


class AverageKeeper:
    """Gives an averaged copy of a model the same structure and alphas whenever the model changes.

    What both had keeps its average; what is new starts with the model's own value.
    """

    def __init__(self, average: Any, model: nn.Module) -> None:
        """Take an average of a model, an object with the averaged copy as its ``module``."""
        if not isinstance(getattr(average, "module", None), nn.Module):
            raise ConfigError(
                f"ema is {type_of(average)}; it must be a torch.optim.swa_utils.AveragedModel, or "
                "another object whose attribute module is the averaged copy of the model."
            )
        self.average = average
        self._model = model
        ours, theirs = named_tensors(model), named_tensors(self._copy)
        if ours.keys() != theirs.keys():
            raise ConfigError(
                "ema averages another model: its parameters have other names; make it from the "
                "model that grows."
            )
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        """Each tensor of the model with its average, by its identity."""
        self._pair()

    @property
    def _copy(self) -> nn.Module:
        return unwrapped(cast(nn.Module, self.average.module))

    def follow(self, host_slots: HostSlots) -> None:
        """Keep up with a model's slots from now on."""
        self.sync()
        host_slots.edit_listeners.append(self._carry)
        host_slots.listeners.append(self.sync)
        host_slots.action_listeners.append(self.sync)

    def _carry(self, edits: Edits) -> None:
        """Give tensors that took the place of others their averages, before the copy follows."""
        for change in edits.replaced:
            if change.old is None or id(change.old) not in self._known:
                continue
            before = self._known[id(change.old)][1].detach()
            average = change.carry(before, change.new.detach().to(before, copy=True))
            self._known[id(change.new)] = change.new, average
            if change.has_new_entries:
                edits.on_undo(partial(self._cut, change))

    def _cut(self, change: Replacement) -> None:
        """Give a tensor whose replacement is undone the average of what is left of it."""
        assert change.old is not None, "the tensor was replaced"
        average = self._known[id(change.new)][1].detach()
        self._known[id(change.old)] = change.old, change.carry_back(average)

    @torch.no_grad()
    def sync(self) -> None:
        """Give the copy the model's structure, if that has changed, and its alphas."""
        if self._is_alike():
            self._copy_lives()
            return
        twin = copy.deepcopy(self._model)
        mode, requires = self._copy.training, any(p.requires_grad for p in self._copy.parameters())
        for tensor, own in zip(
            named_tensors(self._model).values(), named_tensors(twin).values(), strict=True
        ):
            if id(tensor) in self._known:
                own.copy_(self._known[id(tensor)][1])
        twin.train(mode)
        if not requires:
            twin.requires_grad_(False)
        outer = self.average.module
        if outer is self._copy:
            self.average.module = twin
        else:
            outer.module = twin
        self._pair()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and how many values they are of."""
        return {name: tensor.detach().clone() for name, tensor in self.average.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, after the model has its structure."""
        self.sync()
        self.average.load_state_dict(state)

    def _pair(self) -> None:
        ours, theirs = named_tensors(self._model), named_tensors(self._copy)
        self._known = {id(ours[name]): (ours[name], theirs[name]) for name in ours}

    def _is_alike(self) -> bool:
        """Return whether the copy has the modules of the model, and the pairs are up to date."""
        ours, theirs = named_modules(self._model), named_modules(self._copy)
        if ours.keys() != theirs.keys() or own_slots(self._copy) is None:
            return False
        return {id(tensor) for tensor in named_tensors(self._model).values()} == set(self._known)

    def _copy_lives(self) -> None:
        copied = slots(self._copy)
        for name, life in slots(self._model).lives.items():
            copied.lives.set_life(name, life.copied())
        copied.refresh()
