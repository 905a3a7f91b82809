"""No acknowledged row is lost in a kill, and readers always see a prefix of the rows."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import NoticeRecord, StepRecord
from tests.telemetry.samples import FILE, notice, seqs, step

ROOT = Path(__file__).parents[2]

ENDLESS = """
import sys
from esper.telemetry import TelemetryWriter
from tests.telemetry.samples import notice, step

writer = TelemetryWriter(sys.argv[1])
while True:
    for _ in range(150):
        number = writer.position
        writer.write(notice(number) if number % 5 == 0 else step(number))
    if writer.position % 450 == 0:
        writer.flush()
        print(writer.position, flush=True)
"""


@pytest.mark.parametrize("n_acknowledged", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_no_acknowledged_row_is_lost_under_kill_9(tmp_path: Path, n_acknowledged: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path / FILE)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(n_acknowledged)][-1]
    time.sleep(0.003 * n_acknowledged)
    process.kill()
    rest = process.stdout.read().split()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    acknowledged = max([acknowledged, *map(int, rest)])

    with open_run(tmp_path) as telemetry:
        found = seqs(telemetry, (StepRecord, NoticeRecord))
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= acknowledged >= 450 * n_acknowledged
        steps = telemetry.columns(StepRecord)
        assert all(a == b + 1 for a, b in zip(steps["seq"], steps["step"], strict=True))
        assert telemetry.rows(StepRecord) == [step(number) for number in steps["step"]]
    with TelemetryWriter(tmp_path / FILE) as writer:
        assert writer.position == len(found)
        writer.rewind(acknowledged)
        writer.write(notice(0))
    with open_run(tmp_path) as telemetry:
        found = seqs(telemetry, (StepRecord, NoticeRecord))
        assert found == list(range(1, acknowledged + 2))


def test_a_reader_sees_a_prefix_of_the_rows_during_writing(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path / FILE)
    is_over = threading.Event()

    def write_on() -> None:
        while not is_over.is_set():
            number = writer.position
            writer.write_many([step(number), notice(number + 1), step(number + 2)])
            time.sleep(0.0002)

    thread = threading.Thread(target=write_on)
    thread.start()
    sizes: list[int] = []
    with open_run(tmp_path) as telemetry:
        while len(set(sizes)) < 20:
            with telemetry.snapshot():
                found = seqs(telemetry, (StepRecord, NoticeRecord))
                assert telemetry.count(StepRecord) + telemetry.count(NoticeRecord) == len(found)
            assert found == list(range(1, len(found) + 1))
            sizes.append(len(found))
        assert sizes == sorted(sizes)
        is_over.set()
        thread.join()
        writer.flush()
        assert telemetry.columns(StepRecord)["seq"][-1] == writer.position
    writer.close()
