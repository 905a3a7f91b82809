"""Files are written atomically with the given mode, and JSON is read strictly."""

from pathlib import Path

import pytest

from esper.storage.files import parse_json, read_json, write_atomic


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_file_is_replaced_and_gets_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    write_atomic(path, '{"ä": 1}', mode=mode)
    assert read_json(path) == {"ä": 1}
    assert path.stat().st_mode & 0o777 == mode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a'"),
        ('{"a": NaN}', "NaN"),
        ("-Infinity", "Infinity"),
        ("[" * 100_000, "nested"),
        ("{", "line 1"),
    ],
)
def test_json_that_has_more_than_one_meaning_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_nan_is_read_where_it_is_allowed() -> None:
    assert parse_json("[NaN, Infinity]", allow_nan=True)[1] == float("inf")
