"""Lessons before the first round: a policy learns what pays from hosts grown in every way.

Some hosts are grown by each of a few schedules. To follow one of them for some epochs and then to
finish is a path, whose return is known at every price. The policy first imitates good paths, and
then climbs the return that it can expect on all of them. All returns of a host's paths are known
once it was grown by every schedule, so this expectation is exact: nothing is drawn.

Shapes: S = schedules, T = epochs, N = hosts, D = observation size, H = heads, K = choices of the
widest head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from esper.arrays import Features, Flags, Floats, Integers
from esper.config.growth import RewardConfig
from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.environment.runner import steer_hosts
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.simic.policy.action_spec import ActionSpec, relevance_table
from esper.simic.policy.distribution import choices_beside, masked_log_softmax
from esper.simic.policy.mask_reader import as_choice_masks
from esper.simic.policy.masks import LOWEST
from esper.tamiyo import Controller
from esper.tamiyo.controllers.controller import NamedController
from esper.tamiyo.controllers.price_schedule import SCHEDULES, follow
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import reprice
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task
from esper.training.setup import stream_seed

BLOCK = 64
"""Hosts that are grown side by side, at most."""
N_PASSES, BATCH = 24, 32
"""Passes over all hosts, and the hosts of each step of the optimizer."""
LEARNING_RATE, MAX_GRAD_NORM = 6e-3, 0.5
IMITATION = (0.1, 0.5)
"""Shares of the passes until which the policy only imitates, and until which it does so at all."""
ENTROPY = 0.4
"""Weight of the entropy over paths at first, in units of score; it falls to 0. Without it most
schedules would be given up before it is known when they pay."""
TEMPERATURE = 0.02
"""How much worse, in score, a path is that is imitated e times less often than another."""
SCORE_UNIT = 0.015
"""The unit of score in which expected returns are climbed."""
STRAYING = 0.03
"""Return assigned to leaving all schedules, below that of the worst path, in units of score."""

OP = HEAD_NAMES.index("op")

OnShare = Callable[[float], None]
_Grown = dict[str, NDArray[Any]]
"""What a schedule did with a block of hosts, ``[T, N, ...]`` each."""


@dataclass(frozen=True, eq=False)
class HostLesson:
    """A host, grown by every schedule."""

    observations: Tensor
    """``[T, S, D]``"""
    actions: Tensor
    """``[T, S, H]``"""
    legal: Tensor
    """``[T, S, H, K]`` choices that each head had beside the others."""
    is_path: Tensor
    """``[T + 1, S]``, whether no schedule before it has the same path."""
    worth: Tensor
    """``[T + 1, S]`` return after so many epochs, if FLOPs cost nothing."""
    flops: Tensor
    """``[T + 1, S]`` FLOPs, in those of a reference run."""
    price: float
    may_finish: bool
    """Whether hosts may be finished at a price above 0."""

    @property
    def n_epochs(self) -> int:
        """Epochs of the host's budget."""
        return len(self.actions)


class _Watched(NamedController):
    """Notes what a schedule sees and does."""

    def __init__(self, inner: Controller, spec: ActionSpec) -> None:
        self.name, self._inner, self._spec = "watched", inner, spec
        self.observations: list[Features] = []
        self.actions: list[Integers] = []
        self.legal: list[Flags] = []

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the schedule."""
        self._inner.start(n_hosts, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Do what the schedule does."""
        actions = self._inner.act(observations, masks, starts)
        taken = torch.from_numpy(actions)
        choices = as_choice_masks(self._spec, masks, len(taken), taken.device)
        self.observations.append(observations.copy())
        self.actions.append(actions.copy())
        self.legal.append(choices_beside(self._spec, taken, choices).numpy())
        return actions


