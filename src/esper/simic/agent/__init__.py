"""PPO for factored, masked, recurrent policies on any environment."""

from esper.simic.agent.advantages import estimate_advantages
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.update_report import UpdateReport
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.policy import Decision, Policy

__all__ = [
    "ActionSpec",
    "Decision",
    "PPOAgent",
    "Policy",
    "TamiyoRolloutBuffer",
    "UpdateReport",
    "estimate_advantages",
]
