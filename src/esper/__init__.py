"""Esper grows PyTorch models, wider and deeper, in mid-training or after."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from esper.installation import check_platform, find_clash
from esper.registration import register_environments
from esper.version import __version__ as __version__

if TYPE_CHECKING:
    from esper.api import *  # noqa: F403
    from esper.api import __all__ as __all__

check_platform()
if clash := find_clash():
    warnings.warn(clash, stacklevel=2)

if "gymnasium" in sys.modules:
    register_environments()


if not TYPE_CHECKING:  # for a type checker any name would exist

    def __getattr__(name: str) -> Any:
        """Import a name of :mod:`esper.api` on first use, so that ``import esper`` is fast."""
        if name == "__all__" or not name.startswith("_"):
            api = importlib.import_module("esper.api")
            if name == "__all__" or name in api.__all__:
                return getattr(api, name)
        raise AttributeError(f"module 'esper' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return list(importlib.import_module("esper.api").__all__)
