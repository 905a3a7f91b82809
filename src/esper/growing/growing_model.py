"""A model that grows in a loop: what its controller sees, and what was spent on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.config.checks import as_number
from esper.config.growth import Budget
from esper.environment.records import EpisodeRecords
from esper.errors import GrowerError
from esper.growth.footprint import TrainingMeter
from esper.growth.governor import Governor
from esper.growth.host_slots import HostSlots, slots
from esper.growth.modules import count_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.ranks import Call, Ranks
from esper.growth.seed_slot import slot_size
from esper.growth.sharding import total_norm
from esper.lifecycle.factored_actions import WAIT, GrowthAction, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.stages import Stage
from esper.populations.population import write_fossils, write_slot
from esper.tamiyo import Controller
from esper.tamiyo.controllers.learned import expected_return, expects_gain, op_probabilities
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import ObservationLayout


def relative_drop(first: float, loss: float) -> float:
    """Return how much lower a loss is than the first one, as a share of that."""
    return (first - loss) / max(abs(first), 1e-12)


class EpochSums:
    """What the steps of an epoch add up to."""

    def __init__(self) -> None:
        self.n_losses = self.n_norms = 0
        self._loss = self._norm = self._norm_squares = 0.0
        self._seed_norms: dict[str, float] = {}
        self.problems: list[str] = []
        """Why the governor rolled the model back."""

    @property
    def mean_loss(self) -> float | None:
        """The mean loss; None without any."""
        return self._loss / self.n_losses if self.n_losses else None

    @property
    def mean_norm(self) -> float:
        """The mean norm of the gradients; NaN without any."""
        return self._norm / self.n_norms if self.n_norms else math.nan

    @property
    def gradient_noise(self) -> float:
        """The standard deviation of the norms relative to their mean; NaN without any."""
        mean = self.mean_norm
        spread = self._norm_squares / max(1, self.n_norms) - mean * mean
        return math.sqrt(max(spread, 0.0)) / mean if mean else mean

    def add_loss(self, loss: float) -> None:
        """Add the loss of a batch."""
        self._loss += loss
        self.n_losses += 1

    def add_norms(self, norm: float, host_slots: HostSlots) -> None:
        """Add the norm of all gradients, and those of each seed's."""
        self._norm += norm
        self._norm_squares += norm * norm
        self.n_norms += 1
        for name, slot in host_slots.items():
            if slot.seed is not None:
                grads = [p.grad for p in slot.seed_parameters() if p.grad is not None]
                own = total_norm(grads) if grads else 0.0
                self._seed_norms[name] = self._seed_norms.get(name, 0.0) + own

    def mean_seed_norms(self, names: Iterable[str]) -> list[float]:
        """Return the mean norm of the gradients of each slot's seed; 0 without one."""
        return [self._seed_norms.get(name, 0.0) / max(1, self.n_norms) for name in names]


@dataclass(frozen=True)
class Choice:
    """What a controller chose, and what became of it."""

    op: Op = Op.WAIT
    """What was done."""
    action: GrowthAction = WAIT
    """What was chosen."""
    why: str = ""
    """Why it was not done; empty if it was."""
    probabilities: dict[str, float] = field(default_factory=dict[str, float])
    """How likely each legal op was."""
    heads: list[int] = field(default_factory=list[int])
    """The choice of each head; empty if the controller was not asked."""
    value: float | None = None
    """The return that the controller expected from then on; None if it has no estimate."""
    is_gain: bool = False
    """Whether that is relative to the same model with no growth."""


