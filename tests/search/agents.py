"""Agents for tests: ``python agents.py KIND``. Each speaks, or abuses, the protocol."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any


def say(message: Any) -> None:
    print(json.dumps(message), flush=True)


def messages() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def legal(hello: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every legal schedule, from what the hello says."""
    for recipe in hello["space"]["recipes"]:
        names = [p["name"] for p in recipe["parameters"]]
        for values in itertools.product(*(p["values"] for p in recipe["parameters"])):
            params = dict(zip(names, values, strict=True))
            if all(eval(c["expression"], {}, params) for c in recipe["constraints"]):  # noqa: S307
                yield {"recipe": recipe["name"], "params": params}


def honest(log: str = "") -> None:
    """Proposes every legal schedule in order, the ones it was told of left out."""
    rest: list[Any] = []
    for message in messages():
        if log:
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(message) + "\n")
        if message["type"] == "hello":
            rest = list(legal(message))
        elif message["type"] == "told" and message["schedule"] in rest:
            rest.remove(message["schedule"])
        elif message["type"] == "ask":
            chosen, rest = rest[: message["n"]], rest[message["n"] :]
            say({"type": "propose", "id": message["id"], "schedules": chosen})


def answering(make: Any) -> None:
    """Answers every ask with what ``make(ask, hello)`` prints."""
    hello: dict[str, Any] = {}
    for message in messages():
        if message["type"] == "hello":
            hello = message
        elif message["type"] == "ask":
            make(message, hello)


def propose(ask: dict[str, Any], *schedules: Any) -> None:
    say({"type": "propose", "id": ask["id"], "schedules": list(schedules)})


def first(hello: dict[str, Any]) -> dict[str, Any]:
    return next(legal(hello))


def flood() -> None:
    while True:
        os.write(1, b'{"type": "noise"}\n' * 1000)


def endless() -> None:
    while True:
        os.write(1, b"x" * 65536)


def chatty() -> None:
    """Floods standard error and still answers."""

    def make(ask: dict[str, Any], hello: dict[str, Any]) -> None:
        os.write(2, b"working very hard\n" * 20_000)
        propose(ask, list(legal(hello))[ask["id"]])

    answering(make)


def dies() -> None:
    def make(ask: dict[str, Any], hello: dict[str, Any]) -> None:
        if ask["id"] == 3:
            sys.exit("no more ideas")
        propose(ask, list(legal(hello))[ask["id"]])

    answering(make)


def mixed() -> None:
    """A good schedule among bad ones."""

    def make(ask: dict[str, Any], hello: dict[str, Any]) -> None:
        illegal = {"recipe": "wide", "params": {"a": 8, "b": 8, "order": "mn", "fused": False}}
        propose(ask, illegal, list(legal(hello))[ask["id"]])

    answering(make)


def late() -> None:
    """Answers each question when the next one is there."""
    waiting: list[Any] = []

    def make(ask: dict[str, Any], hello: dict[str, Any]) -> None:
        for old in waiting:
            propose(old, first(hello))
        waiting[:] = [ask]

    answering(make)


def dup(*_: str) -> None:
    """The same legal schedule every time."""
    answering(lambda ask, hello: propose(ask, first(hello)))


def silent() -> None:
    time.sleep(600)


def deaf() -> None:
    """Reads nothing and stays."""
    sys.stdin.close()
    time.sleep(600)


def partial() -> None:
    """Names one parameter only."""

    def make(ask: dict[str, Any], hello: dict[str, Any]) -> None:
        propose(ask, {"recipe": "wide", "params": {"order": "z"}})

    answering(make)


def lazy(log: str = "") -> None:
    """Leaves everything but the recipe to the model."""

    def make(ask: dict[str, Any], hello: dict[str, Any]) -> None:
        if log:
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps([hello["facts"], ask["history"]]) + "\n")
        propose(ask, {"recipe": hello["space"]["recipes"][0]["name"]})

    answering(make)


BAD: dict[str, Any] = {
    "not-json": lambda ask, hello: print("let me think", flush=True),
    "not-object": lambda ask, hello: say([1, 2]),
    "deep": lambda ask, hello: print("[" * 100_000, flush=True),
    "other-type": lambda ask, hello: say({"type": "answer", "id": ask["id"]}),
    "other-id": lambda ask, hello: say(
        {"type": "propose", "id": ask["id"] + 7, "schedules": [first(hello)]}
    ),
    "no-schedules": lambda ask, hello: propose(ask),
    "no-object": lambda ask, hello: propose(ask, "wide"),
    "unknown-recipe": lambda ask, hello: propose(ask, {"recipe": "gone", "params": {}}),
    "unknown-key": lambda ask, hello: propose(ask, {**first(hello), "note": "please"}),
    "unknown-parameter": lambda ask, hello: propose(
        ask, {"recipe": "narrow", "params": {"a": 1, "zz": 1}}
    ),
    "outside": lambda ask, hello: propose(ask, {"recipe": "narrow", "params": {"a": 10**30}}),
    "float": lambda ask, hello: propose(ask, {"recipe": "narrow", "params": {"a": 1.0}}),
    "boolean": lambda ask, hello: propose(ask, {"recipe": "narrow", "params": {"a": True}}),
    "list": lambda ask, hello: propose(ask, {"recipe": "narrow", "params": {"a": [1]}}),
    "illegal": lambda ask, hello: propose(
        ask, {"recipe": "wide", "params": {"a": 8, "b": 8, "order": "mn", "fused": False}}
    ),
    "illegal-part": lambda ask, hello: propose(ask, {"recipe": "wide", "params": {"a": 8, "b": 8}}),
    "nan": lambda ask, hello: propose(ask, {"recipe": "narrow", "params": {"a": float("nan")}}),
    "infinite": lambda ask, hello: print(
        f'{{"type": "propose", "id": {ask["id"]}, "schedules": [1e999]}}', flush=True
    ),
    "deep-schedule": lambda ask, hello: print(
        f'{{"type": "propose", "id": {ask["id"]}, "schedules": {"[" * 900}{"]" * 900}}}', flush=True
    ),
    "bytes": lambda ask, hello: os.write(1, b"\xff\xfe\x00\n"),
    "long-line": lambda ask, hello: os.write(1, b"x" * (3 << 20) + b"\n") and None,
}


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind in BAD:
        answering(BAD[kind])
    else:
        globals()[kind](*rest)


if __name__ == "__main__":
    main()
