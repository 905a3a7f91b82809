"""Tables of telemetry as pandas DataFrames. Only this module needs pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from esper.errors import ConfigError

DataFrame = Any
"""A ``pandas.DataFrame``; pandas need not be installed."""


def make_frame(columns: Mapping[str, Sequence[Any]]) -> DataFrame:
    """Return columns as a DataFrame.

    Raises:
        ConfigError: If pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise ConfigError(
            'pandas is not installed; pip install "esper-lite[pandas]" for DataFrames.'
        ) from error
    return pandas.DataFrame(dict(columns))