class GrowingModel:
    """A model with slots, its optimizers and governor, and the controller that steers it."""

    controller: Controller

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], budget: Budget, ranks: Ranks
    ) -> None:
        self.model = model
        self.budget = budget
        self.ranks = ranks
        self.slots = slots(model)
        may_finish = budget.flop_price > 0.0
        self.slot_config = replace(self.slots.slot_config, allow_finish=may_finish)
        self.layout = ObservationLayout(self.slot_config)
        self.keeper = OptimizerKeeper(model, optimizers)
        self.governor = Governor(model, optimizers, ranks=ranks)
        self.meter: TrainingMeter | None = None
        self._plain_flops = 0.0
        """FLOPs of training the given model on one sample."""
        self.records = EpisodeRecords.blank(SlotArrays.blank(1, self.slot_config.max_slots))
        self.records.clear(0)
        self.records.n_epochs[0], self.records.flop_price[0] = budget.n_epochs, budget.flop_price
        self.records.n_parameters[0] = count_parameters(model) - self.n_grown()
        self.records.set_slot_sizes(0, [slot_size(slot) for slot in self.slots.values()])
        self._history: list[list[np.ndarray]] = []
        """What the controller saw: the observation and the state of the slots, by decision."""
        self._counts: dict[tuple[str, str], int] = {}
        """The parameters of a seed by slot and blueprint, while the slots are ``_counted_at``."""
        self._counted_at: list[Any] = []
        self._places = [(site.modules[0], self.slots[site.name].block) for site in self.slots.sites]

    @property
    def is_first(self) -> bool:
        """Whether the controller has not decided anything yet."""
        return not self._history

    def clipped_together(self) -> list[list[nn.Parameter]]:
        """Return the parameters by whose gradients' norm each is clipped.

        A seed that trains in isolation is apart, because it must not change how the host learns.
        """
        apart = [s.seed_parameters() for s in self.slots.values() if s.stage == Stage.TRAINING]
        isolated = {id(parameter) for part in apart for parameter in part}
        return [[p for p in self.model.parameters() if id(p) not in isolated], *apart]

    def n_grown(self) -> int:
        """Return the number of parameters of all seeds and fossils."""
        return sum(parameter.numel() for parameter in self.slots.grown_parameters())

    def final_size(self) -> int:
        """Return the number of parameters of the model once all of its seeds are committed."""
        return count_parameters(self.model) + self.slots.pairs.count_missing()

    def start(self, score: float, loss: float | None, first_loss: float | None) -> None:
        """Record how the model does before the controller's first decision.

        Later losses are relative to its first training loss, if there was one, which is closer to
        what the loss was before training.
        """
        self.records.start_scores([0], _clipped(score), _array(loss))
        if first_loss is not None:
            self.records.first_loss[0] = first_loss

    def add_epoch(
        self,
        sums: EpochSums,
        batch_size: int,
        train_loss: float | None,
        loss: float | None,
        score: float,
    ) -> None:
        """Record an epoch for the controller, and what it cost."""
        records = self.records
        (size,) = self.ranks.mean(Call.END_EPOCH, [batch_size])
        n_samples = round(max(1, sums.n_losses) * cast(float, size) * self.ranks.count)
        records.n_samples[0] = n_samples
        records.n_batches[0] = sums.n_losses
        losses, norm = (_array(loss), _array(train_loss)), _array(sums.mean_norm)
        records.add_epoch([0], _clipped(score), *losses, norm)
        records.gradient_noise[0] = sums.gradient_noise
        records.slots.gradient_norm[0] = sums.mean_seed_norms(self.slots)
        records.was_restored[0] = bool(sums.problems)
        self.add_flops(n_samples)

    def measure(self, score: float, validate: Callable[[], float] | None) -> None:
        """Measure what each held seed contributes to the score, if there is a way to.

        Raises:
            GrowerError: If validation gives no finite number.
        """
        found: dict[str, float] = {}
        if any(has for (has,) in self.ranks.exchange(Call.VALIDATE, [validate is not None])):
            for name, slot in self.slots.items():
                if slot.stage == Stage.HOLDING:
                    with slot.switched_off():
                        found[name] = score - self._validate(validate)
        self.records.slots.is_measured[0] = [name in found for name in self.slots]
        for number, name in enumerate(self.slots):
            if name in found:
                self.records.slots.contribution[0, number] = found[name]

    def _validate(self, validate: Callable[[], float] | None) -> float:
        own = None if validate is None else as_number("what validate() returns", validate())
        (mean,) = self.ranks.mean(Call.VALIDATE, [own])
        if mean is None or not math.isfinite(mean):
            raise GrowerError(
                f"what validate() returns is {mean}; it must be a finite number, the score of the "
                "model as it is. Nothing has changed: end the epoch again."
            )
        return mean

    def choose(self, max_parameters: int | None) -> Choice:
        """Let the controller choose an action, the one of rank 0 on all ranks, and carry it out."""
        observation, masks = self.observe(max_parameters)
        chosen = self.controller.act(observation, masks, np.array([self.is_first]))[0]
        odds, value = op_probabilities(self.controller), expected_return(self.controller)
        heads = self.ranks.from_first(Call.DECIDE, chosen.tolist())
        action = decode_action(heads, self.slot_config)
        self._history.append([observation, *self._seen])
        why = self.find_excess(action, max_parameters) or self.slots.apply(action).reason
        op = Op.WAIT if why else action.op
        self.records.last_op[0], self.records.was_refused[0] = op, bool(why)
        return Choice(op, action, why, odds, heads, value, expects_gain(self.controller))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first optimizer's first parameters."""
        return float(self.keeper.optimizers[0].param_groups[0]["lr"])

    def observe(self, max_parameters: int | None = None) -> tuple[np.ndarray, ActionMasks]:
        """Return the observation of the model and its legal actions.

        Seeds that would make the model larger than ``max_parameters`` are illegal.
        """
        now = self.slot_arrays()
        observation = self.layout.encode(self.records, now)
        state = [now.stage, now.age_epochs, now.alpha_at_rest, now.is_gate_open]
        self._seen = [*state, self._find_affordable(max_parameters)]
        return observation, self._masks(*self._seen)

    def _find_affordable(self, max_parameters: int | None) -> np.ndarray:
        """Return the blueprints that fit each slot and the limit, ``[slots, blueprints]``."""
        config = self.slot_config
        fits = [[config.does_fit(name, slot) for name in config.blueprints] for slot in self.slots]
        found = np.array(fits, np.bool_)
        if max_parameters is None:
            return found
        lives = [life for _, life in self.slots.lives.items()]
        state = [(life.has_seed and life.blueprint, life.fossils) for life in lives]
        if state != self._counted_at:
            self._counts.clear()
            self._counted_at = state
        n_now = self.final_size()
        for number, (name, slot) in enumerate(self.slots.items()):
            if slot.stage != Stage.DORMANT:
                continue
            for column in np.flatnonzero(found[number]).tolist():
                key = name, config.blueprints[column]
                if key not in self._counts:
                    self._counts[key] = slot.count_new(key[1])
                found[number, column] = n_now + self._counts[key] <= max_parameters
        return found

    @property
    def was_limited(self) -> bool:
        """Whether ``max_parameters`` ruled out a seed in a decision."""
        fits = self._find_affordable(None)
        return any(bool((fits & ~seen[-1]).any()) for seen in self._history)

    def _masks(
        self,
        stage: np.ndarray,
        age: np.ndarray,
        at_rest: np.ndarray,
        is_open: np.ndarray,
        fits: np.ndarray,
    ) -> ActionMasks:
        config = self.slot_config
        names = {
            slot: frozenset(compress(config.blueprints, row))
            for slot, row in zip(config.slot_ids, fits, strict=True)
        }
        config = replace(config, fits=names)
        return compute_array_masks(
            torch.from_numpy(stage),
            torch.from_numpy(age),
            torch.from_numpy(at_rest),
            config,
            torch.from_numpy(is_open),
        )

    def history_dict(self) -> dict[str, Tensor]:
        """Return what the controller saw in all decisions."""
        columns = zip(*self._history, strict=True) if self._history else ()
        names = ("observations", "stage", "age", "at_rest", "gate", "fits")
        return {
            name: torch.from_numpy(np.stack(column))
            for name, column in zip(names, columns, strict=False)
        }

    def replay(self, history: Mapping[str, Tensor], seed: int) -> None:
        """Bring the controller to the memory that it had, by showing it the same again."""
        self.controller.start(1, seed=seed)
        self._history = [
            [part.numpy() for part in step] for step in zip(*history.values(), strict=True)
        ]
        for number, (observation, *states) in enumerate(self._history):
            self.controller.act(observation, self._masks(*states), np.array([number == 0]))

    def find_excess(self, action: GrowthAction, max_parameters: int | None) -> str:
        """Return why a seed would make the model too large; empty if it would not."""
        if max_parameters is None or action.op != Op.GERMINATE:
            return ""
        size = self.final_size() + self.slots[action.slot].count_new(action.blueprint)
        if size <= max_parameters:
            return ""
        return (
            f"{action.blueprint} in {action.slot} would make {size:,} parameters, and "
            f"max_parameters is {max_parameters:,}"
        )

    def add_flops(self, n_samples: int) -> None:
        """Add the FLOPs of an epoch, relative to plain training for the whole budget."""
        if self.meter is None:
            share = count_parameters(self.model) / max(1, int(self.records.n_parameters[0]))
            self.records.flops_used[0] += share / self.budget.n_epochs
            return
        with torch.random.fork_rng(devices=[]):
            spent = n_samples * self.meter.training_flops()
        if self.records.reference_flops[0] == 0.0:
            self.records.reference_flops[0] = n_samples * self._plain_flops * self.budget.n_epochs
        self.records.flops_used[0] += spent / max(1.0, float(self.records.reference_flops[0]))

    def start_meter(self, sample: Any) -> None:
        """Count FLOPs from now on, with a sample of the model's input."""
        self.meter = TrainingMeter(self.model, sample)
        with torch.random.fork_rng(devices=[]):
            self._plain_flops = self.meter.training_flops()

    def require_unchanged(self) -> None:
        """Raise if blocks with slots were replaced, or the optimizers lost parameters of seeds.

        Raises:
            GrowerError: Naming the block.
            SlotError: Naming the slot.
        """
        for name, block in self._places:
            found: Any = self.model.get_submodule(name)
            while found is not block and hasattr(found, "block"):
                found = found.block
            if found is not block:
                raise GrowerError(
                    f"block {name!r} of the model was replaced while it grows; make a new Grower "
                    "after changing the model."
                )
        self.governor.require_seeds()

    def slot_arrays(self) -> SlotArrays:
        """Return a copy of the state of the slots, after bringing the records up to date."""
        now, lives = self.records.slots, self.slots.lives
        for number, (name, life) in enumerate(lives.items()):
            at, slot = (0, number), self.slots[name]
            n_grown = sum(parameter.numel() for parameter in slot.grown_parameters())
            write_slot(now, at, life, self.slot_config, lives.growth_config)
            write_fossils(now, at, life, count_parameters(slot.fossils))
            now.parameters[at] = n_grown - now.fossil_parameters[at]
            if slot.seed is None:
                now.contribution[at] = np.nan
        return now.copy()


def _array(value: float | None) -> np.ndarray:
    """Return a number as an array; NaN if it is not known."""
    return np.array([math.nan if value is None else value])


def _clipped(score: float) -> np.ndarray:
    """Return a score as controllers see it."""
    return np.array([min(1.0, max(-1.0, score))])
