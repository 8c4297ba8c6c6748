"""The steps of the demo: the main features over HTTP. Each call and its answer are printed and checked."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from local.demo_texts import BERLIN, POTSDAM, documentation
from local.home import ROOT

_BERLIN: Final = "/a1/rag/indices/berlin-info"
_SESSIONS: Final = "/a1/agents/concise-de/sessions"
_WIDTH: Final = 600  # characters of a body that are shown
_JOB_SECONDS: Final = 120
_POLL_SECONDS: Final = 0.2


class DemoFailed(Exception):
    """Raised when a call fails or an answer does not follow from the ingested documents."""


class Walk:
    """The calls of the demo, printed as they happen."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def title(self, text: str) -> None:
        print(f"\n=== {text}")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, print it and its answer, and return the answer's JSON."""
        print(f"\n→ {method} {path}" + (f"\n  {_abbreviate(body)}" if body is not None else ""))
        answer = self._client.request(method, path, json=body, follow_redirects=True)
        for hop in answer.history:
            print(f"← {hop.status_code}\n→ {method} {hop.headers['Location']}")
        cost = answer.headers.get("SPASS-Cost-Usd")
        print(f"← {answer.status_code}" + (f", {cost} USD" if cost else ""))
        payload: dict[str, Any] = answer.json()
        print(f"  {_abbreviate(payload)}")
        if answer.is_error:
            raise DemoFailed(f"{method} {path} was answered with {answer.status_code}")
        return payload

    def ask(self, path: str, message: str, *, expect: str, tool: str | None = None) -> dict[str, Any]:
        """Ask an agent and return its reply.

        Raises:
            DemoFailed: the answer does not contain ``expect``, or the agent did not call ``tool``.
        """
        reply = self.call("POST", path, {"message": message})
        content = reply["message"]["content"]
        print(f"\n  {message}\n  » {content}")
        if expect.lower() not in content.lower():
            raise DemoFailed(f"The answer should say '{expect}': {content}")
        used = [call["name"] for call in reply["tool_calls"]]
        if tool is not None and tool not in used:
            raise DemoFailed(f"The agent should call its tool {tool}; it called {used or 'none'}")
        return reply

    def upload(self, index: str, filename: str, content_type: str, file: bytes) -> dict[str, Any]:
        """Upload a file with a presigned form, and wait until the gateway has ingested it."""
        uploads = f"/a1/rag/indices/{index}/uploads"
        ticket = self.call("POST", uploads, {"filename": filename, "content_type": content_type, "size": len(file)})
        print(f"\n→ POST {ticket['url']}\n  (a form: the fields, then the file of {len(file)} bytes; no token)")
        # The form needs no token, so this request does not use the client with the token.
        response = httpx.post(
            ticket["url"],
            data=ticket["fields"],
            files={"file": (filename, file, content_type)},
            timeout=60,
            trust_env=False,
        )
        print(f"← {response.status_code}")
        if response.is_error:
            raise DemoFailed(f"The bucket refused the file with {response.status_code}")
        return self._wait_for(f"{uploads}/{ticket['upload_id']}", "The file did not become documents")

    def compact(self, session: str) -> dict[str, Any]:
        """Compact a session and return the result. Poll its job if the gateway answers before the compaction ends."""
        answer = self.call("POST", f"{session}/compact")
        if "status" not in answer:
            return answer
        result: dict[str, Any] = self._wait_for(f"/a1/jobs/{answer['job_id']}", "The session was not compacted")["result"]
        return result

    def _wait_for(self, path: str, failure: str) -> dict[str, Any]:
        """Poll the work at ``path`` until it has succeeded, print its progress, and return it.

        Raises:
            DemoFailed: the work failed or took over two minutes; the message is ``failure``.
        """
        print(f"\n→ GET {path}")
        last_progress = ""
        until = time.monotonic() + _JOB_SECONDS
        while time.monotonic() < until:
            work: dict[str, Any] = self._client.get(path).raise_for_status().json()
            if (progress := _abbreviate(work)) != last_progress:
                last_progress = progress
                print(f"← {progress}")
            if work["status"] == "succeeded":
                return work
            if work["status"] == "failed":
                raise DemoFailed(failure)
            time.sleep(_POLL_SECONDS)
        raise DemoFailed(f"{failure} within {_JOB_SECONDS} s")

    def tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a server tool, and return its result."""
        result: dict[str, Any] = self.call("POST", "/v1/tools/execute", {"name": name, "arguments": arguments})["result"]
        return result


def walk(client: httpx.Client) -> None:
    """Run all steps of the demo.

    Raises:
        DemoFailed: a call fails or an answer is wrong.
    """
    step = Walk(client)
    _knowledge(step)
    _agents(step)
    _curation(step)
    _accounts(step, _documentation(step))
    print("\nEvery answer follows from the documents.")


def _knowledge(step: Walk) -> None:
    step.title("1. Ingest documents about Berlin")
    step.call("POST", f"{_BERLIN}/documents", {"documents": list(BERLIN)})

    step.title("2. Query them: retrieval alone, exact and by meaning")
    answer = step.call("POST", f"{_BERLIN}/query", {"query": "Wo ist der größte Park?", "top_k": 2})
    if answer["results"][0]["id"] != "tiergarten":
        raise DemoFailed("The park should be found first")

    step.title("3. The same with a filter: no parks, and nothing newer than 1800")
    older = {"year": {"$lte": 1800}, "kind": {"$ne": "park"}}
    answer = step.call("POST", f"{_BERLIN}/query", {"query": "Wo ist der größte Park?", "filter": older})
    if [hit["id"] for hit in answer["results"]] != ["brandenburger-tor"]:
        raise DemoFailed("Only the Brandenburg Gate passes this filter")

    step.title("4. A Markdown file goes into the bucket through a presigned form, and becomes documents")
    step.upload("berlin-info", "potsdam.md", "text/markdown", POTSDAM.encode())
    answer = step.call("POST", f"{_BERLIN}/query", {"query": "Wer ließ Sanssouci bauen?", "filter": {"source": "potsdam.md"}})
    best = answer["results"][0]
    if "Friedrich" not in best["text"]:
        raise DemoFailed("The file should be found by its content")
    step.call("GET", f"{_BERLIN}/documents/{quote(best['id'], safe='')}")


def _agents(step: Walk) -> None:
    step.title("5. An agent that reads the nearest documents before it answers")
    step.ask("/a1/agents/berlin-rag/chat", "Wann wurde das Brandenburger Tor gebaut?", expect="1791")

    step.title("6. A session that remembers")
    created = step.call("POST", _SESSIONS, {"title": "Demo", "compact_keep_last_n": 2})
    session = f"{_SESSIONS}/{created['id']}"
    step.call("POST", f"{session}/messages", {"message": "Mein Lieblingssport ist Tennis."})
    step.ask(f"{session}/messages", "Welcher Sport ist mein Liebling?", expect="Tennis")
    step.call("GET", f"{session}/messages")
    _compaction(step, session)

    step.title("8. An agent that decides to search")
    question = "Wie hoch ist der Fernsehturm am Alexanderplatz? Suche im Index berlin-info."
    step.ask("/a1/agents/librarian/chat", question, expect="368", tool="rag_query")

    step.title("9. An agent that calculates with a tool")
    step.ask("/a1/agents/researcher/chat", "What is 1791 * 17?", expect="30447", tool="calculator")


def _compaction(step: Walk, session: str) -> None:
    step.title("7. The session is compacted: a summary replaces old messages, and the session continues in a successor")
    step.call("POST", f"{session}/messages", {"message": "Mein Hund heißt Bello."})
    compacted = step.compact(session)
    print("\n  A message to the old session is redirected to the successor, which has the facts in its summary:")
    reply = step.ask(f"{session}/messages", "Welcher Sport ist mein Liebling?", expect="Tennis")
    if reply["session_id"] != compacted["successor_session_id"]:
        raise DemoFailed("The session should have continued in its successor")
    lineage = step.call("GET", f"{_SESSIONS}/{reply['session_id']}/lineage")
    print()
    for summary in lineage["summaries"]:
        print(f"  {summary['source_session_id']}: messages {summary['first_seq']} to {summary['last_seq']} are summarised as")
        print(f"  {summary['id']}: {summary['text']}")
        print(f"  {summary['successor_session_id']} continues with it")
    if [member["id"] for member in lineage["backward"]] != [compacted["source_session_id"]]:
        raise DemoFailed("The successor should come from the session that was compacted")


def _curation(step: Walk) -> None:
    step.title("10. A document gets other metadata: no model is called, and it costs nothing")
    step.call("PATCH", f"{_BERLIN}/documents/kudamm", {"metadata": {"city": "Berlin", "kind": "street", "year": 1886}})

    step.title("11. A tool that deletes: the first call shows a preview, the second call deletes")
    arguments = {"index_id": "berlin-info", "doc_id": "kudamm"}
    preview = step.tool("rag_doc_delete", arguments)
    if not preview.get("confirm_required"):
        raise DemoFailed("The tool should ask for confirmation before it deletes")
    step.tool("rag_doc_delete", arguments | {"confirm_token": preview["confirm_token"]})
    documents = step.call("GET", f"{_BERLIN}/documents")["documents"]
    if "kudamm" in [document["id"] for document in documents]:
        raise DemoFailed("The second call should delete the document")


def _documentation(step: Walk) -> str:
    """Ingest and query the documentation. Return the id of a request in which an agent searched."""
    step.title("12. The gateway's own documentation, ingested and searched")
    documents = documentation(ROOT / "docs")
    step.call("POST", "/a1/rag/indices/gateway-docs/documents", {"documents": documents})
    request_id = ""
    for question, expected in (
        ("How long is the stored answer of an Idempotency-Key kept?", "24 hours"),
        ("How many documents may one request carry?", "256"),
        ("What happens when two turns of one session run at the same time?", "session_busy"),
        ("How many dimensions do the vectors have?", "384"),
    ):
        message = f"{question} Look in the index gateway-docs."
        request_id = step.ask("/a1/agents/librarian/chat", message, expect=expected, tool="rag_query")["request_id"]
    return request_id


def _accounts(step: Walk, request_id: str) -> None:
    step.title("13. The usage of the demo by agent, and all calls of the last answer")
    usage = step.call("GET", "/v1/usage?group_by=agent")
    print()
    for row in usage["usage"]:
        print(
            f"  {row['key'] or 'no agent':16} {row['requests']:4} calls {row['total_tokens']:7} tokens {row['cost_usd']:>12} USD"
        )
    calls = step.call("GET", f"/v1/audit/{request_id}")["calls"]
    print(f"\n  {request_id}")
    for line in _tree(calls):
        print(f"  {line}")
    sub_calls = [sub_call["kind"] for call in calls if call["tool"] == "rag_query" for sub_call in call["calls"]]
    if "embedding" not in sub_calls:
        raise DemoFailed("The embedding of the question should be below its tool call")


def _tree(calls: Sequence[Mapping[str, Any]], indent: str = "") -> Iterator[str]:
    """Yield a line for each call, with its sub-calls indented below it."""
    for call in calls:
        cost = f", {call['cost_usd']} USD" if call["cost_usd"] is not None else ""
        yield f"{indent}└ {call['kind']} {call['tool'] or call['model']}: {call['status']}, {call['latency_ms']} ms{cost}"
        yield from _tree(call["calls"], indent + "  ")


def _abbreviate(body: object) -> str:
    text = json.dumps(body, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} … ({len(text)} characters)"
