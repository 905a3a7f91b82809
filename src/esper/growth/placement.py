"""Adding slots to any model, and finding where they can go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

import torch
from torch import nn

from esper.config.checks import check, rejects_unknown
from esper.config.growth import GrowthConfig
from esper.errors import SlotError, did_you_mean, summarize_error, type_of
from esper.formatting import html_lines, html_table, many, text_table
from esper.growth.dry_run import (
    Call,
    SampleInput,
    count_inference_calls,
    record_calls,
    require_batch,
    require_runnable,
    tensors_in,
    why_it_fails,
)
from esper.growth.host_slots import (
    ATTRIBUTE,
    HostSlots,
    describe_site,
    own_slots,
    slots,
    unwrapped,
)
from esper.growth.modules import count_parameters, module_names, named_modules
from esper.growth.sharding import find_mesh, require_whole
from esper.growth.sites import (
    SlotSite,
    TensorKind,
    describe,
    kind_of,
    width_of,
)
from esper.growth.surgery.blocks import find_block_lists, outer_lists
from esper.growth.surgery.places import (
    MAX_READERS,
    MAX_WRITERS,
    STAR,
    BlockList,
    Group,
    Place,
    group_places,
    layers_name,
)
from esper.growth.surgery.tracing import PlaceFinder

PAIR = ">"
"""Stands between the layers that write units and those that read them, in names."""


@rejects_unknown("add_slots")
def add_slots(
    model: nn.Module,
    at: Sequence[str],
    sample_input: SampleInput,
    *,
    growth_config: GrowthConfig | None = None,
    seed_limit: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Add slots to a model where it may grow, in place, and return the model.

    The model is run a few times in evaluation mode with hooks, to see which layers read the units
    of which others, and what each block reads and returns. Its parameters, buffers and outputs do
    not change.

    Args:
        model: Any module.
        at: Names of groups of units (``"layers.*.mlp"``, ``"0>2"``), of lists of blocks
            (``"layers.*"``), and of submodules that modules may grow beside (``"layers.0"``), as
            :func:`esper.find_slots` lists them.
        sample_input: Input for the model: a tensor, a tuple of arguments or a mapping of keyword
            arguments. Preferably a batch of at least two samples.
        growth_config: How seeds start, and the minimum number of epochs in each stage.
        seed_limit: Maximum number of live seeds; None for no limit.
        seed: Random seed for the weights of new seeds.

    Raises:
        SlotError: If a name is unknown or a block cannot have a slot; the message says why.
        ConfigError: If ``growth_config`` is not a GrowthConfig.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> outcome = esper.slots(model).germinate("0>2", "widen_large")
        >>> model[0].out_features, model[2].in_features
        (16, 16)
    """
    check("growth_config", growth_config, GrowthConfig | None)
    require_growable(model)
    require_whole(model)
    model_given, model = model, unwrapped(model)
    if own_slots(model) is not None:
        present = ", ".join(slots(model))
        raise SlotError(
            f"{type(model).__name__} already has slots ({present}); add all slots in one call."
        )
    names = _require_names(at)
    _require_runs(model, sample_input)
    found = {n: module for n, module in module_names(model) if n and n in names}
    surgery = SurgerySites(model, sample_input) if len(found) < len(names) else None
    sites: list[SlotSite] = []
    for name in names:
        if name in found:
            sites.append(module_site(model, name, sample_input))
        else:
            assert surgery is not None, "there are names of no module"
            sites.append(surgery.require(name))
    _require_apart(sites)
    host_slots = attach_slots(
        model, sites, growth_config=growth_config, seed_limit=seed_limit, seed=seed
    )
    for name in found:
        problem = _find_insertion_problem(model, host_slots, name, sample_input)
        if problem is not None:
            delattr(model, ATTRIBUTE)
            raise SlotError(f"{name!r} cannot have a slot: {problem}")
    return model_given


