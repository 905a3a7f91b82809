"""Any damage to a checkpoint is detected, and the one before it is loaded."""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from esper.errors import CheckpointError
from esper.storage.checkpoint import (
    CheckpointWarning,
    load_checkpoint,
    read_manifest,
    write_manifest,
)
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.state import State
from tests.storage.states import exact, state_of

FILES = ["manifest.json", "state.json", "state.safetensors"]


def _saved(path: Path, *steps: int) -> CheckpointFolder:
    folder = CheckpointFolder(path)
    for step in steps:
        folder.save(_small(step), step=step)
    return folder


def _small(step: int) -> State:
    state = state_of(step, numel=20)
    del state.tensors["generator"]
    return state


@pytest.mark.parametrize("file", FILES)
def test_a_bit_flipped_at_any_byte_of_any_file_is_detected(tmp_path: Path, file: str) -> None:
    _saved(tmp_path, 7)
    path = tmp_path / "step-000000007"
    content = bytearray((path / file).read_bytes())
    assert 100 < len(content) < 2000
    for position in range(len(content)):
        content[position] ^= 1 << position % 8
        (path / file).write_bytes(content)
        with pytest.raises(CheckpointError, match="is damaged"):
            load_checkpoint(path)
        content[position] ^= 1 << position % 8
    (path / file).write_bytes(content)
    assert exact(load_checkpoint(path).state) == exact(_small(7))


def test_any_flipped_bit_of_a_manifest_is_detected() -> None:
    content = write_manifest({"format": 2, "step": 3, "files": {"a": {"size": 1.5}}})
    assert read_manifest(content)["step"] == 3
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            read_manifest(bytes(flipped))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _make_folder_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_link_of(path: Path) -> None:
    elsewhere = path.parents[1] / path.name
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def _exchange(path: Path) -> None:
    shutil.copy(path.parents[1] / "step-000000001" / path.name, path)


WORDS = {
    b"": r"manifest\.json is not valid JSON \(line 1, column 1\)\.$",
    b"\xff": r"manifest\.json is not UTF-8 text\.$",
    b"[]": r"manifest\.json is not a JSON object\.$",
    b"{}": r"manifest\.json has no 'format'\.$",
    b'{"format": 2}': r"manifest\.json has no 'sha256'\.$",
    b'{"format": 2, "sha256": "x"}': r"manifest\.json does not match its own sha256\.$",
    b'{"a": 1, "a": 2}': r"manifest\.json has the key 'a' twice\.$",
    write_manifest({"format": 3}): r"manifest\.json has format 3; .*reads 2\.$",
    write_manifest({"format": 2}): r"step in manifest\.json is missing; .*int\.$",
}


@pytest.mark.parametrize("content", WORDS)
def test_a_damaged_manifest_is_described_in_plain_words(tmp_path: Path, content: bytes) -> None:
    _saved(tmp_path, 1)
    (tmp_path / "step-000000001/manifest.json").write_bytes(content)
    start = re.escape(f"checkpoint {tmp_path / 'step-000000001'} is damaged: ")
    with pytest.raises(CheckpointError, match=f"^{start}{WORDS[content]}"):
        load_checkpoint(tmp_path / "step-000000001")


@pytest.mark.parametrize(
    "keys",
    [
        *(("step",), ("is_best",), ("files",), ("made_with",)),
        ("files", "state.json"),
        ("files", "state.json", "size"),
    ],
)
@pytest.mark.parametrize("value", [None, [1], "1", 1.5])
def test_a_manifest_with_a_wrong_type_and_a_valid_hash_is_damaged(
    tmp_path: Path, keys: tuple[str, ...], value: object
) -> None:
    _saved(tmp_path, 1)
    file = tmp_path / "step-000000001/manifest.json"
    manifest = read_manifest(file.read_bytes())
    inner = manifest
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    file.write_bytes(write_manifest(manifest))
    name = re.escape(".".join(keys))
    with pytest.raises(CheckpointError, match=rf"is damaged: {name} in manifest\.json"):
        load_checkpoint(file.parent)
    with pytest.warns(CheckpointWarning, match=name):
        CheckpointFolder(tmp_path).best()


DAMAGES = [_truncate, _lengthen, _empty, Path.unlink, _make_folder_of, _make_link_of, _exchange]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    folder = _saved(tmp_path, 1, 2)
    damage(tmp_path / "step-000000002" / file)
    with pytest.warns(CheckpointWarning, match="step-000000002 is damaged") as caught:
        loaded = folder.latest()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert exact(loaded.state) == exact(_small(1))
    assert (loaded.step, loaded.skipped) == (1, (tmp_path / "step-000000002",))


