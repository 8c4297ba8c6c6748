"""Builds of the page whose modules a test can call, by ``await load("sanitize.js")``. A test may change their sources."""

import atexit
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from playwright.sync_api import BrowserContext, Route

from local.page_build import build_page
from tests.page.tab import Tab

ROOT: Final = Path(__file__).resolve().parents[2]
_LIBRARIES: Final = ("lit-html", "highlight.js/lib/common")


class ExposedBuild:
    """A build of its own in the folder ``root``. ``change`` replaces a text in a source."""

    def __init__(self, root: Path, file: str = "app.js", change: tuple[str, str] = ("", "")) -> None:
        shutil.copytree(ROOT / "ui", root / "ui")
        shutil.copyfile(ROOT / "package-lock.json", root / "package-lock.json")
        (root / "node_modules").symlink_to(ROOT / "node_modules")
        source = (root / "ui" / file).read_text(encoding="utf-8")
        assert change[0] in source
        (root / "ui" / file).write_text(source.replace(*change, 1), encoding="utf-8")
        modules = sorted({path.name for path in (ROOT / "ui").glob("*.js")} - {"app.js", "highlight-worker.js"})
        loads = "".join(f'"{name}": () => import("./{name}"), ' for name in modules)
        loads += "".join(f'"{name}": () => import("{name}"), ' for name in _LIBRARIES)
        with (root / "ui" / "app.js").open("a", encoding="utf-8") as app:
            app.write(f"globalThis.load = (name) => ({{ {loads} }})[name]();\n")
        build_page(root)
        self._folder = root / ".page"

    def serve(self, context: BrowserContext, url: str, policy: tuple[str, str] = ("", "")) -> None:
        """Answer with this build in place of that of the gateway at ``url``. ``policy`` replaces a text in the page's CSP."""
        types: Mapping[str, str] = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
        (page,) = self._folder.glob("index-*.html")

        def answer_page(route: Route) -> None:
            answer = route.fetch()
            found = answer.headers["content-security-policy"]
            assert policy[0] in found
            headers = {**answer.headers, "content-security-policy": found.replace(*policy, 1)}
            route.fulfill(response=answer, headers=headers, body=page.read_text(encoding="utf-8"))

        def answer_file(route: Route) -> None:
            file = self._folder / route.request.url.rpartition("/")[2]
            route.fulfill(body=file.read_bytes(), content_type=types[file.suffix])

        context.route(f"{url}/ui", answer_page)
        context.route(re.compile(rf"{re.escape(url)}/ui/[^/]+$"), answer_file)


@cache
def exposed_build() -> ExposedBuild:
    """Return the build of the page as it is, which this process makes once."""
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root)
    return ExposedBuild(root)


def with_modules(tab: Tab) -> Tab:
    """Return the tab, which from now on loads the page with modules that can be called."""
    exposed_build().serve(tab.page.context, tab.url)
    return tab
