"""The seeds that come with Esper, and the registry that others join."""

from esper.growth.blueprints import dense, feature_maps, noop, norm, self_attention, widen
from esper.growth.blueprints.blueprint import (
    Blueprint,
    SeedForm,
    blueprint_names,
    find_blueprint,
    fitting_blueprints,
    register_blueprint,
)
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS

_MODULES = (noop, norm, feature_maps, dense, self_attention, widen)
_BUILT_IN = {blueprint.name: blueprint for module in _MODULES for blueprint in module.BLUEPRINTS}
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
