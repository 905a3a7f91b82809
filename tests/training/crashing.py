"""Imported by workers of a test: their process ends in the third step of a shard."""

import os
import signal

from esper.simic.rollout.collector import VectorCollector
from esper.training.trials import Trials

assert Trials

step, n_steps = VectorCollector.step, 0


def crash(*args: object) -> object:
    global n_steps
    n_steps += 1
    if n_steps == 3 and os.environ.get("ESPER_TEST_CRASH"):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*args)  # type: ignore[arg-type]


VectorCollector.step = crash  # type: ignore[method-assign,assignment]
