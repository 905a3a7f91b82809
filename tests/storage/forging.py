"""Changing a saved folder so that its hashes are still right."""

import hashlib
import json
from pathlib import Path
from typing import Any


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a saved folder, and what the manifest says about it."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] |= {"size": len(content), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def forge_json(folder: Path, name: str, values: Any) -> None:
    """Replace a JSON file of a saved folder."""
    forge(folder, name, json.dumps(values).encode())
