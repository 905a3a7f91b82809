"""How actions and epochs change the stages of a host's slots.

Nothing here handles tensors: the model's slots, who call these functions, build, change and remove
what grows when they are told to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper.config.growth import GrowthConfig
from esper.errors import IllegalActionError, SlotError
from esper.growth.blending import FIRST_CURVE, AlphaSchedule
from esper.growth.json_values import from_json, to_json
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op
from esper.lifecycle.legality import ADVANCEABLE_STAGES, BLOCKING_STAGES, SlotMaskState, may_apply
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import COOLING_STAGES, LIVE_STAGES, Stage, may_follow

if TYPE_CHECKING:
    from esper.growth.host_slots import HostSlots


@dataclass(frozen=True)
class Fossil:
    """A committed seed that has become part of its slot's block."""

    blueprint: str
    style: BlendStyle
    alpha: float
    units: int
    """Units that each place got, or blocks that the list got; 0 for a module beside a block."""


@dataclass
class SlotLife:
    """The state of one slot: its stage, its blueprint, how its seed is blended."""

    stage: Stage = Stage.DORMANT
    age_epochs: int = 0
    """Epochs since the seed germinated."""
    stage_epochs: int = 0
    """Epochs spent in the current stage."""
    blueprint: str = ""
    style: BlendStyle = BlendStyle.ADD_LINEAR
    tempo_epochs: int = 0
    alpha_target: float = 0.0
    """Target of the first alpha ramp."""
    schedule: AlphaSchedule = field(default_factory=AlphaSchedule)
    fossils: tuple[Fossil, ...] = ()
    """The seeds that have become part of the block, in order."""
    live_units: int = 0
    """Units or blocks of the slot's own seed."""

    @property
    def alpha(self) -> float:
        """How strongly the seed is blended in."""
        return self.schedule.alpha

    @property
    def has_seed(self) -> bool:
        """Whether the slot holds a seed."""
        fading = self.stage == Stage.PRUNED and self.alpha > 0.0
        return self.stage in LIVE_STAGES or self.stage == Stage.FOSSILIZED or fading

    @property
    def is_growing(self) -> bool:
        """Whether the slot holds a seed that is not committed."""
        return self.has_seed and self.stage != Stage.FOSSILIZED

    @property
    def is_computing(self) -> bool:
        """Whether the seed is computed during training."""
        return self.has_seed and self.stage != Stage.GERMINATED

    @property
    def affects_output(self) -> bool:
        """Whether the seed changes the host's output."""
        return self.has_seed and self.alpha > 0.0

    @property
    def units(self) -> int:
        """Units or blocks that the fossils added to the model's own."""
        return sum(fossil.units for fossil in self.fossils)

    @property
    def committed(self) -> list[Fossil | SlotLife]:
        """The committed seeds: the fossils, then the slot's own if it is fossilized."""
        return [*self.fossils, *([self] if self.stage == Stage.FOSSILIZED else [])]

    def copied(self) -> SlotLife:
        """Return an independent copy."""
        twin = SlotLife.__new__(SlotLife)
        twin.__dict__.update(self.__dict__)  # much faster than dataclasses.replace
        return twin

    def enter(self, stage: Stage) -> None:
        """Move to ``stage``."""
        assert may_follow(self.stage, stage), f"{self.stage.name} cannot become {stage.name}"
        self.stage, self.stage_epochs = stage, 0


@dataclass(frozen=True)
class Outcome:
    """The result of an action."""

    action: GrowthAction
    reason: str = ""
    """Why a gate turned the action into a wait; empty if none did."""

    @property
    def was_done(self) -> bool:
        """Whether the action was carried out."""
        return not self.reason


