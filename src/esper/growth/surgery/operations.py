"""Carrying out a change of a model whole, or not at all."""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.config.growth import MAX_BLOCKS
from esper.config.memory import require_memory
from esper.errors import SurgeryError, did_you_mean, message_of
from esper.growth.dry_run import (
    SampleInput,
    call_model,
    require_batch,
    require_runnable,
    tensors_in,
    why_it_fails,
)
from esper.growth.host_slots import own_slots, unwrapped
from esper.growth.modules import (
    count_parameters,
    named_modules,
    named_tensors,
    seeded,
    unchanged_buffers,
)
from esper.growth.optimizers import listed_optimizers
from esper.growth.residual_blocks import NORM_TOLERANCE
from esper.growth.sharding import find_mesh
from esper.growth.surgery.blocks import add_blocks, find_block_lists, outer_lists
from esper.growth.surgery.carrying import as_list, carry_optimizers, own_module
from esper.growth.surgery.checking import describe_difference, largest_difference, tolerance_for
from esper.growth.surgery.configuration import (
    SizeChange,
    copy_configuration,
    find_sizes,
    follow_sizes,
    has_configuration,
    rebuilt,
    require_valid,
)
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.places import STAR, BlockList, Group, Place, group_places, matches
from esper.growth.surgery.tracing import PlaceFinder
from esper.growth.surgery.units import add_units
from esper.modes import evaluation_mode

At = str | Sequence[str] | None
"""Names of what to change; None for everything."""

MAX_LEFT_OUT = 4
"""With more groups, it is not tried which of them to leave out; each try takes a while."""

HEADS_NOTE = (
    "Attention heads were added: a class that computes their size from its width cannot be built "
    "with so many; name the MLPs in at= to leave heads alone."
)

N_SEEDS = 16
"""Seeds with which a model that draws random numbers must return the same."""


@dataclass(frozen=True)
class ChangedPlace:
    """One row of a change: what grew, and by how much."""

    place: str
    before: int
    after: int
    unit: str
    """What is counted: "units", "heads" or "blocks"."""
    members: int
    """How many places grew alike."""
    parameters: int
    """New parameters of all of them."""


@dataclass(frozen=True)
class Result:
    """A change that was carried out."""

    edits: list[Edits]
    """The edits of the model, then those of its moving averages."""
    places: list[ChangedPlace]
    n_new: int
    difference: float
    notes: list[str]


class Plan(ABC):
    """What to change in a model: widths or depths."""

    verb: str
    """What it does, as a participle."""
    needs: str
    """What a model lacks that has nothing to change and no problems."""
    lacks: str
    """What a module lacks that cannot be changed and has no problem."""
    groups: Sequence[Any]
    """What can be changed; each has a ``name``."""
    problems: Mapping[str, str]
    """Why other places cannot be changed, by name."""

    def members(self, group: Any) -> Sequence[Any]:
        """Return groups of one member each, which can be changed alone."""
        return [group]

    def variants(self) -> list[Plan]:
        """Return the ways of changing the model, the best one first."""
        return [self]

    def tolerance(self, chosen: Sequence[Any]) -> float:
        """Return the relative difference of outputs that a change may cause, beyond rounding."""
        return 0.0

    def are_heads(self, group: Any) -> bool:
        """Return whether a group is of attention heads."""
        return False

    def find_difference(self, chosen: Sequence[Any]) -> str | None:
        """Return the name of a layer that takes in something else on noise, if that is known."""
        return None

    def unclear(self, at: At) -> list[str]:
        """Return what to say about places that this sample does not tell enough of."""
        return []

    @abstractmethod
    def apply(
        self, edits: Edits, chosen: Sequence[Any], source: Mapping[str, Tensor] | None
    ) -> None:
        """Change some groups together; new values may be taken from a model that has them."""

    @abstractmethod
    def sizes(self, group: Any) -> list[SizeChange]:
        """Return the sizes of a group before and after, what users know it by first."""

    @abstractmethod
    def row(self, group: Any, edits: Edits) -> ChangedPlace:
        """Return what became of a group."""


