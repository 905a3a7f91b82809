"""State dicts of growing models that rebuild the model's structure before they are loaded.

Libraries save a model as its ``state_dict`` and load it into a model of the original design. With
the hooks of this module the state dict also holds the structure, as JSON in a tensor of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.errors import GrowerError, SavedModelError, message_of
from esper.growing.grower import Grower
from esper.growth.host_slots import own_slots, remove_slots
from esper.growth.saved_models import describe_slots, restore_slots
from esper.growth.surgery.configuration import has_configuration

KEY = "esper_growth"
"""The entry of a state dict that holds the structure of the module it belongs to."""


def rebuild_on_load(model: nn.Module) -> None:
    """Let ``load_state_dict`` of a model rebuild the structure of a grown one first.

    Call it at the end of the constructor of a model, or on a new model before its weights are
    loaded. State dicts of the model then hold its structure too, if it has slots.
    """
    GrownState(model)


CONFIG = "config"
"""The key of the structure that holds the configuration before growth, if the model has one."""


def read_structure(state: Mapping[str, Any], name: str = KEY) -> dict[str, Any]:
    """Return the structure that an entry of a state dict holds.

    Raises:
        SavedModelError: If it is damaged.
    """
    try:
        structure: Any = json.loads(bytes(cast("list[int]", state[name].tolist())))
        return {**structure}
    except (AttributeError, TypeError, ValueError) as error:
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> SavedModelError:
    return SavedModelError(f"the entry {name!r} of the state dict is damaged: {message_of(error)}.")


def find_grown(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the grown modules in a state dict; ``""`` for the model itself."""
    names = [name for name in state if name.rpartition(".")[2] == KEY]
    return [name.rpartition(".")[0] for name in names]


class GrownState:
    """The hooks of one model, and the weights of a grown one that waits for its Grower.

    A Grower resumes on a model without seeds, because optimizers and data-parallel wrappers are
    made for such a model and hold its parameters. So while ``is_waiting``, a grown state dict is
    kept instead of being loaded; the Grower gets the weights from :meth:`take_weights`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.is_waiting = False
        self._weights: dict[str, Tensor] | None = None
        config = cast(Any, model).config.to_dict() if has_configuration(model) else None
        model.register_state_dict_post_hook(partial(_write_structure, config))
        model.register_load_state_dict_pre_hook(self._rebuild)

    def __deepcopy__(self, memo: dict[int, Any]) -> GrownState:
        """Share the hooks with copies of the model; each call names the module that it is for."""
        return self

    @property
    def has_weights(self) -> bool:
        """Whether the weights of a grown model wait for a Grower."""
        return self._weights is not None

    def take_weights(self) -> dict[str, Tensor]:
        """Return the weights of the grown model that was loaded, and forget them.

        Raises:
            GrowerError: If none was loaded.
        """
        if self._weights is None:
            raise GrowerError(
                "the checkpoint has the state of a Grower, but the weights of no growing model; "
                "resume from a checkpoint that was saved whole."
            )
        weights, self._weights = self._weights, None
        return weights

    def resume(self, grower: Grower, state: Mapping[str, Any]) -> None:
        """Load the weights into a new Grower, and the state that was saved without them."""
        grower.load_state_dict({**state, "model": self.take_weights()})

    def _rebuild(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if prefix + KEY not in state:
            return
        structure = read_structure(state, prefix + KEY)
        structure.pop(CONFIG, None)
        del state[prefix + KEY]
        if self.is_waiting and module is self.model:
            self._keep(state, prefix)
            return
        try:
            own = own_slots(module)
            if own is not None and json.loads(json.dumps(describe_slots(own))) == structure:
                return
            if own is not None:
                own.cut_back()
            remove_slots(module)
            restore_slots(module, structure)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise _damaged(prefix + KEY, error) from error

    def _keep(self, state: dict[str, Any], prefix: str) -> None:
        """Keep the weights in a state dict, and put the model's own in their place."""
        names = [name for name in state if name.startswith(prefix)]
        self._weights = {n.removeprefix(prefix): state.pop(n).detach().clone() for n in names}
        tied: dict[int, list[str]] = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            tied.setdefault(id(tensor), []).append(name)
        for same in tied.values():  # a file may hold tied weights under one of their names
            kept = [self._weights[name] for name in same if name in self._weights]
            self._weights |= {name: kept[0] for name in same if kept}
        own = self.model.state_dict(prefix=prefix)
        state.update({name: own[name] for name in own if name != prefix + KEY})


def _write_structure(
    config: dict[str, Any] | None, module: nn.Module, state: dict[str, Any], prefix: str, _: Any
) -> None:
    own = own_slots(module)
    if own is not None:
        text = json.dumps({**describe_slots(own), CONFIG: config}).encode()
        state[prefix + KEY] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
