"""The README's first example prints what the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_prints_the_tables_that_stand_below_it() -> None:
    pytest.importorskip("transformers")
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```", README.read_text(), re.M | re.S)[:2]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    # Rounding of the difference depends on the processor.
    ours, theirs = (re.sub(r"differ by \S+ of", "differ by ... of", t) for t in (shown, ran.stdout))
    assert ours.splitlines() == theirs.splitlines()
