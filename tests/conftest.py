from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-large", action="store_true", help="run what needs 12 GB of memory as well"
    )