class Widening(Plan):
    """Adds units to groups of places."""

    verb = "widened"
    needs = "it has no linear, convolutional, recurrent or embedding layers"
    lacks = "It computes no units that another layer reads."

    def __init__(
        self, operation: Operation, factor: float, generator: torch.Generator | None
    ) -> None:
        finder = PlaceFinder(operation.model, operation.sample_input)
        self.groups = group_places(operation.model, finder.find_all())
        self.problems = finder.problems
        self._finder = finder
        self._factor, self._generator = factor, generator
        kind = type(operation.model)
        if kind.__module__.startswith("torch.nn.") and not any(operation.model.children()):
            self.needs = (
                f"it is a single layer, nn.{kind.__name__}, whose outputs no other layer reads; "
                "wrap it in a module together with the layer that reads it"
            )

    def members(self, group: Group) -> list[Group]:
        """Return each place of a group alone."""
        return [Group(place.name, (place,)) for place in group.places]

    def are_heads(self, group: Group) -> bool:
        """Return whether a group is of attention heads."""
        return group.heads is not None

    def find_difference(self, chosen: Sequence[Group]) -> str | None:
        """Return the name of a layer that takes in something else of old units, if any."""
        return self._finder.noise.find_difference(self._counts(chosen))

    def unclear(self, at: At) -> list[str]:
        """Return what to say about places that this sample does not tell enough of."""
        problems = self._finder.unclear.items() if at is None else ()
        return [f"Left alone: {name}, because {why}" for name, why in problems][:1]

    def apply(
        self, edits: Edits, chosen: Sequence[Group], source: Mapping[str, Tensor] | None
    ) -> None:
        """Add units to all places of some groups.

        Raises:
            ConfigError: If there is no memory for them.
        """
        counts = self._counts(chosen)
        tensors = named_tensors(edits.model)
        n_bytes = sum(
            count / place.units * tensors[each.tensor].nbytes
            for place, count in counts.items()
            for each in place.entries
        )
        require_memory(n_bytes, factor=self._factor)
        add_units(edits, counts, generator=self._generator, source=source)

    def sizes(self, group: Group) -> list[SizeChange]:
        """Return the units or heads of each place before and after."""
        return find_sizes(group, self._n_new(group))

    def row(self, group: Group, edits: Edits) -> ChangedPlace:
        """Return what became of a group; weights between two new units count for both."""
        axes: dict[str, set[int]] = {}
        for entries in (entries for place in group.places for entries in place.entries):
            axes.setdefault(entries.tensor, set()).add(entries.axis)
        n_new = 0
        for each in edits.replaced:
            if each.name in axes and isinstance(each.new, nn.Parameter):
                assert each.old is not None, "the tensor has got more entries"
                old = [
                    each.old.shape[axis] if axis in axes[each.name] else size
                    for axis, size in enumerate(each.new.shape)
                ]
                n_new += each.new.numel() - math.prod(old)
        size, unit = self.sizes(group)[0], "units" if group.heads is None else "heads"
        return ChangedPlace(group.name, size.before, size.after, unit, len(group.places), n_new)

    def _counts(self, chosen: Sequence[Group]) -> dict[Place, int]:
        return {place: self._n_new(group) for group in chosen for place in group.places}

    def _n_new(self, group: Group) -> int:
        return max(1, round(group.units * (self._factor - 1.0)))


