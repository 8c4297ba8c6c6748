"""The steps of the demo: the main features over HTTP, each with a check of its answer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from local.demo_calls import DemoFailed, Walk
from local.demo_code import show_code
from local.demo_managed import schedule_agent, show_managed_agent, show_scheduled_run
from local.demo_operators import show_operator
from local.demo_streams import show_streams
from local.demo_texts import BERLIN, POTSDAM, documentation
from local.demo_workspace import show_workspace
from local.home import ROOT

_BERLIN: Final = "/a1/rag/indices/berlin-info"
_SESSIONS: Final = "/a1/agents/concise-de/sessions"


def walk(client: httpx.Client) -> None:
    """Run all steps of the demo.

    Raises:
        DemoFailed: a call fails or an answer is wrong.
    """
    step = Walk(client)
    _knowledge(step)
    _agents(step)
    _kinds(step)
    show_streams(step)
    _curation(step)
    _accounts(step, _documentation(step))
    show_workspace(step)
    scheduled = schedule_agent(step)
    show_code(step)
    show_operator(step)
    show_managed_agent(step)
    show_scheduled_run(step, scheduled)
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


def _kinds(step: Walk) -> None:
    question, product = "What is 1791 * 17?", "30447"
    with_tool = {"input": question, "tools": ["calculator"]}
    step.title("10. Different kinds of agents answer one question, without an agent's file")
    print("\n  The kind simple calls no tools. It reads the product in the context:")
    step.ask_kind({"input": question, "agent": "simple", "context": "A note: 1791 times 17 is 30447."}, expect=product)
    print("\n  The kind orchestrator offers the tool as a function that the model can call:")
    step.ask_kind({**with_tool, "agent": "orchestrator"}, expect=product)
    print("\n  In its mode structured it describes the tool in the prompt, and the model writes the call as text:")
    step.ask_kind({**with_tool, "agent": "orchestrator", "params": {"mode": "structured"}}, expect=product)
    print("\n  The kind native_react does the same with the words of the ReAct paper:")
    step.ask_kind({**with_tool, "agent": "native_react"}, expect=product)

    step.title("11. The answer as a stream of events")
    step.stream_kind({**with_tool, "agent": "native_react"}, expect=product)


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
    step.title("14. A document gets other metadata: no model is called, and it costs nothing")
    step.call("PATCH", f"{_BERLIN}/documents/kudamm", {"metadata": {"city": "Berlin", "kind": "street", "year": 1886}})

    step.title("15. A tool that deletes: the first call shows a preview, the second call deletes")
    arguments = {"index_id": "berlin-info", "doc_id": "kudamm"}
    preview = step.tool("rag_doc_delete", arguments)
    if not preview.get("confirm_required"):
        raise DemoFailed("The tool should ask for confirmation before it deletes")
    step.tool("rag_doc_delete", arguments | {"confirm_token": preview["confirm_token"]})
    documents = step.call("GET", f"{_BERLIN}/documents")["documents"]
    if "kudamm" in [document["id"] for document in documents]:
        raise DemoFailed("The second call should delete the document")


def _documentation(step: Walk) -> str:
    """Ingest and query pages of the documentation. Return the id of a request in which an agent searched."""
    step.title("16. Pages of the gateway's own documentation, ingested and searched")
    documents = documentation(ROOT / "docs")
    step.call("POST", "/a1/rag/indices/gateway-docs/documents", {"documents": documents})
    request_id = ""
    for question, expected in (
        ("When does the stored answer of an Idempotency-Key expire?", "24 hours"),
        ("How many documents may one request carry?", "256"),
        ("What happens when two turns of one session run at the same time?", "session_busy"),
        ("How many dimensions do the vectors have?", "384"),
    ):
        message = f"{question} Look in the index gateway-docs."
        request_id = step.ask("/a1/agents/librarian/chat", message, expect=expected, tool="rag_query")["request_id"]
    return request_id


def _accounts(step: Walk, request_id: str) -> None:
    step.title("17. The usage of the demo by agent, and all calls of the last answer")
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
