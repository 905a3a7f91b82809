"""How often each attack of the campaign is tried, and the table of it in docs/trust.md.

python -m tests.campaign        write the table
"""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "trust.md"
START, END = "<!-- campaign -->\n", "<!-- end of the campaign -->\n"

N_CASES = {
    "values": 8000,
    "arguments": 1000,
    "settings": 1000,
    "toml": 1000,
    "commands": 1000,
    "files": 1000,
    "requests": 1000,
}
"""Cases of each fuzzer; of ``values`` at least."""

N_KILLS, N_FULL_DISKS = 100, 60
"""Kills at system calls, and calls from which on the disk is full."""

N_FORGED, N_FORGED_KINDS = 200, 16
"""Forged contents of each kind of file, and how many kinds there are."""

N_FLIPS, N_FLIPPED_KINDS = 1500, 15
"""Flipped bits in each kind of file, and how many kinds there are."""

RUINED_BATCHES = range(1, 7)
"""Batches of an epoch, each of which is ruined."""

N_SUBSETS = 7
"""Subsets of three workers that are stopped."""

N_CONNECTIONS = {"idle": 600, "slow": 40, "at once": 200}
"""Connections to a dashboard while hostile runs lie in its folder."""

ROWS: list[tuple[str, str, str]] = [
    (
        "test_fuzzing.py",
        "every argument of 13 functions and every setting, with each of 55 kinds of value: NaN, "
        "numbers beyond 64 bits, empty, sparse and meta tensors, lists, classes, ...",
        f"more than {N_CASES['values']:,}",
    ),
    ("", "up to two arguments or three settings at once", f"2 x {N_CASES['arguments']:,}"),
    (
        "",
        "configuration files: pieces of TOML, a preset with places replaced",
        f"{N_CASES['toml']:,}",
    ),
    ("", "command lines of every command", f"{N_CASES['commands']:,}"),
    (
        "",
        "a file of a run emptied, cut, changed in one byte, replaced by a folder, a link, a pipe, "
        "an endless device, a file of 4 TB or a hostile database; then listed, shown, reported, "
        "resumed",
        f"{N_CASES['files']:,}",
    ),
    ("", "raw requests to the dashboard", f"{N_CASES['requests']:,}"),
    (
        "test_damage.py",
        "flipped bits in each kind of file",
        f"{N_FLIPPED_KINDS} x {N_FLIPS:,}",
    ),
    (
        "",
        "wrong types, missing and repeated values, other shapes in each kind of file, with right "
        "checksums",
        f"{N_FORGED_KINDS} x {N_FORGED}",
    ),
    (
        "test_system_call_kills.py",
        "`esper train` killed at a write (half of it done), a flush, a rename, a removal or "
        "the creation of a folder, some of them again while they were resumed; the same with two "
        "worker processes",
        f"2 x {N_KILLS}",
    ),
    (
        "../storage/test_kills.py",
        "a controller, a growing model, a grown model and a PPO model killed while they are "
        "overwritten: each is the old or the new one",
        "every call",
    ),
    (
        "test_system_call_kills.py",
        "the disk full from a write on, then the run resumed",
        f"{N_FULL_DISKS}",
    ),
    (
        "test_stopped_workers.py",
        "every subset of three workers stopped by SIGSTOP; the same, and the first process killed",
        f"2 x {N_SUBSETS}",
    ),
    (
        "test_ruin.py",
        "one step a billion times too long, in each batch of an epoch: without growth, with it, "
        "and in a race of sizes",
        f"3 x {len(RUINED_BATCHES)}",
    ),
    (
        "test_hostile_dashboard.py",
        "connections to a dashboard while a run of each hostile kind lies in its folder: "
        + ", ".join(N_CONNECTIONS),
        ", ".join(map(str, N_CONNECTIONS.values())),
    ),
    (
        "test_sanitizers.py",
        "the C kernels under the address and undefined-behaviour sanitizers, 1 and 3 threads, "
        "odd sizes, strides and offsets, and all of their tests",
        "2 runs",
    ),
]
"""The file in tests/slow, what it does, and how often."""


def table() -> str:
    """Return the table of the campaign as Markdown."""
    lines = ["| `tests/slow` | what | cases |", "|---|---|---|"]
    lines += [f"| {f'`{file}`' * bool(file)} | {what} | {n} |" for file, what, n in ROWS]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the table of today."""
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
