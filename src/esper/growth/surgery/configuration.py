"""Configurations that follow a change, so that a saved model is built at its new size.

Transformers builds a model from its configuration alone. Which of its fields say how wide or deep a
part is can't be told by their names, so it is tried: a field that holds the old size gets the new
one, the model is built again without memory (on the meta device), and the names and shapes of its
tensors are compared with those of the changed model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from esper.growth.modules import named_modules
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.places import Group

MAX_BUILDS, MAX_BRANCHES = 200, 2
"""Maximum number of models that a search builds, and of changes that it tries further."""


@dataclass(frozen=True)
class SizeChange:
    """A size of the model that has changed: units of a place or blocks of a list."""

    before: int
    after: int
    sources: tuple[int, ...] = ()
    """For blocks: the index that each block had before."""
    fixed: tuple[tuple[str, int], ...] = ()
    """Fields that must keep a value that would otherwise follow from the size."""


def find_sizes(group: Group, n_new: int) -> list[SizeChange]:
    """Return the units or heads of each place before and after so many were added."""
    heads = group.heads
    if heads is None:
        return [SizeChange(group.units, group.units + n_new)]
    fixed = (("head_dim", heads.size),)
    factors = (heads.per_unit, 1, heads.per_unit * heads.size, heads.size)
    return [
        SizeChange(group.units * k, (group.units + n_new) * k, fixed=fixed)
        for k in dict.fromkeys(factors)
    ]


@dataclass(frozen=True)
class _Field:
    """A field of a configuration, by the path to it, and a value to try."""

    path: tuple[str, ...]
    value: Any


def has_configuration(model: nn.Module) -> bool:
    """Return whether a model is built from a configuration, as Transformers' models are."""
    config = getattr(model, "config", None)
    return callable(getattr(config, "to_dict", None)) and hasattr(type(model), "from_pretrained")


def follow_sizes(
    edits: Edits, changes: Sequence[SizeChange], check: Callable[[], bool] = lambda: True
) -> bool:
    """Set the fields of a model's configuration that give its present size.

    Args:
        edits: The changes of the model; those of its configuration are added.
        changes: The sizes that have changed.
        check: Returns whether the configuration is right; others that give the same shapes are
            tried if it is not.

    Returns:
        Whether there are such fields; without them nothing is changed.
    """
    model: Any = edits.model
    before = _build(model, model.config)
    search = _Search(model, changes)
    for config in search.find(model.config):
        changed = Edits(model)
        _set_fields(changed, before, _build(model, config))
        if check():
            edits.absorb(changed)
            return True
        changed.undo()
    return False


class _Search:
    """A search for configurations that give the shapes of a model."""

    def __init__(self, model: nn.Module, changes: Sequence[SizeChange]) -> None:
        self._model, self._changes = model, changes
        self._wanted = _shapes_of(model)
        self._n_left = MAX_BUILDS
        self._counts: dict[str, int] = {}
        """The differences of every configuration that was built."""
        self._done = set[str]()
        """Configurations that were yielded or searched; fields may be set in any order."""

    def find(self, config: Any) -> Iterator[Any]:
        """Yield such configurations; each step changes what brings most tensors into line."""
        key, score = _key_of(config), self._count_differences(config)
        if key in self._done:
            return
        self._done.add(key)
        if score == 0:
            yield config
            return
        for options in (_exact_options, _list_options, _other_options):
            found: dict[str, tuple[int, Any]] = {}
            for fields in options(config, self._changes):
                if self._n_left <= 0:
                    return
                trial = _with_fields(config, fields)
                count = score if trial is None else self._count_differences(trial)
                if count == 0:
                    yield from self.find(trial)
                elif count < score:
                    found.setdefault(_key_of(trial), (count, trial))
            for _, trial in sorted(found.values(), key=lambda pair: pair[0])[:MAX_BRANCHES]:
                yield from self.find(trial)

    def _count_differences(self, config: Any) -> int:
        """Return the tensors that differ if the model is built from a configuration."""
        key = _key_of(config)
        if key not in self._counts:
            self._n_left -= 1
            self._counts[key] = self._build_and_count(config)
        return self._counts[key]

    def _build_and_count(self, config: Any) -> int:
        try:
            built = _shapes_of(_build(self._model, config))
        # A class checks the values of its configuration in any way.
        except Exception:
            return len(self._wanted) + 1
        names = self._wanted.keys() | built.keys()
        return sum(self._wanted.get(name) != built.get(name) for name in names)


def _key_of(config: Any) -> str:
    """Return what tells configurations apart."""
    return repr([*_leaves(config, ())])


def _build(model: nn.Module, config: Any) -> nn.Module:
    """Return a model of the same class without memory."""
    with torch.device("meta"), _Uninitialized():
        return cast(Any, type(model))(copy.deepcopy(config))


def require_valid(model: nn.Module) -> None:
    """Let a configuration check itself, as it does before it is saved; raise what it raises."""
    validate = getattr(cast(Any, model).config, "validate", None)
    if callable(validate):
        validate()


