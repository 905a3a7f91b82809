"""Controllers, which observe the training of hosts and decide what to grow."""

from esper.config.controllers import HeuristicConfig
from esper.tamiyo.controllers import (
    Controller,
    FixedSchedule,
    Heuristic,
    LearnedController,
    Planting,
    RandomController,
    Replay,
    SavedController,
    WaitController,
    controller_names,
    grow_everywhere,
    grow_once,
    holds_controller,
    load_saved,
    load_shipped,
    make_controller,
    save_controller,
)

__all__ = [
    "Controller",
    "FixedSchedule",
    "Heuristic",
    "HeuristicConfig",
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
