"""Trajectories are the same to the bit in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import hashlib
import numpy as np, torch
from esper.environment import GrowthVectorEnv
from esper.tamiyo import make_controller

torch.set_num_threads(1)
digest = hashlib.sha256()
envs = GrowthVectorEnv("digits-family", 4, n_epochs=8, batches_per_epoch=2)
observations, _ = envs.reset(seed=3)
controller = make_controller("random", envs.layout)
controller.start(4, seed=1)
starts = np.ones(4, bool)
for _ in range(16):
    actions = controller.act(observations, envs.masks, starts)
    observations, rewards, terminated, truncated, _ = envs.step(actions)
    starts = terminated | truncated
    digest.update(observations.tobytes() + rewards.tobytes())
print(digest.hexdigest())
"""


def test_processes_agree_to_the_bit() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", CODE],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": number},
        ).stdout
        for number in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
