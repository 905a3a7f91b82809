"""Settings and fixtures that all tests share."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("esper", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("esper")
torch.set_num_threads(1)


@pytest.fixture
def fresh_shipped(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Let a controller with fresh weights, which wishes to grow, stand for the one that ships."""
    from esper.tamiyo import save_controller
    from esper.tamiyo.controllers import saved_files
    from tests.tamiyo.fresh_controllers import fresh_controller

    place = tmp_path_factory.mktemp("package") / "shipped"
    monkeypatch.setattr(saved_files, "SHIPPED_FOLDER", place)
    return save_controller(fresh_controller(n_epochs=14), place)
