"""`python -m local.demo` (`make demo`): the main job over HTTP, each call and its answer printed and checked.

It starts a gateway of its own and throws it away afterwards; another one is only touched when ``--url`` names it.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import httpx

from local.demo_texts import BERLIN, documentation
from local.home import ROOT
from local.processes import free_port

_START_SECONDS: Final = 60
_TOKEN: Final = "demo-token"
_USER: Final = "demo-user"
_WIDTH: Final = 600  # characters of a body that are shown


class DemoFailed(Exception):
    """An answer does not follow from what was ingested."""


class Walk:
    """The calls of the demo, printed as they happen."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def title(self, text: str) -> None:
        print(f"\n=== {text}")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, print it and its answer, and return the answer's JSON."""
        print(f"\n→ {method} {path}" + (f"\n  {_shown(body)}" if body is not None else ""))
        answer = self._client.request(method, path, json=body)
        cost = answer.headers.get("SPASS-Cost-Usd")
        print(f"← {answer.status_code}" + (f", {cost} USD" if cost else ""))
        payload: dict[str, Any] = answer.json()
        print(f"  {_shown(payload)}")
        if answer.is_error:
            raise DemoFailed(f"{method} {path} was answered with {answer.status_code}")
        return payload

    def ask(self, path: str, message: str, *, expect: str, tool: str | None = None) -> None:
        """Ask an agent, and insist that its answer holds what the documents say, and that it used its tool."""
        reply = self.call("POST", path, {"message": message})
        content = reply["message"]["content"]
        print(f"\n  {message}\n  » {content}")
        if expect.lower() not in content.lower():
            raise DemoFailed(f"The answer should say '{expect}': {content}")
        used = [call["name"] for call in reply["tool_calls"]]
        if tool is not None and tool not in used:
            raise DemoFailed(f"The agent should have used its tool {tool}, and used {used or 'none'}")


def walk(client: httpx.Client) -> None:
    """The main job, step by step."""
    step = Walk(client)

    step.title("1. Ingest documents about Berlin")
    step.call("POST", "/a1/rag/indices/berlin-info/documents", {"documents": list(BERLIN)})

    step.title("2. Query them: retrieval alone, exact and by meaning")
    found = step.call("POST", "/a1/rag/indices/berlin-info/query", {"query": "Wo ist der größte Park?", "top_k": 2})
    if found["results"][0]["id"] != "tiergarten":
        raise DemoFailed("The park should be found first")

    step.title("3. An agent that gets the documents before each question")
    step.ask("/a1/agents/berlin-rag/chat", "Wann wurde das Brandenburger Tor gebaut?", expect="1791")

    step.title("4. A session that remembers")
    session = step.call("POST", "/a1/agents/concise-de/sessions", {"title": "Demo"})
    messages = f"/a1/agents/concise-de/sessions/{session['id']}/messages"
    step.call("POST", messages, {"message": "Mein Lieblingssport ist Tennis."})
    step.ask(messages, "Welcher Sport ist mein Liebling?", expect="Tennis")
    step.call("GET", messages)

    step.title("5. An agent that decides by itself to search")
    question = "Wie hoch ist der Fernsehturm am Alexanderplatz? Suche im Index berlin-info."
    step.ask("/a1/agents/librarian/chat", question, expect="368", tool="rag_query")

    step.title("6. An agent that calculates with a tool")
    step.ask("/a1/agents/researcher/chat", "What is 1791 * 17?", expect="30447", tool="calculator")

    step.title("7. The gateway's own documentation, ingested and asked")
    documents = documentation(ROOT / "docs")
    step.call("POST", "/a1/rag/indices/gateway-docs/documents", {"documents": documents})
    for question, expected in (
        ("How long is the stored answer of an Idempotency-Key kept?", "24 hours"),
        ("How many documents may one request carry?", "256"),
        ("What happens when two turns of one session run at the same time?", "session_busy"),
        ("How many dimensions do the vectors have?", "384"),
    ):
        step.ask("/a1/agents/librarian/chat", f"{question} Look in the index gateway-docs.", expect=expected, tool="rag_query")
    print("\nEvery answer follows from the documents.")


def _shown(body: object) -> str:
    text = json.dumps(body, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} … ({len(text)} characters)"


@contextmanager
def own_gateway() -> Iterator[str]:
    """The URL of a gateway that runs until the block ends, on a free port, and of which nothing stays."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="spass-demo-") as home:
        print("Starting a gateway of its own, with the offline stand-in; its state is thrown away afterwards ...", flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "local", "--offline", "--port", url.rpartition(":")[2]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=own_environment(os.environ, home),
        )
        try:
            _wait(url, process)
            yield url
        finally:
            process.terminate()
            process.wait()


def own_environment(environment: Mapping[str, str], home: str) -> dict[str, str]:
    """``environment`` without what would lead to somebody's data or provider: other stores, another configuration, keys."""
    leads_astray = re.compile("AWS_|SPASS_|.*API_?KEY")
    return {name: value for name, value in environment.items() if not leads_astray.match(name)} | {"SPASS_HOME": home}


def _is_gateway(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False)
        return bool(health.json() == {"status": "ok"})
    except (httpx.TransportError, ValueError):
        return False


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(_START_SECONDS * 10):
        if _is_gateway(url):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise DemoFailed("The gateway did not start")
    raise DemoFailed(f"The gateway did not answer within {_START_SECONDS} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m local.demo",
        description="Walk through the gateway's main job over HTTP, on a gateway of its own: it starts one on a free port, with "
        "emulated AWS and the offline stand-in, and throws it away afterwards. No key is used and nobody's data is touched.",
    )
    parser.add_argument(
        "--url",
        type=_url,
        help="walk through a gateway that runs already, such as http://127.0.0.1:3000. This REPLACES its indexes berlin-info and "
        "gateway-docs of the tenant demo, leaves a session there, and costs what its models cost",
    )
    headers = {"Authorization": f"Bearer {_TOKEN}", "SPASS-User-Id": _USER}
    url: str | None = parser.parse_args().url
    try:
        with (
            nullcontext(url) if url else own_gateway() as base_url,
            httpx.Client(base_url=base_url, headers=headers, timeout=300, trust_env=False) as client,
        ):
            if url:
                print(f"Using the gateway on {url}: the indexes berlin-info and gateway-docs of the tenant demo are replaced,")
                print(f"a session of the user {_USER} stays, and its models cost what they cost.")
            walk(client)
    except (DemoFailed, httpx.HTTPError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no URL: write one such as http://127.0.0.1:3000")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
