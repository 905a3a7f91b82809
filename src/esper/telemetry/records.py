"""The record types of a run: one SQLite table each, one column per field.

A record is a frozen dataclass of plain values: int, float, str, bytes, bool or None. Lists and
mappings are stored as JSON text. The description of a column is the one shown in the docs, and a
column that names a metric is plotted and sent to trackers under that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_args

SCHEMA_VERSION = 8
"""Increases with every change of tables, columns or indexes. Other versions cannot be read."""

T = TypeVar("T")
Indexes = tuple[tuple[str, ...], ...]


def column(about: str, *, metric: str | None = None, sign: int = 1, clock: bool = False) -> Any:
    """Declare a field of a record.

    Args:
        about: What the column holds, in a sentence.
        metric: The name under which users see it. ``<head>`` in it stands for the keys of a JSON
            mapping.
        sign: -1 if the metric is the negated value.
        clock: True if the value depends on time or on the process; digests leave it out.
    """
    return field(metadata={"about": about, "metric": metric, "sign": sign, "clock": clock})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(column,))
def record(cls: type[T]) -> type[T]:
    """Make a class a record type."""
    return dataclass(frozen=True, kw_only=True, slots=True)(cls)


@record
class RunRecord:
    """The run itself, in the first row. PPO that is continued adds one; the last is valid."""

    table: ClassVar[str] = "runs"
    indexes: ClassVar[Indexes] = ()

    name: str = column("The run's name.", clock=True)
    task: str = column("The task that hosts learn.")
    config: str = column("The whole configuration, as TOML.")
    slots: str = column("Names of the hosts' slots, in the order of the slot head: a JSON list.")
    blueprints: str = column(
        "Names of the blueprints, in the order of the blueprint head: a JSON list."
    )
    heads: str = column("Names of the action heads: a JSON list.")
    ops: str = column("Names of the ops, in the order of the op head: a JSON list.")
    esper_version: str = column("The version of Esper that started the run.", clock=True)
    created_at: str = column("Start of the run, in ISO 8601 with time zone.", clock=True)
    choices: str = column("Names of each head's choices: a JSON object of lists, by head.")
    reads: str = column("The heads that each op reads: a JSON object of lists, by op.")
    host: str | None = column(
        "The layers and slots of the task's host in order: a JSON list of objects with `name`, "
        "`kind`, `parameters` and `slot` (null for a layer); empty if hosts are "
        "of several designs."
    )


@record
class SessionRecord:
    """One process that worked on the run; a resumed run has several. Never rolled back."""

    table: ClassVar[str] = "sessions"
    indexes: ClassVar[Indexes] = ()

    pid: int = column("Process ID.")
    started_at: str = column("Start, in ISO 8601 with time zone.")
    ended_at: str | None = column("End; none while it is running or if it was killed.")
    outcome: str | None = column(
        "`done`, `interrupted` or `failed`; none while it is running or if it was killed."
    )
    message: str | None = column("Remarks on how it started and ended.")
    first_round: int = column("The round it started with.")
    threads: int = column("PyTorch threads.")
    torch_version: str = column("The version of PyTorch.")
    python_version: str = column("The version of Python.")
    esper_version: str = column("The version of Esper.")
    platform: str = column("Operating system and processor.")


@record
class NoticeRecord:
    """Something the user should know, such as why the run stopped early."""

    table: ClassVar[str] = "notices"
    indexes: ClassVar[Indexes] = ()

    round: int = column("The round in which it happened.")
    kind: str = column("The kind of notice, in a word or two.")
    message: str = column("The notice, in a sentence.")


@record
class RoundRecord:
    """One round: what was collected, and how the episodes that ended in it went.

    Means over episodes are none if no episode ended in the round. In a record of the user's own
    training, a round is an epoch, and score, FLOPs, parameters and learning rate are those of the
    model after it.
    """

    table: ClassVar[str] = "rounds"
    indexes: ClassVar[Indexes] = (("round",),)

    round: int = column("The round, counted from 1.", metric="time/iterations")
    env_steps: int = column(
        "Environment steps so far, summed over environments.", metric="time/total_timesteps"
    )
    n_episodes: int = column("Episodes that ended in the round.")
    ep_rew_mean: float | None = column("Mean episode return.", metric="rollout/ep_rew_mean")
    ep_len_mean: float | None = column("Mean episode length.", metric="rollout/ep_len_mean")
    score_mean: float | None = column("Mean final score of the hosts.", metric="growth/score")
    no_growth_score: float | None = column(
        "Mean final score of held-out hosts with no growth, the same in every round.",
        metric="growth/no_growth_score",
    )
    flops_mean: float | None = column(
        "Mean training FLOPs per episode, as a share of the reference host's.",
        metric="growth/flops",
    )
    host_parameters_mean: float | None = column(
        "Mean parameters of the hosts before growth.", metric="growth/host_parameters"
    )
    seed_parameters_mean: float | None = column(
        "Mean parameters of the fossilized seeds.", metric="growth/seed_parameters"
    )
    op_wait: float | None = column("Waits per episode.", metric="ops/wait")
    op_germinate: float | None = column("Seeds germinated per episode.", metric="ops/germinate")
    op_set_alpha_target: float | None = column(
        "Changes of the alpha target per episode.", metric="ops/set_alpha_target"
    )
    op_prune: float | None = column("Seeds pruned per episode.", metric="ops/prune")
    op_fossilize: float | None = column("Seeds fossilized per episode.", metric="ops/fossilize")
    op_advance: float | None = column(
        "Seeds advanced by an action per episode.", metric="ops/advance"
    )
    op_finish: float | None = column(
        "Share of episodes that the controller finished early.", metric="ops/finish"
    )
    n_illegal: int = column(
        "Steps of the round whose action was illegal in the host's state.",
        metric="growth/illegal",
    )
    n_refused: int = column(
        "Steps of the round whose action a gate refused.", metric="growth/refused"
    )
    n_restored: int = column(
        "Hosts that the governor rolled back in the round.", metric="growth/restored"
    )
    learning_rate: float = column(
        "Learning rate of the round's update.", metric="train/learning_rate"
    )
    ent_coef: float = column("Entropy coefficient of the round's update.", metric="train/ent_coef")
    seconds: float = column("Duration of the round.", clock=True)
    steps_per_second: float = column(
        "Environment steps per second, over the round.", metric="time/fps", clock=True
    )
    seconds_by_part: str = column("Seconds of each part of the round: a JSON object.", clock=True)
    rss_bytes: int = column("Memory of the process after the round.", clock=True)
    workers: int | None = column(
        "Worker processes at the end of the round; none if this process works alone.", clock=True
    )
    workers_restarted: int | None = column(
        "Workers that this process has replaced so far, because they died or hung.", clock=True
    )
    seconds_waited: float | None = column(
        "Seconds so far that workers had nothing to do while others were busy, all together.",
        clock=True,
    )


@record
class UpdateRecord:
    """One update of the policy. Its statistics are none if it was rejected."""

    table: ClassVar[str] = "updates"
    indexes: ClassVar[Indexes] = (("round",),)

    round: int = column("The round.")
    n_updates: int = column("Updates so far, without rejected ones.", metric="train/n_updates")
    approx_kl: float | None = column(
        "Approximate KL divergence from the policy that collected the steps, averaged over the "
        "heads and steps that mattered.",
        metric="train/approx_kl",
    )
    joint_kl: float | None = column(
        "The same for whole actions: summed over heads, averaged over steps.",
        metric="train/joint_kl",
    )
    policy_loss: float | None = column(
        "The clipped surrogate loss, summed over the heads that mattered.",
        metric="train/policy_gradient_loss",
    )
    value_loss: float | None = column(
        "Squared error of the critic, in units of the return's variance.",
        metric="train/value_loss",
    )
    entropy: float | None = column(
        "Entropy of an action, summed over the heads that could have mattered. The metric is "
        "negated, as in Stable-Baselines3.",
        metric="train/entropy_loss",
        sign=-1,
    )
    clip_fraction: float | None = column(
        "Share of the probability ratios outside the clip range.", metric="train/clip_fraction"
    )
    explained_variance: float | None = column(
        "Share of the returns' variance that the critic explains: 1 is perfect, 0 no better than a "
        "constant.",
        metric="train/explained_variance",
    )
    gradient_norm: float | None = column(
        "Gradient norm before clipping, averaged over gradient steps.",
        metric="train/gradient_norm",
    )
    epochs_run: int = column("Passes over the rollout that were started.")
    gradient_steps: int = column("Gradient steps taken.")
    stopped_early: bool = column(
        "Whether the KL divergence stopped the update before its last epoch.",
        metric="train/early_stop",
    )
    was_refused: bool = column(
        "Whether the update was undone because a value was not finite.", metric="train/refused"
    )
    refusal: str | None = column("Why it was undone; none if it was not.")
    approx_kl_by_head: str = column(
        "`approx_kl` of each head: a JSON object, empty if rejected.",
        metric="train/approx_kl/<head>",
    )
    clip_fraction_by_head: str = column(
        "`clip_fraction` of each head: a JSON object, empty if rejected.",
        metric="train/clip_fraction/<head>",
    )
    entropy_by_head: str = column(
        "Entropy of each head: a JSON object, empty if rejected.", metric="train/entropy/<head>"
    )


@record
class EvaluationRecord:
    """A controller evaluated on held-out hosts."""

    table: ClassVar[str] = "evaluations"
    indexes: ClassVar[Indexes] = (("round",),)

    round: int = column("The round after which it took place.")
    arm: str = column("The controller: `learned`, or the name of a baseline.")
    purpose: str = column(
        "`tuning` to follow learning and keep the best controller, `final` to compare at the end."
    )
    split: str = column("The split that hosts were drawn from.")
    n_episodes: int = column("Hosts grown.")
    ep_rew_mean: float = column("Mean episode return.", metric="eval/mean_reward")
    score_mean: float = column("Mean final score of the hosts.", metric="eval/score")
    flops_mean: float = column(
        "Mean training FLOPs per episode, as a share of the reference host's.",
        metric="eval/flops",
    )
    n_epochs_mean: float = column("Mean epochs trained.")
    host_parameters_mean: float = column("Mean parameters of the hosts before growth.")
    seed_parameters_mean: float = column("Mean parameters of the fossilized seeds.")
    ops: str = column("Ops per episode, by name: a JSON object.")
    is_best: bool = column("Whether it is the best so far of its kind.")
    fixed_reward: float | None = column(
        "Mean episode return of the fixed schedule on the same hosts.", metric="eval/fixed_reward"
    )
    seconds: float = column("Duration of the evaluation.", clock=True)


@record
class HostRecord:
    """The columns of all records of a host in an environment."""

    round: int = column("The round.")
    step: int = column("The run's step; environments step together.")
    env: int = column("The environment.")
    episode: int = column("The episode's number in its environment, counted from 0.")


@record
class EpisodeRecord(HostRecord):
    """A finished episode: one host, from its first weights to its final score."""

    table: ClassVar[str] = "episodes"
    indexes: ClassVar[Indexes] = (("env", "episode"), ("round",))

    round: int = column("The round in which it ended.")
    step: int = column("The run's step at which it ended; environments step together.")
    draw_seed: int = column("The seed of the host's data and first weights.")
    ep_rew: float = column("The return: the sum of the rewards.")
    ep_len: int = column("The number of steps.")
    progress: float = column("Sum of the rewards for a better validation score.")
    settlement: float = column("The last reward's correction to the final score.")
    flops_cost: float = column("Sum of the costs of computing.")
    rent: float = column("Sum of the costs of added parameters.")
    penalty: float = column("Sum of the penalties for steps that the governor rolled back.")
    shaping: float = column("Sum of the shaping terms.")
    final_score: float | None = column(
        "Score of the committed host on data unseen by the controller; none if not scored. In a "
        "record of the user's own training, the score of the last epoch."
    )
    flops: float = column("Training FLOPs, as a share of the reference host's.")
    n_epochs: int = column("Epochs trained.")
    host_parameters: int = column("Parameters of the host before growth.")
    seed_parameters: int = column("Parameters of the fossilized seeds.")
    was_truncated: bool = column("Whether a limit outside the task ended it.")
    title: str | None = column(
        "What the host learned and what it was, in words; none if the task draws nothing."
    )
    facts: str | None = column(
        "The values that were drawn for the host: a JSON object of numbers by name."
    )
    slot_names: str | None = column(
        "Names of the host's slots, in the order of the slot head: a JSON list. A host may have "
        "fewer than others, and other names."
    )
    budget_epochs: int | None = column("Epochs of the budget.")
    flop_price: float | None = column(
        "The price of the FLOPs of training the reference host for the whole budget."
    )
    no_growth_scores: str | None = column(
        "Validation scores of the same host with no growth, before training and after each epoch: "
        "a JSON list; none unless rewards are paired."
    )
    no_growth_final_score: float | None = column(
        "Final score of the same host with no growth; none unless rewards are paired."
    )
    schedule_scores: str | None = column(
        "Validation scores of the same host grown by the fixed schedule that suits its price, as "
        "in `no_growth_scores`: a JSON list; none unless rewards are scheduled."
    )
    schedule_final_score: float | None = column(
        "Final score of the same host grown by that schedule; none unless rewards are scheduled."
    )


@record
class StepRecord(HostRecord):
    """One step of one environment: the action, its effect and its reward.

    The eight choices are indices into the names in the run's record. A choice that the op does not
    read has no effect. In a record of the user's own training there are no rewards, and choices are
    -1 in an epoch before which the controller was not asked.
    """

    table: ClassVar[str] = "steps"
    indexes: ClassVar[Indexes] = (("env", "episode"), ("step",))

    epoch: int = column("Epochs that the host has trained after the step.")
    slot: int = column("The chosen slot.")
    blueprint: int = column("The chosen blueprint.")
    style: int = column("The chosen blending style.")
    tempo: int = column("The chosen tempo.")
    alpha_target: int = column("The chosen alpha target.")
    alpha_speed: int = column("The chosen alpha speed.")
    alpha_curve: int = column("The chosen alpha curve.")
    op: int = column("The chosen op.")
    op_done: int = column("The op that was performed: a refused one becomes a wait.")
    is_illegal: bool = column("Whether the action was illegal in the host's state.")
    refusal: str | None = column("Why a gate refused the action; none if it did not.")
    reward: float = column("The reward: the sum of the next six columns.")
    progress: float = column("Reward for a better validation score.")
    settlement: float = column("Correction to the final score, at the last step.")
    flops_cost: float = column("Cost of computing; at most 0.")
    rent: float = column("Cost of added parameters; at most 0.")
    penalty: float = column("Penalty for a step that the governor rolled back; at most 0.")
    shaping: float = column("Potential-based shaping.")
    score: float = column("Validation score after the step.")
    flops: float = column("Training FLOPs of the episode so far, as a share of the reference's.")
    value: float = column("The critic's estimate before the step.")
    log_prob: float = column("Log-probability of the action, over the heads that the op reads.")
    slots: str = column(
        "The slots after the step: a JSON list of [stage, blueprint or -1, alpha, contribution or "
        "null, parameters of the seed, number of fossils, parameters of the fossils]."
    )
    probabilities: bytes | None = column(
        "The probability of each choice of each head, two bytes each: little-endian, in "
        "65,534ths, 65,535 for a masked choice. Heads follow one another as in `heads`."
    )


@record
class HostEventRecord(HostRecord):
    """The columns of all records of what happened to a host."""

    draw_seed: int = column("The seed of the host's data and first weights.")
    epoch: int = column("Epochs that the host has trained.")


@record
class SeedEventRecord(HostEventRecord):
    """A seed that moved from one stage to another."""

    table: ClassVar[str] = "seed_events"
    indexes: ClassVar[Indexes] = (("env", "episode"), ("round",))

    slot: str = column("The slot's name.")
    blueprint: str = column("The blueprint's name.")
    from_stage: str = column("The stage before.")
    to_stage: str = column("The stage after.")
    alpha: float = column("How strongly the seed was blended in.")
    contribution: float = column(
        "The score with the seed minus without it, as last measured; NaN if never measured."
    )


@record
class GovernorRecord(HostEventRecord):
    """A host that the governor rolled back to its last good state."""

    table: ClassVar[str] = "governor_events"
    indexes: ClassVar[Indexes] = (("env", "episode"),)

    reason: str = column("What was wrong.")


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
"""A row of a run; rows are numbered over all tables in the order of writing."""

RECORD_TYPES: tuple[type[Record], ...] = get_args(Record)
"""The types of :data:`Record`."""


@dataclass(frozen=True)
class RecordColumns:
    """Consecutive records of one type by column: many are made and stored faster like this."""

    kind: type[Record] | type[SessionRecord]
    columns: Mapping[str, Sequence[Any]]
    """The values of every field, as many as there are records."""

    @classmethod
    def of(cls, record: Record | SessionRecord) -> RecordColumns:
        """Return a single record by column."""
        return cls(type(record), {one.name: (getattr(record, one.name),) for one in fields(record)})

    @classmethod
    def from_rows(cls, kind: type[Record], rows: Sequence[Mapping[str, Any]]) -> RecordColumns:
        """Return at least one record by column, given the values of each by field."""
        return cls(kind, {name: [row[name] for row in rows] for name in rows[0]})

    def records(self) -> Iterator[Any]:
        """Return the records one by one."""
        for values in zip(*self.columns.values(), strict=True):
            yield self.kind(**dict(zip(self.columns, values, strict=True)))


TABLES: dict[str, type[Record] | type[SessionRecord]] = {
    kind.table: kind for kind in (*RECORD_TYPES, SessionRecord)
}
"""Every table's record type."""
