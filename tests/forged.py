"""Files with right checksums and wrong contents, as someone else could make them."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from esper.errors import EsperError
from tests.storage.forging import forge

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    7,
    2**31,
    2**63,
    10**40,
    0.5,
    -1e300,
    "",
    "x",
    "F64",
    "/etc/passwd",
    "a" * 5000,
    [],
    [[]],
    [-1],
    ["a", 1],
    [0, 2**62],
    {},
    {"a": 1},
    {"$tensor": "x"},
    {"$tuple": 3},
    {"$dict": [[[], 1]]},
]
"""Values that may stand in the place of any other."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


def mutate_json(values: Any, chance: random.Random) -> Any:
    """Return a JSON value with one to three of its values replaced, removed, doubled or nested."""
    changed = copy.deepcopy(values)
    for _ in range(chance.randint(1, 3)):
        found = list(places(changed))
        if not found:
            return chance.choice(ODD)
        *way, last = chance.choice(found)
        inner = changed
        for key in way:
            inner = inner[key]
        match chance.randrange(5):
            case 0:
                del inner[last]
            case 1 if isinstance(inner, list):
                inner.append(inner[last])
            case 1:
                inner[f"{last}x"] = inner[last]
            case 2:
                inner[last] = [inner[last]]
            case _:
                inner[last] = copy.deepcopy(chance.choice(ODD))
    return changed


def mutate_safetensors(content: bytes, chance: random.Random) -> bytes:
    """Return a file of tensors with another header, length or size."""
    size = int.from_bytes(content[:8], "little")
    data, text = content[8 + size :], content[8 : 8 + size]
    match chance.randrange(6):
        case 0:
            return content[: chance.randrange(len(content))]
        case 1:
            length = chance.choice(
                [0, 1, size - 1, size + 1, len(content), 2**31, 2**63, 2**64 - 1]
            )
            return struct.pack("<Q", length) + text + data
        case 2:
            return content[: 8 + size] + data + b"x" * chance.randint(1, 9)
        case 3:
            text = b"[" * chance.choice([1, 5, 100_000]) + text
        case _:
            text = json.dumps(mutate_json(json.loads(text), chance)).encode()
    return struct.pack("<Q", len(text)) + text + data


def forged_contents(content: bytes, name: str, chance: random.Random) -> bytes:
    """Return the content of a file with something else in it."""
    if name.endswith(".safetensors"):
        return mutate_safetensors(content, chance)
    if chance.randrange(20) == 0:
        return chance.choice([b"", b"\xff", b"[" * 100_000, b"null", b"[]", b"{}", b"NaN", b"1"])
    return json.dumps(mutate_json(json.loads(content), chance)).encode()


def is_refused(read: Callable[[], object]) -> bool:
    """Return whether reading raises an EsperError, of one line; anything else it raises passes."""
    message = ""
    try:
        read()
    except EsperError as error:
        message = str(error)
    assert "\n" not in message, message
    return bool(message)


def count_forged(
    folder: Path, name: str, read: Callable[[], Any], *, n_cases: int, seed: int = 0
) -> Counter[str]:
    """Forge a file of a saved folder again and again; count what reading it gives.

    Any exception but an EsperError of one line fails.
    """
    whole, manifest = (folder / name).read_bytes(), (folder / "manifest.json").read_bytes()
    chance, outcomes = random.Random(seed), Counter[str]()
    for case in range(n_cases):
        content = forged_contents(whole, name, chance)
        forge(folder, name, content)
        try:
            outcomes["refused" if is_refused(read) else "read"] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {content[:2000]!r}") from error
        (folder / "manifest.json").write_bytes(manifest)
    (folder / name).write_bytes(whole)
    return outcomes
