"""Golden files: pages as a whole. ``pytest tests/unit/reports --update`` writes
them."""

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update", action="store_true", help="write the golden files of reports anew"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with ``golden/NAME``, or writes it there."""

    def compare(name: str, text: str) -> None:
        if request.config.getoption("--update", default=False):
            (GOLDEN / name).write_text(text, "utf-8")
        assert text == (GOLDEN / name).read_text("utf-8"), (
            "as it was; --update writes it"
        )

    return compare
