"""Compiles one source with NVRTC; run as a program of its own, so that it can be killed.

    python nvrtc_child.py JOB -o CUBIN

``JOB`` is a JSON file: ``path`` (of modules), ``source``, ``options``, and ``headers``, the text of
each by name with its bytes as Latin-1. What the compiler says goes to standard error; the paths of
the libraries that were loaded go to ``libraries.json`` beside the output, with the version. The
exit status is 1 for a source with an error, 2 for anything else.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> int:
    """See the module."""
    job_path, _, out = sys.argv[1:4]
    with open(job_path, encoding="utf-8") as file:
        job = json.load(file)
    sys.path[:] = job["path"]
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        sys.stderr.write(f"cannot import cuda.bindings: {error}\n")
        return 2
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # noqa: BLE001 - the loader's errors have no common class
        sys.stderr.write(f"cannot load NVRTC: {str(error).splitlines()[0]}\n")
        return 2
    if failed := _compile(nvrtc, job, out):
        return failed
    report = {"version": f"{major}.{minor}", "libraries": _libraries()}
    folder = os.path.dirname(os.path.abspath(out))
    with open(os.path.join(folder, "libraries.json"), "w", encoding="utf-8") as file:
        json.dump(report, file)
    return 0


def _compile(nvrtc: Any, job: dict[str, Any], out: str) -> int:
    names = list(job["headers"])
    texts = [job["headers"][name].encode("latin-1") for name in names]
    status, program = nvrtc.nvrtcCreateProgram(
        job["source"].encode(), b"kernel.cu", len(names), texts, [os.fsencode(n) for n in names]
    )
    if status:
        return _internal(nvrtc, status)
    options = [option.encode() for option in job["options"]]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    sys.stderr.write(_text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program))
    ordinary = (
        nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION,
        nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION,
    )
    if result in ordinary:
        return 1
    if result:
        return _internal(nvrtc, result)
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = bytes(size)
    (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
    if status or not size:
        return _internal(nvrtc, status)
    with open(out, "wb") as file:
        file.write(cubin)
    return 0


def _text(size_of: Any, read: Any, program: Any) -> str:
    status, size = size_of(program)
    if status or size <= 1:
        return ""
    text = bytes(size)
    read(program, text)
    return text.rstrip(b"\0").decode("utf-8", "replace").rstrip() + "\n"


def _internal(nvrtc: Any, status: Any) -> int:
    if status == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
        sys.stderr.write("out of memory\n")
    else:
        sys.stderr.write(f"internal compiler error: NVRTC answered {status}\n")
    return 2


def _libraries() -> list[str]:
    """Paths of NVRTC's libraries in this process."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith("libnvrtc"):
                found.add("/" + path)
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
