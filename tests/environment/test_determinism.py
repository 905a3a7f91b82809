"""Trajectories are the same to the bit in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import hashlib
import numpy as np, torch
from esper.environment import GrowthVectorEnv
from esper.tamiyo import make_controller

torch.set_num_threads(1)
digest = hashlib.sha256()
envs = GrowthVectorEnv("digits-family", 4, n_epochs=6, batches_per_epoch=1)
observations, _ = envs.reset(seed=3)
controller = make_controller("random", envs.layout)
controller.start(4, seed=1)
starts = np.ones(4, bool)
for _ in range(12):
    actions = controller.act(observations, envs.masks, starts)
    observations, rewards, terminated, truncated, _ = envs.step(actions)
    starts = terminated | truncated
    digest.update(observations.tobytes() + rewards.tobytes())
print(digest.hexdigest())
"""


def test_processes_agree_to_the_bit(capsys: pytest.CaptureFixture[str]) -> None:
    exec(CODE, {})
    here = capsys.readouterr().out
    # Another hash seed than this process has, which is random unless it was chosen.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    ).stdout
    assert len(here.strip()) == 64
    assert here == there
