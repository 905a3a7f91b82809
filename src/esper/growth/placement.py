"""Adding slots to any model, and finding where they can go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.config.checks import check
from esper.config.growth import GrowthConfig
from esper.errors import SlotError, did_you_mean, summarize_error, type_of
from esper.formatting import html_lines, html_table, many
from esper.growth.block_paths import find_path
from esper.growth.blueprints import blueprint_names, find_blueprint, fitting_blueprints
from esper.growth.dry_run import Call, SampleInput, count_inference_calls, record_calls, tensors_in
from esper.growth.footprint import count_flops
from esper.growth.host_slots import (
    ATTRIBUTE,
    BESIDE,
    WITHIN,
    HostSlots,
    own_slots,
    slots,
    unwrapped,
)
from esper.growth.modules import count_parameters, module_names, named_modules, unchanged_buffers
from esper.growth.pairs import PairFinder, is_pair_name
from esper.growth.residual_blocks import BlockCall, add_identities, record_blocks, try_entries
from esper.growth.sharding import require_one_mesh_axis, require_whole
from esper.growth.shares import Share, ShareTable
from esper.growth.sites import SlotSite, TensorKind, describe, kind_of, width_of
from esper.modes import evaluation_mode

STACK_SHARE = 0.8
"""Share of a block's parameters in proposed blocks of one kind, above which it is a stack."""


