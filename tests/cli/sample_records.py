"""Sample records of a run, with numbers that are easy to recognize."""

from typing import Any

from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    RoundRecord,
    RunRecord,
    StepRecord,
    UpdateRecord,
)


def run_record() -> RunRecord:
    return RunRecord(
        name="first-run",
        task="digits-family",
        config="",
        slots="[]",
        blueprints="[]",
        heads="[]",
        ops="[]",
        esper_version="0",
        created_at="now",
        choices=None,
        reads=None,
        host=None,
    )


def round_record(number: int, **changes: Any) -> RoundRecord:
    facts: dict[str, Any] = {
        "round": number,
        "env_steps": number * 1024,
        "n_episodes": 64,
        "ep_rew_mean": 0.4 + 0.01 * number,
        "ep_len_mean": 14.5,
        "score_mean": 0.861,
        "no_growth_score": 0.842,
        "flops_mean": 0.71,
        "host_parameters_mean": 1873.0,
        "seed_parameters_mean": 412.0,
        "op_wait": 8.5,
        "op_germinate": 1.25,
        "op_set_alpha_target": 0.01,
        "op_prune": 0.25,
        "op_fossilize": 0.9,
        "op_advance": 2.5,
        "op_finish": 0.6,
        "n_illegal": 0,
        "n_refused": 3,
        "n_restored": 0,
        "learning_rate": 1e-3,
        "ent_coef": 0.01,
        "seconds": 2.0,
        "steps_per_second": 512.0,
        "seconds_by_part": '{"hosts": 1.5}',
        "rss_bytes": 10**8,
        "workers": None,
        "workers_restarted": None,
        "seconds_waited": None,
    }
    return RoundRecord(**(facts | changes))


def update_record(number: int, **changes: Any) -> UpdateRecord:
    facts: dict[str, Any] = {
        "round": number,
        "n_updates": number,
        "approx_kl": 0.0123,
        "joint_kl": 0.05,
        "policy_loss": -0.01,
        "value_loss": 0.3,
        "entropy": 4.56,
        "clip_fraction": 0.1,
        "explained_variance": 0.77,
        "gradient_norm": 0.4,
        "epochs_run": 4,
        "gradient_steps": 4,
        "stopped_early": False,
        "was_refused": False,
        "refusal": None,
        "approx_kl_by_head": '{"op": 0.01}',
        "clip_fraction_by_head": '{"op": 0.1}',
        "entropy_by_head": '{"op": NaN}',
    }
    return UpdateRecord(**(facts | changes))


def evaluation_record(number: int, **changes: Any) -> EvaluationRecord:
    facts: dict[str, Any] = {
        "round": number,
        "arm": "learned",
        "purpose": "progress",
        "split": "validation",
        "n_episodes": 64,
        "ep_rew_mean": 0.583,
        "score_mean": 0.872,
        "flops_mean": 0.69,
        "n_epochs_mean": 13.0,
        "host_parameters_mean": 1873.0,
        "seed_parameters_mean": 420.0,
        "ops": '{"wait": 9.0}',
        "is_best": True,
        "fixed_reward": 0.571,
        "seconds": 3.0,
    }
    return EvaluationRecord(**(facts | changes))


def governor_record(number: int) -> GovernorRecord:
    return GovernorRecord(
        round=number, step=3, env=17, episode=0, draw_seed=1, epoch=3, reason="the loss is nan"
    )


def notice_record(number: int, message: str = "checkpoint saved") -> NoticeRecord:
    return NoticeRecord(round=number, kind="checkpoint", message=message)


def step_record(step: int, env: int = 0) -> StepRecord:
    choices = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
    numbers = (
        *("reward", "progress", "settlement", "flops_cost", "rent", "penalty", "shaping"),
        *("score", "flops", "value", "log_prob"),
    )
    facts: dict[str, Any] = dict.fromkeys(choices, 0) | dict.fromkeys(numbers, 0.0)
    facts |= {"round": 1, "step": step, "env": env, "episode": 0, "epoch": step, "op": 0}
    others = {"refusal": None, "slots": "[]", "probabilities": None}
    return StepRecord(**facts, **others, op_done=0, is_illegal=False)
