"""The list of stable codes, `docs/refusals.md`, from the source: ``python tools/codes.py``.

A code is a string constant of the form ``family.some-words``. The source has other strings of
that form (module paths, file names, column names, hardware document keys): those are excluded
below by name, so that a new one is noticed by `tests/test_repository.py` and sorted in here.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfsearch"
PAGE = ROOT / "docs" / "refusals.md"

FORM = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\.[a-z0-9]+(?:-[a-z0-9]+)*")
ROW = re.compile(r"^\| `([^`]+)` \|")
PREFIX = re.compile(r"[a-z][a-z0-9]*\.")
NO_CODE = re.compile(r"tfsearch\..*|.*\.(?:c|h|o|so|id|json|db|toml|py|sql)")
NO_CODES = frozenset(
    {
        "build.headers",  # a field of the build key
        "build.source",
        "launch.many",  # entries of hardware documents
        "launch.one",
        "tile.bf16",
        "null.configure",  # atoms
        "x86.barrier",
        "rowwise.columns",  # names of a recipe
        "rowwise.rows",
    }
)

KINDS = {
    "RequestError": "exit 2",
    "NoCandidateError": "exit 3",
    "AllFailedError": "exit 3",
    "NotRecordedError": "exit 4",
    "UnavailableError": "exit 5",
    "NotSavedError": "exit 6",
    "InternalError": "exit 1",
    "Constraint": "rejection",
    "Refusal": "refusal",
    "Rule": "refusal",
    "_refuse": "refusal",
    "_refuse_once": "refusal",
    "Problem": "finding",
    "warning": "warning",
}
MESSAGE_IS_LAST = frozenset({"Refusal", "Problem", "Failure", "_Failure"})
TEXTS = {
    "atom.refused": "why an atom does not apply to the workload",
    "compile.exception": "compiling failed in a way that no status stands for",
    "kernel.condition": "a condition of a space file does not hold; -1 for the first one, …",
    "measure.cancelled": "the measurement was stopped before it ended",
    "measure.device": "the system refused a request of the device or its loader",
    "measure.load": "the artifact cannot be loaded",
    "measure.memory": "out of memory",
    "prepare.exception": "lowering, proving or emitting failed in a way that no code stands for",
    "proof.wrong-result": "the interpreted reduced form differs from the reference",
    "session.cancelled": "the session ended before this candidate's turn",
    "space.expression": "the expression cannot be read; the place and what was expected",
    "space.unknown-recipe": "the space has no recipe of that name; its recipes",
    "target.absent": "the target has no device here, and how to get one",
    "space.absent": "a recorded space has no such combination",
    "verify.artifact-wrong": "an artifact's content is not what its name says",
    "verify.damaged-file": "what the database engine's own check of the file found",
    "verify.kept": "the results are those of inputs of an earlier call",
    "verify.late": "an output is written after the call has returned",
    "verify.out-of-bounds": "bytes outside of a buffer were written",
}
"""Codes whose message is made elsewhere."""

STATUS_KIND = "trial"
FAMILY_KINDS = {"tir": "refusal", "space": "exit 2", "kernel": "rejection"}

HEAD = """# Refusal, rejection and error codes

Every error, refused schedule, rejected point and failed trial carries one of these codes. A code
keeps its meaning from release to release; the wording of messages may change. The list is made
from the source by `python tools/codes.py > docs/refusals.md`, and a test fails when a code is used
that it lacks.

| kind | what it is |
| --- | --- |
| exit 1 | a fault of tfsearch itself |
| exit 2 | the request is wrong |
| exit 3 | no legal or correct candidate, or a refused schedule |
| exit 4 | not in the database |
| exit 5 | a compiler, device or server is missing |
| exit 6 | measured but not saved |
| refusal | why the verifier, the interpreter or a space refuses a schedule |
| rejection | a constraint of a recipe: counted under `rejected` |
| trial | why a trial ended as it did, beside its status |
| finding | what `tfsearch db verify` found |
| warning | told to the observer of a session, which goes on |

Messages are templates: what stands in braces is filled in. `…` stands for text made elsewhere.
"""


@dataclass
class Code:
    """One code: the kinds of its uses, and the first message found."""

    kinds: set[str] = field(default_factory=set)
    message: str = ""


def collect(package: Path = PACKAGE) -> dict[str, Code]:
    """Every code that the package uses."""
    codes: dict[str, Code] = defaultdict(Code)
    for path in sorted(package.rglob("*.py")):
        for name, kind, message in _of_module(ast.parse(path.read_text(encoding="utf-8"))):
            code = codes[name]
            code.kinds.add(kind)
            code.message = TEXTS.get(name) or code.message or message
    for code in codes.values():
        if len(code.kinds) > 1:
            code.kinds.discard("")
    return dict(codes)


def listed(page: Path = PAGE) -> set[str]:
    """The codes that the page has a row for."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return {found[1] for line in lines if (found := ROW.match(line))}


