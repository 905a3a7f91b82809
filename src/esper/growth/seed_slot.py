"""The module that wraps a block while a seed grows beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from esper.errors import ShapeError, SlotError, blame_user_code
from esper.growth.blending import blend, effective_change, straight_through
from esper.growth.blueprints import SeedForm, find_blueprint
from esper.growth.modules import count_parameters, parameters_of
from esper.growth.sharding import find_mesh, gathered_copy
from esper.growth.sites import SlotSite, TensorKind, describe
from esper.growth.slot import SlotBase
from esper.growth.slot_states import Fossil, SlotLife, SlotStates
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage

_CPU = torch.device("cpu")

ROUNDING = 64
"""Largest output of a new seed, in machine epsilons: what remains when units of size 1 cancel."""


class AbsorbedSeed(nn.Module):
    """A committed seed that has become part of its slot's block."""

    def __init__(self, seed: nn.Module, gate: nn.Module | None, form: SeedForm) -> None:
        super().__init__()
        self.seed = seed
        self.gate = gate
        self.form = form
        self.training = seed.training


SeedParts = tuple[nn.Module | None, nn.Module | None, SeedForm, tuple[AbsorbedSeed, ...]]
"""What a slot beside a block holds: seed, gate, what the seed reads, and fossils."""


SeedEffect = Literal["none", "isolated", "blended"]
"""What a slot does with its seed in a forward pass; an isolated seed gets gradients without
changing the output.

These are strings because ``torch.compile`` compares strings whenever it runs a graph. An enum
member that it has also seen as a global it takes for granted, so a graph that was compiled for two
seeds would outlive the stage of the second one.
"""


