"""Builds the cold chain, our only native code, where there is a compiler; the rest installs without one."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "slotwise.executor._cold",
            ["executor/cold.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],  # one build for Python 3.11 and later
            py_limited_api=True,
            # -O3 comes last, whatever the interpreter was built with. No -march: the variants are chosen at run time.
            # No fast-math, and nothing is contracted to a fused multiply-add that the source does not say.
            extra_compile_args=[
                "-std=c17",
                "-O3",
                "-ffp-contract=off",
                "-fno-math-errno",
                "-fvisibility=hidden",
                "-pthread",
                "-g0",
            ],
            extra_link_args=["-pthread"],
            optional=True,  # a failed build is reported and skipped: cold.py says how to get it
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
