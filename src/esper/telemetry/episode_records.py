"""Records of episodes: how each ended, its steps, the lives of its seeds, and rescues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from esper.telemetry.marks import added_field


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
