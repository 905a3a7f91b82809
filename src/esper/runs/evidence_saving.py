"""Keeping what an evaluation found where people and programs can read it.

evaluation.json  every arm, host by host, so that anyone can compute everything again
evaluation.md    the verdict, the table and how it was measured
pareto.png       score and accuracy against FLOPs and parameters, if matplotlib is installed
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from esper.errors import StorageError
from esper.reports.evidence import Evidence
from esper.reports.evidence_file import EvidenceFile
from esper.reports.evidence_text import file_to_markdown
from esper.whole_files import write_whole

DATA_FILE, TEXT_FILE, CHART_FILE = "evaluation.json", "evaluation.md", "pareto.png"


def save_evidence(entries: Sequence[Evidence], folder: Path) -> list[Path]:
    """Save evidence at one or several prices; return the files that were written.

    Raises:
        StorageError: If they cannot be written.
    """
    file = EvidenceFile(entries=tuple(entries))
    paths = [folder / DATA_FILE, folder / TEXT_FILE]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(paths[0], file.to_text())
        write_whole(paths[1], file_to_markdown(file))
        if find_spec("matplotlib") is not None:
            from esper.reports.pareto import plot_pareto

            paths.append(folder / CHART_FILE)
            plot_pareto(entries, paths[-1])
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return paths
