"""A user's own C kernel through whole sessions: tuned, refused, looked up, missed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfsearch
from tests.system.conftest import at_home
from tfsearch.core.errors import NotRecordedError, RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.measure.job import Limits
from tfsearch.plugin.kernel import flags_of
from tfsearch.runtime import export_bundle, load_bundle, question_of
from tfsearch.runtime.serving import Found, Missed, Question, exact, executable, opened, resolve
from tfsearch.space.file import kernel_workload
from tfsearch.tune import TuneReport, TuneRequest, tune
from tfsearch.tune.report import AllFailedError

SPACE = """
entry = "saxpy"
reference = "ref.py:saxpy"
flops = "2 * n"
constraints = ["n % UNROLL == 0"]
[constants]
n = 4096
OFFSET = 0
[parameters]
UNROLL = [1, 4, 3]
[[args]]
name = "a"
dtype = "f32"
init = 2.5
[[args]]
name = "x"
dtype = "f32"
shape = ["n"]
[[args]]
name = "y"
dtype = "f32"
shape = ["n"]
io = "inout"
[[args]]
name = "n"
dtype = "i32"
init = "n"
"""
REFERENCE = "def saxpy(a, x, y, n):\n    return a * x + y\n"
SOURCE = """
#include <math.h>
#include "inner/step.h"
void saxpy(float a, const float *x, float *restrict y, int n) {
  for (int i = 0; i < n; i += UNROLL)
    for (int j = 0; j < UNROLL; j++)
      STEP(i + j + OFFSET)
}
"""
HEADER = '#include "more.h"\n#define STEP(at) y[at] = fmaf(a, x[at], y[at] + ZERO);\n'
LIMITS = Limits(deadline_s=30, budget_s=0.1, share=0.2, most=20)


@dataclass
class Kernel:
    folder: Path
    home: Settings

    def workload(self, **constants: str) -> Any:
        return kernel_workload(self.folder / "saxpy.c", self.folder / "saxpy.toml", constants)

    def tune(self, **options: Any) -> TuneReport:
        work = self.workload()
        given: dict[str, Any] = {"trials": 2, "limits": LIMITS, "flags": flags_of(work)}
        request = TuneRequest(work, target="x86", finalists=2, **{**given, **options})
        store = open_store(self.home.database_url)
        try:
            return tune(request, store=store, settings=self.home)
        finally:
            store.close()

    def question(self, **changes: Any) -> Question:
        work = self.workload()
        return replace(Question(work, "x86", flags=flags_of(work)), **changes)

    def found(self, question: Question | None = None) -> Found:
        place = resolve(question or self.question(), self.home)
        with opened(self.home) as store:
            found = exact(place, store)
        assert executable(place, found).is_file()
        return found

    def differs(self, question: Question | None = None) -> set[str]:
        with pytest.raises(NotRecordedError) as caught:
            self.found(question)
        assert isinstance(caught.value, Missed)
        return set(caught.value.nearest[0].differs)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        path = self.folder / name
        path.write_text(change(path.read_text()))


def written(folder: Path) -> None:
    (folder / "inner").mkdir(parents=True)
    (folder / "saxpy.toml").write_text(SPACE)
    (folder / "ref.py").write_text(REFERENCE)
    (folder / "saxpy.c").write_text(SOURCE)
    (folder / "inner" / "step.h").write_text(HEADER)
    (folder / "inner" / "more.h").write_text("#define ZERO 0.0f\n")


@pytest.fixture(scope="module")
def tuned_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kernel, TuneReport]]:
    folder = tmp_path_factory.mktemp("own")
    written(folder / "kernel")
    with pytest.MonkeyPatch.context() as patch:
        home = at_home(folder / "home", patch)
        kernel = Kernel(folder / "kernel", home)
        yield kernel, kernel.tune()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel that nobody tuned."""
    written(tmp_path / "kernel")
    return Kernel(tmp_path / "kernel", at_home(tmp_path / "home", monkeypatch))


