"""Policies for factored, masked actions: specification, distribution, recurrent actor-critic."""

from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.masks import ChoiceMasks, Condition
from esper.simic.policy.recurrent import RecurrentPolicy

__all__ = ["ActionSpec", "ChoiceMasks", "Condition", "RecurrentPolicy"]
