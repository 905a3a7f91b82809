"""The example learns its task, run as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ppo_on_your_environment.py"


def test_a_short_run_gets_close_to_the_best_possible_return() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--rounds", "25", "--episodes", "200"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after, best = (
        float(re.search(rf"{name}\s+(-?\d+\.\d+)", output)[1])  # type: ignore[index]
        for name in ("before training", "after training", "best possible")
    )
    # Without memory the colour is a guess among three doors, worth a third of the prize.
    assert before < 0.4
    assert after > 0.8 * best
