"""Adapters name what is missing: a package, an option or a metric."""

from __future__ import annotations

import importlib
import sys

import pytest

from esper.errors import ConfigError
from esper.integrations.options import read_metric, require_options


@pytest.mark.parametrize(
    ("adapter", "package"),
    [("lightning", "lightning"), ("transformers", "transformers"), ("accelerate", "accelerate")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    adapter: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"esper.integrations.{adapter}", raising=False)
    with pytest.raises(ConfigError, match=rf'{package}.*pip install "esper-lite\[{adapter}\]"'):
        importlib.import_module(f"esper.integrations.{adapter}")


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    require_options({"controller": "wait", "seed": 1})
    with pytest.raises(ConfigError, match=r"'controler'.*'controller'"):
        require_options({"controler": "wait"})


def test_a_metric_that_is_needed_is_named_with_those_that_there_are() -> None:
    assert read_metric({"acc": 0.5}, "acc", is_needed=True) == 0.5
    assert read_metric({"acc": 0.5}, "loss", is_needed=False) is None
    with pytest.raises(ConfigError, match=r"'loss'.*acc"):
        read_metric({"acc": 0.5}, "loss", is_needed=True)