class Deepening(Plan):
    """Adds copies of blocks to lists of blocks."""

    verb = "deepened"
    needs = "it has no nn.ModuleList or nn.Sequential of blocks, modules with layers inside"
    lacks = "It is not a list of residual blocks."

    def __init__(
        self, operation: Operation, by: int | None, to: int | None, *, is_identity: bool
    ) -> None:
        problems: dict[str, str] = {}
        found = find_block_lists(operation.model, operation.sample_input, problems)
        self.problems = problems
        self.groups = outer_lists(found)
        self._by, self._to, self._is_identity = by, to, is_identity
        self._period = 1

    def tolerance(self, chosen: Sequence[BlockList]) -> float:
        """Allow for the epsilon of norms that copies end in, and for copies with weights."""
        has_norms = any(
            identity.norms
            for blocks in chosen
            for identity in blocks.identities
            if identity is not None
        )
        return (NORM_TOLERANCE if has_norms else 0.0) if self._is_identity else math.inf

    def variants(self) -> list[Plan]:
        """Copy block by block, or two blocks at a time if they take turns."""
        pairwise = copy.copy(self)
        pairwise._period = 2
        return [self, pairwise]

    def apply(
        self, edits: Edits, chosen: Sequence[BlockList], source: Mapping[str, Tensor] | None
    ) -> None:
        """Insert copies into some lists."""
        for blocks in chosen:
            sources = self.sizes(blocks)[0].sources
            add_blocks(edits, blocks, sources, start="zero" if self._is_identity else "copy")

    def sizes(self, group: BlockList) -> list[SizeChange]:
        """Return the length of a list before and after."""
        sources = group.spread(self._n_new(group), self._period)
        return [SizeChange(group.length, len(sources), sources)]

    def row(self, group: BlockList, edits: Edits) -> ChangedPlace:
        """Return what became of a list."""
        (size,) = self.sizes(group)
        before, after = size.before - group.n_layers, size.after - group.n_layers
        entries = list(edits.model.get_submodule(group.container).children())
        copies = [k for k, index in enumerate(size.sources) if index in size.sources[:k]]
        n_new = sum(count_parameters(entries[k]) for k in copies)
        return ChangedPlace(group.name, before, after, "blocks", 1, n_new)

    def _n_new(self, blocks: BlockList) -> int:
        n_blocks = blocks.length - blocks.n_layers
        if max(self._to or 0, n_blocks + (self._by or 0)) > MAX_BLOCKS:
            name, value = ("by", self._by) if self._to is None else ("to", self._to)
            raise SurgeryError(
                f"{name} is {value:,}; {blocks.name} has {n_blocks:,} blocks and may have at most "
                f"{MAX_BLOCKS:,}."
            )
        if self._to is None:
            assert self._by is not None, "either by or to is given"
            return self._by
        if self._to <= n_blocks:
            raise SurgeryError(
                f"to is {self._to}, but {blocks.name} has {n_blocks} blocks already; give a larger "
                "number, or at= for other lists."
            )
        return self._to - n_blocks


