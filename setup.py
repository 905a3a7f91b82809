"""Build the C kernels, and make the links of the README absolute.

The kernels are optional: without a compiler Esper runs on its tensor forms. With
``ESPER_REQUIRE_KERNELS=1``, as in CI and in the wheels that are released, a kernel that cannot be
compiled fails the build.

``ESPER_REPOSITORY_URL`` is the address of the repository that the package is released from. The
links of the README lead there, because relative ones lead nowhere on a package index.
"""

import os
import re
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
REQUIRES_KERNELS = os.environ.get("ESPER_REQUIRE_KERNELS", "0")
if REQUIRES_KERNELS not in ("0", "1"):
    raise SystemExit(f"ESPER_REQUIRE_KERNELS is {REQUIRES_KERNELS!r}; set it to 0 or 1.")
REPOSITORY = os.environ.get("ESPER_REPOSITORY_URL", "").rstrip("/")
VERSION = re.findall(r'__version__ = "(.+)"', (ROOT / "src/esper/version.py").read_text())[0]


def kernel(name: str) -> Extension:
    """Describe one kernel, ``src/esper/<...>/_name.c``, as an extension."""
    source = "src/" + name.replace(".", "/") + ".c"
    return Extension(
        name,
        sources=[source],
        depends=glob("src/esper/**/*.h", recursive=True),
        extra_compile_args=[
            "-O3",
            "-std=gnu11",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-Wno-psabi",
        ],
        libraries=["m", "pthread"],
        py_limited_api=True,
        optional=REQUIRES_KERNELS == "0",
    )


def readme() -> str:
    """Return the README; with a known repository, its links lead to the files of this version."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not REPOSITORY:
        return text
    images = rf"\g<1>{REPOSITORY}/raw/v{VERSION}/"
    files = rf"\g<1>{REPOSITORY}/blob/v{VERSION}/"
    relative = r"(?!#|[a-z]+:)"
    text = re.sub(rf"(!\[[^\]]*\]\(){relative}", images, text)
    text = re.sub(rf"""(<(?:img|source)\s[^>]*?src(?:set)?=["']){relative}""", images, text)
    text = re.sub(rf"(\]\(){relative}", files, text)
    return re.sub(rf"""(<a\s[^>]*?href=["']){relative}""", files, text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={
        "Repository": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/v{VERSION}/docs",
        "Changelog": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }
    if REPOSITORY
    else {},
    ext_modules=[
        kernel("esper.populations._vector_hosts"),
        kernel("esper.simic.policy._draw"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
