"""Builds the kernels. Everything else about the package is in pyproject.toml.

A kernel is a module in Cython's pure Python mode: the same file is compiled when there is a C compiler and interpreted
when there is none, so a failing compiler costs speed and not the installation.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

KERNELS = [
    "rucola.arrow._json_cy",
    "rucola.filter.sql._sql_cy",
    "rucola.formats._batch_cy",
    "rucola.formats._columns_cy",
    "rucola.formats._index_cy",
    "rucola.formats._lite_cy",
    "rucola.formats._lite_rows_cy",
    "rucola.formats._lite_send_cy",
    "rucola.formats._message_cy",
    "rucola.formats._queue_cy",
    "rucola.formats._send_cy",
    "rucola.formats._timer_cy",
    "rucola.http2._exchange_cy",
    "rucola.http2._frames_cy",
    "rucola.http2._hpack_cy",
    "rucola.protocol._answer_cy",
    "rucola.protocol._batch_members_cy",
    "rucola.protocol._frame_cy",
    "rucola.protocol._send_request_cy",
    "rucola.proxy._delivery_cy",
    "rucola.proxy._send_cy",
]

MEMORY_VIEWS = "rucola._memory_views"
"""What Cython adds to modules with memory views. It is compiled once, as it is nine tenths of a kernel's C code."""
COMPILER_OPTIONS = ["-O3", "-g0"]


def extensions() -> list[Extension]:
    """The kernels as optional extensions; none when RUCOLA_NO_KERNELS=1 asks for the interpreted form."""
    if os.environ.get("RUCOLA_NO_KERNELS") == "1":
        return []
    from Cython.Build import cythonize

    sources = {MEMORY_VIEWS: "c"} | dict.fromkeys(KERNELS, "py")
    modules = cythonize(
        [
            Extension(name, [f"src/{name.replace('.', '/')}.{kind}"], extra_compile_args=COMPILER_OPTIONS)
            for name, kind in sources.items()
        ],
        build_dir="build",
        compiler_directives={"language_level": "3"},
        shared_utility_qualified_name=MEMORY_VIEWS,
        nthreads=os.cpu_count() or 1,
        quiet=True,
    )
    for module in modules:
        module.optional = True
    return modules


setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count() or 1}})
