"""A tab of the page, and what must not happen in it."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Locator, Page, Request

WATCH = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`CSP: ${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@dataclass
class Tab:
    """A tab at ``url``. ``faults`` collects what must not happen: errors, dialogs, requests to other hosts, CSP reports."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)
    allowed_origins: set[str] = field(default_factory=set)
    expects_failed_requests: bool = False

    def __post_init__(self) -> None:
        self.page.set_default_timeout(20_000)
        self.page.add_init_script(WATCH)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)

    def open(self, fragment: str = "") -> None:
        self.page.goto(f"{self.url}/ui{fragment}")

    def sign_in(self, token: str = "demo-token", user: str = "ada", fragment: str = "") -> None:
        self.open(fragment)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_label("User id").fill(user)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("navigation", name="Views").wait_for()

    def view(self, name: str) -> Locator:
        """Show a view and return its main part."""
        self.page.get_by_role("navigation", name="Views").get_by_role("link", name=name).click()
        return self.page.locator("main")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type != "error":
            return
        if message.text.startswith("Failed to load resource"):
            if self.expects_failed_requests:
                return
            self.faults.append(f"{message.text} {message.location.get('url')}")
            return
        self.faults.append(f"console: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        origin = f"{address.scheme}://{address.netloc}"
        if origin != self.url and origin not in self.allowed_origins and address.scheme not in ("data", "blob"):
            self.faults.append(f"request: {request.url}")


def new_tab(context: BrowserContext, url: str) -> Tab:
    return Tab(context.new_page(), url)