def grow_hosts(
    config: RunConfig,
    task: Task,
    spec: ActionSpec,
    on_share: OnShare = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> list[HostLesson]:
    """Grow hosts of training by every schedule.

    Args:
        config: The settings of the run.
        task: The task of the hosts.
        spec: The policy's actions.
        on_share: Called with the share of the work that is done.
        check: Called often; it may raise to stop.
    """
    rewards = RewardConfig(shaping=0.0, governor_penalty=config.rewards.governor_penalty)
    n_hosts = config.lesson_hosts
    size = min(BLOCK, n_hosts)
    envs = GrowthVectorEnv(task, size, reward=rewards, purpose="training", autoreset=False)
    n_blocks = -(-n_hosts // size)
    seeds = np.random.SeedSequence(stream_seed(config.seed, "lessons")).generate_state(n_blocks)
    lessons: list[HostLesson] = []
    for block, seed in enumerate(seeds.tolist()):
        grown: list[_Grown] = []
        for number, seeds_of_slots in enumerate(SCHEDULES.values()):
            check()
            on_share((block + number / len(SCHEDULES)) / n_blocks)
            schedule = _Watched(follow(envs.layout, seeds_of_slots), spec)
            grown.append(_grow_block(envs, schedule, seed))
        records = envs.growth.records
        for host, n_epochs in enumerate(records.n_epochs.tolist()):
            lessons.append(
                _lesson_of(
                    grown,
                    host,
                    n_epochs,
                    price=float(records.flop_price[host]),
                    may_finish=envs.slot_config.allow_finish,
                )
            )
    on_share(1.0)
    return lessons[:n_hosts]


def _grow_block(envs: GrowthVectorEnv, schedule: _Watched, seed: int) -> _Grown:
    """Run a schedule on a block of hosts; episodes that are over stay as they are."""
    worth: list[Floats] = []
    flops: list[Floats] = []

    def note() -> None:
        growth = envs.growth
        spent = growth.records.flops_used.copy()
        worth.append(growth.returns_if_stopped() + growth.records.flop_price * spent)
        flops.append(spent)

    envs.reset(seed=seed)
    note()
    steer_hosts(envs.growth, schedule, seed=seed, on_step=lambda _actions, _result: note())
    seen = {name: getattr(schedule, name) for name in ("observations", "actions", "legal")}
    return {name: np.stack(one) for name, one in (seen | {"worth": worth, "flops": flops}).items()}


def _lesson_of(
    grown: Sequence[_Grown], host: int, n_epochs: int, *, price: float, may_finish: bool
) -> HostLesson:
    """Return what all schedules did with one host."""

    def join(name: str, n_steps: int) -> Tensor:
        parts = [one[name][:n_steps, host] for one in grown]
        return torch.from_numpy(np.stack(parts, 1))

    actions = join("actions", n_epochs)
    return HostLesson(
        observations=join("observations", n_epochs),
        actions=actions,
        legal=join("legal", n_epochs),
        is_path=find_new_paths(actions.transpose(0, 1)).t().contiguous(),
        worth=join("worth", n_epochs + 1).float(),
        flops=join("flops", n_epochs + 1).float(),
        price=price,
        may_finish=may_finish,
    )


@dataclass(frozen=True, eq=False)
class LessonBatch:
    """Lessons side by side; what follows the end of a host's budget is padding."""

    observations: Tensor
    """``[T, S, N, D]``"""
    actions: Tensor
    """``[T, S, N, H]``"""
    legal: Tensor
    """``[T, S, N, H, K]``"""
    is_path: Tensor
    """``[T + 1, S, N]``"""
    returns: Tensor
    """``[T + 1, S, N]``"""
    n_epochs: Tensor
    """``[N]``"""


def make_batch(lessons: Sequence[HostLesson], prices: Tensor) -> LessonBatch:
    """Put lessons side by side, each with a price of its own ``[N]``."""

    def pad(tensors: list[Tensor]) -> Tensor:
        # Whatever stands behind the end has no effect, but some choice must be legal there.
        return pad_sequence(tensors, padding_value=1).transpose(1, 2)

    may_finish = (prices > 0.0) & torch.tensor([one.may_finish for one in lessons])
    n_epochs = torch.tensor([one.n_epochs for one in lessons])
    legal = pad([one.legal for one in lessons])
    legal[..., OP, Op.FINISH] = may_finish
    is_path, epochs = pad([one.is_path for one in lessons]), torch.arange(len(legal) + 1)
    epochs = epochs.view(-1, 1, 1)
    is_path &= (epochs == n_epochs) | (epochs < n_epochs) & may_finish
    worth, flops = pad([one.worth for one in lessons]), pad([one.flops for one in lessons])
    return LessonBatch(
        observations=reprice(pad([one.observations for one in lessons]), prices),
        actions=pad([one.actions for one in lessons]),
        legal=legal,
        is_path=is_path,
        returns=worth - prices * flops,
        n_epochs=n_epochs,
    )


def log_probs_of_paths(policy: SlotPolicy, batch: LessonBatch) -> Tensor:
    """Return the log-probability ``[T + 1, S, N]`` that a policy gives to each path of a batch."""
    n_steps, n_schedules, n_hosts, size = batch.observations.shape
    n_rows = n_schedules * n_hosts
    spec, shape = policy.spec, (n_steps, n_schedules, n_hosts)
    observations = batch.observations.reshape(n_steps, n_rows, size)
    start = observations.new_zeros(n_rows, policy.state_size)
    outputs = policy.evaluate(observations, None, start, None).outputs
    actions, legal = batch.actions.flatten(end_dim=2), batch.legal.flatten(end_dim=2)
    log_p = masked_log_softmax(spec, outputs, legal)
    by_head = log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    is_read = relevance_table(spec, actions.device)[actions[:, OP]]
    taken = torch.where(is_read, by_head, 0.0).sum(1)
    finishing = log_p[:, OP, Op.FINISH]
    return path_log_probs(taken.view(shape), finishing.view(shape), batch.n_epochs)


def teach(
    config: RunConfig,
    task: Task,
    policy: SlotPolicy,
    on_share: OnShare = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> float:
    """Let an untrained policy learn from hosts of its own.

    Args:
        config: The settings of the run.
        task: The task of the hosts.
        policy: The policy, whose weights change.
        on_share: Called with the share of the work that is done.
        check: Called often; it may raise to stop.

    Returns:
        What the policy could expect on these hosts in the last pass.
    """
    lessons = grow_hosts(config, task, policy.spec, lambda share: on_share(0.7 * share), check)
    rng = np.random.default_rng(stream_seed(config.seed, "lessons"))
    prices = np.array([one.price for one in lessons], np.float32)
    for lesson, price in zip(lessons, torch.from_numpy(rng.permutation(prices)), strict=True):
        policy.learn_observations(reprice(lesson.observations.flatten(0, 1), price))
    parameters = [each for each in policy.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=1e-5)
    mean = 0.0
    for number in range(N_PASSES):
        found: list[Tensor] = []
        drawn = torch.from_numpy(rng.permutation(prices))
        for chosen in _draw_batches(lessons, rng):
            check()
            share = (number + len(found) * BATCH / len(lessons)) / N_PASSES
            on_share(0.7 + 0.3 * share)
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1.0 - 0.95 * share)
            batch = make_batch([lessons[host] for host in chosen], drawn[chosen])
            loss, expected = _lesson_loss(policy, batch, share)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
            found.append(expected)
        mean = float(torch.cat(found).mean())
    on_share(1.0)
    return mean


def _lesson_loss(policy: SlotPolicy, batch: LessonBatch, share: float) -> tuple[Tensor, Tensor]:
    """Return the loss after a share of the passes, and what the policy can expect, ``[N]``."""
    log_probs = log_probs_of_paths(policy, batch)
    returns, is_path = batch.returns, batch.is_path
    elsewhere = worst_returns(returns, is_path) - STRAYING
    expected = expected_returns(log_probs, returns, is_path, elsewhere)
    imitated = imitation_loss(log_probs, returns, is_path, TEMPERATURE).mean()
    weight, climbed = imitation_weight(share), expected.mean() / SCORE_UNIT
    entropy = path_entropy(log_probs, is_path).mean()
    loss = weight * imitated - (1.0 - weight) * climbed - ENTROPY * (1.0 - share) * entropy
    return loss, expected.detach()


def imitation_weight(share: float) -> float:
    """Return how much imitation counts, from 1 to 0, after a share of the passes."""
    first, last = IMITATION
    return min(1.0, max(0.0, (last - share) / (last - first)))


def _draw_batches(lessons: Sequence[HostLesson], rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield the numbers of all lessons in batches of hosts whose budgets are alike."""
    order: list[int] = rng.permutation(len(lessons)).tolist()
    for some in _split(order, 8 * BATCH):
        alike = _split(sorted(some, key=lambda host: lessons[host].n_epochs), BATCH)
        for index in rng.permutation(len(alike)).tolist():
            yield alike[index]


def _split(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]


def find_new_paths(actions: Tensor) -> Tensor:
    """Return which paths ``[S, T + 1]`` of a host no schedule before it shares.

    Args:
        actions: ``[S, T, H]`` of the schedules.
    """
    n_schedules, n_epochs, _ = actions.shape
    is_new = torch.ones(n_schedules, n_epochs + 1, dtype=torch.bool)
    is_new[1:, 0] = False  # to finish at once is one path
    for later in range(1, n_schedules):
        is_same = (actions[:later] == actions[later]).all(2).cumprod(1).bool()
        is_new[later, 1:] = ~is_same.any(0)
    return is_new


def path_log_probs(taken: Tensor, finishing: Tensor, n_epochs: Tensor) -> Tensor:
    """Return the log-probability of each path, ``[T + 1, S, N]``; those after the end are 0.

    Args:
        taken: ``[T, S, N]`` log-probabilities of what the schedules do.
        finishing: ``[T, S, N]`` log-probabilities of finishing instead.
        n_epochs: ``[N]`` epochs of each host's budget, after which no one has to finish.
    """
    n_steps = len(taken)
    is_before_end = torch.arange(n_steps).view(-1, 1, 1) < n_epochs
    start = taken.new_zeros(1, *taken.shape[1:])
    followed = torch.cat([start, torch.where(is_before_end, taken, 0.0).cumsum(0)])
    finished = torch.cat([torch.where(is_before_end, finishing, 0.0), start])
    is_over = torch.arange(n_steps + 1).view(-1, 1, 1) > n_epochs
    return (followed + finished).masked_fill(is_over, 0.0)


def expected_returns(
    log_probs: Tensor, returns: Tensor, is_path: Tensor, elsewhere: Tensor
) -> Tensor:
    """Return what a policy can expect, ``[N]``.

    Were it relative to the probability of all paths, a policy could gain by leaving a path that
    turns out to be bad.

    Args:
        log_probs: ``[..., N]`` of paths.
        returns: ``[..., N]`` of paths.
        is_path: ``[..., N]``, which of them there are.
        elsewhere: ``[N]``, the return if none of them is taken.
    """
    gains = (returns - elsewhere).flatten(end_dim=-2)
    return elsewhere + (_flat_paths(log_probs, is_path).exp() * gains).sum(0)


def path_entropy(log_probs: Tensor, is_path: Tensor) -> Tensor:
    """Return the entropy ``[N]`` of a policy over paths, as if it took no other."""
    log_shares = _flat_paths(log_probs, is_path).log_softmax(0)
    return -(log_shares.exp() * log_shares).sum(0)


def worst_returns(returns: Tensor, is_path: Tensor) -> Tensor:
    """Return the return of each host's worst path, ``[N]``."""
    return torch.where(is_path, returns, torch.inf).flatten(end_dim=-2).amin(0)


def imitation_loss(
    log_probs: Tensor, returns: Tensor, is_path: Tensor, temperature: float
) -> Tensor:
    """Return the cross-entropy ``[N]`` of a policy and paths drawn by their returns.

    The probability of such a path is proportional to ``exp(return / temperature)``.
    """
    flat = _flat_paths(log_probs, is_path)
    wanted = _flat_paths(returns / temperature, is_path).softmax(0)
    return -(wanted * flat).sum(0)


def _flat_paths(values: Tensor, is_path: Tensor) -> Tensor:
    return torch.where(is_path, values, LOWEST).flatten(end_dim=-2)
