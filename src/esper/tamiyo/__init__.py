"""Controllers, which observe the training of hosts and decide what to grow."""

from esper.config.controllers import HeuristicConfig
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
from esper.tamiyo.controllers.simple import NoGrowth, RandomController, Replay

__all__ = [
    "Controller",
    "FixedSchedule",
    "Heuristic",
    "HeuristicConfig",
    "LearnedController",
    "NoGrowth",
    "Planting",
    "RandomController",
    "Replay",
    "SavedController",
    "controller_names",
    "grow_everywhere",
    "grow_once",
    "holds_controller",
    "load_saved",
    "load_shipped",
    "make_controller",
    "save_controller",
]
