"""Print branch coverage by package; fail if a core package is below 95%.

Run:  make coverage, which runs the tests first, or, with the data of an earlier run in .coverage:
      python tools/coverage_by_package.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORE_PACKAGES = ("growth", "lifecycle", "simic", "storage")
MINIMUM_PERCENT = 95.0


@dataclass
class Coverage:
    """Statements and branches of some files, and how many of each were run."""

    statements: int = 0
    covered_statements: int = 0
    branches: int = 0
    covered_branches: int = 0

    def add(self, summary: Mapping[str, Any]) -> None:
        """Add one file's summary, as in coverage.py's JSON report."""
        self.statements += summary["num_statements"]
        self.covered_statements += summary["covered_lines"]
        self.branches += summary["num_branches"]
        self.covered_branches += summary["covered_branches"]

    @property
    def percent(self) -> float:
        """Return the covered share of statements and branches together, as coverage.py does."""
        total = self.statements + self.branches
        covered = self.covered_statements + self.covered_branches
        return 100.0 * covered / total if total else 100.0


def group_by_package(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Coverage]:
    """Return the coverage of each package of ``esper``, and of its top-level modules together."""
    packages: dict[str, Coverage] = defaultdict(Coverage)
    for name, report in files.items():
        parts = Path(name).parts
        inside = parts[len(parts) - parts[::-1].index("esper") :]
        packages[inside[0] if len(inside) > 1 else "(modules)"].add(report["summary"])
    return dict(sorted(packages.items()))


def read_report() -> dict[str, Mapping[str, Any]]:
    """Return coverage.py's report on each file, from the data of the last run."""
    from coverage import Coverage as Recorder

    recorder = Recorder()
    recorder.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        recorder.json_report(outfile=str(path))
        return json.loads(path.read_text())["files"]


def main() -> int:
    """Print the table; return 1 if a core package is below the minimum or was not measured."""
    packages = group_by_package(read_report())
    print(f"{'package':<14}{'statements':>11}{'branches':>10}{'covered':>9}")
    for name, found in packages.items():
        core = f"  core: at least {MINIMUM_PERCENT:g}%" if name in CORE_PACKAGES else ""
        print(f"{name:<14}{found.statements:>11,}{found.branches:>10,}{found.percent:>8.1f}%{core}")
    missing = Coverage(statements=1)
    low = [n for n in CORE_PACKAGES if packages.get(n, missing).percent < MINIMUM_PERCENT]
    if low:
        print(f"below {MINIMUM_PERCENT:g}%: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
