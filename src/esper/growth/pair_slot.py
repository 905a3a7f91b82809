"""Slots on pairs of layers: how new units run through a model's own code.

While such a slot is in use, the producer of the units returns them together with new ones, the
batch norms between treat the new ones separately, and each consumer reads them with new columns.
Everything else between is the model's own code, which simply gets a wider tensor.

The units of several slots meet in layers that are the consumer of one pair and the producer of
another, and where tensors are concatenated. In every tensor, new units follow those of their own
producer, oldest first. A seed reads and feeds the new units of neighbouring slots that were
committed when it was planted (``SlotLife.neighbours``), never units that could still be pruned.
When it is committed itself, it is linked to those that were committed since (``SlotLife.links``),
with zero weights that train from then on. So of two seeds, the one that is committed last has the
weights between them. Committed units come first in a slot, so a number says which ones they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.errors import ShapeError
from esper.growth.blending import blend, straight_through
from esper.growth.blueprints import SeedForm, find_blueprint
from esper.growth.blueprints.widening import PairSeed
from esper.growth.seed_slot import BlockWrapper, SeedSlot
from esper.growth.sharding import local_values, whole_values
from esper.growth.sites import Pair, PairLayer, SlotSite
from esper.growth.slot_states import Fossil, Neighbours, SlotLife, SlotStates
from esper.growth.unit_layers import fans_of, matrix_of
from esper.growth.weight_laws import WeightLaw
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage

ADDITIVE_STYLE: dict[BlendStyle, BlendStyle] = {
    BlendStyle.MULTIPLY_LINEAR: BlendStyle.ADD_LINEAR,
    BlendStyle.LEARNED_GATE: BlendStyle.ADD_LINEAR,
}
"""The style that new units of a pair have instead of one that does not exist for them."""


@dataclass(frozen=True)
class UnitGroup:
    """New units of a slot that were planted together."""

    seed: PairSeed
    alpha: float | Tensor
    """A tensor in a graph of ``torch.compile``."""
    is_isolated: bool
    """Whether they train without changing the model's output."""
    neighbours: dict[str, int]
    """New units of other slots that the seed reads or feeds, by slot."""
    links: dict[str, int]
    """Those after them that its links read or feed."""

    @property
    def n_units(self) -> int:
        """Number of units."""
        return self.seed.n_units


@dataclass(frozen=True)
class Source:
    """A slot whose units a layer reads."""

    slot: PairSlot
    part: int
    """Index of the layer among the consumers, or the norms, of the slot's pair."""
    layer: PairLayer
    """The layer, with the place of the slot's units in what it reads."""

    @property
    def end(self) -> int:
        """Where the units of the slot's producer end, and new ones follow."""
        return self.layer.offset + self.slot.pair.units * self.layer.per_unit

    def count(self, n_units: int) -> int:
        """Return the number of inputs that so many units have."""
        return n_units * self.layer.per_unit


