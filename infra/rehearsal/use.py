"""The steps of a rehearsal that use the deployed gateway. Each returns in words what it has seen, or raises `RehearsalFailed`."""

import json
import re
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import httpx

from infra.rehearsal.processes import RehearsalFailed
from infra.rehearsal.rehearsal import AGENT, Json, Rehearsal
from infra.routes import ROUTES, Route

_SESSIONS: Final = f"/a1/agents/{AGENT}/sessions"
_INDEX: Final = "/a1/rag/indices/rehearsal"
_AGENTS: Final = "/v1/managed-agents"
_TURN: Final = f"/c1/agents/{AGENT}/chat"
TURN_FUNCTION: Final = next(route.function_name for route in ROUTES if route.path == "/c1/agents/{name}/chat")
_POLL_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 400.0
_AT_ONCE: Final = 4
"""Requests in flight while each function starts for the first time."""
_LARGE_PARAGRAPHS: Final = 50
_COUNT: Final = 200
"""The stand-in of the model writes as many numbers in half a minute."""


def wait_for(rehearsal: Rehearsal, path: str) -> Json:
    """Return an upload, a job or a run when it has succeeded.

    Raises:
        RehearsalFailed: it has not, or it takes too long.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while (work := rehearsal.call("GET", path))["status"] in ("waiting", "queued", "running"):
        if time.monotonic() > deadline:
            raise RehearsalFailed(f"{path} is {work['status']} after {_WAIT_SECONDS:.0f} s.")
        time.sleep(_POLL_SECONDS)
    if work["status"] != "succeeded":
        raise RehearsalFailed(f"{path} has not succeeded: {json.dumps(work)[:2000]}")
    return work


def upload(rehearsal: Rehearsal, name: str, text: str) -> str:
    """Send a file to the bucket with a presigned form, and return the path of its upload."""
    form = rehearsal.call("POST", f"{_INDEX}/uploads", {"filename": name, "content_type": "text/markdown", "size": len(text)})
    sent = httpx.post(
        form["url"], data=form["fields"], files={"file": (name, text, "text/markdown")}, timeout=60, trust_env=False
    )
    if not sent.is_success:
        raise RehearsalFailed(f"The bucket answered {sent.status_code} to a file: {sent.text[:500]}")
    return f"{_INDEX}/uploads/{form['upload_id']}"


def large_text() -> str:
    """Return a text whose embedding takes longer than a deployment's last minute."""
    return "\n\n".join(
        f"## Part {part}\n\n{f'Part {part} is about the number {part}. ' * 40}" for part in range(_LARGE_PARAGRAPHS)
    )


@dataclass(slots=True)
class OpenStream:
    """A streamed turn that a thread reads. ``events`` are those that have come, with their times."""

    thread: threading.Thread
    events: list[tuple[datetime, Json]]

    @classmethod
    def start(cls, rehearsal: Rehearsal) -> "OpenStream":
        """Begin a turn whose answer takes half a minute, and return when its first event is there."""
        session = rehearsal.call("POST", _SESSIONS, {"title": "stream"}, status=201)["id"]
        question = {"role": "user", "content": f"Count slowly to {_COUNT}."}
        body = {"message_id": f"stream-{uuid4().hex}", "session_id": session, "messages": [question]}
        events: list[tuple[datetime, Json]] = []

        def read() -> None:
            with rehearsal.gateway() as gateway, gateway.stream("POST", _TURN, json=body) as answer:
                lines = (line for line in answer.iter_lines() if line.startswith("data: "))
                events.extend((datetime.now(UTC), json.loads(line.removeprefix("data: "))) for line in lines)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        deadline = time.monotonic() + _WAIT_SECONDS
        while not events and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return cls(thread, events)

    def finish(self) -> tuple[datetime, datetime]:
        """Wait for the end, and return the times of the first and the last event.

        Raises:
            RehearsalFailed: the stream broke off.
        """
        self.thread.join(_WAIT_SECONDS)
        last = self.events[-1][1] if self.events else {}
        if last.get("type") != "done":
            raise RehearsalFailed(f"The stream broke off after {len(self.events)} events: {json.dumps(last)[:500]}")
        return self.events[0][0], self.events[-1][0]


def count_through(streams: Sequence[tuple[datetime, datetime]], change: datetime) -> int:
    """Return how many streams began before a change of their function and ended after it, of which there must be one.

    Raises:
        RehearsalFailed: there is none.
    """
    if not (count := sum(first < change < last for first, last in streams)):
        raise RehearsalFailed(
            f"None of {len(streams)} streams began before the change of {change:%H:%M:%S} UTC and ended after it."
        )
    return count