def test_a_checkpoint_that_is_a_link_is_neither_read_nor_changed(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "here" / "step-000000002"
    _saved(elsewhere, 2)
    folder = _saved(tmp_path / "here", 1)
    path.symlink_to(elsewhere / "step-000000002")
    with pytest.warns(CheckpointWarning, match="step-000000002 is damaged: it is a link"):
        assert folder.latest().step == 1
    folder.save(_small(2), step=2)
    folder.save(_small(3), step=3)
    assert not path.is_symlink()
    assert exact(load_checkpoint(elsewhere / "step-000000002").state) == exact(_small(2))


@pytest.mark.parametrize("name", ["extra.txt", ".hidden", "state.safetensors~"])
def test_an_extra_file_is_detected(tmp_path: Path, name: str) -> None:
    folder = _saved(tmp_path, 1)
    (tmp_path / "step-000000001" / name).write_text("")
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(tmp_path / folder.names()[0])


def test_a_renamed_checkpoint_of_another_step_is_detected(tmp_path: Path) -> None:
    folder = _saved(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "step-000000002")
    shutil.copytree(tmp_path / "step-000000001", tmp_path / "step-000000002")
    with pytest.warns(CheckpointWarning, match="step 1"):
        assert folder.latest().step == 1


def test_a_manifest_of_another_format_version_is_rejected(tmp_path: Path) -> None:
    _saved(tmp_path, 1)
    file = tmp_path / "step-000000001" / "manifest.json"
    manifest = {**read_manifest(file.read_bytes()), "format": 99}
    file.write_bytes(write_manifest(manifest))
    with pytest.raises(CheckpointError, match="format 99"):
        load_checkpoint(tmp_path / "step-000000001")


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    _saved(tmp_path, 1)
    os.truncate(tmp_path / "step-000000001" / "manifest.json", 2**40)
    with pytest.raises(CheckpointError, match="100000"):
        load_checkpoint(tmp_path / "step-000000001")


@pytest.mark.parametrize(
    "plain",
    [[], {}, {"facts": {}}, {"facts": {}, "tensors": ["a"]}, {"facts": {}, "tensors": []}, None],
)
def test_files_with_valid_hashes_and_invalid_content_are_rejected(
    tmp_path: Path, plain: object
) -> None:
    folder = _saved(tmp_path, 1)
    path = tmp_path / folder.names()[0]
    content = json.dumps(plain).encode()
    (path / "state.json").write_bytes(content)
    manifest = read_manifest((path / "manifest.json").read_bytes())
    manifest["files"]["state.json"] = {
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (path / "manifest.json").write_bytes(write_manifest(manifest))
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(path)


def test_each_checkpoint_is_named_when_all_are_damaged(tmp_path: Path) -> None:
    folder = _saved(tmp_path, 1, 2)
    for name in folder.names():
        _truncate(tmp_path / name / "state.safetensors")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(CheckpointError, match="step-000000002, "):
            folder.latest()
    assert [str(warning.message).partition(" is damaged")[0] for warning in caught] == [
        f"checkpoint {tmp_path / name}" for name in ("step-000000002", "step-000000001")
    ]


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_best_checkpoint_is_skipped_with_a_warning(tmp_path: Path, file: str) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(state_of(1), step=1, is_best=True)
    folder.save(state_of(2), step=2)
    _truncate(tmp_path / "step-000000001" / file)
    with pytest.warns(CheckpointWarning, match="step-000000001 is damaged"):
        assert folder.best() is None
    assert folder.latest().step == 2


def test_only_exact_checkpoint_names_are_accepted(tmp_path: Path) -> None:
    folder = _saved(tmp_path, 1)
    longer = shutil.move(tmp_path / "step-000000001", tmp_path / "step-0000000001")
    assert folder.names() == []
    for path in (tmp_path, longer):
        with pytest.raises(CheckpointError, match="step-000000120"):
            load_checkpoint(path)
    with pytest.raises(CheckpointError, match="step-000000001 does not exist"):
        load_checkpoint(tmp_path / "step-000000001")


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        CheckpointFolder(tmp_path / "file").latest()


def test_a_changed_byte_anywhere_in_a_large_file_is_detected(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).save(State({"a": torch.rand(50_000)}, {}), step=1)
    file = path / "state.safetensors"
    size = file.stat().st_size
    for position in [*range(0, size, 4_999), size - 1]:
        with file.open("r+b") as handle:
            handle.seek(position)
            byte = handle.read(1)[0]
            handle.seek(position)
            handle.write(bytes([byte ^ 0x10]))
            handle.flush()
            with pytest.raises(CheckpointError, match="sha256"):
                load_checkpoint(path)
            handle.seek(position)
            handle.write(bytes([byte]))
    assert load_checkpoint(path).step == 1
