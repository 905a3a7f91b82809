"""Growth in the training loops of other libraries, on top of `esper.Grower`.

Each adapter is a module that needs its library: ``esper.integrations.lightning``,
``esper.integrations.transformers`` and ``esper.integrations.accelerate``.
"""

from esper.integrations.grown_states import rebuild_on_load

__all__ = ["rebuild_on_load"]
