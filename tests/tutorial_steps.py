"""The steps of the tutorial in order: commands, Python code, files to save."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TUTORIAL = Path(__file__).parents[1] / "docs/tutorial.md"


@dataclass(frozen=True)
class Step:
    """One step."""

    kind: Literal["command", "python", "file"]
    text: str
    """The command, or the code."""
    name: str = ""
    """The name of the file, if it is one."""
    is_interrupted: bool = False
    """Whether the reader presses Ctrl-C while the command runs."""


def tutorial_steps() -> list[Step]:
    """Return every step of the tutorial."""
    steps: list[Step] = []
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL.read_text(), flags=re.DOTALL | re.M)
    for language, text in blocks:
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, printed = part.partition("\n")
                steps.append(Step("command", command, is_interrupted="^C" in printed))
        elif language == "python":
            named = re.match(r"# (\w+\.py)\n", text)
            kind = "file" if named else "python"
            steps.append(Step(kind, text, name=named[1] if named else ""))
    return steps
