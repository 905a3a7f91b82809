"""Build the C kernels. They are optional: without a compiler Esper runs on its tensor forms."""

from glob import glob

from setuptools import Extension, setup


def kernel(name: str) -> Extension:
    """Describe one kernel, ``src/esper/<...>/_name.c``, as an extension that may fail to build."""
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
        optional=True,
    )


setup(
    ext_modules=[
        kernel("esper.populations._conv3x3"),
        kernel("esper.populations._vector_hosts"),
        kernel("esper.simic.agent._advantages"),
        kernel("esper.simic.policy._draw"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
