"""Records of learning: rounds, updates of the policy, and evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from esper.telemetry.marks import added_field, clock_field


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """One round: what was collected, and how the episodes that ended in it went.

    What is a mean over ended episodes is none if no episode ended.
    """

    table: ClassVar[str] = "rounds"

    round: int
    """The round, counted from 1."""
    env_steps: int
    """Steps of environments so far in the run, each environment's counted."""
    n_episodes: int
    """Episodes that ended in the round."""
    ep_rew_mean: float | None
    """Mean sum of rewards of an episode."""
    ep_len_mean: float | None
    """Mean steps of an episode."""
    score_mean: float | None
    """Mean final score."""
    static_score: float | None
    """Mean final score of held-out hosts left alone, the same in every round."""
    flops_mean: float | None
    """Mean computing spent, as a share of the reference host's."""
    host_parameters_mean: float | None
    """Mean parameters of the hosts as they began."""
    seed_parameters_mean: float | None
    """Mean parameters of the committed seeds."""
    op_wait: float | None
    """Waits done per episode."""
    op_germinate: float | None
    """Seeds germinated per episode."""
    op_set_alpha_target: float | None
    """Changes of alpha's target per episode."""
    op_prune: float | None
    """Seeds pruned per episode."""
    op_fossilize: float | None
    """Seeds fossilized per episode."""
    op_advance: float | None
    """Seeds advanced by an action per episode."""
    op_finish: float | None
    """Share of episodes that the controller ended."""
    n_illegal: int
    """Steps of the round whose action the host's state did not allow."""
    n_refused: int
    """Steps of the round whose action a gate refused."""
    n_restored: int
    """Hosts that the governor put back in the round."""
    learning_rate: float
    """Learning rate of the round's update."""
    ent_coef: float
    """Weight of the entropy in the round's update."""
    seconds: float = clock_field()
    """How long the round took."""
    steps_per_second: float = clock_field()
    """Environments' steps per second of the round."""
    seconds_by_part: str = clock_field()
    """Seconds of each part of the round: a JSON mapping."""
    rss_bytes: int = clock_field()
    """Memory of the process after the round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateRecord:
    """One update of the policy. Its numbers are none if it was refused."""

    table: ClassVar[str] = "updates"

    round: int
    """The round."""
    n_updates: int
    """Updates so far that were not refused."""
    approx_kl: float | None
    """Divergence from the policy that collected the steps, a mean over heads that mattered."""
    joint_kl: float | None
    """The same for whole actions: summed over heads."""
    policy_loss: float | None
    """The clipped surrogate, summed over the heads that mattered."""
    value_loss: float | None
    """Squared error of the critic, in squared deviations of the return."""
    entropy: float | None
    """Entropy of an action, summed over the heads that could have mattered."""
    clip_fraction: float | None
    """Share of the ratios that mattered which left the clip range."""
    explained_variance: float | None
    """Share of the returns' variance that the values explain; 1 is perfect."""
    gradient_norm: float | None
    """Norm of the gradient before clipping, a mean over gradient steps."""
    epochs_run: int
    """Passes over the rollout that were begun."""
    gradient_steps: int
    """Gradient steps taken."""
    stopped_early: bool
    """Whether the divergence ended the update before its last epoch."""
    was_refused: bool
    """Whether the update was undone because a number was not finite."""
    refusal: str | None
    """Why; none if it was not refused."""
    approx_kl_by_head: str
    """Divergence of each head: a JSON mapping, empty if refused."""
    clip_fraction_by_head: str
    """Clipped share of each head: a JSON mapping, empty if refused."""
    entropy_by_head: str
    """Entropy of each head: a JSON mapping, empty if refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecord:
    """A controller tried on hosts that nobody learned from."""

    table: ClassVar[str] = "evaluations"

    round: int
    """The round after which it was."""
    arm: str
    """The controller: ``learned``, or the name of one that it is compared with."""
    purpose: str
    """``tuning`` to follow learning and keep the best, ``final`` to compare at the end."""
    split: str
    """Which draws of hosts."""
    n_episodes: int
    """Hosts grown."""
    ep_rew_mean: float
    """Mean sum of rewards of an episode."""
    score_mean: float
    """Mean final score."""
    flops_mean: float
    """Mean computing spent, as a share of the reference host's."""
    n_epochs_mean: float
    """Mean epochs trained."""
    host_parameters_mean: float
    """Mean parameters of the hosts as they began."""
    seed_parameters_mean: float
    """Mean parameters of the committed seeds."""
    ops: str
    """Ops done per episode, by name: a JSON mapping."""
    is_best: bool
    """Whether it is the best so far of its kind."""
    fixed_reward: float | None = added_field(since=2)
    """In trials of the learned controller: what ``ep_rew_mean`` is of the fixed schedule there."""
    seconds: float = clock_field()
    """How long it took."""
