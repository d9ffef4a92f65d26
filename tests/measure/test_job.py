import dataclasses
import json

import pytest

from tests.measure.helpers import job
from tfsearch.core.errors import InternalError, RequestError
from tfsearch.core.records import Measurement, Status, Verification
from tfsearch.measure.job import (
    PROTOCOLS,
    Comparison,
    MeasureJob,
    MeasureOutcome,
    Protocol,
    Standing,
    protocol,
)

OUTCOME = MeasureOutcome(
    Status.OK,
    verification=Verification(True, 0.5, {"integers": 0.0}),
    measurement=Measurement((1.5, 2.0), 1.75, (1.5, 2.0), "warm/1", conditions={"load": 0.5}),
    seconds=0.25,
)
FAILED = MeasureOutcome(Status.WRONG, "verify.wrong", "verify", "output c at [0]", seconds=1.0)


def through_json(value):
    return json.loads(json.dumps(value.to_json(), allow_nan=False))


def test_a_job_crosses_json_unchanged(tmp_path):
    made = job(
        tmp_path,
        "right",
        incumbent_us=3.5,
        lower_bound_us=0.5,
        probes=("fma", "tile"),
        probe_reference={"tile": 2300.0},
        sizes={"m": 3},
        oracle="package:factory",
    )
    assert MeasureJob.from_json(through_json(made)) == made


@pytest.mark.parametrize("outcome", [OUTCOME, FAILED])
def test_an_outcome_crosses_json_unchanged(outcome):
    assert MeasureOutcome.from_json(through_json(outcome)) == outcome


def test_a_comparison_crosses_json_unchanged():
    made = Comparison(
        (Standing("0", OUTCOME, 1.0, (1.0, 1.0)), Standing("1", FAILED)),
        0,
        True,
        "warm/1",
        {"groups": 3},
    )
    assert Comparison.from_json(through_json(made)) == made


@pytest.mark.parametrize("kind", [MeasureJob, MeasureOutcome, Comparison])
def test_malformed_records_are_refused(kind):
    with pytest.raises(InternalError, match="malformed"):
        kind.from_json({"status": "nonsense"})


def test_a_measurement_goes_with_ok_and_only_with_ok():
    with pytest.raises(ValueError, match="exactly when"):
        MeasureOutcome(Status.OK)
    with pytest.raises(ValueError, match="exactly when"):
        dataclasses.replace(FAILED, measurement=OUTCOME.measurement)


def test_an_unknown_protocol_is_refused(tmp_path):
    with pytest.raises(RequestError, match="lukewarm"):
        job(tmp_path, "right", protocol="lukewarm")


def test_every_field_that_changes_what_a_time_means_changes_the_protocol_key():
    base = PROTOCOLS["warm"]
    keys = {
        base.key,
        protocol("cold").key,
        dataclasses.replace(base, version=2).key,
        dataclasses.replace(base, sets=3).key,
        dataclasses.replace(base, sample_us=100).key,
    }
    assert len(keys) == 5
    assert base.key.startswith("warm/1")
    assert isinstance(base, Protocol)
