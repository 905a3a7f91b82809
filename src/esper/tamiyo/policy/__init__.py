"""Action masks, the masked factored distribution and the recurrent policies."""

from esper.tamiyo.policy.choice_masks import ChoiceMasks, Condition
from esper.tamiyo.policy.network import RecurrentPolicy
from esper.tamiyo.policy.slot_network import SlotPolicy

__all__ = ["ChoiceMasks", "Condition", "RecurrentPolicy", "SlotPolicy"]
