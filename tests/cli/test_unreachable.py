"""A database that is not there, refuses, or cannot be: one line, no password, in time."""

from __future__ import annotations

import socket
import time

import pytest

from tests.cli.conftest import GEMM, Run

COMMANDS = (
    ("tune", *GEMM, "--trials", "1", "--quiet", "--no-baseline", "--db"),
    ("lookup", *GEMM, "--db"),
    ("db", "stats", "--db"),
    ("db", "merge"),
)
WITHIN_S = 30


@pytest.fixture(autouse=True)
def driver() -> None:
    pytest.importorskip("psycopg", reason="psycopg: the PostgreSQL driver")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_database_that_cannot_be_reached_is_one_line(run: Run, words: tuple[str, ...]) -> None:
    answer = run(*words, "postgresql://me:geheim@127.0.0.1:9/records")
    assert answer.code == 5
    assert answer.error.startswith("error[db.unreachable]")
    assert "geheim" not in answer.out + answer.err


def test_a_server_that_never_answers_is_given_up_in_time(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        answer = run("db", "stats", "--db", f"postgresql://me:geheim@127.0.0.1:{port}/records")
    assert time.monotonic() - started < WITHIN_S
    assert answer.code == 5
    assert "geheim" not in answer.error


def test_a_malformed_url_is_one_line(run: Run) -> None:
    for url in ("postgresql://me:geheim@h:99999/x", "postgresql://me:geheim@h/x?no=1", "what"):
        answer = run("tune", *GEMM, "--db", url)
        assert answer.code == 2
        assert answer.error.startswith("error[db.url]")
        assert "geheim" not in answer.err