def render(codes: dict[str, Code]) -> str:
    """The page."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(codes):
        families[name.partition(".")[0]].append(name)
    parts = [HEAD]
    for family in sorted(families):
        rows = [
            "",
            f"## {family.replace(chr(60), chr(92) + chr(60))}",
            "",
            "| code | kind | message |",
            "| --- | --- | --- |",
        ]
        for name in families[family]:
            code = codes[name]
            kinds = ", ".join(sorted(kind or _kind_of_family(family) for kind in code.kinds))
            rows.append(f"| `{name}` | {kinds} | {code.message.replace('|', chr(92) + '|')} |")
        parts.append("\n".join(rows))
    return "\n".join(parts) + "\n"


def _kind_of_family(family: str) -> str:
    return FAMILY_KINDS.get(family, STATUS_KIND)


def _of_module(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    makers = {name: prefix for name, node in functions.items() if (prefix := _prefix_of(node))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
            if FORM.fullmatch(name) and not NO_CODE.fullmatch(name) and name not in NO_CODES:
                yield name, _kind(node, parents), _message(node, parents, functions)
        elif isinstance(node, ast.Call) and _name(node.func) in makers and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                name = f"{makers[_name(node.func)]}{first.value}"
                yield name, "exit 2", _message(first, parents, functions)
        elif isinstance(node, ast.JoinedStr) and (name := _of_every_target(node)):
            yield name, _kind(node, parents), _message(node, parents, functions)
        elif isinstance(node, ast.JoinedStr) and "status" in ast.unparse(node):
            head = node.values[0]
            if isinstance(head, ast.Constant) and PREFIX.fullmatch(str(head.value)):
                yield f"{head.value}<status>", STATUS_KIND, "the trial's status"


def _of_every_target(node: ast.JoinedStr) -> str:
    """``<target>.words`` for the code ``f"{target}.words"``, whose family is the target's name."""
    match node.values:
        case [ast.FormattedValue(value=ast.Name(id="target")), ast.Constant(value=str(rest))]:
            return f"<target>{rest}" if FORM.fullmatch(f"target{rest}") else ""
    return ""


def _prefix_of(function: ast.FunctionDef) -> str:
    """``hir.`` for a function that makes an error with the code ``f"hir.{parameter}"``."""
    parameters = {argument.arg for argument in function.args.args}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _name(node.func) in KINDS and node.args:
            match node.args[0]:
                case ast.JoinedStr(
                    values=[ast.Constant(value=str(head)), ast.FormattedValue(value=ast.Name(id=p))]
                ) if p in parameters and PREFIX.fullmatch(head):
                    return head
    return ""


def _kind(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> str:
    above = parents[node]
    while isinstance(above, ast.IfExp | ast.BoolOp):
        above = parents[above]
    if isinstance(above, ast.Call):
        name = _name(above.func)
        if name == "__init__":
            return _kind_of_class(above, parents)
        return KINDS.get(name, "")
    return ""


def _kind_of_class(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """The kind of the class whose constructor hands a code to its base."""
    while not isinstance(node, ast.ClassDef):
        node = parents[node]
    return next((KINDS[_name(base)] for base in node.bases if _name(base) in KINDS), "")


def _message(
    node: ast.expr, parents: dict[ast.AST, ast.AST], functions: dict[str, ast.FunctionDef]
) -> str:
    above = parents[node]
    while isinstance(above, ast.IfExp | ast.BoolOp | ast.Tuple):
        if isinstance(above, ast.Tuple):
            return _last([item for item in above.elts if item is not node], parents)
        above = parents[above]
    if not isinstance(above, ast.Call):
        return ""
    if _name(above.func) == "Rule" and len(above.args) > 1:
        function = functions.get(_name(above.args[1]))
        text = ast.get_docstring(function) if function else None
        return text.splitlines()[0] if text else ""
    values = [*above.args, *(keyword.value for keyword in above.keywords)]
    if _name(above.func) in MESSAGE_IS_LAST:
        values = values[-1:]
    return _last([value for value in values if value is not node], parents)


def _last(values: list[ast.expr], parents: dict[ast.AST, ast.AST]) -> str:
    texts = (" ".join(_text(value, parents).split()) for value in reversed(values))
    return next((text for text in texts if text), "")


def _text(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(v.value) if isinstance(v, ast.Constant) else f"{{{_hole(v)}}}" for v in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, parents) + _text(right, parents)
        case ast.Name(id=name):
            return _assigned(name, node, parents)
    return ""


def _hole(node: ast.expr) -> str:
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    text = ast.unparse(inner)
    return text if re.fullmatch(r"[\w.]{1,24}", text) else "…"


def _assigned(name: str, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """The text last given to a name above its use, in the same function."""
    line = node.lineno if isinstance(node, ast.expr) else 0
    above: ast.AST = node
    while not isinstance(above, ast.FunctionDef | ast.Module):
        above = parents[above]
    given = [
        (inner.lineno, inner.value)
        for inner in ast.walk(above)
        if isinstance(inner, ast.Assign)
        and inner.lineno <= line
        and any(isinstance(target, ast.Name) and target.id == name for target in inner.targets)
        and not isinstance(inner.value, ast.Name)
    ]
    return _text(max(given, key=lambda item: item[0])[1], parents) if given else ""


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
    return ""


if __name__ == "__main__":
    sys.stdout.write(render(collect()))
