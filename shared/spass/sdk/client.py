"""The client of a gateway. It is synchronous and does not repeat requests, except to continue the stream of a managed run."""

import os
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from spass.agents.parameters import Kind, KindList
from spass.agents.responses import AgentPage, AgentSummary, AskAnswer
from spass.sdk.endpoint import Endpoint
from spass.sdk.errors import invalid_answer
from spass.sdk.event_reader import Event
from spass.sdk.managed import ManagedAgents
from spass.sdk.transport import JsonObject, Transport, check_answer
from spass.tools.responses import FunctionTool, ToolList

_ASK: Final = "/v1/ask"
_MAX_SUCCESSORS: Final = 1000


class Spass:
    """Call a gateway.

    ``SPASS_URL``, ``SPASS_TOKEN`` and ``SPASS_USER`` are the defaults of the arguments. A gateway on this machine needs none.

    Every method raises SpassApiError if the gateway answers with an error, SpassUnreachable if it does not answer, and
    RuntimeError after ``close``.
    """

    def __init__(self, url: str | None = None, token: str | None = None, user: str | None = None) -> None:
        self._transport = Transport(Endpoint.resolve(url, token, user, os.environ))

    @property
    def url(self) -> str:
        """Return the address of the gateway, without a final slash."""
        return self._transport.endpoint.url

    @property
    def managed(self) -> ManagedAgents:
        """Return the managed agents of the user."""
        return ManagedAgents(self._transport)

    def __repr__(self) -> str:
        return f"Spass({self.url!r})"

    def __enter__(self) -> Self:
        self._transport.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, also those of streams that are being read."""
        self._transport.close()

    def ask(
        self,
        text: str,
        *,
        agent: str = "orchestrator",
        model: str | None = None,
        tools: Sequence[str] | None = None,
        system_prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        context: str | Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of the answer of ``agent``: a kind, or the name of an agent's file."""
        body = _ask_body(text, agent, model, tools, system_prompt, params, context)
        return str(self._ask(body)["content"])

    def ask_full(
        self,
        text: str,
        *,
        agent: str = "orchestrator",
        model: str | None = None,
        tools: Sequence[str] | None = None,
        system_prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        context: str | Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Return the whole answer of ``POST /v1/ask``: ``content``, ``tool_results``, ``turns``, ``usage`` and others."""
        return self._ask(_ask_body(text, agent, model, tools, system_prompt, params, context))

    def stream(
        self,
        text: str,
        *,
        agent: str = "orchestrator",
        model: str | None = None,
        tools: Sequence[str] | None = None,
        system_prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        context: str | Mapping[str, Any] | None = None,
    ) -> Generator[Event, None, None]:
        """Return the events of an answer as they happen. The last one is ``done``.

        The request is sent when the first event is read. An ``error`` event is raised as SpassApiError with the status 200. Close
        the generator to stop reading early.
        """
        self._transport.check_open()
        body = _ask_body(text, agent, model, tools, system_prompt, params, context)
        return self._events(_ASK, {**body, "stream": True})

    def kinds(self) -> list[Kind]:
        """Return the kinds of agents, which need no file."""
        return self._transport.get("/v1/kinds", KindList).kinds

    def agents(self) -> list[AgentSummary]:
        """Return the agents that have a file."""
        return [agent for page in self._transport.pages("/a1/agents") for agent in check_answer(page, AgentPage).agents]

    def tools(self) -> list[FunctionTool]:
        """Return the tools of the gateway."""
        return self._transport.get("/v1/tools", ToolList).tools

    def create_session(self, agent: str, *, title: str | None = None) -> JsonObject:
        """Create a session of the user with ``agent``, which has a file, and return it."""
        session = self._transport.send("POST", _sessions_path(agent), {} if title is None else {"title": title})
        if not isinstance(session.get("id"), str):
            raise invalid_answer(201)
        return session

    def send(self, agent: str, session_id: str, message: str) -> Generator[Event, None, None]:
        """Send a message to a session and return the events of the turn, as ``stream`` does.

        A compacted session passes the message on to its successor. Send the next message to the ``session_id`` of ``done``.
        """
        self._transport.check_open()
        return self._turn(agent, session_id, message)

    def job_card(
        self,
        agent: str,
        title: str,
        task: str,
        *,
        files: Sequence[str] = (),
        acceptance: Sequence[str] = (),
        model: str | None = None,
        workspace: str | None = None,
    ) -> Generator[Event, None, None]:
        """Give ``agent`` a task in the form of a job card and return the events of the turn, as ``stream`` does.

        ``files`` are paths in the workspace, and ``acceptance`` are lines that must hold when the task is done. The turn
        goes on if the generator is closed early.
        """
        self._transport.check_open()
        optional = {"files": [*files], "acceptance": [*acceptance], "model": model, "workspace": workspace}
        body = {"title": title, "task": task, **{name: value for name, value in optional.items() if value}}
        return self._events(f"/c1/agents/{_quoted(agent)}/job_card", body)

    def _ask(self, body: JsonObject) -> JsonObject:
        answer = self._transport.send("POST", _ASK, body)
        check_answer(answer, AskAnswer)
        return answer

    def _events(self, path: str, body: JsonObject) -> Generator[Event, None, None]:
        if (yield from self._transport.events(path, body)) is not None:
            raise invalid_answer(308)

    def _turn(self, agent: str, session_id: str, message: str) -> Generator[Event, None, None]:
        visited = {session_id}
        while True:
            path = f"{_sessions_path(agent)}/{_quoted(session_id)}/messages"
            redirect = yield from self._transport.events(path, {"message": message, "stream": True})
            if redirect is None:
                return
            # Do not use Location: the token must not be sent to another host.
            successor = redirect.get("successor_session_id")
            if not isinstance(successor, str) or successor in visited or len(visited) > _MAX_SUCCESSORS:
                break
            visited.add(session_id := successor)
        raise invalid_answer(308)


def _ask_body(
    text: str,
    agent: str,
    model: str | None,
    tools: Sequence[str] | None,
    system_prompt: str | None,
    params: Mapping[str, Any] | None,
    context: str | Mapping[str, Any] | None,
) -> JsonObject:
    """Return the body of ``POST /v1/ask``. Missing values are left to the gateway."""
    if isinstance(tools, str):
        raise TypeError(f"tools is a list of names. Write tools=[{tools!r}].")
    optional = {"model": model, "tools": tools, "system_prompt": system_prompt, "params": params, "context": context}
    return {"input": text, "agent": agent, **{name: value for name, value in optional.items() if value is not None}}


def _sessions_path(agent: str) -> str:
    return f"/a1/agents/{_quoted(agent)}/sessions"


def _quoted(text: str) -> str:
    """Return ``text`` as a part of a path. Bytes that are not UTF-8, as a shell may pass them, become question marks."""
    return quote(text, safe="", errors="replace")
