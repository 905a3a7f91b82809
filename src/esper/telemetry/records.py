"""Every kind of record, the tables that they are kept in, and the version of them all.

A record is a frozen dataclass of plain values: int, float, str, bytes, bool or None. Where a list
or a mapping is needed, it is JSON text.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any, ClassVar

_MARK = "clock"
_SINCE = "since"


def clock_field() -> Any:
    """Return a field whose value differs from one process to the next; no digest contains it."""
    return field(metadata={_MARK: True})


def is_clock_field(one: Field[Any]) -> bool:
    """Return whether a field was made by :func:`clock_field`."""
    return bool(one.metadata.get(_MARK))


def added_field(*, since: int) -> Any:
    """Return a field that databases before a schema version lack; it reads as None from them."""
    return field(metadata={_SINCE: since})


def version_of(one: Field[Any]) -> int:
    """Return the schema version from which on a field is stored."""
    return int(one.metadata.get(_SINCE, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What a run is. There is one, and it is the first row."""

    table: ClassVar[str] = "runs"

    name: str = clock_field()
    """The run's name."""
    task: str
    """What hosts learn."""
    config: str
    """The whole configuration, as TOML."""
    slots: str
    """Names of the hosts' slots, in the order of the slot head: a JSON list."""
    blueprints: str
    """Names of the blueprints, in the order of the blueprint head: a JSON list."""
    heads: str
    """Names of the heads of an action: a JSON list."""
    ops: str
    """Names of the ops, in the order of the op head: a JSON list."""
    esper_version: str = clock_field()
    """The version of Esper that began the run."""
    created_at: str = clock_field()
    """When the run began, in ISO 8601 with its time zone."""
    choices: str | None = added_field(since=3)
    """What the choices of each head are called: a JSON object of lists, by head."""
    reads: str | None = added_field(since=3)
    """The heads that each op reads: a JSON object of lists, by op."""
    host: str | None = added_field(since=3)
    """The parts of the task's host in their order: a JSON list of objects with ``name``, ``kind``,
    ``parameters`` and ``slot``, which is null but for a slot; and ``first_env``, the environment
    from which on hosts have this part, where there are several kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRecord:
    """One process that worked on the run. A resumed run has several; none is ever taken back."""

    table: ClassVar[str] = "sessions"

    pid: int
    """The process."""
    started_at: str
    """When it began, in ISO 8601 with its time zone."""
    ended_at: str | None
    """When it ended; none while it runs, or if it was killed."""
    outcome: str | None
    """``done``, ``interrupted`` or ``failed``; none while it runs, or if it was killed."""
    message: str | None
    """What there is to say about how it began and ended."""
    first_round: int
    """The round that it began or went on with."""
    threads: int
    """Threads of PyTorch."""
    torch_version: str
    """The version of PyTorch."""
    python_version: str
    """The version of Python."""
    esper_version: str
    """The version of Esper."""
    platform: str
    """The operating system and the processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoticeRecord:
    """Something that a person should know, such as that the run stopped early."""

    table: ClassVar[str] = "notices"

    round: int
    """The round in which it happened."""
    kind: str
    """What sort of thing it is, in a word or two."""
    message: str
    """The thing itself, in a sentence."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRecord:
    """An episode that ended: one host, from its first weights to its score."""

    table: ClassVar[str] = "episodes"

    round: int
    """The round in which it ended."""
    step: int
    """The step of the run at which it ended, counting all environments' steps as one."""
    env: int
    """The environment."""
    episode: int
    """Which episode of the environment, counted from 0."""
    draw_seed: int
    """What decided the host's data and first weights."""
    ep_rew: float
    """The sum of its rewards."""
    ep_len: int
    """Its steps."""
    progress: float
    """The sum of what the rewards gave for a better validation score."""
    settlement: float
    """What the last reward gave so that the sum is about the final score."""
    flops_cost: float
    """The sum of what the rewards took for computing."""
    rent: float
    """The sum of what the rewards took for added parameters."""
    penalty: float
    """The sum of what the rewards took for steps that the governor had to undo."""
    shaping: float
    """The sum of the shaping terms."""
    final_score: float | None
    """The committed host's score on data the controller did not see; none if it was not scored."""
    flops: float
    """Computing spent, as a share of the reference host's."""
    n_epochs: int
    """Epochs trained."""
    host_parameters: int
    """Parameters of the host that it began with."""
    seed_parameters: int
    """Parameters of the seeds that were committed."""
    was_truncated: bool
    """Whether a limit outside the task cut it short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One step of one environment: what was chosen, what was done, and what it was worth.

    The eight choices are indices; the run's record says what they stand for. A choice that the
    op does not read was drawn like the others and has no effect.
    """

    table: ClassVar[str] = "steps"

    round: int
    """The round."""
    step: int
    """The step of the run, counting all environments' steps as one."""
    env: int
    """The environment."""
    episode: int
    """Which episode of the environment, counted from 0."""
    epoch: int
    """Epochs that the host had trained after the step."""
    slot: int
    """The slot that was chosen."""
    blueprint: int
    """The blueprint that was chosen."""
    style: int
    """The way of blending that was chosen."""
    tempo: int
    """The tempo that was chosen."""
    alpha_target: int
    """The target of alpha that was chosen."""
    alpha_speed: int
    """The speed of alpha that was chosen."""
    alpha_curve: int
    """The curve of alpha that was chosen."""
    op: int
    """The op that was chosen."""
    op_done: int
    """The op that was done: a refused one is a wait."""
    is_illegal: bool
    """Whether the host's state did not allow what was chosen."""
    refusal: str | None
    """Why a gate refused what was chosen; none if it did not."""
    reward: float
    """The reward: the sum of the six terms that follow."""
    progress: float
    """Given for a better validation score."""
    settlement: float
    """Given at the end, so that the sum is about the final score."""
    flops_cost: float
    """Taken for computing; at most 0."""
    rent: float
    """Taken for added parameters; at most 0."""
    penalty: float
    """Taken for a step that the governor had to undo; at most 0."""
    shaping: float
    """Potential-based shaping."""
    score: float
    """The validation score after the step."""
    flops: float
    """Computing spent in the episode so far, as a share of the reference host's."""
    value: float
    """What the critic expected before the step."""
    log_prob: float
    """Logarithm of the probability of the action, over the heads that the op reads."""
    slots: str
    """The slots after the step: a JSON list of [stage, blueprint or -1, alpha, contribution,
    parameters of the seed]; before schema version 3 without the last."""
    probabilities: bytes | None = added_field(since=3)
    """The probability that each choice of each head had, packed as two bytes each: little-endian,
    in 65,534ths, 65,535 for a choice that was masked. Heads follow one another as in ``heads``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedEventRecord:
    """A seed that went from one stage of its life to the next."""

    table: ClassVar[str] = "seed_events"

    round: int
    """The round."""
    step: int
    """The step of the run, counting all environments' steps as one."""
    env: int
    """The environment."""
    episode: int
    """Which episode of the environment, counted from 0."""
    draw_seed: int
    """What decided the host's data and first weights."""
    epoch: int
    """Epochs that the host had trained."""
    slot: str
    """The slot's name."""
    blueprint: str
    """The blueprint's name."""
    from_stage: str
    """The stage that it left."""
    to_stage: str
    """The stage that it entered."""
    alpha: float
    """How strongly it was blended in."""
    contribution: float
    """The score with it minus without it, when it was last measured; NaN if it never was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GovernorRecord:
    """A host that the governor put back to its last good state."""

    table: ClassVar[str] = "governor_events"

    round: int
    """The round."""
    step: int
    """The step of the run, counting all environments' steps as one."""
    env: int
    """The environment."""
    episode: int
    """Which episode of the environment, counted from 0."""
    draw_seed: int
    """What decided the host's data and first weights."""
    epoch: int
    """Epochs that the host had trained."""
    reason: str
    """What was wrong."""


