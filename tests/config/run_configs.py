"""Random valid settings of runs."""

from hypothesis import strategies as st

from esper.config.growth import MAX_EPOCHS, Budget, RewardConfig
from esper.config.learning import PolicyConfig, PPOConfig
from esper.config.run import (
    OWN_TRAINING,
    CheckpointConfig,
    EvaluationConfig,
    RunConfig,
    ScheduleConfig,
    TelemetryConfig,
)

counts = st.integers(1, 2**62)
epochs = st.integers(1, MAX_EPOCHS)
positive = st.floats(0, 1e300, exclude_min=True)
not_negative = st.floats(0, 1e300)
shares = st.floats(0, 1)
words = st.text(st.characters(exclude_categories=["Cs"]))
schedules = st.sampled_from(["constant", "linear", "cosine"])
sinks = st.lists(st.sampled_from(["tensorboard", "wandb"])).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False)
options = st.dictionaries(words, st.booleans() | st.integers() | finite | words, max_size=4)


@st.composite
def run_configs(draw: st.DrawFn) -> RunConfig:
    """Draw valid settings of a run; shaping needs both discount factors to be equal."""
    gamma = draw(st.floats(0, 1, exclude_min=True))
    n_minibatches = draw(st.none() | st.just(1))  # more need as many sequences
    ppo = st.builds(
        PPOConfig,
        learning_rate=not_negative,
        n_epochs=st.integers(1, 10_000),
        batch_size=counts if n_minibatches is None else st.just(PPOConfig.batch_size),
        n_minibatches=st.just(n_minibatches),
        sequence_length=st.none() | counts,
        gamma=st.just(gamma),
        gae_lambda=shares,
        clip_range=positive,
        clip=st.sampled_from(["per-head", "joint"]),
        clip_range_vf=st.none() | positive,
        ent_coef=not_negative,
        vf_coef=not_negative,
        max_grad_norm=positive,
        target_kl=st.none() | positive,
        normalize_advantage=st.booleans(),
        normalize_returns=st.booleans(),
    )
    return draw(
        st.builds(
            RunConfig,
            task=words.filter(lambda word: word.isprintable() and word not in ("", OWN_TRAINING)),
            task_options=options,
            rounds=counts,
            envs=counts,
            n_steps=counts,
            seed=st.integers(0, 2**64 - 1),
            threads=st.integers(1, 1024),
            budget=st.builds(Budget, n_epochs=epochs, flop_price=not_negative),
            rewards=st.builds(RewardConfig, gamma=st.just(gamma), shaping=not_negative),
            policy=st.builds(PolicyConfig, lstm_size=counts, normalize_observations=st.booleans()),
            ppo=ppo,
            schedule=st.builds(ScheduleConfig, learning_rate=schedules, ent_coef=schedules),
            evaluation=st.builds(EvaluationConfig, eval_freq=counts, patience=st.none() | counts),
            checkpoints=st.builds(CheckpointConfig, save_freq=counts, keep_last=counts),
            telemetry=st.builds(TelemetryConfig, record_steps=st.booleans(), sinks=sinks),
        )
    )