class SeedSlot(SlotBase, nn.Module):
    """A block, the seeds that have become part of it, and the seed that grows on both.

    An empty slot costs nothing: it replaces the block in the model only while it holds a seed.
    Attributes that it does not have are those of the block.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0"], sample_input=x)
        >>> slot = esper.slots(model)["0"]
        >>> isinstance(slot, esper.SeedSlot), slot.life.stage.name
        (True, 'DORMANT')
    """

    def __init__(
        self, site: SlotSite, block: nn.Module, lives: SlotStates, model: nn.Module | None = None
    ) -> None:
        """Wrap a block; ``model`` provides dtype and device if the block has no parameters."""
        super().__init__()
        self.block = block
        self.training = block.training
        self._model = (model,)  # in a tuple, so that it is not registered as a submodule
        self.site = site
        self.seed: nn.Module | None = None
        self.gate: nn.Module | None = None
        """Computes the gate of the gated style, one number per position."""
        self.form = SeedForm.SERIAL
        self.fossils: nn.ModuleList | None = None
        """A :class:`AbsorbedSeed` for each fossil of the slot's life; None without one."""
        self.is_off = False
        """Whether the seed is disabled, to measure what it contributes; fossils never are."""
        self._lives = lives
        # What compiled graphs read. A graph compares every string of a tuple, so the effects are
        # two attributes: validation is not compiled again for what differs in training alone.
        self._effect_without_grad: SeedEffect = "none"
        self._effect_with_grad: SeedEffect = "none"
        self._traced_alpha = (0.0, torch.zeros((), device=_CPU))
        """Alpha as a number and as a tensor."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "_modules" not in self.__dict__ or name == "block":
                raise
            return getattr(self.block, name)

    def __len__(self) -> int:
        return len(cast(Any, self.block))

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self.block)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(cast(Any, self.block))

    def __bool__(self) -> bool:
        return True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the grown block's output, changed by the seed according to its stage."""
        y = self.block(*args, **kwargs)
        life = self.life
        for part, fossil in zip(self.absorbed, life.fossils, strict=True):
            change = self._change(part, fossil, y, args, kwargs)
            y = blend(y, change, fossil.alpha)
        effect, alpha = self.current_effect()
        if effect == "blended":
            return blend(y, self._change(self, life, y, args, kwargs), alpha)
        if effect == "isolated":
            change = self._change(self, life, y.detach(), args, kwargs, is_isolated=True)
            return straight_through(y, change)
        return y

    def current_effect(self) -> tuple[SeedEffect, float | Tensor]:
        """Return what the seed does in this forward pass, and its alpha.

        In a graph of ``torch.compile`` alpha is a tensor, so that a graph serves for all epochs of
        a ramp, and for all stages in which the effect is the same.
        """
        needs_grad = torch.is_grad_enabled()
        if torch.compiler.is_compiling():
            effect = self._effect_with_grad if needs_grad else self._effect_without_grad
            return effect, self._traced_alpha[1]
        return self._find_effects()[needs_grad], self.life.alpha

    def _find_effects(self) -> tuple[SeedEffect, SeedEffect]:
        """Return what the seed does in a forward pass without gradients, and in one with them."""
        if self.seed is None or self.is_off:
            return "none", "none"
        if self.stage == Stage.TRAINING:
            return "none", "isolated"
        if self.stage == Stage.GERMINATED or self.alpha == 0.0:
            return "none", "none"
        return "blended", "blended"

    def refresh(self) -> None:
        """Tell compiled graphs what the life says; called whenever that may have changed."""
        if self.seed is None and self._effect_with_grad == self._effect_without_grad == "none":
            return
        self._effect_without_grad, self._effect_with_grad = self._find_effects()
        if self.alpha != self._traced_alpha[0]:
            device = self._tensor_options().get("device", _CPU)
            self._traced_alpha = (self.alpha, torch.tensor(self.alpha, device=device))

    def plant(self, blueprint: str, style: BlendStyle) -> None:
        """Build a blueprint's seed, drawing its weights from torch's default generator."""
        self._build(blueprint, style)

    def count_new(self, blueprint: str) -> int:
        """Return how many parameters a seed of a blueprint would add, without a gate."""
        with torch.random.fork_rng(devices=[]):
            return count_parameters(find_blueprint(blueprint).build_seed(self.site))

    def count_live(self) -> int:
        """Return how many parameters the seed and its gate have."""
        return sum(parameter.numel() for parameter in self.seed_parameters())

    def count_fossils(self) -> int:
        """Return how many parameters the fossils have."""
        return count_parameters(self.fossils)

    can_blend: bool = True

    def is_full(self) -> bool:
        """Return False: modules can always grow beside a block."""
        return False

    def _build(self, blueprint: str, style: BlendStyle) -> None:
        recipe = find_blueprint(blueprint)
        self.seed = self._synced(recipe.build_seed(self.site).to(**self._tensor_options()))
        self.form = recipe.form
        self.seed.train(self.block.training)
        self.restyle(style)

    def _synced(self, seed: nn.Module) -> nn.Module:
        """Return a seed whose batch norms see the batches of all processes if the host's do."""
        model = self._model[0]
        for module in () if model is None else model.modules():
            if isinstance(module, nn.SyncBatchNorm):
                group = module.process_group
                return cast(Any, nn.SyncBatchNorm.convert_sync_batchnorm(seed, group))
        return seed

    def restyle(self, style: BlendStyle) -> None:
        """Create the gate if the style needs one; remove it otherwise."""
        if style != BlendStyle.LEARNED_GATE:
            self.gate = None
        elif self.gate is None:
            self.gate = _zero_gate(self.site).to(**self._tensor_options())
            self.gate.train(self.block.training)

    def clear(self) -> None:
        """Remove the seed; fossils stay."""
        self.seed = self.gate = None

    def absorb(self) -> int:
        """Make the seed part of the block; return the units that it adds to the model's own, 0.

        Its parameters stay the same objects.
        """
        assert self.seed is not None, "the slot is empty"
        self.set_fossils([*self.absorbed, AbsorbedSeed(self.seed, self.gate, self.form)])
        self.clear()
        return 0

    def set_fossils(self, absorbed: Sequence[AbsorbedSeed]) -> None:
        """Replace the fossils' modules."""
        self.fossils = nn.ModuleList(absorbed) if absorbed else None
        if self.fossils is not None:
            self.fossils.training = self.block.training

    def rebuild(self) -> None:
        """Build the fossils and the seed that the life calls for; their weights are loaded later.

        Weights are drawn from torch's default generator.
        """
        life = self.life
        self.set_fossils([])
        for fossil in life.fossils:
            self._build(fossil.blueprint, fossil.style)
            self.absorb()
        if life.has_seed:
            self._build(life.blueprint, life.style)

    @property
    def absorbed(self) -> list[AbsorbedSeed]:
        """The fossils' modules, in order."""
        return cast(list[AbsorbedSeed], list(self.fossils or ()))

    @property
    def seed_parts(self) -> SeedParts:
        """All that the slot holds."""
        return self.seed, self.gate, self.form, tuple(self.absorbed)

    @seed_parts.setter
    def seed_parts(self, parts: SeedParts) -> None:
        self.seed, self.gate, self.form, fossils = parts
        self.set_fossils(fossils)

    @property
    def is_in_use(self) -> bool:
        """Whether the slot holds a seed or a fossil, so that it replaces its block."""
        return self.seed is not None or self.fossils is not None

    @property
    def seed_input_shape(self) -> tuple[int, ...]:
        """Shape of the tensor that the seed reads, including the batch."""
        return self.form.input_shape(self.site)

    def seed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the seed and its gate."""
        return [*parameters_of(self.seed), *parameters_of(self.gate)]

    def grown_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the fossils, the seed and its gate."""
        return [*parameters_of(self.fossils), *self.seed_parameters()]

    def called_parts(self) -> list[nn.Module]:
        """Return the modules of the fossils, the seed and its gate that are called."""
        parts = [*((part.seed, part.gate) for part in self.absorbed), (self.seed, self.gate)]
        return [module for part in parts for module in part if module is not None]

    def find_start_problem(self) -> str | None:
        """Return why the new seed would change the host's output, or None if it would not.

        The seed is run on a random probe.
        """
        assert self.seed is not None, "the slot is empty"
        probe = _draw_probe(self.seed_input_shape).to(**self._tensor_options())
        part, seed = self, self.seed
        if find_mesh(seed) is not None:  # outside of the model, only a gathered seed can run
            seed = gathered_copy(seed)
            part = AbsorbedSeed(seed, None, self.form)
        is_training = seed.training
        if is_training:
            seed.eval()
        with torch.no_grad():
            change = self._run_seed(part, self.life, probe)
        if is_training:
            seed.train()
        return find_change_problem(change, self.site.output_shape)

    def _change(
        self,
        part: SeedSlot | AbsorbedSeed,
        life: SlotLife | Fossil,
        y: Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_isolated: bool = False,
    ) -> Tensor:
        """Return what the seed, or a fossil, adds to ``y`` at alpha 1."""
        source = y
        if part.form == SeedForm.PARALLEL:
            source = self._read_input(args, kwargs)
            source = source.detach() if is_isolated else source
        gate = None if part.gate is None else part.gate(y)
        delta = self._run_seed(part, life, source)
        if delta.shape != y.shape:
            raise ShapeError(
                f"the {life.blueprint} seed in slot {self.name!r} returns shape "
                f"{list(delta.shape)}, but the block returns {list(y.shape)}; the slot was created "
                f"for block outputs of shape {list(self.site.output_shape)}."
            )
        return effective_change(life.style, y, delta, gate)

    def _run_seed(
        self, part: SeedSlot | AbsorbedSeed, life: SlotLife | Fossil, source: Tensor
    ) -> Tensor:
        assert part.seed is not None, "the slot is empty"
        try:
            return part.seed(source)
        except Exception as error:
            blame_user_code(
                SlotError,
                error,
                f"the {life.blueprint} seed in slot {self.name!r}",
                f"on an input of shape {list(source.shape)}; fix its blueprint.",
            )

    def _read_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        key = self.site.input_key
        return args[key] if isinstance(key, int) else kwargs[key]  # pyright: ignore[reportArgumentType]

    def _tensor_options(self) -> dict[str, Any]:
        model = self._model[0]
        for module in (self.block,) if model is None else (self.block, model):
            for parameter in module.parameters():
                if parameter.is_floating_point():
                    return {"device": parameter.device, "dtype": parameter.dtype}
        return {}


