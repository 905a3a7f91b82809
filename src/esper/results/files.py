"""Evidence as JSON files: evaluation.json, and the summary.json of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from esper.errors import EvidenceError, RunError
from esper.results.evidence import Evidence
from esper.results.sentences import verdict_json
from esper.storage.files import other_version, parse_json, read_hashed, write_hashed

EVIDENCE_VERSION = 4
"""The version of the file format. Other versions cannot be read."""


def evidence_text(entries: Sequence[Evidence]) -> str:
    """Return the text of a file of evidence about one task, each entry at another price.

    Each row of numbers has one line. Verdicts are added for readers of the file.

    Raises:
        EvidenceError: If there are no entries, or entries differ in task or share a price.
    """
    _require_one_task(entries)
    values = {
        "evidence_version": EVIDENCE_VERSION,
        "entries": [entry.to_json() for entry in entries],
        "verdicts": [verdict_json(entry) for entry in entries],
    }
    return _write(values, "") + "\n"


def read_evidence_file(path: Path) -> tuple[Evidence, ...]:
    """Return the entries of a file with what :func:`evidence_text` returned, without verdicts.

    Raises:
        OSError: If it cannot be read.
        EvidenceError: If it was not written by an evaluation, or has changed since.
    """
    try:
        return _read_entries(parse_json(read_hashed(path)))
    except ValueError as error:
        raise EvidenceError(f"{path} cannot be read: {error}; run the evaluation again.") from error
    except EvidenceError as error:
        raise EvidenceError(f"{path} cannot be read: {error}") from error


def _read_entries(values: object) -> tuple[Evidence, ...]:
    if not isinstance(values, dict) or "evidence_version" not in values:
        raise EvidenceError("it has no evidence_version; use a file written by Esper.")
    read = cast("dict[str, Any]", values)
    version, entries = read["evidence_version"], read.get("entries")
    if version != EVIDENCE_VERSION:
        raise EvidenceError(other_version("it", version, EVIDENCE_VERSION))
    if set(read) - {"verdicts"} != {"evidence_version", "entries"} or type(entries) is not list:
        raise EvidenceError(
            f"it has {', '.join(read)}; expected evidence_version and a list of entries."
        )
    found = tuple(Evidence.from_json(one) for one in cast("list[Any]", entries))
    _require_one_task(found)
    return found


def _require_one_task(entries: Sequence[Evidence]) -> None:
    if not entries:
        raise EvidenceError("entries is empty; give evidence at one price at least.")
    first = entries[0]
    for entry in entries[1:]:
        if (entry.task, dict(entry.task_options)) != (first.task, dict(first.task_options)):
            raise EvidenceError(
                f"entries are about {first.task} and {entry.task}; a file must have one task, "
                "with the same options."
            )
    prices = [entry.price for entry in entries]
    if len(set(prices)) != len(prices):
        raise EvidenceError(f"entries have the prices {prices}; give each price once.")


def _write(value: Any, indent: str) -> str:
    """Return JSON with lists of plain values on one line, everything else indented."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        entries = cast("dict[str, Any]", value).items()
        lines = [f"{json.dumps(key)}: {_write(one, deeper)}" for key, one in entries]
        return "{\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in cast("Any", value)):
        lines = [_write(one, deeper) for one in cast("list[Any]", value)]
        return "[\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def write_summary(path: Path, evidence: Evidence) -> None:
    """Write the comparison at the end of a run to its ``summary.json``."""
    write_hashed(path, evidence_text([evidence]))


def read_summary(path: Path) -> Evidence:
    """Return the comparison in the ``summary.json`` of a run.

    Raises:
        OSError: If it cannot be read.
        RunError: If it is damaged or of another version.
    """
    try:
        return read_evidence_file(path)[0]
    except EvidenceError as error:
        raise RunError(f"{error} Delete it and resume the run.") from error


def read_verdicts(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each entry of a file with its stored verdict, as plain values.

    Nothing is computed again, which would take seconds, and NumPy is not needed.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is damaged or of another version.
    """
    values = cast("dict[str, Any]", parse_json(read_hashed(path)))
    if not isinstance(values, dict) or values.get("evidence_version") != EVIDENCE_VERSION:
        raise ValueError("it is of another version")
    return list(zip(values["entries"], values["verdicts"], strict=True))
