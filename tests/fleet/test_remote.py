"""Compiling for a driver elsewhere: the artifact, and a key that has to be the driver's."""

from __future__ import annotations

import pytest

from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import Status
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.plugin import registry, remote
from tfsearch.plugin.identity import lowered_source, schedule_of
from tfsearch.space import Point


def test_a_build_elsewhere_has_to_be_the_one_that_was_meant():
    target = registry.get("null")
    workload = build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})
    problem = target.problem(workload, target.nominal())
    params = {"block": 64, "lanes": 16, "unroll": 2, "stages": 2, "order": "forward"}
    point = Point(problem.space.recipes[0].name, params)
    source = lowered_source(problem, "null", schedule_of(problem, "null", point))
    compiler = target.compiler(None)
    text = remote.compile_request(
        "null", compiler, source, (), (), timeout_s=10.0, memory_bytes=1 << 30
    )
    said, content = remote.compile_text(text)
    key = compiler.key(source, (), ()).key
    assert remote.outcome_of(said, key).status is Status.OK
    assert content
    with pytest.raises(UnavailableError, match="another key") as caught:
        remote.outcome_of(said, "0" * 64)
    assert caught.value.code == "fleet.build-differs"
