"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfsearch.core.errors import RequestError

if TYPE_CHECKING:
    from tfsearch.core.settings import Settings
    from tfsearch.ir.workload import Workload
    from tfsearch.runtime.serving import Question
    from tfsearch.space.file import KernelWorkload

F = TypeVar("F", bound=Callable[..., Any])


def _stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on standard output."
)
db_option = click.option(
    "--db", metavar="URL", help="Database, such as sqlite:///file.db [default: TFSEARCH_DB]."
)
WORKLOAD_HELP = """\b
Workloads:
  gemm m n k dtype [out_dtype] [trans_a] [trans_b] [batch] [epilogue]
  softmax, rms_norm, layer_norm  rows cols dtype
  file.py:function               the names in its annotations

\b
Options of every workload:
  alignment=BYTES         what every array is aligned to at least [default: 16]
  accuracy=precise|fast   fast may use instructions that approximate [default: precise]
  reproducible=BOOL       true: equal inputs give equal bits [default: true]
  constant_inputs=A,B     inputs that stay the same from call to call
  strides=A:520x1,B:col   inputs that are not dense: strides in elements, or transposed

Types are f32, f64, f16, bf16, i32, i8, or float32 and so on. An epilogue is a list such as
bias+relu, applied in the order written. All of it is in docs/programs.md.
"""
workload_arguments = _stack(
    click.argument("op"), click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
)
target_options = _stack(
    click.option("--target", metavar="NAME", help="Target [default: the best one present]."),
    click.option("--device", metavar="NAME", help="Device of the target [default: its first]."),
)
build_options = _stack(
    click.option("--toolchain", metavar="NAME", help="Compiler: gcc, clang, zig, or a path."),
    click.option(
        "--flag", "flags", multiple=True, metavar="F", help="Compiler flag; repeatable, in order."
    ),
    click.option(
        "--macro", "macros", multiple=True, metavar="NAME[=VALUE]", help="Macro; repeatable."
    ),
    click.option("--protocol", default="warm", help="How times are taken: warm or cold."),
)
optional_workload = _stack(
    click.argument("op", required=False),
    click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1),
)
space_option = click.option(
    "--space",
    "space_file",
    metavar="FILE",
    help="Space of your own kernel: T1 JSON or TOML; OP is then the kernel's file.",
)
kernel_options = _stack(
    space_option,
    click.option(
        "--reference",
        metavar="FILE.py:FUNCTION",
        help="What your own kernel must compute, in NumPy [default: the space file's].",
    ),
)
fix_option = click.option(
    "--fix", "fixes", multiple=True, metavar="KEY=VALUE", help="Hold a parameter; repeatable."
)


def pairs_of(pairs: Sequence[str], what: str = "option") -> dict[str, str]:
    """``key=value`` texts as a mapping; ``RequestError`` for other texts and repeated keys."""
    out: dict[str, str] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RequestError(
                "request.key-value", f"{text!r} is no {what}; write KEY=VALUE, such as m=512"
            )
        if name in out:
            raise RequestError("request.repeated", f"{name} is given twice")
        out[name] = value
    return out


def kernel_words(op: str | None, pairs: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """(kernel's file, constants) from the words beside ``--space FILE``, in any order."""
    words = [*([] if op is None else [op]), *pairs]
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise RequestError(
            "request.kernel", f"{files[1]!r}: --space goes with one kernel, {files[0]!r} is one"
        )
    return (files[0] if files else None), pairs_of([w for w in words if "=" in w], "constant")


def workload_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Options of a workload; those that every workload has get the types that they need."""
    out: dict[str, Any] = dict(pairs_of(pairs))
    if "reproducible" in out:
        out["reproducible"] = _boolean("reproducible", out["reproducible"])
    if "alignment" in out:
        out["alignment"] = _integer("alignment", out["alignment"])
    if "strides" in out:
        out["strides"] = _strides(out["strides"])
    if "constant_inputs" in out:
        out["constant_inputs"] = tuple(filter(None, out["constant_inputs"].split(",")))
    return out


def workload_of(op: str, pairs: Sequence[str]) -> Workload:
    """The workload that the arguments name."""
    from tfsearch.ir.hir.named import named_workload

    return named_workload(op, workload_options(pairs))


def asked(
    op: str | None, pairs: Sequence[str], options: Mapping[str, Any]
) -> tuple[Workload | KernelWorkload, tuple[str, ...]]:
    """(workload, flags) of a command that takes an op, or a kernel and ``--space FILE``.

    The space file's flags come before those of the command line.
    """
    given = tuple(options["flags"])
    if options["space_file"] is None:
        if options["reference"] is not None:
            raise click.UsageError("--reference goes with --space FILE")
        if op is None:
            raise click.UsageError("Missing argument 'OP', or --space FILE")
        return workload_of(op, pairs), given
    from tfsearch.plugin.kernel import flags_of
    from tfsearch.space.file import kernel_workload

    source, constants = kernel_words(op, pairs)
    kernel = kernel_workload(source, options["space_file"], constants, options["reference"])
    return kernel, (*flags_of(kernel), *given)


def question_of(op: str, pairs: Sequence[str], options: Mapping[str, Any]) -> Question:
    """A :class:`tfsearch.runtime.serving.Question` from a command's arguments and options."""
    return question_about(workload_of(op, pairs), options["target"], options)


def question_about(
    workload: Workload | KernelWorkload,
    target: str | None,
    options: Mapping[str, Any],
    flags: tuple[str, ...] | None = None,
) -> Question:
    """The question about a workload; ``RequestError`` for an unknown protocol.

    ``flags`` None stands for the options' own.
    """
    from tfsearch.measure.job import protocol
    from tfsearch.runtime.serving import Question

    protocol(options["protocol"])
    return Question(
        workload,
        target=target,
        device=options["device"],
        toolchain=options["toolchain"],
        flags=tuple(options["flags"]) if flags is None else flags,
        macros=tuple(options["macros"]),
        protocol=options["protocol"],
    )


def settings_of(db: str | None) -> Settings:
    """Where things are kept, with an explicit URL if given."""
    from tfsearch.core import settings

    return settings.load(db)


def _boolean(name: str, text: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise RequestError("workload.boolean", f"{name}={text}: need true or false")
    return words[text.lower()]


def _integer(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise RequestError("workload.integer", f"{name}={text}: need a positive whole number")
    return int(text)


def _strides(text: str) -> dict[str, tuple[int, ...] | str]:
    """``a:520x1,b:col`` as strides by input."""
    out: dict[str, tuple[int, ...] | str] = {}
    for part in text.split(","):
        name, colon, value = part.partition(":")
        numbers = value.split("x")
        if not (colon and name and (value == "col" or all(n.isdecimal() for n in numbers))):
            raise RequestError(
                "workload.strides",
                f"strides={text}: write INPUT:NUMBERxNUMBER or INPUT:col, such as a:520x1,b:col",
            )
        out[name] = value if value == "col" else tuple(map(int, numbers))
    return out