@dataclass
class Wiring:
    """The slots that a layer takes part in."""

    layer: PairLayer
    module: nn.Module
    own: PairSlot | None = None
    """The slot whose units the layer produces."""
    sources: list[Source] = field(default_factory=list[Source])
    """The slots whose units it reads, in the order in which they are concatenated."""

    def run(self, x: Tensor) -> Tensor:
        """Return the output of the layer with all new rows and columns."""
        split = _Split(x, self)
        y = cast(Tensor, self.module(split.base()))
        axis = self.layer.unit_axis
        if self.own is not None and self.own.shown_groups:
            rows = [split.run_rows(group) for group in self.own.shown_groups]
            y = torch.cat([y, *(part.to(y.dtype) for part in rows)], dim=axis)
        for source, parts in zip(self.sources, split.new, strict=True):
            for group, part in zip(source.slot.shown_groups, parts, strict=True):
                changes = [columns(part) for columns in group.seed.column_parts(source.part)]
                change = changes[0] if len(changes) == 1 else torch.cat(changes, dim=axis)
                y = _add_change(y, change, axis, group)
        return y

    def run_norm(self, x: Tensor) -> Tensor:
        """Return the output of a norm, with the new units' own norms."""
        split = _Split(x, self)
        if not any(split.new):
            return self.module(x)
        y = cast(Tensor, self.module(split.base()))
        sizes = [chunk.shape[self.layer.unit_axis] for chunk in split.chunks]
        chunks = cast(tuple[Tensor, ...], y.split(sizes, dim=self.layer.unit_axis))
        outputs = [chunks[0]]
        for source, parts, chunk in zip(self.sources, split.new, chunks[1:], strict=True):
            for group, part in zip(source.slot.shown_groups, parts, strict=True):
                outputs.append(group.seed.norms[source.part](part))
            outputs.append(chunk)
        return torch.cat(outputs, dim=self.layer.unit_axis)

    def sizes(self, count_units: Callable[[PairSlot], int]) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of the layer with some of the new units."""
        n_in = self.layer.n_in
        n_in += sum(source.count(count_units(source.slot)) for source in self.sources)
        return n_in, self.layer.n_out + (0 if self.own is None else count_units(self.own))

    def new_parts(self) -> list[nn.Module]:
        """Return the rows and columns that seeds add to the layer."""
        found = [
            part
            for source in self.sources
            for group in source.slot.unit_groups
            for part in group.seed.column_parts(source.part)
        ]
        own = [] if self.own is None else self.own.unit_groups
        return found + [part for group in own for part in group.seed.row_parts()]

    def count_missing(self) -> int:
        """Return how many weights between new units no seed has, because one is not committed."""
        n_in, n_out = self.sizes(lambda slot: slot.n_new_units)
        matrix = matrix_of(self.module)
        held = sum(matrix_of(part).numel() for part in (self.module, *self.new_parts()))
        return n_in * n_out * math.prod(matrix.shape[2:]) - held


class _Split:
    """The input of a layer, cut into what it read before and the new units of each source."""

    def __init__(self, x: Tensor, wiring: Wiring) -> None:
        self.x = x
        self.axis = wiring.layer.unit_axis
        self.sources = wiring.sources
        self.chunks: list[Tensor] = []
        """What the layer read before: up to the end of each source, and the rest."""
        self.new: list[list[Tensor]] = []
        """The units of each shown group of each source."""
        self._require_size(wiring)
        position = base = 0
        for source in self.sources:
            self.chunks.append(x.narrow(self.axis, position, source.end - base))
            position, base = position + source.end - base, source.end
            parts: list[Tensor] = []
            for group in source.slot.shown_groups:
                parts.append(x.narrow(self.axis, position, source.count(group.n_units)))
                position += source.count(group.n_units)
            self.new.append(parts)
        self.chunks.append(x.narrow(self.axis, position, x.shape[self.axis] - position))

    def _require_size(self, wiring: Wiring) -> None:
        size = wiring.layer.n_in
        for source in self.sources:
            size += sum(source.count(group.n_units) for group in source.slot.shown_groups)
        if self.x.shape[self.axis] != size:
            raise ShapeError(
                f"{wiring.layer.name!r} gets {self.x.shape[self.axis]} inputs instead of {size}, "
                "which it has with new units."
            )

    def base(self) -> Tensor:
        """Return the layer's input without new units."""
        # Copied, so that the layer computes bit for bit what it computes without new units.
        return torch.cat(self.chunks, dim=self.axis) if any(self.new) else self.x

    def run_rows(self, group: UnitGroup) -> Tensor:
        """Return the units of a group of the layer's own slot."""
        pieces = [self.chunks[0]]
        linked: list[Tensor] = []
        for source, parts, chunk in zip(self.sources, self.new, self.chunks[1:], strict=True):
            n_read = source.count(group.neighbours.get(source.slot.name, 0))
            n_linked = source.count(group.links.get(source.slot.name, 0))
            read = self._read(parts, n_read + n_linked) if n_read + n_linked else None
            if read is not None and n_read:
                pieces.append(read.narrow(self.axis, 0, n_read))
            if read is not None and n_linked:
                linked.append(read.narrow(self.axis, n_read, n_linked))
            pieces.append(chunk)
        x = torch.cat(pieces, dim=self.axis) if len(pieces) > 1 else self.x
        rows, *links = group.seed.row_parts()
        units = cast(Tensor, rows(x.detach() if group.is_isolated else x))
        return units + links[0](torch.cat(linked, dim=self.axis)) if links else units

    def _read(self, parts: list[Tensor], size: int) -> Tensor:
        """Return the first new units of a source; zeros for those that are switched off."""
        shape = list(self.x.shape)
        shape[self.axis] = size
        padded = torch.cat([*parts, self.x.new_zeros(shape)], dim=self.axis)
        return padded.narrow(self.axis, 0, size)


