"""Measure the page in a headless Chromium: what it loads, how soon it is ready, how smoothly an answer streams, and its memory.

    python -m bench.page

Everything runs on this machine over loopback, in one run. A scripted model behind a real gateway writes the answers.
"""

import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, CDPSession, Page, expect, sync_playwright

from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import Gateway, running_gateway
from tests.page.chromium import launch_chromium

FIGURES: Final = sys.stdout
TOKEN: Final = "bench-token"
USER: Final = "bench"
MAX_BYTES: Final = 120_000
MAX_REQUESTS: Final = 12
MAX_READY: Final = 1.0  # seconds
MAX_TASK: Final = 50.0  # milliseconds
MAX_HEAP: Final = 100e6  # bytes
MAX_SWITCH: Final = 100.0  # milliseconds
TOKENS_PER_SECOND: Final = 100
ANSWER_BYTES: Final = 100_000
SLOW_CODE: Final = ("a." * 145 + "\n") * 172
_CONFIG: Final = """
llm: {{backends: [{{name: script, provider: openai, base_url: "{upstream}/v1", supported_models: [small, e]}}]}}
models:
  - {{name: small, context_window: 1000000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: e, kind: embedding, dimensions: 8, context_window: 8192}}
defaults: {{embedding_model: e, compact_summary_model: small, compact_strategy: "off"}}
tenants: [{{id: bench, tokens: [{{id: bench, sha256: {sha256}, allowed_models: ["*"]}}]}}]
"""
_AGENTS: Final = {name: f"name: {name}\nkind: simple\nmodel: small\nsystem_prompt: Answer.\n" for name in ("first", "second")}
_SECTION: Final = """
## Section {number}

Some **bold** words, `code`, a [link](https://example.org/{number}) and a list:

- one
- two with *emphasis*

```python
def section_{number}(value: int) -> int:
    \"\"\"Return the value of this section.\"\"\"
    return value * {number}
```

| name | value |
|---|---:|
| a | {number} |
"""
_WATCH: Final = """
window.tasks = []; window.frames_seen = 0;
new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({type: "longtask", buffered: true});
const count = () => { window.frames_seen++; requestAnimationFrame(count); };
requestAnimationFrame(count);
"""

_SWITCH: Final = """() => new Promise((resolve) => {
  const start = performance.now();
  const isShown = () =>
    document.querySelector("h1 bdi")?.textContent === "first" && document.querySelectorAll("article").length === 500;
  const look = () => (isShown() ? resolve(performance.now() - start) : requestAnimationFrame(look));
  location.hash = "#/chat/first";
  look();
})"""


def long_markdown(size: int) -> str:
    """Return at least ``size`` characters of Markdown with code, lists, links and tables."""
    sections: list[str] = []
    length = 0
    while length < size:
        sections.append(_SECTION.format(number=len(sections) + 1))
        length += len(sections[-1])
    return "".join(sections)


def answer(request: Body) -> Completion:
    """Answer as the last message asks: ``stream`` slowly, ``long`` with a megabyte, ``code`` with code that is slow to read,
    anything else with a word."""
    asked = str(request["messages"][-1]["content"])
    if asked == "code":
        return Completion({"role": "assistant", "content": "".join(f"```{name}\n{SLOW_CODE}```\n\n" for name in ("ini", "cs"))})
    if asked == "stream":
        text = long_markdown(ANSWER_BYTES)
        size = len(text) // (10 * TOKENS_PER_SECOND)  # ten seconds
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        return Completion({"role": "assistant", "content": text}, pieces=pieces, pause=1 / TOKENS_PER_SECOND)
    if asked == "long":
        text = long_markdown(990_000)
        return Completion(
            {"role": "assistant", "content": text}, pieces=[text[i : i + 20_000] for i in range(0, len(text), 20_000)]
        )
    return Completion({"role": "assistant", "content": "Noted."})


@contextmanager
def gateway() -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory() as folder, serve_model(answer) as upstream:
        sha256 = hashlib.sha256(TOKEN.encode()).hexdigest()
        with running_gateway(Path(folder), _CONFIG.format(upstream=upstream, sha256=sha256), _AGENTS) as running:
            yield running


def open_page(page: Page, url: str) -> None:
    page.goto(f"{url}/ui")
    enter(page)


def enter(page: Page) -> None:
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("User id").fill(USER)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Message", exact=True).wait_for()


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


def wait_for_end(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=120_000)


