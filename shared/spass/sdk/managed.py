"""The managed agents of the user: they keep a mailbox, run when told to or by a schedule, and remember."""

import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from spass.sdk.errors import SpassApiError, SpassUnreachable, invalid_answer
from spass.sdk.event_reader import Event, is_after, read_run_events
from spass.sdk.transport import JsonObject, Transport

_AGENTS: Final = "/v1/managed-agents"
RECONNECTIONS: Final = 5
"""Times in a row that a stream connects again without having read a new event."""
RECONNECT_SECONDS: Final = 1.0
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500


class ManagedAgents:
    """Call the routes of managed agents. Get this object from ``Spass.managed``.

    Agents, messages and runs are dicts with the fields of the routes' answers. Lists are read page by page while they are
    iterated. The errors are those of ``Spass``.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        name: str,
        agent: str,
        *,
        model: str | None = None,
        tools: Sequence[str] | None = None,
        system_prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        schedule: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Create a managed agent of ``agent``, a kind or the name of an agent's file, and return it.

        ``schedule`` has an ``expression`` such as ``rate(1 hour)``, and optionally ``timezone``, ``input`` and ``enabled``.
        """
        if isinstance(tools, str):
            raise TypeError(f"tools is a list of names. Write tools=[{tools!r}].")
        optional = {"model": model, "tools": tools, "system_prompt": system_prompt, "params": params, "schedule": schedule}
        body = {"name": name, "agent": agent, **{field: value for field, value in optional.items() if value is not None}}
        return self._created(self._transport.send("POST", _AGENTS, body))

    def list(self) -> Iterator[JsonObject]:
        """Return the managed agents, newest first."""
        return self._pages(_AGENTS, "agents")

    def get(self, agent_id: str) -> JsonObject:
        """Return one managed agent."""
        return self._transport.send("GET", _path(agent_id))

    def update(self, agent_id: str, changes: Mapping[str, Any]) -> JsonObject:
        """Change fields of an agent and return it. None removes a value, and ``paused`` pauses the agent or continues it."""
        return self._transport.send("PATCH", _path(agent_id), changes)

    def delete(self, agent_id: str) -> bool:
        """Delete an agent with everything that belongs to it."""
        return self._transport.send("DELETE", _path(agent_id)).get("deleted") is True

    def send(self, agent_id: str, content: str) -> JsonObject:
        """Put a message into the agent's mailbox, where it waits for the next run, and return it."""
        return self._created(self._transport.send("POST", _path(agent_id, "messages"), {"content": content}))

    def stream(self, agent_id: str, content: str) -> Generator[Event, None, None]:
        """Send a message, run the agent at once, and return the events of the run as they happen.

        Each event has the fields of its data line, a ``type`` (``chunk``, ``tool_calls``, ``tool_result``) and its ``event_id``.
        A connection that breaks is replaced, and no event is lost or repeated. A run that fails is raised as SpassApiError with
        the status 200. Close the generator to stop reading; the run goes on.
        """
        self._transport.check_open()
        return _RunStream(self._transport, agent_id).send(content)

    def messages(self, agent_id: str) -> Iterator[JsonObject]:
        """Return the messages of an agent in both directions, oldest first."""
        return self._pages(_path(agent_id, "messages"), "messages")

    def run(self, agent_id: str, input: str | None = None) -> JsonObject:  # noqa: A002 (the field's name on the wire)
        """Start a run, which takes the pending messages and then ``input``, and return it. It is executed in the background."""
        return self._created(self._transport.send("POST", _path(agent_id, "run"), {} if input is None else {"input": input}))

    def runs(self, agent_id: str) -> Iterator[JsonObject]:
        """Return the runs of an agent, newest first."""
        return self._pages(_path(agent_id, "runs"), "runs")

    def get_run(self, agent_id: str, run_id: str) -> JsonObject:
        """Return one run."""
        return self._transport.send("GET", _path(agent_id, "runs", run_id))

    def follow(self, agent_id: str, run_id: str, *, after: str | None = None) -> Generator[Event, None, None]:
        """Return the events of a run, as ``stream`` does: from its start, or after the event whose ``event_id`` is ``after``."""
        self._transport.check_open()
        return _RunStream(self._transport, agent_id).follow(run_id, after)

    def stop(self, agent_id: str, run_id: str) -> JsonObject:
        """Stop a run, and return its ``status``: ``cancelling``, or how it has ended before."""
        return self._transport.send("DELETE", _path(agent_id, "runs", run_id))

    def _created(self, answer: JsonObject) -> JsonObject:
        if not isinstance(answer.get("id"), str):
            raise invalid_answer(200)
        return answer

    def _pages(self, path: str, field: str) -> Iterator[JsonObject]:
        self._transport.check_open()
        return self._read_pages(path, field)

    def _read_pages(self, path: str, field: str) -> Iterator[JsonObject]:
        for page in self._transport.pages(path):
            entries = page.get(field)
            if not isinstance(entries, list):
                raise invalid_answer(200)
            yield from entries


class _RunStream:
    """The stream of one run. It reads on in a new connection when one breaks.

    The stream of a new message is opened again with its Idempotency-Key until an event has named the run.
    """

    def __init__(self, transport: Transport, agent_id: str) -> None:
        self._transport = transport
        self._agent_id = agent_id
        self._run_id: str | None = None
        self._last: str | None = None

    def send(self, content: str) -> Generator[Event, None, None]:
        body, key = {"content": content, "stream": True}, {"Idempotency-Key": uuid.uuid4().hex}
        yield from self._read("POST", _path(self._agent_id, "messages"), body, key)

    def follow(self, run_id: str, after: str | None) -> Generator[Event, None, None]:
        self._run_id, self._last = run_id, after
        yield from self._read("GET", _path(self._agent_id, "runs", run_id, "stream"), None, {})

    def _read(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> Generator[Event, None, None]:
        has_begun, failures = False, 0
        while True:
            try:
                with self._transport.stream(method, path, body, {**headers, **self._position()}) as chunks:
                    has_begun = True
                    for event in read_run_events(chunks) if chunks is not None else ():
                        if self._is_new(event):
                            failures = 0
                            yield event
                return
            except SpassUnreachable:
                if not has_begun or failures == RECONNECTIONS:
                    raise
            except SpassApiError as error:
                is_temporary = error.status == _TOO_MANY_REQUESTS or error.status >= _SERVER_ERROR
                if not has_begun or not is_temporary or failures == RECONNECTIONS:
                    raise
            failures += 1
            time.sleep(RECONNECT_SECONDS)
            if self._run_id is not None:
                method, path, body, headers = "GET", _path(self._agent_id, "runs", self._run_id, "stream"), None, {}

    def _position(self) -> Mapping[str, str]:
        return {} if self._run_id is None or self._last is None else {"Last-Event-ID": self._last}

    def _is_new(self, event: Event) -> bool:
        """Remember the position of ``event`` and return True, or return False for an event that was read before."""
        event_id = event["event_id"]
        if event_id is not None and self._last is not None and not is_after(event_id, self._last):
            return False
        self._last = event_id or self._last
        if event["type"] == "chunk" and isinstance(event.get("id"), str):
            self._run_id = event["id"]
        return True


def _path(agent_id: str, *parts: str) -> str:
    # A part of the path cannot be empty: it would name another route.
    return "/".join([_AGENTS, *(quote(part, safe="", errors="replace") or "-" for part in (agent_id, *parts))])
