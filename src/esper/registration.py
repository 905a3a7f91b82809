"""Makes Esper's environments known to Gymnasium, without importing Gymnasium or torch for it.

``import esper`` calls :func:`register_when_loaded`: if Gymnasium is loaded already the environments
are registered at once, otherwise as soon as it is. So ``gymnasium.make("Esper/Growth-v0")`` works
whichever of the two is imported first, and a program that needs no environment does not pay for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ENVIRONMENT_ID = "Esper/Growth-v0"


def register_environments() -> None:
    """Register the environments with Gymnasium, once."""
    registration: Any = importlib.import_module("gymnasium.envs.registration")
    if ENVIRONMENT_ID not in registration.registry:
        registration.register(
            ENVIRONMENT_ID,
            entry_point="esper.environment:GrowthEnv",
            vector_entry_point="esper.environment:GrowthVectorEnv",
        )


def register_when_loaded() -> None:
    """Register the environments now if Gymnasium is loaded, else when it is."""
    if "gymnasium" in sys.modules:
        register_environments()
    elif not any(isinstance(finder, _GymnasiumFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumFinder())


class _GymnasiumFinder(MetaPathFinder):
    """Finds Gymnasium where it is, until it is loaded."""

    _is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where Gymnasium is, with a loader that registers the environments afterwards."""
        if fullname != "gymnasium" or self._is_looking:
            return None
        self._is_looking = True  # the others are asked now, not this one
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec


class _RegisteringLoader(Loader):
    """Loads a module by its own loader, then registers the environments."""

    def __init__(self, loader: Loader, finder: MetaPathFinder) -> None:
        self.loader = loader
        self.finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader would."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then register."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        register_environments()
