"""Esper installs without a C compiler and gives the same numbers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["src", "pyproject.toml", "setup.py", "README.md", "LICENSE"]


@pytest.mark.slow
def test_a_wheel_built_without_a_compiler_works_without_kernels(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for part in PARTS:
        subprocess.run(["cp", "-r", str(ROOT / part), str(source)], check=True)
    for built in source.rglob("*.so"):
        built.unlink()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run(pip, check=True, env={**os.environ, "CC": "/bin/false"})
    (wheel,) = tmp_path.glob("esper_lite-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        assert "esper/py.typed" in archive.namelist()
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    check = (
        "from esper.simic.policy import distribution;"
        "from esper.populations import vector_hosts;"
        f"assert distribution.__file__.startswith({str(site)!r});"
        "assert not any(m._kernel for m in (distribution, vector_hosts))"
    )
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)
    tests = [
        "tests/simic/policy/test_draw.py",
        "tests/simic/test_ppo.py",
        "tests/populations/test_population.py",
    ]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)