class SurgerySites:
    """The groups of units and lists of blocks of a model, found by running it."""

    def __init__(self, model: nn.Module, sample_input: SampleInput) -> None:
        self._model = model
        finder = PlaceFinder(model, sample_input)
        self._problems = finder.problems
        self._groups = group_places(model, finder.find_all())
        self._kinds = finder.output_kinds()
        self._lists = outer_lists(find_block_lists(model, sample_input, self._problems))

    def find_all(self) -> list[SlotSite]:
        """Return all of them, groups first."""
        found: dict[str, SlotSite] = {}
        for group in self._groups:
            site = self._site_of(group)
            if site.name in found:  # groups of different sizes may look alike
                site = replace(site, name=_name_of(Group("", group.places[:1])))
            found.setdefault(site.name, site)
        for blocks in self._lists:
            site = SlotSite(name=blocks.name, kind=self._kind_of(blocks), blocks=blocks)
            found.setdefault(site.name, site)
        return list(found.values())

    def require(self, name: str) -> SlotSite:
        """Return the group, a place of a group, or the list of a name.

        Raises:
            SlotError: If there is none.
        """
        sites = self.find_all()
        single = [
            self._site_of(Group(place.name, (place,)))
            for group in self._groups
            for place in group.places
        ]
        for site in (*sites, *single):
            if site.name == name:
                return site
        known = [site.name for site in sites]
        why = self._problems.get(name) or self._problems.get(name.partition(PAIR)[0])
        if why:
            raise SlotError(f"{name!r} cannot have a slot: {why}")
        modules = [each for each, _ in module_names(self._model) if each]
        top = [each for each in modules if "." not in each]
        hint = did_you_mean(name, [*known, *modules])
        places = f" What can grow: {', '.join(known)}." if known else ""
        raise SlotError(
            f"{type(self._model).__name__} has no submodule, group of units or list of blocks "
            f"{name!r}.{hint or places or f' Its top-level submodules are {top}.'}"
        )

    def _site_of(self, group: Group) -> SlotSite:
        kind = self._kinds[group.places[0].writers[0]]
        return SlotSite(name=_name_of(group), kind=kind, group=group)

    def _kind_of(self, blocks: BlockList) -> TensorKind:
        inside = [k for n, k in self._kinds.items() if n.startswith(f"{blocks.container}.")]
        return max(inside, key=inside.count, default=TensorKind.VECTOR)


def _name_of(group: Group) -> str:
    """Return the name of a slot on a group: that of the group, or else of the layers."""
    if len(group.places) > 1 or PAIR in group.name:
        return group.name
    place = next(iter(group.places))
    if len(place.writers) > MAX_WRITERS or len(place.readers) > MAX_READERS:
        return f"{place.writers[0]}{PAIR}{STAR}"
    return layers_name(place)


def overlap(first: SlotSite, second: SlotSite) -> bool:
    """Return whether two sites cannot both have a slot.

    A module beside a block expects the tensors that the block reads and returns to keep their size,
    so no units may enter or leave it. The same units have one slot.
    """
    if first.group is not None and second.group is not None:
        tensors = [
            {
                (each.tensor, each.axis, each.start)
                for place in group.places
                for each in place.entries
            }
            for group in (first.group, second.group)
        ]
        return bool(tensors[0] & tensors[1])
    if second.group is not None:
        first, second = second, first
    if first.group is None or second.what != "module":
        return first.what == second.what == "blocks" and first.modules == second.modules
    return any(_crosses(place, second.name) for place in first.group.places)


def _crosses(place: Place, block: str) -> bool:
    """Return whether units enter or leave a block."""
    inside = [layer == block or layer.startswith(f"{block}.") for layer in place.layers]
    return any(inside) and (not all(inside) or block in place.layers)


def _require_apart(sites: list[SlotSite]) -> None:
    for first, second in combinations(sites, 2):
        if overlap(first, second):
            raise SlotError(
                f"{first.name!r} and {second.name!r} cannot both have a slot: new units of one "
                "would change the size of what the other reads or returns. Keep one of them."
            )