def copy_plain(block: nn.Module) -> nn.Module:
    """Return a copy of a block, without the seeds of slots inside it.

    Configurations are shared, because they belong to the whole model.
    """
    memo: dict[int, Any] = {}
    parts = list(block.modules())
    for part in parts:
        if (config := part.__dict__.get("config")) is not None:
            memo[id(config)] = config
    for part in reversed(parts):
        if isinstance(part, SeedSlot):
            memo[id(part)] = gathered_copy(part.block, memo)
    return gathered_copy(block, memo)


def find_change_problem(change: object, shape: tuple[int, ...]) -> str | None:
    """Return what is wrong with a new seed's output, or None if it is zero up to rounding."""
    if not isinstance(change, Tensor):
        return f"the seed returns {describe(change)} instead of a tensor"
    if tuple(change.shape) != shape:
        return f"the seed's output has shape {list(change.shape)}, the block's {list(shape)}"
    size = change.abs().max().item() if change.numel() else 0.0
    if not math.isfinite(size):
        return "the seed's output is not finite"
    if size > ROUNDING * torch.finfo(change.dtype).eps:
        return f"the seed changes the host's output by up to {size:.3g} before training"
    return None


@lru_cache(maxsize=64)
def _draw_probe(shape: tuple[int, ...]) -> Tensor:
    """Return the random input on which new seeds of this input shape are run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _zero_gate(site: SlotSite) -> nn.Module:
    """Return a gate over positions whose weights are zero, so that it starts fully open."""
    is_map = site.kind == TensorKind.FEATURE_MAP
    gate = nn.Conv2d(site.width, 1, 1) if is_map else nn.Linear(site.width, 1)
    assert gate.bias is not None
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    return gate
