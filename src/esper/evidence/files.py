"""Reading and writing evidence at one or several prices as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from esper.errors import EvidenceError
from esper.evidence.claims import verdict_json
from esper.evidence.results import Evidence
from esper.storage.files import parse_json, verified, with_checksum

EVIDENCE_VERSION = 2
"""Version of the file format. Version 1, of Esper 0.1, lacks the checksum."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EvidenceFile:
    """Evidence about one task at one or several prices.

    Raises:
        EvidenceError: If there are no entries, or entries differ in task or share a price.
    """

    entries: tuple[Evidence, ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise EvidenceError("entries is empty; give evidence at one price at least.")
        first = self.entries[0]
        for entry in self.entries[1:]:
            if (entry.task, dict(entry.task_options)) != (first.task, dict(first.task_options)):
                raise EvidenceError(
                    f"entries are about {first.task} and {entry.task}; a file must have one task, "
                    "with the same options."
                )
        prices = [entry.price for entry in self.entries]
        if len(set(prices)) != len(prices):
            raise EvidenceError(f"entries have the prices {prices}; give each price once.")

    def to_json(self) -> dict[str, Any]:
        """Return the entries as plain values, with a verdict for readers of the file."""
        return with_checksum(
            {
                "evidence_version": EVIDENCE_VERSION,
                "entries": [entry.to_json() for entry in self.entries],
                "verdicts": [verdict_json(entry) for entry in self.entries],
            }
        )

    @classmethod
    def from_json(cls, values: object) -> EvidenceFile:
        """Return the file from what :meth:`to_json` returned; verdicts are never read.

        Raises:
            EvidenceError: If the values are invalid or of another version.
        """
        if not isinstance(values, dict) or "evidence_version" not in values:
            raise EvidenceError(
                "it has no evidence_version; use a file written by `esper evaluate`."
            )
        read = cast("dict[str, Any]", values)
        version = read["evidence_version"]
        if version not in (1, EVIDENCE_VERSION):
            raise EvidenceError(
                f"evidence_version is {version!r} but this version of Esper reads 1 and "
                f"{EVIDENCE_VERSION}; use the version that wrote it."
            )
        try:
            read = verified(read, may_lack=version == 1)
        except ValueError as error:
            raise EvidenceError(f"{error}; run the evaluation again.") from error
        entries = read.get("entries")
        if set(read) - {"verdicts"} != {"evidence_version", "entries"} or type(entries) is not list:
            raise EvidenceError(
                f"it has {', '.join(read)}; expected evidence_version and a list of entries."
            )
        return cls(entries=tuple(Evidence.from_json(one) for one in cast("list[Any]", entries)))

    def to_text(self) -> str:
        """Return the text of a file, with one line for each row of numbers."""
        return _write(self.to_json(), "") + "\n"

    @classmethod
    def from_text(cls, text: str | bytes, *, name: str = "the file") -> EvidenceFile:
        """Return the file from what :meth:`to_text` returned.

        Args:
            text: Text of the file, or its bytes.
            name: Name of the file, for error messages.

        Raises:
            EvidenceError: If the text was not written by an evaluation.
        """
        try:
            return cls.from_json(parse_json(text))
        except ValueError as error:
            raise EvidenceError(
                f"{name} cannot be read: {error}; run the evaluation again."
            ) from error
        except EvidenceError as error:
            raise EvidenceError(f"{name} cannot be read: {error}") from error


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