def _add_change(y: Tensor, change: Tensor, axis: int, group: UnitGroup) -> Tensor:
    """Add what new units contribute to the outputs that existed when they were planted."""
    size, n_all = min(change.shape[axis], y.shape[axis]), y.shape[axis]
    head, change = y.narrow(axis, 0, size), change.narrow(axis, 0, size)
    join = straight_through if group.is_isolated else partial(blend, alpha=group.alpha)
    head = join(head, change)
    if size == n_all:
        return head
    return torch.cat([head, y.narrow(axis, size, n_all - size)], dim=axis)


class WideLayer(BlockWrapper):
    """Replaces a consumer or a norm while slots add units to what it reads."""

    def __init__(self, layer: PairLayer, block: nn.Module) -> None:
        super().__init__(block)
        self.wiring = Wiring(layer, block)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's output."""
        is_norm = self.wiring.layer.kind.startswith("BatchNorm")
        run = self.wiring.run_norm if is_norm else self.wiring.run
        return run(_input_of(args, kwargs))


class PairSlot(SeedSlot):
    """A slot on a pair of layers. It replaces the producer, which is its block."""

    def __init__(
        self, site: SlotSite, block: nn.Module, lives: SlotStates, model: nn.Module
    ) -> None:
        super().__init__(site, block, lives, model)
        assert site.pair is not None, "the site is a block"
        self.pair: Pair = site.pair
        self.form = SeedForm.PARALLEL
        self.wiring = Wiring(site.pair.producer, block, own=self)
        self.norm_wirings: list[Wiring] = []
        self.consumer_wirings: list[Wiring] = []
        self.shows_live = False
        """Whether the live seed's units are part of the tensor that is being computed."""

    @property
    def unit_groups(self) -> list[UnitGroup]:
        """All new units, in the order in which they were planted."""
        life = self.life
        planted: list[tuple[Any, float | Tensor, bool, Fossil | SlotLife]] = [
            (part.seed, fossil.alpha, False, fossil)
            for part, fossil in zip(self.absorbed, life.fossils, strict=True)
        ]
        if self.seed is not None:
            effect, alpha = self.current_effect()
            planted.append((self.seed, alpha, effect == "isolated", life))
        return [
            UnitGroup(seed, alpha, is_isolated, dict(own.neighbours), dict(own.links))
            for seed, alpha, is_isolated, own in planted
        ]

    @property
    def shown_groups(self) -> list[UnitGroup]:
        """The new units that are part of the tensor that is being computed."""
        return [
            group for group in self.unit_groups if self.shows_live or group.seed is not self.seed
        ]

    def is_committed(self, group: UnitGroup) -> bool:
        """Return whether new units of this slot can no longer be pruned."""
        return group.seed is not self.seed or self.stage == Stage.FOSSILIZED

    @property
    def n_new_units(self) -> int:
        """Number of new units."""
        return sum(group.n_units for group in self.unit_groups)

    @property
    def committed_units(self) -> int:
        """Number of new units that can no longer be pruned."""
        return sum(group.n_units for group in self.unit_groups if self.is_committed(group))

    @property
    def neighbours(self) -> list[PairSlot]:
        """The slots whose new units meet this slot's in a layer."""
        found = [source.slot for source in self.wiring.sources]
        found += [wiring.own for wiring in self.consumer_wirings if wiring.own is not None]
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the producer's output together with the new units."""
        self.shows_live = self.current_effect()[0] != "none"
        return self.wiring.run(_input_of(args, kwargs))

    def seen_units(self) -> Neighbours:
        """Return the committed units of other slots that a new seed would read or feed."""
        counts = [(slot.name, slot.committed_units) for slot in self.neighbours]
        return tuple((name, count) for name, count in counts if count)

    def connect(self) -> bool:
        """Link the seed, which has just been committed, to the units committed since it grew."""
        seen = dict(self.life.neighbours)
        found = [(name, count - seen.get(name, 0)) for name, count in self.seen_units()]
        links = tuple((name, count) for name, count in found if count > 0)
        if links:
            self.life.links = links
            self.seed = self._linked(cast(PairSeed, self.seed), self.life)
        return bool(links)

    def _linked(self, seed: PairSeed, life: SlotLife | Fossil) -> PairSeed:
        pair = self._beside(self.site, life.connections).pair
        assert pair is not None, "the site is a block"
        return seed.linked(pair)

    def _new_site(self) -> SlotSite:
        """Return the site as a new seed would see it once all seeds are committed."""
        units = tuple((slot.name, slot.n_new_units) for slot in self.neighbours)
        return self._beside(self._site_after(self.life.units), units)

    def _beside(self, site: SlotSite, units: Neighbours) -> SlotSite:
        pairs = {slot.name: slot.pair for slot in self.neighbours}
        return site.beside((pairs[name], count) for name, count in units)

    def plant(self, blueprint: str, style: BlendStyle) -> None:
        """Build a blueprint's units, drawing their weights from torch's default generator."""
        self.life.neighbours = self.seen_units()
        super().plant(blueprint, style)
        self.draw_weights(is_start=False)

    def _build(self, blueprint: str, style: BlendStyle, units: int) -> None:
        life, n_built = self.life, len(self.absorbed)
        # A fossil is being rebuilt, or the seed is built after all of them.
        planted = life.fossils[n_built] if n_built < len(life.fossils) else life
        site = self._beside(self._site_after(units), planted.neighbours)
        seed = find_blueprint(blueprint).build_seed(site).to(**self._tensor_options())
        if planted.links:
            seed = self._linked(cast(PairSeed, seed), planted)
        self.seed = seed
        self.seed.train(self.block.training)

    def called_parts(self) -> list[nn.Module]:
        """Return the layers of the fossils and the seed, which are called one by one."""
        seeds = [group.seed for group in self.unit_groups]
        return [
            layer
            for seed in seeds
            for layer in seed.modules()
            if any(True for _ in layer.parameters(recurse=False))
        ]

    def _added_units(self) -> int:
        return cast(PairSeed, self.seed).n_units

    def restyle(self, style: BlendStyle) -> None:
        """Do nothing: units are always added, without a gate."""

    def find_start_problem(self) -> str | None:
        """Return why the new units would change the host's output, or None if they would not."""
        seed = cast(PairSeed, self.seed)
        if not all(bool(torch.isfinite(local_values(p)).all()) for p in seed.parameters()):
            return "the weights of the new units are not finite"
        if not seed.is_new:
            return "the new units do not cancel, so they would change the host's output"
        return None

    def parameter_homes(self) -> list[tuple[list[nn.Parameter], list[nn.Parameter]]]:
        """Return the parameters of each layer of the pair with those that were grown beside it."""
        homes: list[tuple[list[nn.Parameter], list[nn.Parameter]]] = []
        wirings = [self.wiring, *self.norm_wirings, *self.consumer_wirings]
        seeds = [part.seed for part in (*self.absorbed, self) if part.seed is not None]
        for seed in cast(list[PairSeed], seeds):
            columns = [seed.column_parts(part) for part in range(len(seed.columns))]
            parts = [seed.row_parts(), *([norm] for norm in seed.norms), *columns]
            homes += [
                (list(wiring.module.parameters()), [p for part in own for p in part.parameters()])
                for wiring, own in zip(wirings, parts, strict=True)
            ]
        return homes

    @torch.no_grad()
    def draw_weights(self, *, is_start: bool) -> None:
        """Draw the new units' weights so that each layer is distributed like one built this wide.

        Args:
            is_start: Whether the model has not been trained. Then the weights that the layers
                already have are rescaled to the deviation of the wider layer, which changes the
                model's output; otherwise the new units cancel in pairs.
        """
        seed = cast(PairSeed, self.seed)
        for wiring, part in zip(
            [self.wiring, *self.consumer_wirings], [seed.rows, *seed.columns], strict=True
        ):
            module = wiring.module
            before = fans_of(module, *wiring.sizes(lambda slot: _count(slot, without=seed)))
            after = fans_of(module, *wiring.sizes(lambda slot: _count(slot, including=seed)))
            for name in ("weight", "bias"):
                old = cast(Tensor | None, getattr(module, name, None))
                if old is None:
                    continue
                law = WeightLaw.of(whole_values(old), *before)
                if is_start:
                    parts = [old, *(getattr(each, name, None) for each in wiring.new_parts())]
                    for tensor in parts:
                        if tensor is not None:
                            tensor.mul_(law.growth(before, after))
                drawn = cast(Tensor | None, getattr(part, name, None))
                if drawn is not None:
                    law.draw(drawn, *after)
        if not is_start:
            seed.mirror()
            return
        for columns in seed.columns:
            cast(Tensor, columns.weight).div_(self.alpha)


