"""Saving and loading a model while it grows, without pickling.

growing.safetensors  the state dict, of the host and of its seeds
growing.json         the slots and the states of their seeds
manifest.json        sizes and hashes of both
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

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


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers in a model's state dict, to which hooks may add others.

    Raises:
        SavedModelError: If a module has state that is no tensor.
    """
    for name, module in module_names(model):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise SavedModelError(
                f"{repr(name) if name else 'the model'} has extra state (get_extra_state), which "
                "cannot be saved without pickling; move it into buffers."
            )
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    own |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    state = cast("dict[str, Tensor]", model.state_dict(keep_vars=True))
    return {name: tensor for name, tensor in state.items() if name in own}


def _find_aliases(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return each further name of a tensor with the first."""
    firsts: dict[int, str] = {}
    names = {name: firsts.setdefault(id(tensor), name) for name, tensor in state.items()}
    return {name: first for name, first in names.items() if first != name}


def _find_mismatch(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str | None:
    """Return the first difference between the tensors of a file and of a model, or None."""
    for name in (*own, *saved):
        if name not in saved:
            return f"{name!r} is missing from the file."
        if name not in own:
            return f"{name!r} is in the file, but the model has no such tensor."
    for name, tensor in own.items():
        shapes = list(saved[name].shape), list(tensor.shape)
        if shapes[0] != shapes[1]:
            return f"{name!r} has shape {shapes[0]} in the file, but {shapes[1]} in the model."
    there, here = _find_aliases(saved), _find_aliases(own)
    for name in (*there, *here):
        if (first := there.get(name)) != here.get(name):
            first, where = (first, "file") if first else (here[name], "model")
            return f"{name!r} and {first!r} are one tensor, but only in the {where}."
    return None


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
    state = _state_of(model)
    aliases = _find_aliases(state)
    contents = {name: _copy(name, t) for name, t in state.items() if name not in aliases}
    if not is_shared or distributed.get_rank() == 0:
        growth = {**describe_slots(slots(model)), "aliases": aliases}
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
        saved = load_tensors(files[TENSORS_FILE])
        saved |= {name: saved[first] for name, first in growth["aliases"].items()}
        restore_slots(model, growth)
    except (*MALFORMED, SafetensorError) as error:
        raise GROWING_MODEL.damaged(folder, error) from error
    own = _state_of(model)
    problem = _find_mismatch(saved, own)
    if problem is not None:
        raise SavedModelError(f"build returned another model than the one in {folder}: {problem}")
    for name, tensor in own.items():
        _put(tensor, saved[name])
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