class Operation:
    """A change of one model that is carried out whole or not at all."""

    def __init__(
        self, model: nn.Module, sample_input: SampleInput | None, optimizer: Any, ema: Any
    ) -> None:
        """Check what is given and run the model.

        Raises:
            SurgeryError: If the model cannot be changed in place, or be compared on the sample.
        """
        _require_changeable(model)
        require_batch(sample_input, SurgeryError)
        self.model = unwrapped(model)
        self.sample_input: Any = sample_input
        self._optimizers = listed_optimizers(optimizer, self.model, SurgeryError)
        self.has_optimizer = bool(self._optimizers)
        averages = as_list(ema, nn.Module, "ema", SurgeryError)
        self._averages = [own_module(each) for each in averages]
        self.inexpressible = ""
        """What was changed although the configuration cannot express it, and why that is so."""
        self._draws_numbers = False
        self._rejection = ""
        """Why the last configuration that was tried is invalid, in the words of its class."""
        self._before = self._run_model()
        self._require_comparable()

    def run(self, plan: Plan, at: At) -> Result:
        """Change what is named, compare the outputs, and carry along what follows the model.

        Raises:
            SurgeryError: If nothing can be changed, or the outputs would change.
        """
        chosen, notes = select(plan, at, self.model), list[str]()
        n_before = count_parameters(self.model)
        edits = list[Edits]()
        try:
            if has_configuration(self.model):
                plan, chosen, own, notes = self._fit_configuration(
                    plan, chosen, is_named=at is not None
                )
            else:
                own = Edits(self.model)
                plan.apply(own, chosen, None)
            edits.append(own)
            difference = self._compare(plan, chosen)
            notes += carry_optimizers(own, self._optimizers)
            for average in self._averages:
                edits.append(Edits(average))
                plan.apply(edits[-1], chosen, named_tensors(self.model))
                copy_configuration(edits[-1], self.model)
        except BaseException:
            for each in reversed(edits):
                each.undo()
            raise
        rows = [plan.row(each, edits[0]) for each in chosen]
        if any(row.unit == "heads" for row in rows) and not has_configuration(self.model):
            notes.append(HEADS_NOTE)
        notes += plan.unclear(at)
        n_new = count_parameters(self.model) - n_before
        return Result(edits, rows, n_new, difference, notes)

    def _require_comparable(self) -> None:
        """Raise if the outputs on the sample would not show a difference."""
        name = type(self.model).__name__
        if not any(output.numel() for output in self._before):
            raise SurgeryError(
                f"{name} returns no floating-point tensor with values, by itself or in a tuple, "
                "list or dictionary, so nothing can be compared; let it return its logits."
            )
        if any(bool(output.isnan().any()) for output in self._before):
            raise SurgeryError(
                f"{name} returns NaN on this sample_input, so nothing can be compared; give a "
                "batch, and weights, that it returns numbers for."
            )
        if any(self._differs(seed) for seed in range(1, N_SEEDS if self._draws_numbers else 2)):
            raise SurgeryError(
                f"{name} returns other values each time that it is run, so nothing can be "
                "compared; switch off what is random in it."
            )

    def _fit_configuration(
        self, plan: Plan, chosen: Sequence[Any], *, is_named: bool
    ) -> tuple[Plan, Sequence[Any], Edits, list[str]]:
        """Change the model without what its configuration cannot express, unless it was named.

        Returns:
            The way of changing the model, what is changed, the changes, and what to say about the
            rest.
        """
        best, kept = plan, list[Any]()
        for variant in plan.variants():
            if edits := self._apply_whole(variant, chosen):
                return variant, chosen, edits, []
            # Most configurations that cannot follow have no field for the number of heads alone.
            plain = [each for each in chosen if not plan.are_heads(each)]
            if 0 < len(plain) < len(chosen) and (edits := self._apply_whole(variant, plain)):
                edits.undo()
                best, kept = variant, plain
                break
            alone = [[each] for each in chosen] if len(chosen) > 1 else []
            # Fields may give the sizes of several groups, so that none can change alone.
            but_one = [[each for each in chosen if each is not left] for left in chosen]
            but_one = but_one if 2 < len(chosen) <= MAX_LEFT_OUT else []
            own: list[Any] = []
            for part in (*but_one, *alone):
                if len(own) < len(chosen) - 1 and (edits := self._apply_whole(variant, part)):
                    edits.undo()
                    own += part
            if len(own) > len(kept):
                best, kept = variant, own
        others = ", ".join(each.name for each in chosen if each not in kept) + self._rejection
        if is_named:
            note = (
                f"The configuration cannot express {others}, so from_pretrained cannot load the "
                "model; save the module itself."
            )
            edits = Edits(self.model)
            plan.apply(edits, chosen, None)
            self.inexpressible = others
            return plan, chosen, edits, [note]
        edits = self._apply_whole(best, kept) if kept else None
        if edits is None:
            raise SurgeryError(
                f"the configuration of {type(self.model).__name__} cannot express a change of "
                f"{others}; to change it all the same, name it in at=."
            )
        note = f"Left alone, because the configuration cannot express it: {others}."
        return best, kept, edits, [note]

    def _apply_whole(self, plan: Plan, chosen: Sequence[Any]) -> Edits | None:
        """Change the model and its configuration; None, and no change, if that cannot follow."""
        edits = Edits(self.model)
        sizes = [size for each in chosen for size in plan.sizes(each)]
        is_done = False
        try:
            if all(size.before < size.after for size in sizes):
                plan.apply(edits, chosen, None)
                is_done = follow_sizes(edits, sizes, lambda: self._loads_alike(edits))
        finally:
            if not is_done:
                edits.undo()
        return edits if is_done else None

    @torch.no_grad()
    def _loads_alike(self, edits: Edits) -> bool:
        """Compare the model with one built from its configuration; new parts have an effect."""
        try:
            require_valid(self.model)
        except Exception as error:  # a class checks the values of its configuration in any way
            self._rejection = _reason_in(error)
            return False
        generator = torch.Generator().manual_seed(0)
        new = [each.new for each in edits.replaced if each.has_new_entries]
        values = [tensor.detach().clone() for tensor in new]
        for tensor in new:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator).to(tensor))
        try:
            twin = rebuilt(self.model)
            own, other = self._run_model(), self._run_model(twin)
        # A class may be built or loaded in a way of its own; then nothing is known.
        except Exception as error:
            self._rejection = _reason_in(error)
            return False
        finally:
            for tensor, value in zip(new, values, strict=True):
                tensor.copy_(value)
        return largest_difference(own, other) <= tolerance_for(own)

    def _compare(self, plan: Plan, chosen: Sequence[Any]) -> float:
        """Return how much the outputs have changed.

        Raises:
            SurgeryError: If it is more than rounding.
        """
        try:
            difference = self._difference()
        except SurgeryError as error:
            raise SurgeryError(f"the model cannot be {plan.verb}: {error}") from error
        if difference > max(tolerance_for(self._before), plan.tolerance(chosen)):
            raise SurgeryError(
                f"the model cannot be {plan.verb}: its outputs would "
                f"{describe_difference(difference)}. Nothing has changed; name single places in "
                "at= to find which."
            )
        layer = plan.find_difference(chosen)
        if layer is not None:
            raise SurgeryError(
                f"the model cannot be {plan.verb}: {layer or 'its output'} would change on other "
                "inputs. Nothing has changed; name single places in at= to find which."
            )
        return difference

    def _differs(self, seed: int) -> bool:
        """Return whether the model returns something else with another seed."""
        again = self._run_model(seed=seed)
        return largest_difference(self._before, again) > tolerance_for(self._before)

    def _difference(self) -> float:
        return largest_difference(self._before, self._run_model())

    def _run_model(self, other: nn.Module | None = None, *, seed: int = 0) -> list[Tensor]:
        model = self.model if other is None else other
        try:
            with (
                evaluation_mode(model),
                unchanged_buffers(model),
                torch.no_grad(),
                seeded(seed),
            ):
                state = torch.default_generator.get_state()
                outputs = tensors_in(call_model(model, self.sample_input))
                self._draws_numbers = not torch.equal(state, torch.default_generator.get_state())
        except Exception as error:
            raise SurgeryError(
                f"{type(self.model).__name__} fails on this sample_input "
                f"({why_it_fails(model, self.sample_input, error)})."
            ) from error
        return [output.clone() for output in outputs]


