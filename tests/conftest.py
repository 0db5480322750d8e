from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

from tests.collecting import IS_FREE_THREADED
from tests.sampling import sample

# Its models are of transformers, see `pytest_runtest_call`.
collect_ignore = ["deployment/test_transformers.py"] if IS_FREE_THREADED else []

# What a test compiles comes from the code under test, not from an earlier run.
os.environ["DORT_CACHE"] = "0"
# The safety net would hide what tests are to find; those of the net itself take this away.
os.environ["DORT_STRICT"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-large", action="store_true", help="run what needs 12 GB of memory as well"
    )
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="run every combination of each table, not a sample (tests/sampling.py)",
    )


@pytest.hookimpl(tryfirst=True)  # what the command line deselects is no part of a table's sample
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_named = any(".py" in argument for argument in config.args)
    if config.getoption("--exhaustive") or config.getoption("keyword") or is_named:
        return
    kept = sample(items, second=Version(metadata.version("torch")).release < (2, 9))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    """A twelfth of the time of a test that compiles was spent on looking, again and again, for
    garbage among what importing torch made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Some tests take their models from transformers, which not every Python has wheels of."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if IS_FREE_THREADED and error.name == "transformers":
            pytest.skip("transformers has no wheels for a Python without the global lock")
        raise


@pytest.fixture(autouse=True, scope="session")
def untraced() -> None:
    """pytest 9 listens to loggers that do not propagate, and to a listener ``torch.__trace`` tells
    each graph as text: a tenth of the time of a test that compiles."""
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    for handler in [h for h in trace.handlers if type(h).__module__.startswith("_pytest")]:
        trace.removeHandler(handler)


@pytest.fixture(autouse=True)
def levels_as_found() -> Iterator[None]:
    """Functions with ``verbose=`` set the level of our logger: no test sees what another asked."""
    loggers = [logging.getLogger(name) for name in (None, "dort_rewriter", "torch.__trace")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def warnings_forgotten() -> None:
    """A warning that is logged once is logged in each test."""
    if (safety_net := sys.modules.get("dort_rewriter.compiler.safety_net")) is not None:
        safety_net.forget_warnings()


@pytest.fixture(autouse=True)
def dynamic_as_found() -> Iterator[None]:
    """Threads that call models compiled with ``dynamic=`` leave these changed, on torch 2.8: no
    test sees what the threads of another left (``docs/troubleshooting.md``)."""
    yield
    if (config := sys.modules.get("torch._dynamo.config")) is not None:
        config.automatic_dynamic_shapes = config.assume_static_by_default = True  # type: ignore[attr-defined]