def attach_slots(
    model: nn.Module,
    sites: list[SlotSite],
    *,
    growth_config: GrowthConfig | None = None,
    seed_limit: int | None = None,
    seed: int = 0,
) -> HostSlots:
    """Add slots at known sites, without running the model."""
    host_slots = HostSlots(
        model, sites, growth_config=growth_config, seed_limit=seed_limit, seed=seed
    )
    setattr(model, ATTRIBUTE, host_slots)
    return host_slots


def _find_insertion_problem(
    model: nn.Module, host_slots: HostSlots, name: str, sample_input: SampleInput
) -> str | None:
    """Try a slot in place of its block; return why that does not work, or None if it does."""
    root: dict[str, nn.Module] = {"": model}
    before = record_calls(model, root, sample_input)[""][0].output
    host_slots.place(name, is_used=True)
    try:
        place = cast(nn.Module, host_slots[name])
        calls = record_calls(model, {**root, name: place}, sample_input)
    except Exception as error:
        return f"the model fails with a slot in place of the block ({summarize_error(error)})"
    finally:
        host_slots.place(name, is_used=False)
    if not calls[name]:
        return (
            "the model calls it through another reference (such as a plain list), which replacing "
            "the submodule does not affect; use nn.ModuleList."
        )
    if not _have_equal_tensors(before, calls[""][0].output):
        return (
            "the model's output changes with an empty slot there: the model reads an attribute "
            "that slots define too, or it is random in evaluation mode."
        )
    return None


def _have_equal_tensors(a: Any, b: Any) -> bool:
    first, second = tensors_in(a), tensors_in(b)
    return len(first) == len(second) and all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(first, second, strict=True)
    )


UNSUPPORTED_WRAPPERS = {
    "DataParallel": "torch.nn.parallel.DistributedDataParallel",
    "FullyShardedDataParallel": "torch.distributed.fsdp.fully_shard (FSDP2)",
}
"""Wrappers that copy or flatten the parameters that a model has when it is wrapped."""


def require_growable(model: object) -> None:
    """Reject what cannot be run with hooks: anything but a module that PyTorch runs in Python.

    Raises:
        SlotError: If it is not a module, is compiled, is wrapped by DataParallel or FSDP1, or has
            parameters without memory.
    """
    require_runnable(model, SlotError)
    assert isinstance(model, nn.Module), "it is runnable"
    for name, module in named_modules(unwrapped(model)).items():
        if "_orig_mod" in module.__dict__.get("_modules", {}):
            raise SlotError(
                f"{name!r} of this {type(unwrapped(model)).__name__} is wrapped by torch.compile, "
                "and nothing can be replaced inside it; compile it in place with .compile()."
            )
    for module in model.modules():
        if (kind := type(module).__name__) in UNSUPPORTED_WRAPPERS:
            raise SlotError(
                f"model is {type_of(model)} with {kind} in it, which does not support growing "
                f"models; use {UNSUPPORTED_WRAPPERS[kind]} instead."
            )
    mesh = find_mesh(model)
    if mesh is not None and mesh.ndim != 1:
        raise SlotError(
            f"model is {type_of(model)} on a mesh of {mesh.ndim} axes; models can grow on a mesh "
            "of one axis: fully_shard(model, mesh=init_device_mesh(device, (n_ranks,)))."
        )


def _require_runs(model: nn.Module, sample_input: SampleInput) -> None:
    require_batch(sample_input, SlotError)
    try:
        outputs = tensors_in(record_calls(model, {"": model}, sample_input)[""][0].output)
    except Exception as error:
        raise SlotError(
            f"{type(model).__name__} fails on this sample_input "
            f"({why_it_fails(model, sample_input, error)}); pass a tensor, a tuple of arguments or "
            "a mapping of keyword arguments."
        ) from error
    if any(output.layout is not torch.strided or output.is_meta for output in outputs):
        raise SlotError(f"{type(model).__name__} returns a sparse tensor; return a dense one.")


