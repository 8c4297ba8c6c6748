"""What every test shares."""

import gc
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import cache

# As deployed: one thread per query. numpy reads this when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from botocore.loaders import JSONFileLoader
from hypothesis import settings

# Thousands of tests and many libraries stay in a process, and a full collection would look at all of them again and again.
gc.set_threshold(100_000, 20, 100)

settings.register_profile("everyday", deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5000)
settings.load_profile("soak" if os.environ.get("SPASS_SOAK") else "everyday")


_FIRST = (
    "e2e/test_fuzz.py",
    "e2e/test_demo.py",
    "e2e/test_ingest_restarts.py",
    "e2e/test_life.py",
    "e2e/test_compaction.py",
    "ingest/test_faults.py",
    "ingest/test_delivery.py",
    "sessions/test_auto_compaction_faults.py",
    "local/test_jobs.py",
    "e2e/test_openai_own_tests.py",
)
"""The files that take longest, in the order in which they start. So no worker ends long after the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: place for place, file in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-2:]), len(_FIRST)))


@pytest.fixture(scope="session", autouse=True)
def _descriptions_of_services_are_read_once() -> Iterator[None]:
    """botocore reads a megabyte of JSON for every new session, and most tests make one."""
    read = JSONFileLoader.load_file

    @cache
    def read_once(path: str) -> object:
        return read(JSONFileLoader(), path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read_once(path))
        yield


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A function that starts in a test takes this process's log over; the next test has its own again."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    yield
    if sys.excepthook is not hooks[0]:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        logging.raiseExceptions = True
        sys.excepthook, sys.unraisablehook, threading.excepthook = hooks


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was tried by the tests that count it: calls that went wrong, schedules, operations."""
    tried: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if isinstance(value, int):
                tried[report.nodeid.partition("[")[0], name] += value
    if tried:
        terminalreporter.section("tried")
        for (test, name), count in sorted(tried.items()):
            terminalreporter.line(f"{count:8,} {name.replace('_', ' ')}: {test}")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the functions do."""
    return "asyncio"
