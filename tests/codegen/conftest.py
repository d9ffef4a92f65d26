"""``pytest tests/codegen --update-golden`` writes the expected texts anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
SWITCH = "--update-golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(SWITCH, action="store_true", help="write golden texts instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name, or writes it when asked to."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption(SWITCH, default=False):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"differs from {name}; see {SWITCH}"

    return check