def module_site(model: nn.Module, name: str, sample_input: SampleInput) -> SlotSite:
    """Return the site beside a block.

    Raises:
        SlotError: If nothing can grow there.
    """
    found = _look_beside(model, [name], sample_input)[name]
    if isinstance(found, str):
        raise SlotError(f"{name!r} cannot have a slot: {found}")
    return found


def module_sites(model: nn.Module, sample_input: SampleInput) -> list[SlotSite]:
    """Return the blocks of a model that modules can grow beside, in module order.

    A block is a module with submodules and parameters. If no such one is usable, layers with
    parameters are returned.
    """
    blocks = [n for n, m in named_modules(model).items() if n and any(True for _ in m.parameters())]
    found = _look_beside(model, blocks, sample_input).values()
    sites = [each for each in found if isinstance(each, SlotSite)]
    return [each for each in sites if any(model.get_submodule(each.name).children())] or sites


def _look_beside(
    model: nn.Module, names: Sequence[str], sample_input: SampleInput
) -> dict[str, SlotSite | str]:
    """Return the site beside each block, or why there can be none."""
    blocks = {name: model.get_submodule(name) for name in names}
    calls = record_calls(model, blocks, sample_input)
    counts = count_inference_calls(model, blocks, sample_input)
    return {
        name: _find_problem(model, name, block, calls[name], counts[name])
        or site_of(name, calls[name][0])
        for name, block in blocks.items()
    }


def site_of(name: str, call: Call) -> SlotSite:
    """Return the site beside a block, given one of its calls."""
    kind = kind_of(call.output)
    assert kind is not None, "the block's output has no tensor kind"
    output_shape = tuple(call.output.shape)
    key, reason = _find_input(call, kind, output_shape)
    if key is None:
        return SlotSite(name=name, kind=kind, output_shape=output_shape, why_no_parallel=reason)
    shape = tuple(call.tensors()[key].shape)
    return SlotSite(
        name=name, kind=kind, output_shape=output_shape, input_shape=shape, input_key=key
    )


def _require_names(at: Sequence[str]) -> list[str]:
    if not isinstance(at, Sequence):
        raise SlotError(f"at is {at!r}; it must be a list of names.")
    if isinstance(at, str):
        raise SlotError(f"at is {at!r}; it must be a list of names, such as [{at!r}].")
    names = list(at)
    if not names:
        raise SlotError("at is empty; name at least one place (esper.find_slots lists them).")
    for name in names:
        if not isinstance(name, str):
            raise SlotError(f"at contains {name!r}; it must be a list of names.")
        if names.count(name) > 1:
            raise SlotError(f"at contains {name!r} twice; a place has one slot.")
    return names


def _find_problem(
    model: nn.Module, name: str, block: nn.Module, calls: list[Call], n_without_grad: int
) -> str | None:
    """Return why a block cannot have a slot, or None if it can."""
    twins = [other for other, module in module_names(model) if module is block and other != name]
    if twins:
        return f"the same module is also {', '.join(map(repr, twins))}; a seed would affect both."
    if not calls:
        return (
            "the model never calls it (it is a list of modules, or its weights are read "
            "directly); name a module that is called."
        )
    if len(calls) > 1:
        return (
            f"the model calls it {len(calls)} times per forward pass; a seed would affect each "
            "call."
        )
    if n_without_grad != len(calls):
        return "a fast path skips it when gradients are disabled; name the block around it."
    if kind_of(calls[0].output) is None:
        kinds = ", ".join(kind.value for kind in TensorKind)
        return (
            f"it returns {describe(calls[0].output)}; a slot needs a floating-point {kinds}. "
            "Name a block inside it."
        )
    return None


