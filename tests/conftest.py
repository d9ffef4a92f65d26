"""What holds for the whole suite: a home of its own, workers, skips that count as failures."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine makes examples says nothing about the code.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("suite")

MOST_WORKERS = 8
_OWN_HOME = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip-for",
        metavar="NAMES",
        default="",
        help="comma-separated words, such as gcc,postgresql: a test that is skipped with a "
        "reason that has one of them fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests out of the user's records, unless TFSEARCH_HOME says where they may write."""
    if "TFSEARCH_HOME" not in os.environ:
        folder = tempfile.mkdtemp(prefix="tfsearch-tests-")
        config.stash[_OWN_HOME] = folder
        os.environ["TFSEARCH_HOME"] = folder  # workers of pytest-xdist inherit it


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_OWN_HOME, "")
    if folder:
        del os.environ["TFSEARCH_HOME"]
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Workers of ``-n auto``: more than a few compete for memory and disturb timings."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def missing_tool(names: str, reason: str) -> str:
    """The name among comma-separated ones that a skip's reason has as a word, or nothing."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reason, re.IGNORECASE):
            return name
    return ""


def _turn(report: pytest.TestReport | pytest.CollectReport, names: str) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    name = missing_tool(names, reason)
    if name:
        report.outcome = "failed"
        report.longrepr = f"{reason}\n(skips for lack of {name} are failures in this run)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _turn(report, item.config.getoption("--fail-on-skip-for"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, Any, pytest.CollectReport]:
    report: pytest.CollectReport = yield
    _turn(report, collector.config.getoption("--fail-on-skip-for"))
    return report
