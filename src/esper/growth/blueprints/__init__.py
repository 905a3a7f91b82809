"""The built-in blueprints and the blueprint registry."""

from esper.growth.blueprints import seeds
from esper.growth.blueprints.registry import (
    Blueprint,
    SeedForm,
    blueprint_names,
    find_blueprint,
    fitting_blueprints,
    register_blueprint,
)
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS

_BUILT_IN = {blueprint.name: blueprint for blueprint in seeds.BLUEPRINTS}
for _name in BUILTIN_BLUEPRINTS:
    register_blueprint(_BUILT_IN[_name])

__all__ = [
    "Blueprint",
    "SeedForm",
    "blueprint_names",
    "find_blueprint",
    "fitting_blueprints",
    "register_blueprint",
]
