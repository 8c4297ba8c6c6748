"""Settings and fixtures of all tests."""

import gc
import logging
import os
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

# One thread per query, as in AWS. numpy reads this variable when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import httpx
import pytest
from botocore.loaders import JSONFileLoader
from hypothesis import settings

from tests.sampling import SOAK, offset

# A process keeps thousands of tests and many libraries in memory. Frequent full collections would traverse all of them.
gc.set_threshold(100_000, 20, 100)

settings.register_profile("everyday", deadline=None, print_blob=True, max_examples=50)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5000)
settings.load_profile("soak" if SOAK else "everyday")


def pytest_report_header() -> str:
    """Print how to repeat the sample of this run (see tests/sampling.py)."""
    return "sample: all points (SPASS_SOAK)" if SOAK else f"sample: SPASS_OFFSET={offset()}"


def pytest_collection_finish() -> None:
    """Leave the modules and the collected tests out of all further collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _cache_service_descriptions() -> Iterator[None]:
    """Cache botocore's service descriptions. It reads a megabyte of JSON for every new session, and most tests create one."""
    read = JSONFileLoader.load_file

    @cache
    def read_once(path: str) -> object:
        return read(JSONFileLoader(), path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read_once(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def _cache_tls_contexts() -> Iterator[None]:
    """Cache httpx's TLS contexts. Reading the certificates takes 20 ms of CPU for every new client, and tests open thousands."""
    create = httpx.create_ssl_context
    contexts: dict[tuple[object, ...], ssl.SSLContext] = {}

    def create_once(verify: ssl.SSLContext | str | bool = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if isinstance(verify, ssl.SSLContext) or cert is not None:
            return create(verify, cert, trust_env)
        key = (verify, trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in contexts:
            contexts[key] = create(verify, cert, trust_env)
        return contexts[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", create_once)
        yield


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Restore the log handlers and exception hooks, because a function that starts in a test replaces those of the process."""
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
    """Print the totals of the counts that tests record: failed calls, schedules, operations."""
    totals: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if isinstance(value, int):
                totals[report.nodeid.partition("[")[0], name] += value
    if totals:
        terminalreporter.section("tried")
        for (test, name), count in sorted(totals.items()):
            terminalreporter.line(f"{count:8,} {name.replace('_', ' ')}: {test}")


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, as the functions do."""
    return "asyncio"