class _Uninitialized(TorchFunctionMode):
    """Leaves weights as they are, which saves most of the time that building a model takes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call a function, unless it initializes a tensor."""
        is_initial = getattr(func, "__module__", None) == "torch.nn.init"
        return args[0] if is_initial and args else func(*args, **(kwargs or {}))


def rebuilt(model: nn.Module) -> nn.Module:
    """Return the model that its configuration gives, with the same tensors, sharing their memory.

    What it computes differs if a block depends on its index in a way that a copy does not.
    """
    twin = _build(model, cast(Any, model).config)
    twin.load_state_dict(model.state_dict(), assign=True)
    buffers = dict(model.named_buffers())
    for name, buffer in list(twin.named_buffers()):
        if buffer.is_meta:  # buffers that are not saved
            path, _, own = name.rpartition(".")
            twin.get_submodule(path).register_buffer(own, buffers[name], persistent=False)
    return twin.train(model.training)


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    own |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    # Hooks may add other entries.
    return {name: tuple(t.shape) for name, t in model.state_dict().items() if name in own}


Leaf = tuple[tuple[str, ...], Any]
"""The path to a field of a configuration, and its value."""


def _free_leaves(config: Any, changes: Sequence[SizeChange]) -> list[Leaf]:
    """Return the fields that may change."""
    fixed = {name for change in changes for name, _ in change.fixed}
    return [leaf for leaf in _leaves(config, ()) if leaf[0][-1] not in fixed]


def _exact_options(config: Any, changes: Sequence[SizeChange]) -> Iterator[list[_Field]]:
    """Yield fields that hold an old size, with lists that have an entry for each block."""
    leaves = _free_leaves(config, changes)
    for change in dict.fromkeys(changes):
        longer = [
            _Field(path, _like(value, [value[k] for k in change.sources]))
            for path, value in leaves
            if isinstance(value, (list, tuple))
            and change.sources
            and len(cast(Sequence[Any], value)) == change.before
        ]
        for path, value in leaves:
            if type(value) is int and value == change.before:
                new = _Field(path, change.after)
                for name, kept in change.fixed:
                    yield [new, _Field((*path[:-1], name), kept)]
                if longer:
                    yield [new, *longer]
                yield [new]
        if longer:
            yield longer


def _list_options(config: Any, changes: Sequence[SizeChange]) -> Iterator[list[_Field]]:
    """Yield lists with the size of one stage replaced, or of all that have it."""
    for path, value in _free_leaves(config, changes):
        if not isinstance(value, (list, tuple)):
            continue
        items = list(cast(Sequence[Any], value))
        for change in dict.fromkeys(changes):
            at = [k for k, item in enumerate(items) if type(item) is int and item == change.before]
            for chosen in [[k] for k in at] + ([at] if len(at) > 1 else []):
                new = [change.after if k in chosen else item for k, item in enumerate(items)]
                yield [_Field(path, _like(value, new))]


def _other_options(config: Any, changes: Sequence[SizeChange]) -> Iterator[list[_Field]]:
    """Yield ratios of sizes, and fields without a value."""
    leaves = _free_leaves(config, changes)
    for change in dict.fromkeys(changes):
        if change.sources:
            continue
        factor = change.after / change.before
        for path, value in leaves:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value <= 16:
                scaled = value * factor
                yield [_Field(path, int(scaled) if isinstance(value, int) else scaled)]
        for path, value in leaves:
            if value is None and "id" not in path[-1].split("_"):
                yield [_Field(path, change.after)]


def _like(value: Any, items: list[Any]) -> Any:
    return tuple(items) if isinstance(value, tuple) else items


def _leaves(config: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in list(cast(dict[str, Any], vars(config)).items()):
        if name.startswith("_"):
            continue
        if callable(getattr(value, "to_dict", None)):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _with_fields(config: Any, fields: Sequence[_Field]) -> Any:
    """Return a copy of a configuration with other values; None if it does not allow them."""
    twin = copy.deepcopy(config)
    for each in fields:
        owner = twin
        for name in each.path[:-1]:
            owner = getattr(owner, name)
        try:
            setattr(owner, each.path[-1], each.value)
        # A configuration checks types and values in any way.
        except Exception:
            return None
    return twin


def copy_configuration(edits: Edits, model: nn.Module) -> None:
    """Let the configuration of a model's copy, such as a moving average, be that of the model."""
    _set_fields(edits, edits.model, model)


def _set_fields(edits: Edits, before: nn.Module, after: nn.Module) -> None:
    """Set what differs between two built models in the configurations of all modules."""
    modules = [named_modules(each) for each in (edits.model, before, after)]
    done: set[int] = set()
    for name, module in modules[0].items():
        config = module.__dict__.get("config")
        others = [found[name].__dict__.get("config") for found in modules[1:] if name in found]
        if config is None or id(config) in done or len(others) < 2 or None in others:
            continue
        done.add(id(config))
        old, new = (dict(_leaves(other, ())) for other in others)
        for path, value in new.items():
            if path not in old or old[path] != value:
                owner: Any = config
                for part in path[:-1]:
                    owner = getattr(owner, part)
                edits.set_attribute(owner, path[-1], value)