def _find_input(
    call: Call, kind: TensorKind, output_shape: tuple[int, ...]
) -> tuple[int | str | None, str]:
    """Return the argument that parallel seeds can read, or None and the reason."""
    tensors = call.tensors()
    for key, x in tensors.items():
        if kind_of(x) != kind or not _do_axes_fit(tuple(x.shape), output_shape, kind):
            continue
        if not x.is_inference() and x._version != call.versions[key]:
            return None, "the input is modified in place, by the block or after it"
        return key, ""
    given = ", ".join(describe(x) for x in tensors.values()) or "no tensor"
    return None, f"a parallel seed cannot map the block's input ({given}) to its output"


def _do_axes_fit(shape: tuple[int, ...], output_shape: tuple[int, ...], kind: TensorKind) -> bool:
    """Return whether a seed that mixes channels can map one shape to the other."""
    if kind != TensorKind.FEATURE_MAP:
        return shape[:-1] == output_shape[:-1]
    sizes = list(zip(shape[2:], output_shape[2:], strict=True))
    # A 3x3 convolution with padding 1 and stride s turns n into ceil(n / s).
    strided = all(
        out > 0 and size > 0 and -(-size // -(-size // out)) == out for size, out in sizes
    )
    return shape[0] == output_shape[0] and width_of(shape, kind) > 0 and strided


@dataclass(frozen=True)
class SlotProposal:
    """A place where a model can have a slot."""

    site: SlotSite
    parameters: int
    """Parameters of the layers, the blocks or the block that it is about."""
    is_stream: bool = False
    """Whether it is about the units of a residual stream, which all blocks read. They get no slot
    unless they are named, because more of them make every block larger."""

    @property
    def name(self) -> str:
        """The name to pass to :func:`esper.add_slots`."""
        return self.site.name

    def __repr__(self) -> str:
        return f"SlotProposal({', '.join(_cells(self))})"

    def __str__(self) -> str:
        name, what, parameters = _cells(self)
        return f"{name}: {what}; {parameters} parameters"


class SlotProposals(tuple[SlotProposal, ...]):
    """Proposed places: groups of units, lists of blocks, blocks; printing them gives a table."""

    @property
    def names(self) -> list[str]:
        """The names of the places."""
        return [proposal.name for proposal in self]

    def __str__(self) -> str:
        if not self:
            return "nothing of this model can grow"
        return text_table([_HEADERS, *map(_cells, self)], n_left=2)

    def __repr__(self) -> str:
        return f"SlotProposals of {many(len(self), 'place')}\n{self}"

    def _repr_html_(self) -> str:
        if not self:
            return html_lines([str(self)])
        return html_table(_HEADERS, map(_cells, self), n_left=2)


_HEADERS = ("slot", "what grows", "parameters")


def _cells(proposal: SlotProposal) -> tuple[str, str, str]:
    return proposal.name, describe_site(proposal.site), f"{proposal.parameters:,}"


@rejects_unknown("find_slots")
def find_slots(model: nn.Module, sample_input: SampleInput) -> SlotProposals:
    """Return the places where a model can grow.

    Groups of hidden units that can become more come first, then lists of blocks that can become
    longer, then blocks that modules can grow beside. What repeats is one place. The model is run
    with hooks and does not change.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> proposals = esper.find_slots(model, torch.randn(2, 4))
        >>> proposals.names
        ['0>2', '0', '2']
    """
    require_growable(model)
    model = unwrapped(model)
    _require_runs(model, sample_input)
    sites = [*SurgerySites(model, sample_input).find_all(), *module_sites(model, sample_input)]
    order = {name: index for index, name in enumerate(named_modules(model))}
    return SlotProposals(
        SlotProposal(site, _count(model, site), _is_stream(site, order)) for site in sites
    )


def _is_stream(site: SlotSite, order: Mapping[str, int]) -> bool:
    """Return whether a layer that reads the units stands before one that adds to them."""
    return any(
        min(map(order.__getitem__, place.readers)) < max(map(order.__getitem__, place.writers))
        for place in (() if site.group is None else site.group.places)
    )


def _count(model: nn.Module, site: SlotSite) -> int:
    parts = [model.get_submodule(name) for name in dict.fromkeys(site.modules)]
    return sum(map(count_parameters, parts))