def _count(
    slot: PairSlot, *, without: PairSeed | None = None, including: PairSeed | None = None
) -> int:
    """Return the number of a slot's committed units, without or including those of a seed."""
    counted = [
        group
        for group in slot.unit_groups
        if group.seed is including or (slot.is_committed(group) and group.seed is not without)
    ]
    return sum(group.n_units for group in counted)


def _input_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else next(iter(kwargs.values()))


def _leave_unchanged(module: nn.Module, args: Any, output: Any) -> None:
    """Do nothing; see :meth:`PairNetwork.refresh`."""


class PairNetwork:
    """All slots on pairs of one model, and the modules that replace its layers for them."""

    def __init__(self, model: nn.Module, slots: Sequence[PairSlot]) -> None:
        self.slots = list(slots)
        self._inserted: set[str] = set()
        self.wrappers: dict[str, PairSlot | WideLayer] = {
            slot.pair.producer.name: slot for slot in slots
        }
        """The replacement of each layer, by its name in the model."""
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for slot in slots:
            for layer in slot.pair.layers:
                if layer.name not in self.wrappers:
                    block = model.get_submodule(layer.name)
                    self.wrappers[layer.name] = WideLayer(layer, block)
                parent, _, attribute = layer.name.rpartition(".")
                self._places[layer.name] = (model.get_submodule(parent), attribute)
            slot.norm_wirings = self._connect(slot, slot.pair.norms)
            slot.consumer_wirings = self._connect(slot, slot.pair.consumers)

    def count_missing(self) -> int:
        """Return how many parameters there will be more when all seeds are committed."""
        return sum(slot.wiring.count_missing() for slot in self.slots)

    def _connect(self, slot: PairSlot, layers: Sequence[PairLayer]) -> list[Wiring]:
        wirings = [self.wrappers[layer.name].wiring for layer in layers]
        for part, (wiring, layer) in enumerate(zip(wirings, layers, strict=True)):
            wiring.sources.append(Source(slot, part, layer))
            wiring.sources.sort(key=lambda source: source.end)
        return wirings

    def place(self, slot: PairSlot, *, is_used: bool) -> None:
        """Put the replacements of a slot's layers into the model, or those layers that no other
        slot uses back."""
        (self._inserted.add if is_used else self._inserted.discard)(slot.name)
        used = [each for each in self.slots if each.name in self._inserted]
        needed = {layer.name for each in used for layer in each.pair.layers}
        for layer in slot.pair.layers:
            wrapper, (parent, attribute) = self.wrappers[layer.name], self._places[layer.name]
            # The model's mode may have changed while the wrapper was out of it.
            wrapper.training = wrapper.block.training
            setattr(parent, attribute, wrapper if layer.name in needed else wrapper.block)

    def refresh(self) -> None:
        """Disable torch's inference fast paths where new units change the model's output.

        These paths read the weights of layers without calling them, unless a module has a hook.
        """
        for slot in self.slots:
            hooks: dict[int, Any] = slot.__dict__["_forward_hooks"]
            is_needed = slot.fossils is not None or (slot.seed is not None and slot.alpha > 0.0)
            if is_needed and not hooks:
                slot.register_forward_hook(_leave_unchanged)
            elif not is_needed:
                hooks.clear()