class SlotStates:
    """The lives of all slots of one host, and the rules that change them."""

    def __init__(self, slot_config: SlotConfig, growth_config: GrowthConfig | None = None) -> None:
        self.slot_config = slot_config
        self.growth_config = growth_config or GrowthConfig()
        self._lives = {slot: SlotLife() for slot in slot_config.slot_ids}
        self.on_change: Callable[[str, SlotLife], None] | None = None
        """Called with the name and life of each slot that changes."""

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no subscribers.
        return {**self.__dict__, "on_change": None}

    def __getitem__(self, slot: str) -> SlotLife:
        if slot not in self._lives:
            self.slot_config.slot_index(slot)  # raises
        return self._lives[slot]

    def set_life(self, slot: str, life: SlotLife) -> None:
        """Replace a slot's life, to restore an earlier state."""
        self.slot_config.slot_index(slot)
        self._lives[slot] = life
        self._notify(slot)

    def items(self) -> list[tuple[str, SlotLife]]:
        """Return each (slot, life)."""
        return list(self._lives.items())

    @property
    def mask_states(self) -> list[SlotMaskState | None]:
        """The state of each slot, as action masks read it."""
        return [
            None
            if life.stage == Stage.DORMANT
            else SlotMaskState(
                life.stage,
                life.age_epochs,
                life.schedule.is_at_rest,
                is_gate_open(life, self.growth_config),
            )
            for life in self._lives.values()
        ]

    def is_legal(self, action: GrowthAction) -> bool:
        """Return whether the host's state allows the action."""
        needs_slot = action.op not in (Op.WAIT, Op.FINISH)
        slot = action.slot if needs_slot else self.slot_config.slot_ids[0]
        if not may_apply(action.op, slot, self.mask_states, self.slot_config):
            return False
        if action.op != Op.GERMINATE:
            return True
        self.slot_config.blueprint_index(action.blueprint)
        return self.slot_config.does_fit(action.blueprint, action.slot)

    def apply(self, action: GrowthAction, keeper: HostSlots) -> Outcome:
        """Carry out an action; if a gate blocks it, do nothing and return the reason.

        Raises:
            IllegalActionError: If the host's state does not allow the action.
        """
        reason = self._find_closed_gate(action.op, action.slot)
        if reason is None and not self.is_legal(action):
            raise IllegalActionError(self._explain_illegal(action, keeper))
        if action.op in (Op.WAIT, Op.FINISH):
            return Outcome(action)
        is_start = action.op == Op.ADVANCE and self[action.slot].stage == Stage.GERMINATED
        if is_start and reason is None:
            reason = keeper[action.slot].find_start_problem()
        if reason is not None:
            return Outcome(action, reason)
        self._change(action, keeper)
        if action.op == Op.GERMINATE and self._settle_start(action.slot, keeper):
            return Outcome(action)
        self._advance_automatically(action.slot, keeper)
        self._notify(action.slot)
        return Outcome(action)

    def tick(self, keeper: HostSlots) -> None:
        """Advance all slots by one epoch: seeds age, alphas ramp, embargoes end."""
        for slot, life in self._lives.items():
            if life.stage == Stage.DORMANT:
                continue
            had_seed = life.has_seed
            life.age_epochs += 1
            life.stage_epochs += 1
            life.schedule = life.schedule.after_epoch()
            self._advance_automatically(slot, keeper)
            if had_seed and not life.has_seed:
                keeper.remove_seed(slot)
            if life.stage in COOLING_STAGES and not life.has_seed:
                self._cool_down(slot, life)
            is_over = life.stage == Stage.FOSSILIZED and self._is_embargo_over(life)
            if is_over and not keeper[slot].is_full():
                self.absorb(slot, keeper)
            self._notify(slot)

    def abandon(self, slot: str, keeper: HostSlots) -> None:
        """Prune an uncommitted seed immediately, whatever its age and alpha."""
        life = self[slot]
        if not life.is_growing:
            raise SlotError(
                f"slot {slot!r} is {life.stage.name.lower()}; it has no uncommitted seed to prune."
            )
        if life.stage != Stage.PRUNED:
            life.enter(Stage.PRUNED)
        life.schedule = AlphaSchedule()
        keeper.remove_seed(slot)
        self._notify(slot)

    def abandon_growing(self, keeper: HostSlots) -> list[str]:
        """Prune every uncommitted seed immediately and return the names of their slots."""
        growing = [slot for slot, life in self._lives.items() if life.is_growing]
        for slot in growing:
            self.abandon(slot, keeper)
        return growing

    def end_growth(self, keeper: HostSlots, *, keep: bool) -> None:
        """Commit the seeds that are blended in, at their alpha, or remove them; remove others."""
        for slot, life in self._lives.items():
            if not life.is_growing:
                continue
            if not (keep and life.affects_output):
                self.abandon(slot, keeper)
                continue
            life.stage, life.stage_epochs = Stage.FOSSILIZED, 0
            life.schedule = AlphaSchedule(0.0, life.alpha, 0, life.schedule.curve)
            keeper.commit_seed(slot)
            self._notify(slot)

    def commit(self, slot: str, keeper: HostSlots) -> None:
        """Commit a newly germinated seed immediately, at its alpha target."""
        life = self[slot]
        if life.age_epochs > 0 or life.stage not in ADVANCEABLE_STAGES:
            raise SlotError(
                f"slot {slot!r} is {life.stage.name.lower()}; only a newly germinated seed can be "
                "committed immediately."
            )
        while life.stage in ADVANCEABLE_STAGES:
            self._advance(life)
        life.enter(Stage.FOSSILIZED)
        life.schedule = AlphaSchedule(0.0, life.alpha_target, 0, FIRST_CURVE[life.style])
        keeper.commit_seed(slot)
        self._notify(slot)

    def absorb(self, slot: str, keeper: HostSlots) -> None:
        """Make a committed seed part of its block; the slot is dormant again."""
        life = self[slot]
        if life.stage != Stage.FOSSILIZED:
            raise SlotError(
                f"slot {slot!r} is {life.stage.name.lower()}; only a fossilized seed can become "
                "part of its block."
            )
        units = keeper.absorb_seed(slot)
        fossil = Fossil(life.blueprint, life.style, life.alpha, units)
        self._lives[slot] = SlotLife(fossils=(*life.fossils, fossil))
        self._notify(slot)

    def to_json(self) -> dict[str, Any]:
        """Return all lives as JSON values."""
        return {slot: to_json(life) for slot, life in self._lives.items()}

    def load_json(self, values: dict[str, Any]) -> None:
        """Load the lives that :meth:`to_json` wrote."""
        for slot in self._lives:
            self.set_life(slot, from_json(SlotLife, values[slot]))

    def _notify(self, slot: str) -> None:
        if self.on_change is not None:
            self.on_change(slot, self._lives[slot])

    def _change(self, action: GrowthAction, keeper: HostSlots) -> None:
        slot, life = action.slot, self[action.slot]
        match action.op:
            case Op.GERMINATE:
                keeper.add_seed(slot, action)
                life.enter(Stage.GERMINATED)
                life.age_epochs = 0
                life.blueprint, life.style = action.blueprint, action.style
                life.tempo_epochs, life.alpha_target = action.tempo_epochs, action.alpha_target
                life.schedule = AlphaSchedule()
            case Op.ADVANCE:
                self._advance(life)
            case Op.SET_ALPHA_TARGET:
                keeper.restyle_seed(slot, action.style)
                life.style = action.style
                if life.stage == Stage.HOLDING:
                    life.enter(Stage.BLENDING)
                life.schedule = AlphaSchedule(
                    life.alpha, action.alpha_target, action.alpha_speed_epochs, action.alpha_curve
                )
            case Op.PRUNE:
                life.enter(Stage.PRUNED)
                n_epochs = action.alpha_speed_epochs if life.alpha > 0.0 else 0
                life.schedule = AlphaSchedule(life.alpha, 0.0, n_epochs, action.alpha_curve)
                if not life.has_seed:
                    keeper.remove_seed(slot)
            case Op.FOSSILIZE:
                life.enter(Stage.FOSSILIZED)
                keeper.commit_seed(slot)
            case Op.WAIT | Op.FINISH:
                pass

    def _settle_start(self, slot: str, keeper: HostSlots) -> bool:
        """Let a new seed start where it needs no training of its own; return if it is committed."""
        life = self[slot]
        if not keeper[slot].starts_blended or keeper[slot].find_start_problem() is not None:
            return False
        if self.growth_config.commits_at_once or not keeper[slot].can_blend:
            self.commit(slot, keeper)
            return True
        self._advance(life)
        self._advance(life)
        return False

    def _advance_automatically(self, slot: str, keeper: HostSlots) -> None:
        """Advance a seed as far as its gates allow, if the configuration asks for it."""
        life = self[slot]
        while self.growth_config.advances_alone and life.stage in ADVANCEABLE_STAGES:
            if self._find_closed_gate(Op.ADVANCE, slot) is not None:
                return
            if life.stage == Stage.GERMINATED and keeper[slot].find_start_problem() is not None:
                return
            self._advance(life)

    def _advance(self, life: SlotLife) -> None:
        match life.stage:
            case Stage.GERMINATED:
                life.enter(Stage.TRAINING)
            case Stage.TRAINING:
                life.enter(Stage.BLENDING)
                curve = FIRST_CURVE[life.style]
                life.schedule = AlphaSchedule(0.0, life.alpha_target, life.tempo_epochs, curve)
            case _:
                life.enter(Stage.HOLDING)

    def _cool_down(self, slot: str, life: SlotLife) -> None:
        if life.stage == Stage.PRUNED:
            life.enter(Stage.EMBARGOED)
        elif life.stage == Stage.RESETTING:
            self._lives[slot] = SlotLife(fossils=life.fossils)
        elif self._is_embargo_over(life):
            life.enter(Stage.RESETTING)

    def _is_embargo_over(self, life: SlotLife) -> bool:
        return life.stage_epochs >= self.growth_config.embargo_epochs

    def _find_closed_gate(self, op: Op, slot: str) -> str | None:
        """Return why a seed cannot leave its stage yet, or None if the op may be tried.

        Masks do not offer such an action; one that is taken anyway is a wait.
        """
        if op not in (Op.ADVANCE, Op.FOSSILIZE):
            return None
        life = self[slot]
        leaving = ADVANCEABLE_STAGES if op == Op.ADVANCE else {Stage.HOLDING}
        if life.stage not in leaving:
            return None
        if not is_gate_open(life, self.growth_config):
            minimum = min_epochs(life.stage, self.growth_config)
            stage = life.stage.name.lower()
            return f"{stage} for {life.stage_epochs} of at least {minimum} epochs"
        if life.stage == Stage.BLENDING and not life.schedule.is_at_rest:
            return _describe_ramp(life)
        return None

    def _explain_illegal(self, action: GrowthAction, keeper: HostSlots) -> str:
        op = action.op.name.lower()
        if action.op == Op.FINISH:
            return "finish is disabled for this host (allow_finish is False)."
        config = self.slot_config
        if action.op == Op.GERMINATE and not config.does_fit(action.blueprint, action.slot):
            fitting = [name for name in config.blueprints if config.does_fit(name, action.slot)]
            others = [slot for slot in config.slot_ids if config.does_fit(action.blueprint, slot)]
            elsewhere = f" (it fits {', '.join(others)})" if others else ""
            return (
                f"blueprint {action.blueprint!r} does not fit slot {action.slot!r}: "
                f"{keeper[action.slot].explain_misfit(action.blueprint)}{elsewhere}; choose from "
                f"{', '.join(fitting)}."
            )
        stages = ", ".join(f"{slot} {life.stage.name.lower()}" for slot, life in self.items())
        reason = self._find_hidden_reason(action)
        return f"{op} is illegal for slot {action.slot!r}{reason}; slot stages: {stages}."

    def _find_hidden_reason(self, action: GrowthAction) -> str:
        """Return why an action is illegal, if the stages alone do not show it."""
        life, limit = self[action.slot], self.slot_config.seed_limit
        n_live = sum(other.stage in LIVE_STAGES for _, other in self.items())
        if action.op == Op.GERMINATE and limit is not None and n_live >= limit:
            return f" because the host has {n_live} live seeds and seed_limit is {limit}"
        if action.op == Op.GERMINATE and not self.slot_config.is_enabled(action.slot):
            return " because the slot is disabled"
        starting = [slot for slot, other in self.items() if other.stage in BLOCKING_STAGES]
        if action.op == Op.GERMINATE and starting and life.stage == Stage.DORMANT:
            stage = self[starting[0]].stage.name.lower()
            return (
                f" because {starting[0]!r} is {stage}, and one seed starts or is removed at a time"
            )
        if action.op == Op.PRUNE and life.stage in LIVE_STAGES and life.age_epochs < 1:
            return " because the seed is less than one epoch old"
        if life.stage in LIVE_STAGES and not life.schedule.is_at_rest:
            return f" because {_describe_ramp(life)}"
        return ""


def _describe_ramp(life: SlotLife) -> str:
    return f"alpha is {life.alpha:.3g} on its way to {life.schedule.target:g}"


def min_epochs(stage: Stage, config: GrowthConfig) -> int:
    """Return how many epochs a seed spends in a stage before it may leave it."""
    if stage == Stage.TRAINING:
        return config.min_training_epochs
    return config.min_holding_epochs if stage == Stage.HOLDING else 0


def is_gate_open(life: SlotLife, config: GrowthConfig) -> bool:
    """Return whether a seed has spent enough epochs in its stage to leave it."""
    return life.stage_epochs >= min_epochs(life.stage, config)
