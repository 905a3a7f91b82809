"""Reading the folder of a Transformers model without PyTorch, its weights, or code of its own.

config.json                                                    the class and its sizes
model.safetensors, or shards and model.safetensors.index.json  the weights
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from esper.errors import ConfigError, SavedModelError, message_of, shown
from esper.storage.files import parse_json, plain_reason, read_file

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
ADAPTER_FILE = "adapter_config.json"
MAX_JSON_BYTES = 20_000_000
MAX_LABELS = 1_000_000
"""Labels are made one by one when a configuration is read."""
_UNSAFE = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5", ".gguf"}
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
_CODE_KEYS = ("auto_map", "trust_remote_code", "custom_pipelines")


@dataclass(frozen=True)
class Checkpoint:
    """A folder that has been checked without loading its weights."""

    folder: Path
    architecture: str
    """Name of the model's class."""
    weights: tuple[Path, ...]
    dtype: str
    """The type of all weights, as PyTorch names it; "auto" if they differ."""
    n_tensors: int
    """Number of the weights' tensors."""

    @property
    def n_bytes(self) -> int:
        """Size of the weights."""
        return sum(path.stat().st_size for path in self.weights)


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Return what a folder holds, without loading its weights or running its code.

    Raises:
        SavedModelError: If it is not a Transformers model in safetensors, or comes with code.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        hint = "" if path.exists() else "; download the model first, names of the Hub are not read"
        raise SavedModelError(f"checkpoint {path} is not a folder{hint}.")
    if (path / ADAPTER_FILE).exists():
        raise SavedModelError(
            f"{path} holds a PEFT adapter ({ADAPTER_FILE}); merge it into its model and save that."
        )
    config = _read_json(path, CONFIG_FILE)
    architecture = _require_plain(path, config)
    if (path / GENERATION_FILE).exists():  # Transformers reads it too
        _read_json(path, GENERATION_FILE)
    weights = _find_weights(path, architecture)
    dtype, n_tensors = _look_into(weights)
    return Checkpoint(path, architecture, weights, dtype, n_tensors)


def require_new(name: str | Path) -> Path:
    """Return the folder to write to, which must not exist.

    Raises:
        ConfigError: If it does.
    """
    out = Path(name).expanduser()
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists and is not overwritten; choose another --out.")
    if not out.name:
        raise ConfigError(f"{str(out)!r} is not the name of a new folder.")
    return out


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        values = parse_json(read_file(folder / name, max_bytes=MAX_JSON_BYTES), allow_nan=True)
    except FileNotFoundError as error:
        raise SavedModelError(
            f"{folder} has no {name}; it must be a folder that save_pretrained wrote."
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else plain_reason(error)
        raise SavedModelError(f"{folder / name} cannot be read: {reason}.") from error
    if not isinstance(values, dict):
        raise SavedModelError(f"{folder / name} must be a JSON object.")
    return cast("dict[str, Any]", values)


def _require_plain(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the class that a configuration names, if the installed Transformers is all it needs.

    Raises:
        SavedModelError: If it names code, other files, or quantized weights.
    """
    in_python = "load the model in Python and call esper.deepen or esper.widen."
    for key, value in _settings_in(config):
        if key in _CODE_KEYS and value:
            raise SavedModelError(
                f"{folder} comes with code of its own ({key} in {CONFIG_FILE}), which is not run; "
                f"if you trust it, {in_python}"
            )
        # attn_implementation and its like may name a kernel of the Hub, for all parts or by part.
        if "implementation" in key and set("/|@") & set(json.dumps(value)):
            raise SavedModelError(f"{CONFIG_FILE} names code ({key} is {shown(value)}); remove it.")
        if key in ("use_pretrained_backbone", "transformers_weights") and value:
            raise SavedModelError(
                f"{CONFIG_FILE} of {folder} names other weights ({key}); {in_python}"
            )
        if key == "num_labels" and isinstance(value, (int, float)) and value > MAX_LABELS:
            raise SavedModelError(f"{CONFIG_FILE} of {folder} has num_labels {value}; lower it.")
        if key == "quantization_config" and value:
            raise SavedModelError(
                f"{folder} is quantized; expand the original model and quantize the result."
            )
    names = config.get("architectures")
    name = cast("list[Any]", names)[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or not name.isidentifier():
        raise SavedModelError(
            f"{folder / CONFIG_FILE} does not name the class of the model in 'architectures'; "
            f"{in_python}"
        )
    return name


def _settings_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value of nested JSON."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            pairs = cast("dict[str, Any]", each)
            yield from pairs.items()
            waiting += pairs.values()
        elif isinstance(each, list):
            waiting += cast("list[Any]", each)


def _find_weights(folder: Path, architecture: str) -> tuple[Path, ...]:
    if (folder / WEIGHTS_FILE).exists():
        names = [WEIGHTS_FILE]
    elif (folder / INDEX_FILE).exists():
        places = _read_json(folder, INDEX_FILE).get("weight_map")
        found: list[Any] = list(cast("Any", places).values()) if isinstance(places, dict) else []
        if not found or not all(_is_own_file(name) for name in found):
            raise SavedModelError(f"{folder / INDEX_FILE} must name safetensors in its folder.")
        names = sorted(set(found))
    else:
        unsafe = sorted(each.name for each in folder.iterdir() if each.suffix in _UNSAFE)
        if not unsafe:
            raise SavedModelError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}.")
        raise SavedModelError(
            f"{folder} has its weights in {unsafe[0]}, which is not read because such files can "
            "hold code; if you trust it, convert it in Python: "
            f"transformers.{architecture}.from_pretrained({str(folder)!r}).save_pretrained('new')."
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise SavedModelError(f"{folder / missing[0]} is missing.")
    return tuple(folder / name for name in names)


def _is_own_file(name: object) -> bool:
    is_text = isinstance(name, str) and name.endswith(".safetensors")
    return is_text and Path(cast(str, name)).name == name


def _look_into(weights: Sequence[Path]) -> tuple[str, int]:
    """Return the type of all floating-point weights, "auto" if there are several, and their count.

    Only headers are read.
    """
    found, n_tensors = set[str](), 0
    for path in weights:
        try:
            with cast(Any, safe_open(path, framework="np")) as file:
                names = list(file.keys())
                found |= {file.get_slice(name).get_dtype() for name in names}
                n_tensors += len(names)
        except (OSError, SafetensorError) as error:
            raise SavedModelError(f"{path} is damaged: {message_of(error)}.") from error
    unknown = sorted(name for name in found if name.startswith(("F8", "F4", "F6", "E8")))
    if unknown:
        raise SavedModelError(
            f"the weights are quantized ({unknown[0]}); expand the original model and quantize "
            "the result."
        )
    floats = sorted(found & set(_DTYPES))
    return (_DTYPES[floats[0]] if len(floats) == 1 else "auto"), n_tensors
