"""Public signatures say what they take, so that an editor can help."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import Enum
from typing import Any, get_type_hints

import pytest

from esper.config.growth import PopulationConfig, TrainingSettings
from esper.config.learning import PPOConfig
from esper.config.run import RunConfig, RunSettings
from esper.simic.settings import PPOSettings

PACKAGES = (
    "esper",
    "esper.config",
    "esper.environment",
    "esper.integrations",
    "esper.populations",
    "esper.simic",
    "esper.tamiyo",
    "esper.tasks",
    "esper.telemetry",
)

OPEN = {
    "esper.GrowthEnv": "the options of any task",
    "esper.GrowthVectorEnv": "the options of any task",
    "esper.make_env": "the options of any task",
    "esper.make_task": "the options of any task",
    "esper.make_controller": "the options of any controller",
    "esper.SeedSlot.forward": "the arguments of any block",
    "esper.simic.PPOAgent.act": "policies of one's own choose the form of their masks",
    "esper.telemetry.RunTelemetry.rows": "values of any column",
    "esper.telemetry.RunTelemetry.stream": "values of any column",
    "esper.telemetry.RunTelemetry.columns": "values of any column",
    "esper.telemetry.RunTelemetry.stream_values": "values of any column",
    "esper.telemetry.RunTelemetry.select": "values of any column",
}
"""What takes values of any type, and which."""

ANYTHING = re.compile(r"(Any|object)( \| None)?")


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield each public function, constructor and method once, with its name."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if id(value) in seen:
                continue
            seen.add(id(value))
            if inspect.isclass(value):
                yield from _methods(f"{package}.{name}", value)
            elif inspect.isfunction(value):
                yield f"{package}.{name}", value


def _methods(name: str, cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    is_ours = getattr(cls.__init__, "__module__", "").startswith("esper")
    if is_ours and not issubclass(cls, Enum):
        yield name, cls.__init__
    for key, value in vars(cls).items():
        function = getattr(value, "__func__", value)  # of class methods and static methods
        # What reads a file checks every value, whatever it is.
        if not key.startswith("_") and key != "from_json" and inspect.isfunction(function):
            yield f"{name}.{key}", function


CALLABLES = dict(public_callables())


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_signature_is_spelled_out(name: str) -> None:
    function = CALLABLES[name]
    for parameter in list(inspect.signature(function).parameters.values()):
        if parameter.name in ("self", "cls"):
            continue
        kind, text = parameter.annotation, str(parameter)
        assert kind is not parameter.empty, f"{text} has no type"
        kind = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
        assert name in OPEN or not ANYTHING.fullmatch(kind), f"{text} may be anything"
        assert not re.search(r"\b_[A-Za-z]", kind), f"{text} has a private type"
        assert "<lambda>" not in repr(parameter.default), f"{text} has a function as its default"


def test_what_takes_anything_exists() -> None:
    assert set(OPEN) <= set(CALLABLES)


def names_of(config: type) -> set[str]:
    return {field.name for field in fields(config)}


@pytest.mark.parametrize(
    ("settings", "config", "left_out"),
    [
        (RunSettings, RunConfig, {"task"}),  # an argument of its own
        (PPOSettings, PPOConfig, set()),
        (TrainingSettings, PopulationConfig, {"optimizer"}),  # an argument of its own
    ],
)
def test_keyword_arguments_are_the_settings(
    settings: Any, config: type, left_out: set[str]
) -> None:
    assert set(get_type_hints(settings)) == names_of(config) - left_out
