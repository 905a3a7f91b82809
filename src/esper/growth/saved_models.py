"""Saving and loading a model while it grows, without pickling.

growing.safetensors  the parameters and buffers, of the host and of its seeds
growing.json         the slots and the states of their seeds
manifest.json        sizes and hashes of both
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, distributed, nn

from esper.config.growth import GrowthConfig
from esper.errors import SavedModelError, type_of
from esper.growth.blueprints import blueprint_names
from esper.growth.host_slots import HostSlots, own_slots, slots
from esper.growth.json_values import from_json, to_json
from esper.growth.modules import module_names
from esper.growth.placement import attach_slots
from esper.growth.sharding import find_mesh, reshard, whole_values
from esper.growth.sites import SlotSite
from esper.storage.files import MALFORMED, parse_json, storage_errors
from esper.storage.saved_folder import FolderKind


@dataclass(frozen=True)
class NamedTensors:
    """The parameters and buffers of a model by name, in the model or in a file."""

    values: dict[str, Tensor]
    """Each tensor, under the first of its names."""
    aliases: dict[str, str]
    """Maps each further name of a tensor to the first."""
    transient: set[str]
    """Names of non-persistent buffers."""

    @classmethod
    def of(cls, model: nn.Module) -> NamedTensors:
        """Return the tensors of a model."""
        found = cls({}, {}, set())
        first_names: dict[Tensor, str] = {}
        for prefix, module in module_names(model):
            _require_savable(prefix, module)
            unsaved: set[str] = module.__dict__.get("_non_persistent_buffers_set", set())
            own = [*module.named_parameters(recurse=False, remove_duplicate=False)]
            buffers = [*module.named_buffers(recurse=False, remove_duplicate=False)]
            for key, tensor in [*own, *buffers]:
                name = f"{prefix}.{key}" if prefix else key
                if key in unsaved:
                    found.transient.add(name)
                first = first_names.setdefault(tensor, name)
                if first == name:
                    found.values[name] = tensor
                else:
                    found.aliases[name] = first
        return found

    def first_name(self, name: str) -> str:
        """Return the name that a tensor is listed under."""
        return self.aliases.get(name, name)

    def find_mismatch(self, model: NamedTensors) -> str | None:
        """Return the first difference between these tensors of a file and a model's, or None."""
        here, there = {*model.values, *model.aliases}, {*self.values, *self.aliases}
        for name in [*model.values, *model.aliases]:
            if name not in there and name not in model.transient:
                return f"{name!r} is missing from the file."
        for name in [*self.values, *self.aliases]:
            if name not in here and name not in self.transient:
                return f"{name!r} is in the file, but the model has no such tensor."
        both = here & there
        for name, first in sorted(self.aliases.items()):
            if {name, first} <= both and model.first_name(name) != model.first_name(first):
                return f"{name!r} and {first!r} are one tensor in the file, but two in the model."
        for name, first in sorted(model.aliases.items()):
            if {name, first} <= both and self.first_name(name) != self.first_name(first):
                return f"{name!r} and {first!r} are two tensors in the file, but one in the model."
        for name, tensor in model.values.items():
            shape = self.values[self.first_name(name)].shape if name in there else tensor.shape
            if shape != tensor.shape and name not in model.transient:
                return (
                    f"{name!r} has shape {list(shape)} in the file, but {list(tensor.shape)} in "
                    "the model."
                )
        return None

    def fill(self, model: NamedTensors) -> None:
        """Copy these values and dtypes into the tensors of a model."""
        for name, tensor in model.values.items():
            if self.first_name(name) in self.values:
                _put(tensor, self.values[self.first_name(name)])


def _require_savable(prefix: str, module: nn.Module) -> None:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        where = repr(prefix) if prefix else "the model"
        raise SavedModelError(
            f"{where} has extra state (get_extra_state), which cannot be saved without pickling; "
            "move it into buffers."
        )


def _copy(name: str, tensor: Tensor) -> Tensor:
    is_odd = tensor.is_quantized or (tensor.is_complex() and tensor.dtype != torch.complex64)
    if tensor.layout != torch.strided or tensor.is_meta or is_odd:
        raise SavedModelError(
            f"{name!r} cannot be saved (layout {tensor.layout}, device {tensor.device}, dtype "
            f"{tensor.dtype}); only dense, unquantized tensors with data can."
        )
    return whole_values(tensor).to("cpu", copy=True).contiguous()


def _put(tensor: Tensor, value: Tensor) -> None:
    """Set a tensor to a value, in place unless dtype, shape or memory layout rule it out."""
    is_spread = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    if tensor.dtype == value.dtype and tensor.shape == value.shape and not is_spread:
        with torch.no_grad():
            tensor.copy_(value)
    else:
        tensor.data = value.to(tensor.device, copy=True)


TENSORS_FILE, GROWTH_FILE = "growing.safetensors", "growing.json"
GROWING_MODEL = FolderKind("growing model", (TENSORS_FILE, GROWTH_FILE), SavedModelError)
"""The folder of a model with slots."""


