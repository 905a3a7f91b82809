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
    printed: str = ""
    """What the tutorial shows below a command."""
    is_interrupted: bool = False
    """Whether the reader presses Ctrl-C while the command runs."""


def missing_line(shown: str, printed: str) -> str | None:
    """Return the first line of the tutorial that a command did not print, but for numbers.

    A line with ``...`` stands for any. Plots of intervals and what goes to stderr are left out.
    """

    def masked(line: str) -> str:
        return " ".join(re.sub(r"[-+]?\d[\d.,]*[kMG]?", "#", line).split())

    lines = [line for line in shown.partition("^C")[0].splitlines() if line.strip()]
    lines = [one for one in lines if "..." not in one and not set(one) & set("│├┤")]
    rest = iter(map(masked, printed.splitlines()))
    return next((one for one in lines if one[0] != " " and masked(one) not in rest), None)


def tutorial_steps() -> list[Step]:
    """Return every step of the tutorial."""
    steps: list[Step] = []
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL.read_text(), flags=re.DOTALL | re.M)
    for language, text in blocks:
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, printed = part.partition("\n")
                interrupted = "^C" in printed
                steps.append(Step("command", command, printed=printed, is_interrupted=interrupted))
        elif language == "python":
            named = re.match(r"# (\w+\.py)\n", text)
            kind = "file" if named else "python"
            steps.append(Step(kind, text, name=named[1] if named else ""))
    return steps
