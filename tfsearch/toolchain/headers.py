"""The content of every header that a compiler reads for a source, as one digest."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.toolchain.filehash import (
    FileDigests,
    Store,
    Watch,
    fingerprint,
    settled,
    unchanged,
)
from tfsearch.toolchain.flags import include_folders
from tfsearch.toolchain.process import Completed
from tfsearch.toolchain.room import require_room, workdir

# Lines that can decide which headers are read: directives in any spelling (``#``, ``%:``, ``??=``,
# ``_Pragma``) and lines that open or close a block comment around one. A superset is harmless.
_DECIDING = re.compile(r"#|%:|\?\?|/\*|\*/|_Pragma")
# After the last line with one of these words nothing further can be read.
_READING = re.compile(r"include|import|embed|dependency|pch_preprocess|_Pragma|\?\?")
# A file that is asked for and not read is none of the dependencies.
_ASKING = re.compile(rb"__has_(include|embed)")
# The assembler reads a file that the preprocessor knows nothing of.
_ASSEMBLER = re.compile(rb'"(?:[^"\n]*(?:\\[nt]|[\s;:]))?\.(incbin|include)\b[\s"\\]')


def directives(source: str) -> list[str]:
    """The lines of a C source that can decide which headers the compiler reads.

    Continued lines are joined first; what follows the last line that can read a file (macros
    with a kernel's sizes, say) is left out, so that candidates share an entry.
    """
    joined = re.sub(r"\\[ \t\f\v]*\r?\n", "", source)
    lines = [line for line in joined.splitlines() if _DECIDING.search(line)]
    last = max((n for n, line in enumerate(lines) if _READING.search(line)), default=-1)
    return lines[: last + 1]


class HeaderDigests:
    """Digests of header closures, cached with fingerprints of the files and folders involved.

    ``preprocess(folder, source name, flags)`` runs the compiler's preprocessor in ``folder``.
    """

    def __init__(
        self, store: Store, preprocess: Callable[[Path, str, Sequence[str]], Completed]
    ) -> None:
        self._store = store
        self._digests = FileDigests(store)
        self._preprocess = preprocess

    def digest(self, toolchain: str, source: str, flags: Sequence[str], name: str) -> str:
        """Digest over the contents of the headers, in the order in which they are first read.

        ``toolchain`` is the identity's digest, ``flags`` have absolute include paths. Raises
        ``RequestError`` (``toolchain.preprocess``) when a header is missing or an ``#error``
        stops the preprocessor, ``toolchain.assembler-file`` when the assembler is told to read a
        file, whose content nothing here would see.

        Where the source or a user's header asks whether a file exists, the preprocessed text
        counts too.
        """
        _refuse_files_of_assembler(source.encode(), "the source")
        fields = {
            "toolchain": toolchain,
            "directives": directives(source),
            "flags": list(flags),
        }
        key = keys.digest("headers", fields)
        cached = self._store.get("headers", key)
        if cached is not None:
            watch = self._store.get("watches", cached[1])
            if watch is not None and unchanged(watch):
                return str(cached[0])
        return self._read(key, source, flags, name)

    def _read(self, key: str, source: str, flags: Sequence[str], name: str) -> str:
        started = time.time_ns()
        with workdir("tfsearch-headers-") as folder:
            (folder / name).write_text(source, encoding="utf-8")
            done = self._run(folder, name, ["-v", "-M", "-MF", "deps", *flags])
            own = os.path.realpath(folder)
            named = dependencies((folder / "deps").read_text(errors="surrogateescape"))
            files = [os.path.join(folder, path) for path in named]
            files = [path for path in files if not os.path.realpath(path).startswith(own + os.sep)]
            searched = [os.path.join(folder, path) for path in search_folders(done.stderr)]
            try:
                contents = [self._digests.digest(path) for path in files]
                asking = _asks(source, _own_headers(files, searched, flags))
            except OSError as error:
                raise RequestError(
                    "toolchain.preprocess", f"cannot read {error.filename}: {error.strerror}"
                ) from error
            fields: dict[str, object] = {"files": contents}
            if asking:
                fields["text"] = self._run(folder, name, ["-E", "-P", *flags]).stdout
        value = keys.digest("header-contents", fields)
        if asking:
            # Which files it asked for is not known, and the rest of its text counts: not cached.
            self._store.flush()
            return value
        watch: Watch = {path: fingerprint(path) for path in watched_paths(files, searched)}
        if settled(watch, started):
            watch_key = keys.digest("watch", watch)
            self._store.put("watches", watch_key, watch)
            self._store.put("headers", key, [value, watch_key])
        self._store.flush()
        return value

    def _run(self, folder: Path, name: str, options: Sequence[str]) -> Completed:
        done = self._preprocess(folder, name, options)
        if not done.ok:
            require_room(folder, done.output)
            raise RequestError("toolchain.preprocess", _diagnostic(done))
        return done


def _own_headers(files: Sequence[str], searched: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The headers that are not the compiler's or the system's."""

    def below(path: str, folders: Sequence[str]) -> bool:
        return any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)

    given = [os.path.normpath(folder) for folder in include_folders(flags)]
    system = [path for path in map(os.path.normpath, searched) if path not in given]
    return [
        path
        for path in files
        if below(os.path.normpath(path), given) or not below(os.path.normpath(path), system)
    ]


