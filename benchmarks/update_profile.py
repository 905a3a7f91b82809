"""A profile of the update: the LSTM, matrix products, and the rest."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter

from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from update import Episodes, fill_buffer, make_agent

N_UPDATES = 10
N_LARGEST = 12

PRODUCTS = frozenset({"aten::addmm", "aten::mm", "aten::bmm", "aten::matmul", "aten::linear"})
LSTM, PRODUCT, REST = "LSTM", "matrix products", "rest"


def part_of(name: str) -> str:
    """Return which part of an update an operator belongs to."""
    if "rnn" in name or "lstm" in name:
        return LSTM
    return PRODUCT if name in PRODUCTS else REST


def print_profile(console: Console, kind: Episodes = Episodes.WHOLE) -> None:
    """Profile updates from one rollout and print each part's share of operator time."""
    agent = make_agent()
    buffer = fill_buffer(agent, kind)
    agent.update(buffer)
    start = perf_counter()
    for _ in range(N_UPDATES):
        agent.update(buffer)
    wall_ms = (perf_counter() - start) / N_UPDATES * 1e3
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(N_UPDATES):
            agent.update(buffer)
    events = profiler.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    by_part: dict[str, float] = defaultdict(float)
    for event in events:
        by_part[part_of(event.key)] += event.self_cpu_time_total

    table = Table(title=f"update, {kind.value}: share of operator time")
    for column in ("operator", "part", "calls", "time", "share"):
        table.add_column(column, justify="left" if column in ("operator", "part") else "right")
    for part in (LSTM, PRODUCT, REST):
        table.add_row(f"[bold]all {part}", "", "", *_cost(by_part[part], total))
    table.add_section()
    largest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:N_LARGEST]
    for event in largest:
        calls = f"{event.count / N_UPDATES:.0f}"
        cost = _cost(event.self_cpu_time_total, total)
        table.add_row(event.key, part_of(event.key), calls, *cost)
    console.print(table)
    console.print(
        f"one update, mean of {N_UPDATES}: {total / N_UPDATES / 1e3:.0f} ms in operators under the "
        f"profiler, {wall_ms:.0f} ms in total without it"
    )


def _cost(microseconds: float, total: float) -> tuple[str, str]:
    return f"{microseconds / N_UPDATES / 1e3:.2f} ms", f"{microseconds / total:.1%}"
