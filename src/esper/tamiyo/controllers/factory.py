"""Creating controllers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from esper.config.catalogue import CONTROLLERS
from esper.config.checks import check, reject_unknown, require_choice
from esper.config.controllers import HeuristicConfig
from esper.tamiyo.controllers.controller import Controller
from esper.tamiyo.controllers.heuristic import Heuristic
from esper.tamiyo.controllers.progressive import progressive
from esper.tamiyo.controllers.schedule import FixedSchedule, grow_everywhere
from esper.tamiyo.controllers.simple import NoGrowth, RandomController
from esper.tamiyo.policy.observations import ObservationLayout

Made = TypeVar("Made")


def controller_names() -> tuple[str, ...]:
    """Return the names that :func:`make_controller` accepts.

    Examples:
        >>> "heuristic" in esper.controller_names()
        True
    """
    return CONTROLLERS


def make_controller(name: str, layout: ObservationLayout, /, **options: Any) -> Controller:
    """Create a controller by its name.

    Args:
        name: ``"no-growth"``, ``"random"``, ``"fixed"``, ``"heuristic"`` or ``"progressive"``.
        layout: The layout of the observations.
        **options: Options of the controller. ``fixed`` takes those of :class:`FixedSchedule` if
            ``plantings`` is given, else those of :func:`grow_everywhere`; ``heuristic`` takes a
            ``config`` or the settings of :class:`HeuristicConfig`; ``progressive`` takes those of
            :func:`progressive`.

    Raises:
        ConfigError: If the controller or one of its options is unknown.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2, autoreset=False)
        >>> esper.make_controller("heuristic", envs.layout).name
        'heuristic'
    """
    check("layout", layout, ObservationLayout)
    match require_choice("controller", name, CONTROLLERS):
        case "no-growth":
            return _call(name, NoGrowth, options)
        case "random":
            return _call(name, RandomController, options)
        case "fixed":
            make = FixedSchedule if "plantings" in options else grow_everywhere
            return _call(name, make, {"layout": layout, **options})
        case "heuristic":
            own = {key: options.pop(key) for key in ("config", "name") if key in options}
            if "config" not in own:
                own["config"] = _call(name, HeuristicConfig, options)
                options = {}
            return _call(name, Heuristic, {"layout": layout, **own, **options})
        case "progressive":
            return _call(name, progressive, {"layout": layout, **options})
        case _:
            raise AssertionError(f"the catalogue has a controller {name!r} that is not made here")


def _call(name: str, make: Callable[..., Made], options: dict[str, Any]) -> Made:
    """Call a function with options, rejecting unknown ones."""
    reject_unknown(f"controller {name!r}", options, inspect.signature(make).parameters, {})
    return make(**options)