def save(model: nn.Module, directory: str | os.PathLike[str]) -> None:
    """Save a model with slots, in any state of growth, to a folder.

    A growing model that the folder already holds is replaced atomically. A model that is sharded
    (FSDP2) is gathered, so every rank must call this; rank 0 writes the folder.

    Raises:
        SlotError: If the model has no slots.
        SavedModelError: If part of the model cannot be saved, or the folder holds other files; the
            message names them.
        StorageError: If the folder cannot be written.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> esper.save(model, "kept")
    """
    folder = Path(directory)
    GROWING_MODEL.require_free(folder)
    reshard(model)
    is_shared = find_mesh(model) is not None
    tensors = NamedTensors.of(model)
    contents = {name: _copy(name, tensor) for name, tensor in tensors.values.items()}
    if not is_shared or distributed.get_rank() == 0:
        growth = describe_slots(slots(model))
        growth |= {"aliases": tensors.aliases, "transient": sorted(tensors.transient)}
        text = json.dumps(growth, indent=1, allow_nan=False).encode()
        with storage_errors(folder):
            files = {TENSORS_FILE: save_tensors(contents), GROWTH_FILE: text}
            GROWING_MODEL.write(folder, files)
    if is_shared:
        distributed.barrier()


def load(directory: str | os.PathLike[str], build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that :func:`save` wrote, with its slots and seeds.

    Values and dtypes come from the folder. Devices, ``requires_grad`` of host parameters, and
    training or evaluation mode come from ``build``.

    Args:
        directory: The folder.
        build: Returns a new model of the saved architecture, without slots; its weights do not
            matter.

    Raises:
        SavedModelError: If the folder holds no saved model, a damaged one, or one of another
            architecture.
        OtherVersionError: If it was made by another version of Esper.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> esper.save(model, "kept")
        >>> def build():
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> again = esper.load("kept", build)
        >>> torch.equal(again(x), model(x))
        True
    """
    folder = Path(directory)
    if not callable(build):
        raise SavedModelError(
            f"build is {type_of(build)}; it must be a function that returns the model."
        )
    if (folder / "model.pt2").is_file() and not GROWING_MODEL.is_in(folder):
        raise SavedModelError(
            f"{folder} holds no growing model of esper.save, but a grown one of esper grow or "
            "esper.save_grown; load it with torch.export.load("
            f"{str(folder / 'model.pt2')!r}).module()."
        )
    files = GROWING_MODEL.read(folder)
    model = build()
    if not isinstance(model, nn.Module):
        raise SavedModelError(f"build returned {type_of(model)}; it must return a module.")
    if any(own_slots(module) is not None for _, module in module_names(model)):
        raise SavedModelError(
            f"build returned {type_of(model)} with slots; do not call add_slots in build, "
            "because load restores the saved slots."
        )
    try:
        growth: dict[str, Any] = parse_json(files[GROWTH_FILE])
        tensors = load_tensors(files[TENSORS_FILE])
        restore_slots(model, growth)
        saved = NamedTensors(tensors, dict(growth["aliases"]), set(growth["transient"]))
    except (*MALFORMED, SafetensorError) as error:
        raise GROWING_MODEL.damaged(folder, error) from error
    own = NamedTensors.of(model)
    problem = saved.find_mismatch(own)
    if problem is not None:
        raise SavedModelError(f"build returned another model than the one in {folder}: {problem}")
    saved.fill(own)
    return model


def describe_slots(host: HostSlots) -> dict[str, Any]:
    """Return the state of a model's slots as JSON values."""
    for name, life in host.lives.items():
        schedule = life.schedule
        alphas = [life.alpha, life.alpha_target, schedule.start, schedule.target]
        for value in (*alphas, *(fossil.alpha for fossil in life.fossils)):
            if not (math.isfinite(value) and 0.0 <= value <= 1.0):
                raise SavedModelError(f"slot {name!r} has alpha {value}; it must be in [0, 1].")
    return {
        "sites": _describe_sites(tuple(host.sites)),
        "lives": host.lives.to_json(),
        "growth_config": asdict(host.lives.growth_config),
        "seed_limit": host.slot_config.seed_limit,
        "seed": host.seed,
        "n_germinated": host.n_germinated,
    }


@lru_cache(maxsize=64)
def _describe_sites(sites: tuple[SlotSite, ...]) -> Any:
    return to_json(list(sites))


def restore_slots(
    model: nn.Module, growth: dict[str, Any], follow: Callable[[HostSlots], object] | None = None
) -> None:
    """Add the saved slots to a new model and grow it likewise; weights are loaded later.

    ``follow`` is called with the slots before the model grows, so that optimizers can follow.
    """
    sites = [from_json(SlotSite, site) for site in growth["sites"]]
    known = {name for name, _ in module_names(model)}
    for site in sites:
        missing = [name for name in site.modules if name not in known]
        if missing:
            raise SavedModelError(
                f"the saved model has a slot at {site.name!r}; the {type(model).__name__} that "
                f"build returned has no submodule {missing[0]!r}."
            )
    host = attach_slots(
        model,
        sites,
        growth_config=GrowthConfig(**growth["growth_config"]),
        seed_limit=growth["seed_limit"],
        seed=growth["seed"],
    )
    host.n_germinated = growth["n_germinated"]
    if follow is not None:
        follow(host)
    host.lives.load_json(growth["lives"])
    for name, life in host.lives.items():
        needed = [fossil.blueprint for fossil in life.fossils]
        needed += [life.blueprint] if life.has_seed else []
        for blueprint in [each for each in needed if each not in blueprint_names()]:
            raise SavedModelError(
                f"slot {name!r} holds a seed of blueprint {blueprint!r}, which is not "
                f"registered; register it before loading (esper.register_blueprint)."
            )
    host.rebuild_seeds()
