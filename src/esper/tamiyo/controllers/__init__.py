"""Controllers: rule-based baselines and the learned policy."""

from esper.tamiyo.controllers.controller import Controller
from esper.tamiyo.controllers.factory import controller_names, make_controller
from esper.tamiyo.controllers.heuristic import Heuristic
from esper.tamiyo.controllers.learned import LearnedController
from esper.tamiyo.controllers.saved import (
    SavedController,
    holds_controller,
    load_saved,
    load_shipped,
    save_controller,
)
from esper.tamiyo.controllers.schedule import FixedSchedule, Planting, grow_everywhere, grow_once
from esper.tamiyo.controllers.simple import RandomController, Replay, WaitController

__all__ = [
    "Controller",
    "FixedSchedule",
    "Heuristic",
    "LearnedController",
    "Planting",
    "RandomController",
    "Replay",
    "SavedController",
    "WaitController",
    "controller_names",
    "grow_everywhere",
    "grow_once",
    "holds_controller",
    "load_saved",
    "load_shipped",
    "make_controller",
    "save_controller",
]
