"""``esper expand`` rejects bad input in one line; it runs no code of files and writes nothing."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.test_run_commands import refused

CONFIG: dict[str, Any] = {"architectures": ["BertModel"], "model_type": "bert"}
MARK = "made-by-code"


class Payload:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (MARK,)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    save_file({"weight": torch.zeros(2)}, place / "model.safetensors")
    return place


def set_config(folder: Path, **settings: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **settings}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def indexed(folder: Path, content: object) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def truncate(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**42)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no configuration": (lambda at: (at / "config.json").unlink(), "has no config.json"),
    "broken JSON": (lambda at: (at / "config.json").write_text("{"), "is not valid JSON"),
    "a list": (lambda at: (at / "config.json").write_text("[]"), "must be a JSON object"),
    "code": (
        lambda at: set_config(at, auto_map={"AutoModel": "evil.Model"}),
        "comes with code of its own (auto_map in config.json)",
    ),
    "code inside": (
        lambda at: set_config(at, text_config={"auto_map": {"AutoConfig": "evil.Config"}}),
        "load the model in Python and call esper.deepen",
    ),
    "a kernel": (
        lambda at: set_config(at, _attn_implementation="evil/kernel"),
        "names code",
    ),
    "a kernel of a part": (
        lambda at: set_config(at, attn_implementation={"text_config": "evil/kernel"}),
        "names code",
    ),
    "a kernel by its inner name": (
        lambda at: set_config(at, text_config={"_attn_implementation_internal": "evil/kernel"}),
        "names code",
    ),
    "a backbone": (
        lambda at: set_config(at, use_pretrained_backbone=True),
        "names other weights",
    ),
    "quantized": (
        lambda at: set_config(at, quantization_config={"bits": 4}),
        "is quantized",
    ),
    "a configuration for generation that is a link to a device": (
        lambda at: (at / "generation_config.json").symlink_to("/dev/zero"),
        "generation_config.json cannot be read",
    ),
    "a configuration for generation without end": (
        lambda at: truncate(at / "generation_config.json"),
        "generation_config.json has 4398046511104 bytes",
    ),
    "labels without end": (lambda at: set_config(at, num_labels=10**9), "has num_labels 10000"),
    "no class": (lambda at: set_config(at, architectures=None), "does not name the class"),
    "a class that is none": (
        lambda at: set_config(at, architectures=["os.system"]),
        "does not name the class",
    ),
    "pickles": (pickled, "transformers.BertModel.from_pretrained("),
    "no weights": (
        lambda at: (at / "model.safetensors").unlink(),
        "has neither model.safetensors nor",
    ),
    "damaged weights": (
        lambda at: (at / "model.safetensors").write_bytes(b"\xff" * 40),
        "is damaged",
    ),
    "an index of nothing": (lambda at: indexed(at, {}), "must name safetensors in its folder"),
    "an index of another folder": (
        lambda at: indexed(at, {"weight_map": {"weight": "../x.safetensors"}}),
        "must name safetensors in its folder",
    ),
    "a missing shard": (
        lambda at: indexed(at, {"weight_map": {"weight": "gone.safetensors"}}),
        "gone.safetensors is missing",
    ),
    "an adapter": (
        lambda at: (at / "adapter_config.json").write_text("{}"),
        "holds a PEFT adapter",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_cannot_be_used_is_rejected_in_one_line(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = BAD[name]
    damage(folder)
    assert message in refused(["expand", "model", "--deepen", "1", "--out", "new"], capsys)
    assert os.listdir() == ["model"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model"], "give --deepen N, --widen X or both"),
        (["model", "--deepen", "1"], "give either --out"),
        (["model", "--deepen", "1", "--out", "new", "--dry-run"], "give either --out"),
        (["model", "--deepen", "0", "--out", "new"], "--deepen is 0"),
        (["model", "--widen", "1", "--out", "new"], "--widen is 1"),
        (["model", "--deepen", "1", "--out", "model"], "exists and is not overwritten"),
        (["gone", "--deepen", "1", "--out", "new"], "gone is not a folder"),
        (["--deepen", "1", "--out", "new"], "CHECKPOINT is missing"),
        (["--widen", "2", "--dry-run", "--widen-at", "mlp", "model"], "give CHECKPOINT first"),
        (["model", "--deepen", "1", "--widen-at", "x", "--dry-run"], "--widen-at needs --widen"),
        (["model", "--widen", "2", "--deepen-at", "x", "--dry-run"], "--deepen-at needs --deepen"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_arguments_that_make_no_sense_are_rejected(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(["expand", *words], capsys)
    assert os.listdir() == ["model"]


def test_a_model_that_does_not_fit_into_memory_is_rejected_with_what_it_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("esper.integrations.checkpoints.available_memory", lambda: 100.0)
    line = refused(["expand", "model", "--deepen", "1", "--dry-run"], capsys)
    assert "of memory, but only" in line


def test_without_transformers_the_command_that_installs_it_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = refused(["expand", "model", "--deepen", "1", "--out", "new"], capsys)
    assert 'pip install "esper-lite[transformers]"' in line
    assert os.listdir() == ["model"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone", "--out", "new"], "gone is not a folder"),
        (["model", "--out", "model"], "exists and is not overwritten"),
        (["pickled", "--out", "new"], "has its weights in pytorch_model.bin"),
    ],
)
def test_what_is_wrong_with_folders_is_said_before_pytorch_is_loaded(
    words: list[str], message: str, folder: Path
) -> None:
    shutil.copytree(folder, "pickled")
    pickled(Path("pickled"))
    command = ["-X", "importtime", "-m", "esper", "expand", *words, "--deepen", "1"]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert message in ended.stderr
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "esper.storage.transformers_folder" in imported
    assert not imported & {"torch", "transformers"}
