"""Any damage to a checkpoint is detected, and the one before it is loaded."""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.errors import CheckpointError, OtherVersionError
from esper.storage.checkpoint_folder import CheckpointFolder, CheckpointWarning, load_checkpoint
from esper.storage.saved_folder import FORMAT
from tests.storage.forging import forge
from tests.storage.states import exact, state_of

FILES = ["manifest.json", "checkpoint.json", "state.json", "state.safetensors"]


def _saved(path: Path, *steps: int) -> CheckpointFolder:
    folder = CheckpointFolder(path)
    for step in steps:
        folder.save(_small(step), step=step)
    return folder


def _small(step: int) -> dict[str, Any]:
    state = state_of(step, numel=20)
    del state["policy"]["generator"]
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
        with pytest.raises((CheckpointError, OtherVersionError), match="step-000000007"):
            load_checkpoint(path)
        content[position] ^= 1 << position % 8
    (path / file).write_bytes(content)
    assert exact(load_checkpoint(path).state) == exact(_small(7))


def test_any_flipped_bit_of_a_manifest_is_detected(tmp_path: Path) -> None:
    _saved(tmp_path, 7)
    path = tmp_path / "step-000000007"
    content = (path / "manifest.json").read_bytes()
    for bit in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (path / "manifest.json").write_bytes(bytes(flipped))
        with pytest.raises((CheckpointError, OtherVersionError), match="step-000000007"):
            load_checkpoint(path)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _make_folder_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_pipe_of(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _exchange(path: Path) -> None:
    shutil.copy(path.parents[1] / "step-000000001" / path.name, path)


WORDS = {
    b"": r"manifest\.json: it is not valid JSON \(line 1, column 1\)\.$",
    b"\xff": r"manifest\.json: it is not UTF-8 text\.$",
    b"[]": r"manifest\.json has no 'format'\.$",
    b"{}": r"manifest\.json has no 'format'\.$",
    b'{"format": 3}': r"manifest\.json is incomplete\.$",
    b'{"format": 3, "kind": "controller"}': r"it is a controller, not a checkpoint\.$",
    b'{"format": 3, "kind": "checkpoint", "files": 1}': r"manifest\.json is incomplete\.$",
    b'{"a": 1, "a": 2}': r"manifest\.json: it has the key 'a' twice\.$",
}


@pytest.mark.parametrize("content", WORDS)
def test_a_damaged_manifest_is_described_in_plain_words(tmp_path: Path, content: bytes) -> None:
    _saved(tmp_path, 1)
    (tmp_path / "step-000000001/manifest.json").write_bytes(content)
    start = re.escape(f"checkpoint {tmp_path / 'step-000000001'} is damaged: ")
    with pytest.raises(CheckpointError, match=f"^{start}{WORDS[content]}"):
        load_checkpoint(tmp_path / "step-000000001")


@pytest.mark.parametrize("key", ["step", "made_with"])
@pytest.mark.parametrize("value", [None, [1], "1", 1.5])
def test_facts_of_a_wrong_type_with_a_valid_hash_are_damage(
    tmp_path: Path, key: str, value: object
) -> None:
    _saved(tmp_path, 1)
    path = tmp_path / "step-000000001"
    about = json.loads((path / "checkpoint.json").read_text()) | {key: value}
    forge(path, "checkpoint.json", json.dumps(about).encode())
    with pytest.raises(CheckpointError, match=r"step-000000001 is damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("stored", ["../state.json", "/etc/passwd", "manifest.json", 3, None])
def test_a_manifest_cannot_name_other_files(tmp_path: Path, stored: object) -> None:
    _saved(tmp_path, 1)
    file = tmp_path / "step-000000001" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"]["state.json"]["stored"] = stored
    file.write_text(json.dumps(manifest, indent=1) + "\n")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load_checkpoint(file.parent)


DAMAGES = [_truncate, _lengthen, _empty, Path.unlink, _make_folder_of, _make_pipe_of, _exchange]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    folder = _saved(tmp_path, 1, 2)
    damage(tmp_path / "step-000000002" / file)
    if (file, damage) == ("manifest.json", Path.unlink):  # as if it had never been saved
        assert (folder.latest().step, folder.names()) == (1, ["step-000000001"])
        return
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


def test_a_renamed_checkpoint_of_another_step_is_detected(tmp_path: Path) -> None:
    folder = _saved(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "step-000000002")
    shutil.copytree(tmp_path / "step-000000001", tmp_path / "step-000000002")
    with pytest.warns(CheckpointWarning, match="step 1"):
        assert folder.latest().step == 1


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_checkpoints_of_another_version_give_one_line(tmp_path: Path, version: int) -> None:
    folder = _saved(tmp_path, 1, 2)
    for name in folder.names():
        file = tmp_path / name / "manifest.json"
        file.write_text(file.read_text().replace(f'"format": {FORMAT}', f'"format": {version}'))
    message = rf"another version of Esper \(format {version}, not {FORMAT}\)"
    with pytest.raises(OtherVersionError, match=message):
        load_checkpoint(tmp_path / "step-000000001")
    with pytest.raises(OtherVersionError, match=message):
        folder.latest()


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
    forge(path, "state.json", json.dumps(plain).encode())
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
    path = CheckpointFolder(tmp_path).save({"a": torch.rand(50_000)}, step=1)
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


def test_a_checkpoint_that_cannot_be_reached_is_damaged(tmp_path: Path) -> None:
    folder = _saved(tmp_path, 1)
    manifest = tmp_path / "step-000000001" / "manifest.json"
    manifest.unlink()
    manifest.symlink_to("too long " * 100)  # what is forbidden to others is not to root
    with (
        pytest.warns(CheckpointWarning, match="step-000000001 is damaged"),
        pytest.raises(CheckpointError, match="step-000000001"),
    ):
        folder.latest()
    folder.save(_small(2), step=2)
    assert folder.latest().step == 2
