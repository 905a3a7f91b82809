"""Saving and loading a model while it grows, without pickling.

A folder holds ``growth.json`` (the slots and the states of their seeds) and the tensor file it
names, ``model-<hash>.safetensors``. The tensors are written first and the JSON file last, each by a
rename, so an interrupted save leaves either the old model or the new one, never a mixture.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from safetensors.torch import save as save_tensors
from torch import Tensor, distributed, nn

from esper.config.catalogue import BLUEPRINT_GROUP
from esper.config.growth import GrowthConfig
from esper.errors import SavedModelError, type_of
from esper.growth.blueprints import blueprint_names
from esper.growth.host_slots import HostSlots, own_slots, slots
from esper.growth.modules import module_names
from esper.growth.placement import attach_slots
from esper.growth.sharding import find_mesh, reshard, whole_values
from esper.growth.sites import SlotSite
from esper.storage.files import plain_reason, read_json, verified, with_checksum, write_atomic
from esper.version import __version__


class TensorTable:
    """The parameters and buffers of a model by name.

    A tensor with several names is listed under the first; ``aliases`` maps the others to it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.aliases: dict[str, str] = {}
        self.transient: set[str] = set()
        """Names of non-persistent buffers."""
        first_names: dict[Tensor, str] = {}
        for prefix, module in module_names(model):
            _require_savable(prefix, module)
            unsaved: set[str] = module.__dict__.get("_non_persistent_buffers_set", set())
            own = [*module.named_parameters(recurse=False, remove_duplicate=False)]
            buffers = [*module.named_buffers(recurse=False, remove_duplicate=False)]
            for key, tensor in [*own, *buffers]:
                name = f"{prefix}.{key}" if prefix else key
                if key in unsaved:
                    self.transient.add(name)
                first = first_names.setdefault(tensor, name)
                if first == name:
                    self.tensors[name] = tensor
                else:
                    self.aliases[name] = first

    def stored_as(self, name: str) -> str:
        """Return the name that a tensor is listed under."""
        return self.aliases.get(name, name)

    def contents(self) -> dict[str, Tensor]:
        """Return contiguous CPU copies of the tensors."""
        return {name: _copy(name, tensor) for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class SavedTensors:
    """The tensors of a saved model."""

    values: dict[str, Tensor]
    aliases: dict[str, str]
    """Maps each further name of a tensor to the name it is stored under."""
    transient: set[str]
    """Names of non-persistent buffers."""

    def find_mismatch(self, table: TensorTable) -> str | None:
        """Return the first difference between these tensors and a model's, or None."""
        here, there = {*table.tensors, *table.aliases}, {*self.values, *self.aliases}
        for name in [*table.tensors, *table.aliases]:
            if name not in there and name not in table.transient:
                return f"{name!r} is missing from the file."
        for name in [*self.values, *self.aliases]:
            if name not in here and name not in self.transient:
                return f"{name!r} is in the file, but the model has no such tensor."
        both = here & there
        for name, first in sorted(self.aliases.items()):
            if {name, first} <= both and table.stored_as(name) != table.stored_as(first):
                return f"{name!r} and {first!r} are one tensor in the file, but two in the model."
        for name, first in sorted(table.aliases.items()):
            if {name, first} <= both and self.stored_as(name) != self.stored_as(first):
                return f"{name!r} and {first!r} are two tensors in the file, but one in the model."
        for name, tensor in table.tensors.items():
            shape = self.values[self.stored_as(name)].shape if name in there else tensor.shape
            if shape != tensor.shape and name not in table.transient:
                return (
                    f"{name!r} has shape {list(shape)} in the file, but {list(tensor.shape)} in "
                    "the model."
                )
        return None

    def fill(self, table: TensorTable) -> None:
        """Copy these values and dtypes into the tensors of a model."""
        for name, tensor in table.tensors.items():
            if self.stored_as(name) in self.values:
                _put(tensor, self.values[self.stored_as(name)])

    def stored_as(self, name: str) -> str:
        """Return the name that a tensor is stored under."""
        return self.aliases.get(name, name)


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


FORMAT = 1
JSON_FILE = "growth.json"
_TENSOR_FILE = re.compile(r"model-[0-9a-f]{16}\.safetensors")
"""Names of tensor files; a file may name no other, so that nothing else is read or removed."""


def save(model: nn.Module, directory: str | os.PathLike[str]) -> None:
    """Save a model with slots, in any state of growth, to a folder.

    A model that the folder already holds is replaced atomically. A model that is sharded (FSDP2) is
    gathered, so every rank must call this; rank 0 writes the folder.

    Raises:
        SlotError: If the model has no slots.
        SavedModelError: If part of the model cannot be saved; the message names it.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> esper.save(model, "kept")
    """
    folder = Path(directory)
    reshard(model)
    is_shared = find_mesh(model) is not None
    table = TensorTable(model)
    contents = table.contents()
    if is_shared and distributed.get_rank() > 0:
        distributed.barrier()
        return
    growth = describe_slots(slots(model))
    growth |= {"aliases": table.aliases, "transient": sorted(table.transient)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise SavedModelError(f"{folder} is a file; choose a folder.") from None
    replaced = _tensor_files(folder)
    content = save_tensors(contents)
    sha256 = hashlib.sha256(content).hexdigest()
    tensors = folder / f"model-{sha256[:16]}.safetensors"
    write_atomic(tensors, content)
    growth |= {"tensors": tensors.name, "sha256": sha256, "replaces": replaced[:1]}
    text = json.dumps(with_checksum(growth), indent=1, allow_nan=False)
    write_atomic(folder / JSON_FILE, text)
    for name in set(replaced) - {tensors.name}:
        (folder / name).unlink(missing_ok=True)
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
    growth = _read_json(folder)
    if not (folder / growth["tensors"]).exists():
        growth = _read_json(folder)  # a save may have replaced both files in between
    tensors = _read_tensors(folder, growth)
    model = build()
    if not isinstance(model, nn.Module):
        raise SavedModelError(f"build returned {type_of(model)}; it must return a module.")
    if any(own_slots(module) is not None for _, module in module_names(model)):
        raise SavedModelError(
            f"build returned {type_of(model)} with slots; do not call add_slots in build, "
            "because load restores the saved slots."
        )
    try:
        restore_slots(model, growth)
        saved = SavedTensors(tensors, dict(growth["aliases"]), set(growth["transient"]))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise SavedModelError(f"{folder / JSON_FILE} is damaged: {plain_reason(error)}.") from error
    problem = saved.find_mismatch(TensorTable(model))
    if problem is not None:
        raise SavedModelError(f"build returned another model than the one in {folder}: {problem}")
    saved.fill(TensorTable(model))
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
        "format": FORMAT,
        "esper": __version__,
        "sites": [site.to_json() for site in host.sites],
        "lives": host.lives.to_json(),
        "growth_config": asdict(host.lives.growth_config),
        "seed_limit": host.slot_config.seed_limit,
        "seed": host.seed,
        "n_germinated": host.n_germinated,
    }


def restore_slots(model: nn.Module, growth: dict[str, Any]) -> None:
    """Add the saved slots and seeds to a new model; the seeds' weights are loaded later."""
    sites = [SlotSite.from_json(site) for site in growth["sites"]]
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
    host.lives.load_json(growth["lives"])
    for name, life in host.lives.items():
        needed = [fossil.blueprint for fossil in life.fossils]
        needed += [life.blueprint] if life.has_seed else []
        for blueprint in [each for each in needed if each not in blueprint_names()]:
            raise SavedModelError(
                f"slot {name!r} holds a seed of blueprint {blueprint!r}, which is not "
                f"registered; install the package that provides it (entry point group "
                f"{BLUEPRINT_GROUP!r}) or register it before loading."
            )
    host.rebuild_seeds()


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / JSON_FILE
    if not os.path.isdir(folder):
        raise SavedModelError(f"there is no folder {folder}.")
    if not os.path.isfile(path):
        raise SavedModelError(f"{folder} holds no saved model: {JSON_FILE} is missing.")
    try:
        values: Any = read_json(path)
        if isinstance(values, dict) and "format" not in values and "timeline" in values:
            raise SavedModelError(
                f"{folder} holds no growing model of esper.save, but a grown one of esper grow or "
                "esper.save_grown; load it with torch.export.load("
                f"{str(folder / 'model.pt2')!r}).module()."
            )
        version = cast("dict[str, Any]", values)["format"] if isinstance(values, dict) else FORMAT
        if version != FORMAT:
            raise SavedModelError(
                f"{path} has format {version!r}; this version of Esper reads format {FORMAT}."
            )
        growth = verified(values)
    except OSError as error:
        raise SavedModelError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError) as error:
        raise SavedModelError(f"{path} is damaged: {plain_reason(error)}.") from error
    names: list[Any] = [growth.get("tensors"), *(growth.get("replaces") or [])]
    for name in names:
        if not isinstance(name, str) or _TENSOR_FILE.fullmatch(name) is None:
            raise SavedModelError(
                f"{path} names the tensor file {name!r}; such names are like "
                "model-0123456789abcdef.safetensors. Save the model again."
            )
    return growth


def _read_tensors(folder: Path, growth: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / str(growth["tensors"])
    if not os.path.isfile(path):
        raise SavedModelError(f"{path} is missing, but {JSON_FILE} refers to it.")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SavedModelError(f"cannot read {path}: {error.strerror or error}.") from error
    if digest != growth["sha256"]:
        raise SavedModelError(f"{path} is damaged: its contents do not match its sha256.")
    return load_file(path)


def _tensor_files(folder: Path) -> list[str]:
    """Return the tensor file of a folder's saved model, and the one that it replaced.

    Only these are ever removed, because the folder may hold other weights.
    """
    try:
        growth = _read_json(folder)
    except SavedModelError:
        return []
    return [str(growth["tensors"]), *map(str, growth.get("replaces", []))]
