"""PPO for factored, masked, recurrent policies on any environment."""

from esper.lifecycle.action_spec import ActionSpec
from esper.simic.agent.advantages import estimate_advantages
from esper.simic.agent.policy import Decision, Policy
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.update_report import UpdateReport

__all__ = [
    "ActionSpec",
    "Decision",
    "PPOAgent",
    "Policy",
    "TamiyoRolloutBuffer",
    "UpdateReport",
    "estimate_advantages",
]
