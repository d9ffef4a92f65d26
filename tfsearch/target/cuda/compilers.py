"""The toolchains of the target: NVRTC first, then nvcc."""

from __future__ import annotations

from pathlib import Path

from tfsearch.core.errors import UnavailableError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.plugin.target import Compiler, Source
from tfsearch.target.cuda import nvcc as nvcc_module
from tfsearch.target.cuda import nvrtc as nvrtc_module
from tfsearch.target.cuda import toolkit
from tfsearch.target.cuda.hardware import ARCHITECTURES
from tfsearch.target.cuda.nvcc import NvccCompiler
from tfsearch.target.cuda.nvrtc import EMPTY, NvrtcCompiler
from tfsearch.toolchain import DoctorRow
from tfsearch.toolchain.room import workdir

GET = "get NVRTC with: " + toolkit.WHEELS
GET_NVCC = "NVIDIA's CUDA toolkit 13.0 (cuda-nvcc-13-0), or NVRTC: " + toolkit.WHEELS


def present() -> list[Compiler]:
    """Toolchains that are here, preferred first; nothing is run."""
    found: list[Compiler] = []
    if toolkit.bindings():
        found.append(NvrtcCompiler())
    path = toolkit.nvcc()
    if path is not None:
        found.append(NvccCompiler(str(path)))
    return found


def named(name: str | None) -> Compiler:
    """A toolchain by name, or nvcc by its path; the first that works for None.

    ``UnavailableError``: ``toolchain.missing`` or ``toolchain.unknown`` with how to get it.
    """
    if name is None:
        return _first()
    if name == nvrtc_module.NAME:
        compiler = NvrtcCompiler()
        _ = compiler.record
        return compiler
    if name == nvcc_module.NAME:
        path = toolkit.nvcc()
        if path is None:
            raise UnavailableError("toolchain.missing", f"nvcc is not on PATH; get {GET_NVCC}")
        return NvccCompiler(str(path))
    if Path(name).name.startswith("nvcc") and Path(name).is_file():
        return NvccCompiler(str(Path(name).absolute()))
    raise UnavailableError(
        "toolchain.unknown", f"the cuda target builds with nvrtc or nvcc, not {name!r}"
    )


def _first() -> Compiler:
    problems: list[str] = []
    for compiler in present():
        try:
            _ = compiler.record
        except UnavailableError as error:
            problems.append(error.message)
            continue
        return compiler
    detail = f" ({'; '.join(problems)})" if problems else ""
    raise UnavailableError(
        "toolchain.missing", f"no CUDA compiler works here{detail}; get it with: {toolkit.WHEELS}"
    )


def rows() -> list[DoctorRow]:
    """One row per toolchain; a usable one really compiled an empty kernel."""
    out: list[DoctorRow] = []
    for name, place in ((nvrtc_module.NAME, ""), (nvcc_module.NAME, str(toolkit.nvcc() or ""))):
        try:
            compiler = named(name)
            record = compiler.record
            path = place or _library(compiler)
            problem = _problem(compiler)
        except UnavailableError as error:
            out.append(DoctorRow(name, "", place, "", False, error.message))
            continue
        out.append(DoctorRow(name, record.version, path, record.digest[:12], not problem, problem))
    return out


def _library(compiler: Compiler) -> str:
    """Where the compiler itself lies, for people."""
    if not isinstance(compiler, NvrtcCompiler):
        return ""
    return next(p for p in compiler.identity().libraries if "builtins" not in p)


def _problem(compiler: Compiler) -> str:
    launch = LaunchSpec(EntrySpec("tfsearch_empty", (), 1, 0))
    source = Source(EMPTY, "cuda", launch, (ARCHITECTURES[-1],), ())
    with workdir("tfsearch-doctor-") as folder:
        done = compiler.compile(
            source, (), (), folder / "empty.cubin", timeout_s=60.0, memory_bytes=8 << 30
        )
    return "" if done.status is Status.OK else done.log.partition("\n")[0]
