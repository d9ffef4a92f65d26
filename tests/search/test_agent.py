"""The agent policy: what an agent sees, and that nothing it does ends a session."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search import agents
from tests.search.problems import FakeProblem, by_product, legal_points, two_recipes
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.search import Policy, Result, make_policy
from tfsearch.search.agent import PATIENCE, Agent
from tfsearch.space import Point

SCRIPT = f"{sys.executable} {Path(agents.__file__)}"


class Session:
    """An agent on the two small recipes; ``notices`` are what a user would see."""

    def __init__(self, kind: str, *, deadline_s: float = 20.0) -> None:
        self.problem = FakeProblem(two_recipes(), by_product)
        self.notices: list[tuple[str, str]] = []
        self.policy = Agent(
            self.problem,
            f"{SCRIPT} {kind}",
            lambda: make_policy("ranked", self.problem, seed=1),
            incumbent_us=None,
            facts={"device": "a test"},
            budget={"trials": 9},
            notice=lambda code, message: self.notices.append((code, message)),
            deadline_s=deadline_s,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *problem: object) -> None:
        self.policy.close()

    def trials(self, count: int) -> list[Point]:
        out: list[Point] = []
        for _ in range(count):
            (point,) = self.policy.ask(1)
            out.append(point)
            self.policy.tell([Result(point, Status.OK, 10.0 + len(out))])
        return out


def test_an_agents_schedules_are_tried_in_its_order() -> None:
    with Session("honest") as session:
        legal = legal_points(session.problem.space)
        by_agent = [p for p in legal if p.recipe_name == "wide"]
        tried = session.trials(10)
        assert {p.recipe_name for p in tried} == {"wide"}
        assert set(tried) <= set(by_agent)
        assert session.policy.counts == {"accepted": 12}
        assert session.notices == []


def test_the_agent_sees_the_space_facts_refusals_and_failures(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Session(f"honest {log}") as session:
        (point,) = session.policy.ask(1)
        failure = Result(
            point, Status.COMPILE_ERROR, code="compile.error", where="cc", message="no such type"
        )
        session.policy.tell([failure])
        session.policy.tell([Result(session.policy.ask(1)[0], Status.OK, 12.5, ci_us=(12.0, 13.0))])
        session.trials(3)
    hello, ask, *rest = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert (hello["type"], hello["protocol"]) == ("hello", 1)
    assert hello["facts"] == {"device": "a test"}
    assert hello["budget"] == {"trials": 9}
    wide = hello["space"]["recipes"][0]
    assert wide["parameters"][2] == {
        "name": "order",
        "kind": "categorical",
        "values": ["mn", "nm", "z"],
    }
    assert wide["constraints"][0]["code"] == "test.product"
    assert hello["space"]["legal"] == session.problem.space.count().legal
    assert (ask["type"], ask["id"], ask["n"]) == ("ask", 1, 4)
    told = [message for message in rest if message["type"] == "told"]
    assert told[0]["schedule"] == {"recipe": point.recipe_name, "params": point.params}
    assert [told[0][name] for name in ("id", "status", "code", "where", "message")] == [
        1,
        "compile_error",
        "compile.error",
        "cc",
        "no such type",
    ]
    assert told[0]["median_us"] is told[0]["ci_us"] is None
    assert (told[1]["median_us"], told[1]["ci_us"]) == (12.5, [12.0, 13.0])
    later = next(message for message in rest if message["type"] == "ask")
    assert later["history"]["failed"] == {"compile_error": 1}
    assert later["history"]["best"][0]["median_us"] == 11.0


@pytest.mark.parametrize("kind", sorted(agents.BAD))
def test_bad_answers_are_counted_and_five_in_a_row_hand_over_visibly(kind: str) -> None:
    with Session(kind) as session:
        tried = session.trials(8)
        assert len(set(tried)) == 8
        assert set(tried) <= set(legal_points(session.problem.space))
        assert sum(session.policy.counts.values()) == PATIENCE
        assert [code for code, _ in session.notices] == ["agent.replaced"]
        assert "5 bad answers in a row" in session.notices[0][1]
        assert "ranked" in session.notices[0][1]


@pytest.mark.parametrize(
    ("kind", "counted"),
    [("not-json", "malformed"), ("illegal", "illegal"), ("other-id", "malformed")],
)
def test_what_was_wrong_is_named(kind: str, counted: str) -> None:
    with Session(kind) as session:
        session.trials(1)
        assert session.policy.counts == {counted: PATIENCE}


def test_the_same_schedule_twice_is_a_bad_answer() -> None:
    with Session("dup") as session:
        session.trials(4)
        assert session.policy.counts == {"accepted": 1, "duplicate": PATIENCE}


def test_one_good_schedule_makes_an_answer_good() -> None:
    with Session("mixed") as session:
        session.trials(9)
        assert session.policy.counts == {"accepted": 9, "illegal": 9}
        assert session.notices == []


def test_missing_parameters_are_filled_in_with_the_best_estimate() -> None:
    with Session("partial") as session:
        tried = session.trials(3)
        assert all(p.recipe_name == "wide" and p.params["order"] == "z" for p in tried)
        estimate = {
            p: 100.0 / (int(p.params["a"]) + 1.0) + int(p.params["b"])
            for p in legal_points(session.problem.space)
            if p.recipe_name == "wide" and p.params["order"] == "z"
        }
        assert estimate[tried[0]] == min(estimate.values())


@pytest.mark.parametrize("kind", ["flood", "endless"])
def test_floods_are_cut_off(kind: str) -> None:
    with Session(kind) as session:
        assert len(set(session.trials(6))) == 6
        assert session.notices[0][0] == "agent.replaced"


def test_a_flood_of_errors_blocks_nobody() -> None:
    with Session("chatty") as session:
        session.trials(4)
        assert session.policy.counts == {"accepted": 4}


def test_the_end_of_an_agent_is_said_with_its_last_words() -> None:
    with Session("dies") as session:
        assert len(set(session.trials(6))) == 6
        ((code, message),) = session.notices
        assert code == "agent.replaced"
        assert "ended with code 1 (no more ideas)" in message
        assert "accepted 2" in message


@pytest.mark.parametrize("kind", ["silent", "deaf", "late"])
def test_an_agent_that_is_late_is_stood_in_for_and_then_replaced(kind: str) -> None:
    with Session(kind, deadline_s=0.3) as session:
        start = time.monotonic()
        assert len(set(session.trials(8))) == 8
        assert time.monotonic() - start < 30
        assert session.policy.counts["late"] >= PATIENCE
        assert [code for code, _ in session.notices] == ["agent.replaced"]


def test_an_agent_that_reads_nothing_does_not_fill_memory_or_block() -> None:
    with Session("deaf", deadline_s=0.2) as session:
        gone = Result(Point("gone", {}), Status.CRASH, message="x" * 100_000)
        for _ in range(200):
            session.policy.tell([gone])
        assert len(session.trials(2)) == 2


def test_the_whole_space_is_tried_with_an_agent() -> None:
    with Session("honest") as session:
        legal = legal_points(session.problem.space)
        assert set(session.trials(len(legal))) == set(legal)
        assert session.policy.ask(3) == []
        assert session.policy.finished


def test_closing_ends_the_agent() -> None:
    session = Session("silent", deadline_s=0.2)
    process: Any = session.policy._process
    session.policy.close()
    assert process._process.poll() is not None
    session.policy.close()


@pytest.mark.parametrize(
    ("text", "error", "code"),
    [
        ("agent", RequestError, "policy.agent-command"),
        ("agent:", RequestError, "policy.agent-command"),
        ("agent:'unclosed", RequestError, "policy.agent-command"),
        ("agent:/no/such/program --fast", UnavailableError, "policy.agent-start"),
    ],
)
def test_a_command_that_cannot_run_is_one_clear_error(text: str, error: Any, code: str) -> None:
    with pytest.raises(error) as caught:
        make_policy(text, FakeProblem(two_recipes(), by_product))
    assert caught.value.code == code


def test_the_command_may_hold_commas_and_equals_signs() -> None:
    policy: Policy = make_policy(
        f"agent:{SCRIPT} dup --x=1,2", FakeProblem(two_recipes(), lambda p: np.ones(len(p)))
    )
    assert len(policy.ask(1)) == 1
    policy.close()