def add_slots(
    model: nn.Module,
    at: Sequence[str],
    sample_input: SampleInput,
    *,
    growth_config: GrowthConfig | None = None,
    seed_limit: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Put a slot around each named submodule or pair of layers, in place, and return the model.

    The model is run a few times in evaluation mode with hooks, with and without gradients, to see
    what each block reads and returns. Its parameters, buffers and outputs do not change.

    Args:
        model: Any module.
        at: Names of submodules, as in ``model.named_modules()``, and of pairs of layers:
            ``"producer>consumer"``, with ``+`` between several consumers of the same units. Seeds
            on a single layer grow beside it; name its pair to widen the layer itself.
        sample_input: Input for the model: a tensor, a tuple of arguments or a mapping of keyword
            arguments. Preferably a batch of at least two samples.
        growth_config: Minimum number of epochs a seed spends in each stage.
        seed_limit: Maximum number of live seeds; None for no limit.
        seed: Random seed for the weights of new seeds.

    Raises:
        SlotError: If a name is unknown or a block cannot have a slot; the message says why.
        ConfigError: If ``growth_config`` is not a GrowthConfig.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> outcome = esper.slots(model).germinate("0>2", "widen_small")
        >>> esper.slots(model)["0>2"].life.stage.name
        'GERMINATED'
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
    names = _require_names(model, at)
    blocks = {name: model.get_submodule(name) for name in names if not is_pair_name(name)}
    _require_runs(model, sample_input)
    found: dict[str, SlotSite] = {}
    if pairs := [name for name in names if name not in blocks]:
        finder = PairFinder(model, sample_input)
        found = {name: finder.site_of(finder.require(name), name) for name in pairs}
    calls = record_calls(model, blocks, sample_input)
    counts = count_inference_calls(model, blocks, sample_input)
    for name, block in blocks.items():
        problem = _find_problem(model, name, block, calls[name], counts[name])
        if problem is not None:
            raise SlotError(f"{name!r} cannot have a slot: {problem}")
        found[name] = site_of(name, block, calls[name][0])
    sites = add_identities(model, [found[name] for name in blocks], sample_input)
    found |= {site.name: site for site in try_entries(model, sites, sample_input)}
    sites = [found[name] for name in names]
    _require_apart(sites)
    host_slots = attach_slots(
        model, sites, growth_config=growth_config, seed_limit=seed_limit, seed=seed
    )
    for name in blocks:
        problem = _find_insertion_problem(model, host_slots, name, sample_input)
        if problem is not None:
            delattr(model, ATTRIBUTE)
            raise SlotError(f"{name!r} cannot have a slot: {problem}")
    return model_given


def overlap(first: SlotSite, second: SlotSite) -> bool:
    """Return whether two sites cannot both have a slot.

    A seed on a block expects the tensors that the block reads and returns to keep their size, so
    no units of a pair may enter or leave it. A producer has one slot.
    """
    pair, other = first.pair, second.pair
    if pair is not None and other is not None:
        return pair.producer.name == other.producer.name
    if pair is None and other is None:
        return False
    pair, block = (pair, second) if pair is not None else (other, first)
    assert pair is not None
    return block.name in pair.crossed


def _require_apart(sites: list[SlotSite]) -> None:
    for first, second in combinations(sites, 2):
        if overlap(first, second):
            raise SlotError(
                f"{first.name!r} and {second.name!r} cannot both have a slot: new units of a pair "
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
        calls = record_calls(model, {**root, name: host_slots[name]}, sample_input)
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
    if not isinstance(model, nn.Module):
        raise SlotError(f"model is {type_of(model)}; it must be a torch.nn.Module.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise SlotError(
            f"model is {type_of(model)} with TorchScript in it; a slot cannot be put into "
            "compiled code. Pass the module it was made from."
        )
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
    require_one_mesh_axis(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise SlotError(
                f"{name} of this {type(model).__name__} is on the meta device; load its weights "
                "first (model.to_empty, then load_state_dict)."
            )
        if tensor.layout is not torch.strided:
            raise SlotError(f"{name} of this {type(model).__name__} is sparse; use a dense tensor.")


def _require_runs(model: nn.Module, sample_input: SampleInput) -> None:
    given: Any = sample_input
    if isinstance(sample_input, Mapping):
        given = tuple(cast(Any, sample_input).values())
    for tensor in given if isinstance(given, (tuple, list)) else (given,):  # pyright: ignore[reportUnknownVariableType]
        if isinstance(tensor, Tensor) and 0 in tensor.shape:
            raise SlotError(
                f"sample_input has shape {list(tensor.shape)}; it needs at least one sample."
            )
    try:
        outputs = tensors_in(record_calls(model, {"": model}, sample_input)[""][0].output)
    except Exception as error:
        raise SlotError(
            f"{type(model).__name__} fails on this sample_input ({summarize_error(error)}); pass a "
            "tensor, a tuple of arguments or a mapping of keyword arguments."
        ) from error
    if any(output.layout is not torch.strided or output.is_meta for output in outputs):
        raise SlotError(f"{type(model).__name__} returns a sparse tensor; return a dense one.")


def usable_sites(model: nn.Module, sample_input: SampleInput) -> list[SlotSite]:
    """Return every site in a model that can have a slot, in module order."""
    _require_runs(model, sample_input)
    blocks = {name: module for name, module in named_modules(model).items() if name}
    calls = record_calls(model, blocks, sample_input)
    counts = count_inference_calls(model, blocks, sample_input)
    sites = [
        site_of(name, block, calls[name][0])
        for name, block in blocks.items()
        if _find_problem(model, name, block, calls[name], counts[name]) is None
    ]
    return add_identities(model, sites, sample_input)


def site_of(name: str, block: nn.Module, call: Call) -> SlotSite:
    """Return the site of a block, given one of its calls."""
    kind = kind_of(call.output)
    assert kind is not None, "the block's output has no tensor kind"
    output_shape = tuple(call.output.shape)
    key, reason = _find_input(call, kind, output_shape)
    if key is None:
        return SlotSite(name=name, kind=kind, output_shape=output_shape, why_no_parallel=reason)
    x = call.tensors()[key]
    return SlotSite(
        name=name,
        kind=kind,
        output_shape=output_shape,
        input_shape=tuple(x.shape),
        input_key=key,
        path=find_path(block, call, x),
    )


def _require_names(model: nn.Module, at: Sequence[str]) -> list[str]:
    if not isinstance(at, Sequence):
        raise SlotError(f"at is {at!r}; it must be a list of names.")
    if isinstance(at, str):
        raise SlotError(f"at is {at!r}; it must be a list of names, such as [{at!r}].")
    known = [name for name, _ in module_names(model) if name]
    names = list(at)
    if not names:
        raise SlotError(
            "at is empty; name at least one submodule (esper.find_slots suggests some)."
        )
    for name in names:
        if names.count(name) > 1:
            raise SlotError(f"at contains {name!r} twice; a block has one slot.")
        if name not in known and not is_pair_name(name):
            top = [name for name in known if "." not in name]
            hint = did_you_mean(name, known) or f" Its top-level submodules are {', '.join(top)}."
            raise SlotError(f"{type(model).__name__} has no submodule {name!r}.{hint}")
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
class SeedCost:
    """The cost of one blueprint's seed at a site."""

    parameters: int
    flops: int
    """FLOPs of one forward pass of one sample."""


class ProposalKind(IntEnum):
    """How good a place for growth is, before its share of the model counts; best first."""

    WIDTH = 0
    """New hidden units are merged into the model's own layers."""
    BLOCK = 1
    """Seeds grow beside the block."""
    STACK = 2
    """The block holds several proposed blocks of one kind."""


_REASONS = {
    ProposalKind.WIDTH: WITHIN,
    ProposalKind.BLOCK: f"widening cannot be merged, so {BESIDE}",
    ProposalKind.STACK: "the block holds other proposed blocks, which are better places",
}


@dataclass(frozen=True)
class SlotProposal:
    """A site where a model can have a slot."""

    site: SlotSite
    costs: dict[str, SeedCost]
    """Cost of each blueprint that fits, by name."""
    share: Share = field(default_factory=Share)
    """The part of the model that the block, or the layers of the pair, are."""
    place: ProposalKind = ProposalKind.BLOCK
    rank: int = 0
    """1 for the best place. Places where width can grow come first, then others, each by the mean
    of their shares."""

    @property
    def name(self) -> str:
        """The name to pass to :func:`esper.add_slots`."""
        return self.site.name

    @property
    def kind(self) -> TensorKind:
        """The kind of the block's output."""
        return self.site.kind

    @property
    def width(self) -> int:
        """Channels or features of the block's output."""
        return self.site.width

    @property
    def can_widen(self) -> bool:
        """Whether a widening seed can be merged into the model's own layers."""
        return self.site.can_widen

    def __repr__(self) -> str:
        return f"SlotProposal({_row_text(_cells(self))})"

    def __str__(self) -> str:
        merged = "can" if self.can_widen else "cannot"
        lines = [f"{self.name}: {self.kind.value}, width {self.width}; widening {merged} be merged"]
        lines += [f"  rank {self.rank}: {_REASONS[self.place]}; {self.share}"]
        lines += [
            f"  {name:<16}{cost.parameters:>12,} parameters {cost.flops:>14,} FLOPs/sample"
            for name, cost in self.costs.items()
        ]
        return "\n".join(lines)


class SlotProposals(tuple[SlotProposal, ...]):
    """Proposed sites, in module order; printing them gives a table."""

    @property
    def names(self) -> list[str]:
        """The names of the sites."""
        return [proposal.name for proposal in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no block of this model can have a slot"

    def __repr__(self) -> str:
        lines = [_row_text(_cells(proposal)) for proposal in self]
        return "\n".join([f"SlotProposals of {many(len(self), 'place')}", *lines])

    def _repr_html_(self) -> str:
        if not self:
            return html_lines([str(self)])
        headers = ("slot", "kind", "place", "seeds that fit", "rank", "width", "new parameters")
        return html_table(headers, map(_cells, self), n_left=4)


def _row_text(cells: tuple[str, ...]) -> str:
    name, kind, _, _, rank, width, parameters = cells
    return f"{name}: rank {rank}, {kind}, width {width}, {parameters} new parameters"


def _cells(proposal: SlotProposal) -> tuple[str, ...]:
    sizes = [cost.parameters for cost in proposal.costs.values()]
    minimum, maximum = min(sizes, default=0), max(sizes, default=0)
    return (
        proposal.name,
        proposal.kind.value,
        _REASONS[proposal.place],
        ", ".join(proposal.costs),
        str(proposal.rank),
        f"{proposal.width:,}",
        f"{minimum:,} to {maximum:,}" if minimum < maximum else f"{maximum:,}",
    )


def find_slots(model: nn.Module, sample_input: SampleInput) -> SlotProposals:
    """Propose sites for slots: blocks and pairs of layers of a model.

    A block is a module with submodules and parameters. If the model has no usable block, its layers
    with parameters are proposed. A pair is a layer and those that read its units. The model is run
    with hooks and does not change.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> proposals = esper.find_slots(model, torch.randn(2, 4))
        >>> [site.name for site in proposals]
        ['0', '0>2', '2']
    """
    require_growable(model)
    modules = named_modules(model)
    sites = [
        site
        for site in usable_sites(model, sample_input)
        if any(True for _ in modules[site.name].parameters())
    ]
    blocks = [site for site in sites if any(modules[site.name].children())]
    finder = PairFinder(model, sample_input)
    pairs = [finder.site_of(pair) for pair in finder.find_all().values()]
    order = {name: index for index, name in enumerate(modules)}
    found = sorted([*(blocks or sites), *pairs], key=lambda site: order[site.modules[0]])
    residual = {site.name: modules[site.name] for site in found if site.identity is not None}
    calls = record_blocks(model, residual, sample_input)
    table = ShareTable(model, sample_input)
    proposals = [
        SlotProposal(
            site,
            seed_costs(site, modules[site.modules[0]], calls.get(site.name)),
            table.share(site.modules),
            _kind_of(site, found, modules),
        )
        for site in found
    ]
    best = sorted(proposals, key=lambda each: (each.place, -each.share.score))
    return SlotProposals(replace(each, rank=best.index(each) + 1) for each in proposals)


def _kind_of(
    site: SlotSite, sites: list[SlotSite], modules: Mapping[str, nn.Module]
) -> ProposalKind:
    if site.can_widen:
        return ProposalKind.WIDTH
    inside = [
        modules[other.name]
        for other in sites
        if other.pair is None and other.name.startswith(f"{site.name}.")
    ]
    total = count_parameters(modules[site.name])
    for kind in {type(module) for module in inside}:
        alike = [module for module in inside if type(module) is kind]
        share = sum(map(count_parameters, alike)) / total
        is_container = len(alike) > 1 or isinstance(modules[site.name], nn.Sequential)
        if is_container and share > STACK_SHARE:
            return ProposalKind.STACK
    return ProposalKind.BLOCK


def seed_costs(
    site: SlotSite, block: nn.Module, call: BlockCall | str | None = None
) -> dict[str, SeedCost]:
    """Return the cost of each blueprint that fits a site.

    A call of the block serves to count the FLOPs of its copies.
    """
    costs: dict[str, SeedCost] = {}
    for name in fitting_blueprints(site, blueprint_names()):
        recipe = find_blueprint(name)
        if recipe.copies_block:
            if isinstance(call, BlockCall):
                costs[name] = SeedCost(count_parameters(block), _block_flops(block, call, site))
            continue
        with torch.random.fork_rng(devices=[]):
            seed = recipe.build_seed(site).eval()
        x = torch.zeros((1, *recipe.form.input_shape(site)[1:]))
        flops = count_flops(lambda seed=seed, x=x: seed(x))
        costs[name] = SeedCost(count_parameters(seed), flops)
    return costs


def _block_flops(block: nn.Module, call: BlockCall, site: SlotSite) -> int:
    """Return the FLOPs of a residual block for one sample."""
    assert site.input_key is not None
    key = site.input_key
    # With gradients, because the counter does not see fused operations without them.
    with evaluation_mode(block), torch.enable_grad(), unchanged_buffers(block):
        return count_flops(lambda: call.run(block, key, call.output)) // len(call.output)