def _asks(source: str, files: Sequence[str]) -> bool:
    """Whether the source or one of the files asks if a file exists."""
    asking = _ASKING.search(source.encode()) is not None
    for path in files:
        content = Path(path).read_bytes()
        _refuse_files_of_assembler(content, path)
        asking = asking or _ASKING.search(content) is not None
    return asking


def _refuse_files_of_assembler(content: bytes, where: str) -> None:
    found = _ASSEMBLER.search(content)
    if found:
        raise RequestError(
            "toolchain.assembler-file",
            f"{where}: .{found[1].decode()} reads a file whose content the build key cannot see; "
            "write the data as C",
        )


def dependencies(text: str) -> list[str]:
    """Prerequisites of the one rule in a make dependency file (``-M``), escapes undone."""
    _, _, rest = text.replace("\\\r\n", " ").replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\[ #\\:]|[^\s])+", rest)
    return [re.sub(r"\\([ #:])", r"\1", word).replace("$$", "$") for word in words]


def search_folders(trace: str) -> list[str]:
    """Folders on the include path as ``-v`` prints it, those that do not exist included."""
    missing = re.findall(r'^ignoring nonexistent directory "(.+)"$', trace, re.MULTILINE)
    lists = re.findall(
        r'^#include "\.\.\." search starts here:\n(.*?)^End of search list', trace, re.M | re.S
    )
    found = [line.strip() for text in lists for line in text.splitlines() if line.startswith(" ")]
    return [*missing, *(re.sub(r" \(framework directory\)$", "", path) for path in found)]


def watched_paths(files: Sequence[str], searched: Sequence[str]) -> list[str]:
    """Headers, their folders, and every folder where a header of the same name would win.

    For a header found as ``D/sub/name.h`` along the include path, each other ``E/sub`` on the
    path is watched too, whether or not it exists.
    """
    folders = [os.path.normpath(path) for path in searched]
    below = {""}
    for path in files:
        normal = os.path.normpath(path)
        for folder in folders:
            if normal.startswith(folder.rstrip(os.sep) + os.sep):
                below.add(os.path.dirname(os.path.relpath(normal, folder)))
    paths = {*files, *(os.path.dirname(path) for path in files)}
    paths.update(
        os.path.join(folder, part) if part else folder for folder in folders for part in below
    )
    return sorted(paths)


def _diagnostic(done: Completed) -> str:
    if done.timed_out:
        return f"the preprocessor did not end in {done.seconds:.0f} s"
    for line in done.stderr.splitlines():
        if re.search(r"\berror: ", line):
            return line.strip()
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"the preprocessor ended with status {done.returncode}"
