"""What a kernel says about where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfsearch.core.records import ScheduleRecord, WorkloadRecord


@dataclass(frozen=True)
class KernelRecord:
    """Where a kernel comes from: its schedule, and the times that were recorded for it.

    ``median_us`` and ``ci_us`` in microseconds; None for a kernel that was built on demand.
    """

    workload: WorkloadRecord
    target: str
    schedule: ScheduleRecord
    median_us: float | None = None
    ci_us: tuple[float, float] | None = None
    max_error: float | None = None
    trial: int | None = None
    build: Mapping[str, Any] = field(default_factory=dict[str, Any])
