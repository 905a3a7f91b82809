"""The lives of a host's seeds: what each action and each epoch does to the stages of its slots.

Nothing here knows tensors. Whoever holds the modules (a model's slots, a stacked population) passes
itself as the :class:`SeedKeeper` that builds, changes and removes them; so every form of host lives
by the same rules, and legality is asked of :mod:`esper.lifecycle.legality`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from esper.config.growth import GrowthConfig
from esper.errors import IllegalActionError, SlotError
from esper.growth.blending import FIRST_CURVE, AlphaSchedule
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, GrowthAction, Op
from esper.lifecycle.legality import ADVANCEABLE_STAGES, SlotMaskState, may_apply
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import COOLING_STAGES, LIVE_STAGES, Stage, may_follow


@dataclass
class SlotLife:
    """Where one slot is in the life of its seed."""

    stage: Stage = Stage.DORMANT
    age_epochs: int = 0
    """Epochs since the seed germinated."""
    stage_epochs: int = 0
    """Epochs that the slot has spent in its stage."""
    blueprint: str = ""
    style: BlendStyle = BlendStyle.ADD_LINEAR
    tempo_epochs: int = 0
    alpha_target: float = 0.0
    """Where the first ramp of alpha will go."""
    schedule: AlphaSchedule = field(default_factory=AlphaSchedule)

    @property
    def alpha(self) -> float:
        """How strongly the seed counts."""
        return self.schedule.alpha

    @property
    def has_seed(self) -> bool:
        """Whether there is a module in the slot."""
        fading = self.stage == Stage.PRUNED and self.alpha > 0.0
        return self.stage in LIVE_STAGES or self.stage == Stage.FOSSILIZED or fading

    @property
    def is_growing(self) -> bool:
        """Whether there is a module in the slot that is not committed."""
        return self.has_seed and self.stage != Stage.FOSSILIZED

    @property
    def is_computing(self) -> bool:
        """Whether the module takes part in training: it learns, or it counts."""
        return self.has_seed and self.stage != Stage.GERMINATED

    @property
    def counts(self) -> bool:
        """Whether the module changes the host's output."""
        return self.has_seed and self.alpha > 0.0

    @property
    def mask_state(self) -> SlotMaskState | None:
        """What legality needs to know; None when dormant."""
        if self.stage == Stage.DORMANT:
            return None
        return SlotMaskState(self.stage, self.age_epochs, self.schedule.is_at_rest)

    def enter(self, stage: Stage) -> None:
        """Go on to ``stage``."""
        assert may_follow(self.stage, stage), f"{self.stage.name} cannot become {stage.name}"
        self.stage, self.stage_epochs = stage, 0

    def to_json(self) -> dict[str, Any]:
        """Return the life as plain values."""
        schedule = self.schedule
        return {
            "stage": self.stage.name.lower(),
            "age_epochs": self.age_epochs,
            "stage_epochs": self.stage_epochs,
            "blueprint": self.blueprint,
            "style": self.style.value,
            "tempo_epochs": self.tempo_epochs,
            "alpha_target": self.alpha_target,
            "schedule": {
                "start": schedule.start,
                "target": schedule.target,
                "n_epochs": schedule.n_epochs,
                "curve": schedule.curve.value,
                "epoch": schedule.epoch,
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SlotLife:
        """Return the life that :meth:`to_json` described."""
        schedule = dict(values["schedule"])
        schedule["curve"] = AlphaCurve(schedule["curve"])
        return cls(
            stage=Stage[values["stage"].upper()],
            age_epochs=values["age_epochs"],
            stage_epochs=values["stage_epochs"],
            blueprint=values["blueprint"],
            style=BlendStyle(values["style"]),
            tempo_epochs=values["tempo_epochs"],
            alpha_target=values["alpha_target"],
            schedule=AlphaSchedule(**schedule),
        )


class SeedKeeper(Protocol):
    """Whoever holds the modules that the slots' lives are about."""

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        """Build the action's blueprint in a slot."""
        ...

    def remove_seed(self, slot: str) -> None:
        """Take a slot's module away with everything that belongs to it."""
        ...

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Make what a style needs (its gate) and remove what it does not."""
        ...

    def commit_seed(self, slot: str) -> None:
        """Count a slot's module as part of the host from now on."""
        ...

    def find_start_problem(self, slot: str) -> str | None:
        """Return why a germinated seed may not start learning, or None if it may."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What became of an action."""

    action: GrowthAction
    was_done: bool
    """False if a gate turned the action into a wait."""
    reason: str = ""
    """Why the gate refused; empty if it did not."""


class SlotLives:
    """The lives of all slots of one host, and the rules by which they change."""

    def __init__(self, slot_config: SlotConfig, growth_config: GrowthConfig | None = None) -> None:
        self.slot_config = slot_config
        self.growth_config = growth_config or GrowthConfig()
        self._lives = {slot: SlotLife() for slot in slot_config.slot_ids}
        self.on_change: Callable[[str, SlotLife], None] | None = None
        """Is told of every slot that changes."""

    def __getstate__(self) -> dict[str, Any]:
        # Whoever follows these lives does not know a copy of them.
        return {**self.__dict__, "on_change": None}

    def __getitem__(self, slot: str) -> SlotLife:
        self.slot_config.slot_index(slot)
        return self._lives[slot]

    def set_life(self, slot: str, life: SlotLife) -> None:
        """Put a slot into another state, for going back to an earlier one."""
        self.slot_config.slot_index(slot)
        self._lives[slot] = life
        self._tell(slot)

    def copied(self) -> dict[str, SlotLife]:
        """Return a copy of each slot's life."""
        return {slot: replace(life) for slot, life in self._lives.items()}

    def items(self) -> list[tuple[str, SlotLife]]:
        """Return each slot with its life."""
        return list(self._lives.items())

    @property
    def mask_states(self) -> list[SlotMaskState | None]:
        """What action masks need to know of each slot."""
        return [life.mask_state for life in self._lives.values()]

    def is_legal(self, action: GrowthAction) -> bool:
        """Return whether the host's state allows the action."""
        is_about_slot = action.op not in (Op.WAIT, Op.FINISH)
        slot = action.slot if is_about_slot else self.slot_config.slot_ids[0]
        if not may_apply(action.op, slot, self.mask_states, self.slot_config):
            return False
        if action.op != Op.GERMINATE:
            return True
        self.slot_config.blueprint_index(action.blueprint)
        return self.slot_config.does_fit(action.blueprint, action.slot)

    def apply(self, action: GrowthAction, keeper: SeedKeeper) -> Outcome:
        """Do what the action says; where a gate refuses, do nothing and say why.

        Raises:
            IllegalActionError: If the host's state does not allow the action.
        """
        if not self.is_legal(action):
            raise IllegalActionError(self._why_illegal(action))
        if action.op in (Op.WAIT, Op.FINISH):
            return Outcome(action, was_done=True)
        reason = self._find_gate_problem(action, keeper)
        if reason is not None:
            return Outcome(action, was_done=False, reason=reason)
        self._change(action, keeper)
        self._go_on(action.slot, keeper)
        self._tell(action.slot)
        return Outcome(action, was_done=True)

    def tick(self, keeper: SeedKeeper) -> None:
        """Let one epoch pass: seeds age, alphas move on, slots that rested become free."""
        for slot, life in self._lives.items():
            if life.stage == Stage.DORMANT:
                continue
            had_seed = life.has_seed
            life.age_epochs += 1
            life.stage_epochs += 1
            life.schedule = life.schedule.after_epoch()
            self._go_on(slot, keeper)
            if had_seed and not life.has_seed:
                keeper.remove_seed(slot)
            if life.stage in COOLING_STAGES and not life.has_seed:
                self._cool_down(slot, life)
            self._tell(slot)

    def abandon(self, slot: str, keeper: SeedKeeper) -> None:
        """Prune a live seed at once, whatever its age and alpha: for when the host is in danger."""
        life = self[slot]
        if not life.is_growing:
            raise SlotError(
                f"slot {slot!r} is {life.stage.name.lower()}; only a live seed is pruned."
            )
        if life.stage != Stage.PRUNED:
            life.enter(Stage.PRUNED)
        life.schedule = AlphaSchedule()
        keeper.remove_seed(slot)
        self._tell(slot)

    def commit(self, slot: str, keeper: SeedKeeper) -> None:
        """Commit a new seed at its alpha target at once: for a host that starts with it."""
        life = self[slot]
        if life.age_epochs > 0 or life.stage not in ADVANCEABLE_STAGES:
            raise SlotError(
                f"slot {slot!r} is {life.stage.name.lower()}; only a seed that has just germinated "
                "is committed at once."
            )
        while life.stage in ADVANCEABLE_STAGES:
            self._advance(life)
        life.enter(Stage.FOSSILIZED)
        life.schedule = AlphaSchedule(0.0, life.alpha_target, 0, FIRST_CURVE[life.style])
        keeper.commit_seed(slot)
        self._tell(slot)

    def to_json(self) -> dict[str, Any]:
        """Return all lives as plain values."""
        return {slot: life.to_json() for slot, life in self._lives.items()}

    def load_json(self, values: dict[str, Any]) -> None:
        """Take over the lives that :meth:`to_json` described."""
        for slot in self._lives:
            self._lives[slot] = SlotLife.from_json(values[slot])
            self._tell(slot)

    def _tell(self, slot: str) -> None:
        if self.on_change is not None:
            self.on_change(slot, self._lives[slot])

    def _change(self, action: GrowthAction, keeper: SeedKeeper) -> None:
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

    def _go_on(self, slot: str, keeper: SeedKeeper) -> None:
        """Advance a seed as far as its gates let it, where seeds advance by themselves."""
        life, advance = self[slot], GrowthAction(op=Op.ADVANCE, slot=slot)
        while self.growth_config.advances_alone and life.stage in ADVANCEABLE_STAGES:
            if self._find_gate_problem(advance, keeper) is not None:
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
            self._lives[slot] = SlotLife()
        elif life.stage_epochs >= self.growth_config.embargo_epochs:
            life.enter(Stage.RESETTING)

    def _find_gate_problem(self, action: GrowthAction, keeper: SeedKeeper) -> str | None:
        """Return why a gate refuses to let a seed go on, or None if it does not."""
        life, config = self[action.slot], self.growth_config
        if action.op == Op.ADVANCE and life.stage == Stage.GERMINATED:
            return keeper.find_start_problem(action.slot)
        if action.op == Op.ADVANCE and life.stage == Stage.TRAINING:
            return _too_few("trained", life.stage_epochs, config.min_training_epochs)
        if action.op == Op.ADVANCE and not life.schedule.is_at_rest:
            return f"alpha is {life.alpha:.3g} on its way to {life.schedule.target:g}"
        if action.op == Op.FOSSILIZE:
            return _too_few("held", life.stage_epochs, config.min_holding_epochs)
        return None

    def _why_illegal(self, action: GrowthAction) -> str:
        op = action.op.name.lower()
        if action.op == Op.FINISH:
            return "finish is not allowed for this host."
        config = self.slot_config
        if action.op == Op.GERMINATE and not config.does_fit(action.blueprint, action.slot):
            fitting = [name for name in config.blueprints if config.does_fit(name, action.slot)]
            return (
                f"blueprint {action.blueprint!r} does not fit slot {action.slot!r}; "
                f"there fit {', '.join(fitting)}."
            )
        stages = ", ".join(f"{slot} {life.stage.name.lower()}" for slot, life in self.items())
        reason = self._reason(action)
        return f"{op} is not legal for slot {action.slot!r} now{reason}; the slots are: {stages}."

    def _reason(self, action: GrowthAction) -> str:
        """Return what a slot's stage does not tell of why an action is illegal."""
        life, limit = self[action.slot], self.slot_config.seed_limit
        n_live = sum(other.stage in LIVE_STAGES for _, other in self.items())
        if action.op == Op.GERMINATE and limit is not None and n_live >= limit:
            return f", because {n_live} of at most {limit} seeds live"
        if action.op == Op.GERMINATE and not self.slot_config.is_enabled(action.slot):
            return ", because the slot is not enabled"
        if action.op == Op.PRUNE and life.stage in LIVE_STAGES and life.age_epochs < 1:
            return ", because the seed has not lived for an epoch"
        if life.stage in LIVE_STAGES and not life.schedule.is_at_rest:
            return f", because alpha is {life.alpha:.3g} on its way to {life.schedule.target:g}"
        return ""


def _too_few(what: str, epochs: int, least: int) -> str | None:
    return None if epochs >= least else f"{what} for {epochs} of at least {least} epochs"
