"""Who steers the growth of hosts: baselines that follow rules, and the learned policy."""

from esper.tamiyo.controllers.controller import Controller
from esper.tamiyo.controllers.heuristic import Heuristic
from esper.tamiyo.controllers.learned import LearnedController
from esper.tamiyo.controllers.making import controller_names, make_controller
from esper.tamiyo.controllers.planting import Planting
from esper.tamiyo.controllers.random_legal import RandomController
from esper.tamiyo.controllers.saved import SavedController
from esper.tamiyo.controllers.saved_files import (
    holds_controller,
    load_saved,
    load_shipped,
    save_controller,
)
from esper.tamiyo.controllers.schedule import FixedSchedule, grow_everywhere, grow_once
from esper.tamiyo.controllers.waiting import WaitController

__all__ = [
    "Controller",
    "FixedSchedule",
    "Heuristic",
    "LearnedController",
    "Planting",
    "RandomController",
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
