"""A headless Chromium, a gateway with a scripted upstream, and tabs in which nothing forbidden may happen."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.e2e.conftest import Gateway, shipped_gateway
from tests.page.chromium import launch_chromium
from tests.page.filling import bucket_of
from tests.page.hostile import HOSTILE
from tests.page.tab import Tab, new_tab
from tests.page.writer import Model, Writer, writer_site


class Chromium:
    """A browser for tests of this folder that follow each other."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """Return the browser, which is started when it is first needed."""
        if self._browser is None:
            self._browser = launch_chromium(self._open.enter_context(sync_playwright()))
            self._open.callback(self._browser.close)
        return self._browser

    def close(self) -> None:
        self._open.close()
        self._browser = None


_CHROMIUM = Chromium()
expect.set_options(timeout=20_000)  # milliseconds; the default is too short for an edit on a busy machine


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser before a test of another folder. Playwright keeps an event loop running in this thread until then, so no
    asynchronous test may run meanwhile."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _CHROMIUM.close()


@pytest.fixture
def browser() -> Browser:
    return _CHROMIUM.browser()


@pytest.fixture(scope="session")
def model() -> Model:
    return Model()


@pytest.fixture(scope="session")
def standin(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all tests of the page: with the bundled agents and the stand-in model, the agents of ``writer``, and one
    whose model is hostile."""
    with shipped_gateway(tmp_path_factory.mktemp("page"), [writer_site(model), HOSTILE]) as gateway:
        yield gateway


@pytest.fixture
def writer(model: Model, standin: Gateway) -> Writer:
    """The gateway as a tenant of its own, whose model writes what a test lets it write. Each test has users of its own."""
    return Writer(standin, model)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def new(context: BrowserContext) -> Iterator[Callable[[str], Tab]]:
    """Return a factory of tabs of the page at an address. The test fails if something forbidden happened in one of them."""
    tabs: list[Tab] = []

    def make(url: str) -> Tab:
        tabs.append(new_tab(context, url))
        return tabs[-1]

    yield make
    for tab in tabs:
        assert tab.faults == []


@pytest.fixture
def tab(new: Callable[[str], Tab], standin: Gateway) -> Tab:
    return new(standin.url)


@pytest.fixture
def index() -> str:
    """The id of an index that does not exist yet."""
    return f"handbook-{uuid4().hex[:8]}"


@pytest.fixture
def sender(new: Callable[[str], Tab], standin: Gateway) -> Tab:
    """A tab that may send to the bucket. The page asks for an index that may not exist, which the console reports."""
    tab = new(standin.url)
    tab.allowed_origins.add(bucket_of(standin))
    tab.expects_failed_requests = True
    return tab
