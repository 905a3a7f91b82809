"""The real trackers accept what the sinks send, offline, including for a resumed run."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

SEND = """
import sys
from pathlib import Path
from esper.telemetry.sinks import make_sink
from tests.telemetry.test_sinks import CONFIG, evaluation, round_, update

name, folder, first, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
sink = make_sink(name, folder, CONFIG)
for number in range(first, last + 1):
    sink.write(update(number))
    sink.write(round_(number, reward=number / 4))
    sink.write(evaluation(number))
sink.close()
"""


def send(name: str, run_dir: Path, first: int, last: int, **environment: str) -> None:
    """Send rounds to a tracker from a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", SEND, name, str(run_dir), str(first), str(last)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    send("tensorboard", tmp_path, 1, 5)
    send("tensorboard", tmp_path, 3, 8)
    shown = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    for tag in ("rollout/ep_rew_mean", "train/approx_kl", "eval/score"):
        assert [point.step for point in shown.Scalars(tag)] == list(range(1, 9))
    rewards = [point.value for point in shown.Scalars("rollout/ep_rew_mean")]
    assert rewards == [number / 4 for number in range(1, 9)]


def logged_by_wandb(path: Path) -> Iterator[Any]:
    """Yield the records of an offline file: a LevelDB log of protocol buffers, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore

    data, place, parts = path.read_bytes(), 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def test_weights_and_biases_continues_the_same_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for first, last in ((1, 3), (2, 5)):
        send("wandb", tmp_path, first, last, WANDB_MODE="offline")
    names: set[str] = set()
    found: list[dict[int, float]] = []
    for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        found.append({})
        for record in logged_by_wandb(path):
            if record.run.run_id:
                names.add(record.run.run_id)
            items = {(i.key or "/".join(i.nested_key)): i.value_json for i in record.history.item}
            if "rollout/ep_rew_mean" in items:
                number = record.history.step.num
                assert number not in found[-1]
                assert {"train/approx_kl", "eval/score"} <= set(items)
                found[-1][number] = json.loads(items["rollout/ep_rew_mean"])
    assert names == {(tmp_path / "wandb-id").read_text()}
    assert found == [{n: n / 4 for n in numbers} for numbers in ((1, 2, 3), (2, 3, 4, 5))]