def measure_start(browser: Browser, url: str) -> None:
    """Print the requests and bytes of the first use, and the time until the page can be used, from an empty cache."""
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    received: list[float] = []
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    started = time.perf_counter()
    page.goto(f"{url}/ui")
    page.get_by_label("Token").wait_for()
    ready = time.perf_counter() - started
    enter(page)
    page.wait_for_timeout(500)
    report("requests to first use", len(received), MAX_REQUESTS, "{:,.0f}")
    report("compressed bytes to first use", sum(received), MAX_BYTES, "{:,.0f}")
    report("ready from a cold cache, s", ready, MAX_READY, "{:.2f}")
    page.close()


def measure_stream(browser: Browser, url: str) -> None:
    """Print the longest task and the dropped frames while an answer of 100 KB arrives in ten seconds."""
    page = browser.new_page()
    open_page(page, url)
    page.evaluate(_WATCH)
    started = time.perf_counter()
    send(page, "stream")
    wait_for_end(page)
    seconds = time.perf_counter() - started
    tasks: list[float] = page.evaluate("window.tasks")
    frames: int = page.evaluate("window.frames_seen")
    report("longest task while 100 tokens a second arrive, ms", max(tasks, default=0.0), MAX_TASK, "{:.0f}")
    report("dropped frames of 60 a second, %", max(0.0, 100 * (1 - frames / (60 * seconds))), None, "{:.0f}")
    page.close()


def measure_code(browser: Browser, url: str) -> None:
    """Print the longest task at two blocks of code on which their grammars would take many seconds."""
    page = browser.new_page()
    open_page(page, url)
    page.evaluate(_WATCH)
    send(page, "code")
    wait_for_end(page)
    page.wait_for_timeout(4_000)  # longer than the page lets the grammars try
    tasks: list[float] = page.evaluate("window.tasks")
    report("longest task at code that keeps a grammar busy, ms", max(tasks, default=0.0), None, "{:.0f}")
    page.close()


def measure_memory(browser: Browser, url: str, requests: httpx.Client) -> None:
    """Print the heap after 1,000 messages and after an answer of a megabyte, and the time to switch to a session of 500."""
    session = fill_session(requests, "first", 500)
    fill_session(requests, "second", 1)
    page = browser.new_page()
    devtools = page.context.new_cdp_session(page)
    open_page(page, url)
    page.goto(f"{url}/ui#/chat/first/{session}")
    expect(page.locator("article")).to_have_count(500, timeout=60_000)
    report("heap after 1,000 messages, MB", heap(devtools) / 1e6, MAX_HEAP / 1e6, "{:.1f}")
    page.evaluate("location.hash = '#/chat/second'")
    expect(page.get_by_role("heading", name="second")).to_be_visible()
    elapsed: float = page.evaluate(_SWITCH)
    report("switch to an open session of 1,000 messages, ms", elapsed, MAX_SWITCH, "{:.0f}")
    page.goto(f"{url}/ui#/chat/second/new")
    send(page, "long")
    wait_for_end(page)
    report("heap after an answer of 1 MB, MB", heap(devtools) / 1e6, MAX_HEAP / 1e6, "{:.1f}")
    page.close()


def fill_session(requests: httpx.Client, agent: str, turns: int) -> str:
    """Run turns in a new session and return its id."""
    session: Mapping[str, Any] = requests.post(f"/a1/agents/{agent}/sessions", json={}).raise_for_status().json()
    for _ in range(turns):
        path = f"/a1/agents/{agent}/sessions/{session['id']}/messages"
        requests.post(path, json={"message": "Remember this."}).raise_for_status()
    return str(session["id"])


def heap(devtools: CDPSession) -> float:
    """Return the bytes of the JavaScript heap after a collection."""
    devtools.send("HeapProfiler.collectGarbage")
    used: float = devtools.send("Runtime.getHeapUsage")["usedSize"]
    return used


def report(name: str, figure: float, limit: float | None, form: str) -> None:
    wanted = "" if limit is None else f"   wanted: at most {form.format(limit)}{'' if figure <= limit else '   MISSED'}"
    print(f"{name:<55}{form.format(figure):>12}{wanted}", file=FIGURES, flush=True)


def main() -> None:
    with gateway() as running, sync_playwright() as playwright:
        browser = launch_chromium(playwright)
        measure_start(browser, running.url)
        measure_stream(browser, running.url)
        measure_code(browser, running.url)
        with running.client(TOKEN, USER) as requests:
            measure_memory(browser, running.url, requests)
        browser.close()


if __name__ == "__main__":
    main()