def select(plan: Plan, at: At, model: nn.Module) -> list[Any]:
    """Return the groups, or single members of groups, that are named; all by default."""
    if not plan.groups:
        reasons = [f"{name}: {why.rstrip('.')}" for name, why in plan.problems.items()][:3]
        more = "; ".join(reasons) or plan.needs
        raise SurgeryError(f"nothing in this model can be {plan.verb} ({more}).")
    if at is None:
        return list(plan.groups)
    names = [at] if isinstance(at, str) else list(at) if isinstance(at, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise SurgeryError(
            f"at is {at!r:.60}; it must be a name or a list of names, such as "
            f"{plan.groups[0].name!r}."
        )
    chosen: list[Any] = []
    for name in names:
        found = [group for group in plan.groups if matches(group.name, name)]
        if not found:
            single = [each for group in plan.groups for each in plan.members(group)]
            found = [each for each in single if matches(each.name, name)]
        if not found:
            known = [group.name for group in plan.groups]
            hint = _find_reason(plan.problems, name) or did_you_mean(name, known)
            if not hint and name in named_modules(model):
                hint = f" {plan.lacks}"
            raise SurgeryError(
                f"{name!r} cannot be {plan.verb}.{hint} What can: {', '.join(known)}."
            )
        chosen += [group for group in found if group not in chosen]
    return chosen


def _find_reason(problems: Mapping[str, str], wanted: str) -> str:
    """Return why a place of a name cannot be changed; what repeats has the reasons of the first."""

    def general(name: str) -> str:
        return re.sub(r"\b\d+\b", STAR, name)

    for name, why in problems.items():
        is_like = any(map(str.isalpha, wanted)) and matches(general(name), general(wanted))
        if matches(name, wanted) or is_like or wanted.startswith(f"{name}."):
            return f" {name}: {why.rstrip('.')}."
    return ""


def _reason_in(error: Exception) -> str:
    return f" ({message_of(error.__cause__ or error).rstrip('.')})"


def _require_changeable(model: nn.Module) -> None:
    """Reject models whose layers cannot be replaced in place.

    Raises:
        SurgeryError: Saying what to do instead.
    """
    require_runnable(model, SurgeryError)
    if isinstance(model, cast(Any, (DataParallel, DistributedDataParallel))):
        raise SurgeryError(
            f"model is wrapped in {type(model).__name__}; change model.module and wrap it again."
        )
    if own_slots(unwrapped(model)) is not None:
        raise SurgeryError("the model has slots; call this before esper.add_slots.")
    if find_mesh(model) is not None:
        raise SurgeryError("the model is sharded; change it before fully_shard.")
