"""A headless Chromium, a gateway with a scripted upstream, and tabs in which nothing forbidden may happen."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.e2e.conftest import Gateway
from tests.page.chromium import launch_chromium
from tests.page.filling import bucket_of
from tests.page.tab import Tab, new_tab
from tests.page.writer import Writer, serving_writer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Playwright keeps an event loop running in this thread until it is closed, so no asynchronous test may run meanwhile."""
    with sync_playwright() as playwright:
        browser = launch_chromium(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with the bundled agents and the stand-in model, for all tests that leave its data in order."""
    gateway = Gateway(tmp_path_factory.mktemp("standin") / "home")
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    """A gateway whose model writes what a test lets it write. Each test has users of its own."""
    with serving_writer(tmp_path_factory.mktemp("writer")) as writer:
        yield writer


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