SCHEMA_VERSION = 3
"""Changes when a table or column does. Earlier ones can be read, and not written."""

Record = (
    RunRecord
    | RoundRecord
    | EpisodeRecord
    | StepRecord
    | SeedEventRecord
    | GovernorRecord
    | UpdateRecord
    | EvaluationRecord
    | NoticeRecord
)
"""What a run writes: rows that are numbered in the order of writing."""

RECORD_TYPES: tuple[type[Record], ...] = (
    RunRecord,
    RoundRecord,
    EpisodeRecord,
    StepRecord,
    SeedEventRecord,
    GovernorRecord,
    UpdateRecord,
    EvaluationRecord,
    NoticeRecord,
)
"""The types of :data:`Record`."""

TABLES: dict[str, type[Record] | type[SessionRecord]] = {
    kind.table: kind for kind in (*RECORD_TYPES, SessionRecord)
}
"""Every table's record type."""

__all__ = [
    "RECORD_TYPES",
    "SCHEMA_VERSION",
    "TABLES",
    "EpisodeRecord",
    "EvaluationRecord",
    "GovernorRecord",
    "NoticeRecord",
    "Record",
    "RoundRecord",
    "RunRecord",
    "SeedEventRecord",
    "SessionRecord",
    "StepRecord",
    "UpdateRecord",
]