def last_change(rehearsal: Rehearsal, function: str) -> datetime:
    """Return when the code or the settings of a function were last changed. ``function`` is its name in the table of routes."""
    name = _deployed_name(rehearsal, function)
    return datetime.fromisoformat(rehearsal.client("lambda").get_function_configuration(FunctionName=name)["LastModified"])


def _deployed_name(rehearsal: Rehearsal, function: str) -> str:
    """Return the name that a function of the table of routes or workers has in the account."""
    lambdas = rehearsal.client("lambda")
    names = [one["FunctionName"] for page in lambdas.get_paginator("list_functions").paginate() for one in page["Functions"]]
    (name,) = [one for one in names if lambdas.get_function(FunctionName=one)["Tags"].get("spass:function") == function]
    return str(name)


def schedule(rehearsal: Rehearsal) -> str:
    """Make a managed agent that runs every minute, and return its path."""
    timing = {"expression": "rate(1 minute)", "input": "What is 2+2?"}
    body = {"name": "rehearsal", "agent": AGENT, "schedule": timing}
    return f"{_AGENTS}/{rehearsal.call('POST', _AGENTS, body, status=201)['id']}"


def scheduled_run(rehearsal: Rehearsal, agent: str) -> str:
    """Wait for a run that the schedule has started."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not (runs := rehearsal.call("GET", f"{agent}/runs")["runs"]):
        if time.monotonic() > deadline:
            raise RehearsalFailed(f"The schedule of {agent} has started no run.")
        time.sleep(_POLL_SECONDS)
    run = wait_for(rehearsal, f"{agent}/runs/{runs[-1]['id']}")
    if run["trigger"] != "schedule":
        raise RehearsalFailed(f"A {run['trigger']} and not the schedule has started the run.")
    rehearsal.call("DELETE", agent)
    return f"due at {run['scheduled_for']}, succeeded"


def sweep(rehearsal: Rehearsal) -> str:
    """Invoke the hourly sweep as its schedule does."""
    answer = rehearsal.client("lambda").invoke(FunctionName=_deployed_name(rehearsal, "worker-sweep"), Payload=b"{}")
    line = json.loads(answer["Payload"].read())
    if "FunctionError" in answer or line.get("failed"):
        raise RehearsalFailed(f"The sweep failed: {line}")
    return f"of {line['tenants']} tenant"


def routes(rehearsal: Rehearsal) -> str:
    """Send a request to every method of every row, which its function must answer, and one of another method to every path."""
    requests = [(route, method) for route in ROUTES for method in route.methods if method != "HEAD"]
    with rehearsal.gateway() as gateway, ThreadPoolExecutor(_AT_ONCE) as pool:
        problems = [*pool.map(lambda one: _problem(gateway, *one), requests)]
        refused = _refused(ROUTES)
        problems += pool.map(lambda one: _refusal_problem(gateway, *one), refused)
    if found := [problem for problem in problems if problem]:
        raise RehearsalFailed("\n".join([f"{len(found)} requests:", *found[:20]]))
    return f"{len(requests)} requests to their functions, {len(refused)} refused by API Gateway"


def _problem(gateway: httpx.Client, route: Route, method: str) -> str | None:
    """Return what is wrong with the answer to a request that names nothing that exists."""
    path = re.sub(r"\{\w+\}", "rehearsal-nothing", route.path)
    with gateway.stream(method, path, json=None if method in ("GET", "DELETE") else {}) as answer:
        if answer.is_server_error or not is_of_a_function(answer):
            answer.read()
            return f"{method} {path} answered {answer.status_code}: {answer.text[:300]}"
    return None


def is_of_a_function(answer: httpx.Response) -> bool:
    """Return whether a function and not API Gateway itself has answered."""
    request_id: str = answer.headers.get("SPASS-Request-Id", "")
    return request_id.startswith("req_")


def _refused(rows: Sequence[Route]) -> list[tuple[str, str, str]]:
    """Return a method that each path does not answer to, and the methods that it does."""
    paths: dict[str, set[str]] = {}
    for route in rows:
        paths.setdefault(route.path, set()).update(route.methods)
    return [(path, _wrong(known), ", ".join(sorted(known))) for path, known in paths.items() if "{" not in path]


def _wrong(known: Collection[str]) -> str:
    return next(method for method in ("PUT", "PATCH", "DELETE", "POST") if method not in known)


def _refusal_problem(gateway: httpx.Client, path: str, method: str, allow: str) -> str | None:
    answer = gateway.request(method, path)
    code = answer.json()["error"]["code"] if answer.content else ""
    if (answer.status_code, code, answer.headers.get("Allow")) != (405, "method_not_allowed", allow):
        return f"{method} {path} answered {answer.status_code} {code}, which allows {answer.headers.get('Allow')}, not {allow}"
    return None
