"""Action masks, the masked factored distribution and the recurrent policy network."""

from esper.tamiyo.policy.choice_masks import ChoiceMasks, Condition
from esper.tamiyo.policy.network import RecurrentPolicy

__all__ = ["ChoiceMasks", "Condition", "RecurrentPolicy"]