@pytest.fixture
def tuned(
    tuned_once: tuple[Kernel, TuneReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Kernel:
    """A copy of the tuned kernel elsewhere, with the records of the first one."""
    first, _ = tuned_once
    shutil.copytree(first.folder, tmp_path / "kernel")
    shutil.copytree(first.home.home, tmp_path / "home")
    return Kernel(tmp_path / "kernel", at_home(tmp_path / "home", monkeypatch))


def test_a_session_finds_a_verified_kernel_and_says_that_nothing_was_proved(
    tuned_once: tuple[Kernel, TuneReport],
) -> None:
    kernel, report = tuned_once
    assert (report.space.points, report.space.legal) == (3, 2)
    assert report.space.rejected == {"kernel.condition-1": 1}
    assert report.trials.ok == report.trials.total == 2
    best = report.best
    assert best is not None
    assert best.verified
    assert best.tflops is not None
    assert "no TIR" in report.proof
    assert report.to_json()["proof"] == report.proof
    assert report.workload.op == "saxpy.c:saxpy"
    assert report.workload.dims == {"n": 4096, "OFFSET": 0}
    store = open_store(kernel.home.database_url)
    trials = store.trials(session=report.session)
    store.close()
    for one in trials:
        assert one.trial.predicted_us is None
        assert one.trial.verification is not None
        assert set(one.trial.verification.passes) == {"integers", "normal", "range"}


def test_a_lookup_serves_the_record_wherever_the_files_lie(tuned: Kernel) -> None:
    found = tuned.found()
    assert found.stored.trial.schedule.params["UNROLL"] in (1, 4)
    again = tuned.tune()
    assert again.best is not None
    assert again.trials.total == again.trials.reused == 2


def test_a_looked_up_kernel_is_called_on_arrays(tuned: Kernel) -> None:
    names = {"space": tuned.folder / "saxpy.toml", "target": "x86"}
    kernel: Any = tfsearch.lookup(str(tuned.folder / "saxpy.c"), **names)
    assert kernel.input_names == ("a", "x", "y", "n")
    rng = np.random.default_rng(1)
    x, y = rng.random(4096, np.float32), rng.random(4096, np.float32)
    want = 3.0 * x.astype(np.float64) + y
    assert kernel(3.0, x, y, 4096) == ()
    assert np.allclose(y, want, rtol=1e-6)
    call = kernel.bind(3.0, x, y, 4096)
    call()
    assert np.allclose(y, want + 3.0 * x, rtol=1e-6)
    y.flags.writeable = False
    with pytest.raises(RequestError, match="read-only"):
        kernel(3.0, x, y, 4096)
    with pytest.raises(RequestError, match="must have shape"):
        kernel(3.0, x[:5], y, 4096)
    with pytest.raises(NotRecordedError):
        tfsearch.lookup(str(tuned.folder / "saxpy.c"), **names, n=64)


def test_outputs_of_a_looked_up_kernel_are_made_or_given(kernel: Kernel) -> None:
    kernel.edit("saxpy.c", lambda _: function("for (int i = 0; i < n; i++) y[i] = a * x[i];"))
    kernel.edit("saxpy.toml", lambda t: t.replace("[1, 4, 3]", "[1]").replace("inout", "out"))
    kernel.edit("ref.py", lambda _: "def saxpy(a, x, n):\n    return a * x\n")
    names = {"space": kernel.folder / "saxpy.toml", "target": "x86"}
    source = str(kernel.folder / "saxpy.c")
    report = tfsearch.tune(source, **names, trials=1, limits=LIMITS)
    assert report.best is not None
    found: Any = tfsearch.lookup(source, **names)
    x = np.arange(4096, dtype=np.float32)
    assert np.array_equal(found(2.0, x, 4096), 2 * x)
    out = np.zeros(4096, np.float32)
    assert found(2.0, x, 4096, out=out) is out
    assert np.array_equal(out, 2 * x)


def test_an_edit_that_is_taken_back_serves_again(tuned: Kernel) -> None:
    for name in ("saxpy.c", "inner/more.h", "ref.py"):
        tuned.edit(name, lambda text: text + "\n")
        assert tuned.differs()
        tuned.edit(name, lambda text: text[:-1])
        assert tuned.found()


FLIPS = {
    "saxpy.c": ("saxpy.c", "\n// faster", {"workload.program.source"}),
    "a header": ("inner/step.h", "\n// faster", {"build.headers"}),
    "a header of a header": ("inner/more.h", "\n#define MORE 1\n", {"build.headers"}),
    "the reference": ("ref.py", "\n# right\n", {"workload.program.reference"}),
}


@pytest.mark.parametrize("name", FLIPS)
def test_an_edited_file_misses_by_its_field(tuned: Kernel, name: str) -> None:
    file, text, fields = FLIPS[name]
    tuned.edit(file, lambda before: before + text)
    assert tuned.differs() == fields


SPACE_FLIPS = {
    "constant": ('OFFSET = 0', 'OFFSET = 1', {"workload.dims.OFFSET"}),
    "size": ("n = 4096", "n = 8192", {"workload.dims.n"}),
    "terms": ('entry =', 'terms = 2\nentry =', {"workload.program.terms"}),
    "init": ("init = 2.5", "init = 3.5", {"workload.program.arguments"}),
    "flags": ('entry =', 'flags = ["-g"]\nentry =', {"flags"}),
    "parameters": ("UNROLL = [1, 4, 3]", "UNROLL = [2]", {"schedule"}),
    "alignment": ('entry =', 'alignment = 64\nentry =', {"workload.alignment"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACE_FLIPS)
def test_a_changed_space_file_misses_by_its_field(tuned: Kernel, name: str) -> None:
    before, after, fields = SPACE_FLIPS[name]
    tuned.edit("saxpy.toml", lambda text: text.replace(before, after))
    assert fields <= tuned.differs()


def test_more_values_of_a_parameter_lose_no_record(tuned: Kernel) -> None:
    tuned.edit("saxpy.toml", lambda text: text.replace("[1, 4, 3]", "[8, 4, 1, 2]"))
    assert tuned.found()


def test_flags_and_macros_of_the_request_miss_by_their_field(tuned: Kernel) -> None:
    assert tuned.differs(tuned.question(flags=("-O2",))) == {"flags"}
    assert tuned.differs(tuned.question(macros=("FAST=1",))) == {"macros"}


def test_a_header_that_appears_in_front_of_another_misses(tuned: Kernel) -> None:
    (tuned.folder / "math.h").write_text("#define fmaf(a, b, c) ((a) * (b) + (c))\n")
    tuned.edit("saxpy.c", lambda text: text.replace("<math.h>", '"math.h"'))
    assert tuned.differs() == {"workload.program.source"}


def test_a_bundle_holds_it(tuned: Kernel, tmp_path: Path) -> None:
    source, space = str(tuned.folder / "saxpy.c"), str(tuned.folder / "saxpy.toml")
    question = question_of(source, {"space": space, "target": "x86"})
    digest = export_bundle(tmp_path / "own.zip", [question])
    bundle = load_bundle(tmp_path / "own.zip", sha256=digest)
    x, y = np.ones((2, 4096), "f4")
    found: Any = bundle.lookup(source, space=space)
    found(2.0, x, y, 4096)
    assert (y == 3.0).all()
    with pytest.raises(NotRecordedError, match="no kernel for this workload"):
        bundle.lookup(source, space=space, n=128)


def test_without_a_compiler_only_a_kernel_that_includes_nothing_is_served(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfsearch.target.x86 import X86Target

    def absent(self: X86Target, name: str | None) -> Any:
        raise UnavailableError("toolchain.missing", "no C compiler here")

    kernel.tune()
    plain = SOURCE.replace('#include <math.h>\n#include "inner/step.h"', "").replace(
        "STEP(i + j + OFFSET)", "y[i + j] = a * x[i + j] + y[i + j];"
    )
    with monkeypatch.context() as patch:
        patch.setattr(X86Target, "compiler", absent)
        with pytest.raises(UnavailableError) as caught:
            kernel.found()
        assert caught.value.code == "lookup.no-compiler"
    kernel.edit("saxpy.c", lambda _: plain)
    kernel.tune()
    with monkeypatch.context() as patch:
        patch.setattr(X86Target, "compiler", absent)
        assert kernel.found()
        kernel.edit("saxpy.c", lambda text: text + "//")
        assert kernel.differs()


WRONG_REQUESTS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "no reference": ("saxpy.toml", lambda t: t.replace("reference", "# "), "kernel.reference"),
    "no such reference": ("saxpy.toml", lambda t: t.replace("ref.py", "no.py"), "kernel.reference"),
    "no such function": ("ref.py", lambda t: t.replace("saxpy", "f"), "program.no-function"),
    "a wrong shape": ("ref.py", lambda t: t.replace("a * x", "a"), "kernel.reference"),
    "nothing written": ("saxpy.toml", lambda t: t.replace('io = "inout"', ""), "kernel.arguments"),
    "launch": ("saxpy.toml", lambda t: t + "[launch]\ngrid = 1\n", "x86.launch"),
    "a scalar": ("saxpy.toml", lambda t: t.replace('"f32"\ninit', '"bf16"\ninit'), "x86.scalar"),
    "a bad flag": ("saxpy.toml", lambda t: 'flags = ["-shared"]\n' + t, "toolchain.flag-refused"),
}


@pytest.mark.parametrize("name", [n for n in WRONG_REQUESTS if n != "a wrong shape"])
def test_a_wrong_request_is_refused_before_anything_is_built(kernel: Kernel, name: str) -> None:
    file, change, code = WRONG_REQUESTS[name]
    kernel.edit(file, change)
    with pytest.raises(RequestError) as caught:
        kernel.tune()
    assert caught.value.code == code


def test_a_reference_that_the_file_does_not_name_is_refused_unread(kernel: Kernel) -> None:
    other = "raise SystemExit\ndef f(a, x, y, n): ...\ndef g(): ...\n"
    kernel.edit("ref.py", lambda _: other)
    with pytest.raises(RequestError, match="has no function 'saxpy'; it has f, g") as caught:
        kernel.workload()
    assert caught.value.code == "program.no-function"


@pytest.mark.parametrize(
    "line",
    ["from other import *", "from other import f as saxpy", "saxpy = f", "globals()['saxpy'] = f",
     "def saxpy(:"],
)  # fmt: skip
def test_a_reference_may_come_from_anywhere(kernel: Kernel, line: str) -> None:
    kernel.edit("ref.py", lambda _: line)
    assert kernel.workload().reference.function == "saxpy"


def test_another_language_is_refused(kernel: Kernel) -> None:
    (kernel.folder / "saxpy.cu").write_text(SOURCE)
    work = kernel_workload(kernel.folder / "saxpy.cu", kernel.folder / "saxpy.toml")
    with pytest.raises(RequestError, match="is cuda; the x86 target builds C"):
        tune(TuneRequest(work, target="x86"), settings=kernel.home)
    with pytest.raises(RequestError, match="takes programs"):
        tune(TuneRequest(kernel.workload(), target="null"), settings=kernel.home)


def test_a_kernel_that_does_not_compile_says_where(kernel: Kernel) -> None:
    kernel.edit("saxpy.c", lambda text: text.replace("int n)", "int n, int m)"))
    with pytest.raises(AllFailedError) as caught:
        kernel.tune()
    (line,) = caught.value.table
    assert line.status is Status.COMPILE_ERROR
    assert "too few arguments" in line.message
    kernel.edit("saxpy.toml", lambda text: text.replace('"saxpy"', '"saxby"'))
    with pytest.raises(AllFailedError, match="implicit declaration"):
        kernel.tune()


RIGHT = "for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];"


def function(body: str) -> str:
    return f"\nvoid saxpy(float a, const float *x, float *y, int n) {{ {body} }}\n"


def test_the_right_body_is_right(kernel: Kernel) -> None:
    kernel.edit("saxpy.c", lambda _: function(RIGHT))
    assert kernel.tune(trials=1).best is not None


def test_an_error_of_the_reference_ends_the_session_with_its_place(kernel: Kernel) -> None:
    kernel.edit("ref.py", lambda _: "def saxpy(a, x, y, n):\n    return x[1:]\n")
    with pytest.raises(RequestError, match=r"returned shape \[4095\] for y"):
        kernel.tune()


def test_a_header_that_is_edited_during_a_build_makes_no_record(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfsearch.toolchain import Toolchain

    compile_shared = Toolchain.compile_shared

    def edited(self: Toolchain, *given: Any, **options: Any) -> Any:
        kernel.edit("inner/more.h", lambda text: text.replace("0.0f", "1.0f"))
        return compile_shared(self, *given, **options)

    monkeypatch.setattr(Toolchain, "compile_shared", edited)
    with pytest.raises(AllFailedError) as caught:
        kernel.tune(trials=1)
    (line,) = caught.value.table
    assert (line.status, line.code) == (Status.CANCELLED, "build.changed")
    assert "headers" in line.message


def test_a_header_that_is_edited_during_a_build_for_a_lookup_serves_nothing(
    tuned: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfsearch.toolchain import Toolchain

    compile_shared = Toolchain.compile_shared
    place = resolve(tuned.question(), tuned.home)
    with opened(tuned.home) as store:
        found = exact(place, store)
    shutil.rmtree(tuned.home.home / "artifacts")

    def edited(self: Toolchain, *given: Any, **options: Any) -> Any:
        tuned.edit("inner/more.h", lambda text: text + "\n")
        return compile_shared(self, *given, **options)

    monkeypatch.setattr(Toolchain, "compile_shared", edited)
    with pytest.raises(RequestError, match="changed during the build"):
        executable(place, found)
